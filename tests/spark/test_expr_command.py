"""`penstock expr` says the same on all three backends, one command line for each row of the language's tables."""

from __future__ import annotations

from typing import Any

import pytest

from expr_page import MESSAGE, SECTION_3, examples
from penstock.cli.main import main


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(("expr", *arguments))
    assert not caught.value.code
    return capsys.readouterr().out


def test_the_tables_on_every_backend(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rows = examples(*SECTION_3)
    assert len(rows) > 150
    rows.remove(("TOPIC_NAME()", "orders"))
    rows.append(("TOPIC_NAME()", "NULL"))  # a body alone was published nowhere
    for expression, wanted in rows:
        for backend in ("python", "arrow", "spark"):
            found = printed(capsys, expression, "--message", MESSAGE.decode(), "--backend", backend)
            assert found == f"{wanted}\n", (expression, backend)


def test_a_line_for_each_message(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    bodies = ['{"a": 1.5}', '{"a": "x"}', "{}", '{"a": [2, 3]}']
    given = [part for body in bodies for part in ("--message", body)]
    for backend in ("python", "arrow", "spark"):
        assert printed(capsys, "/a * 2", *given, "--backend", backend) == "3.0\nNAN\nNULL\n4\n"
