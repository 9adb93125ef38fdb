"""`penstock expr` says the same on all three backends, for each row of the language's tables.

On Spark, where each command line is a job of its own, every fortieth row is asked so, and all of them in one job.
"""

from __future__ import annotations

from typing import Any

import pytest

from expr_page import MESSAGE, SECTION_3, examples
from penstock.cli.main import main
from penstock.cli.tools import as_text
from penstock.records.entries import Topic
from penstock.testing.expressions import together


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(("expr", *arguments))
    assert not caught.value.code
    return capsys.readouterr().out


def test_the_tables_on_every_backend(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rows = examples(*SECTION_3)
    assert len(rows) > 150
    by_spark = together([expression for expression, _ in rows], [MESSAGE], topics=Topic("/", "", "orders"))  # one job
    for place, ((expression, wanted), [value]) in enumerate(zip(rows, by_spark, strict=True)):
        assert as_text(value) == wanted, expression
        for backend in ("python", "arrow", "spark") if place % 40 == 0 else ("python", "arrow"):
            told = ("--message", MESSAGE.decode(), "--topic", "orders", "--backend", backend)
            found = printed(capsys, expression, *told)
            assert found == f"{wanted}\n", (expression, backend)


def test_the_topic_is_told_beside_the_message(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for backend in ("python", "arrow", "spark"):
        assert printed(capsys, "TOPIC_NAME()", "--backend", backend) == "NULL\n"  # a body alone was published nowhere
        for topic in ("orders", "shop/orders", "/orders"):
            assert printed(capsys, "TOPIC_NAME()", "--topic", topic, "--backend", backend) == f"{topic}\n"


def test_a_line_for_each_message(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    bodies = ['{"a": 1.5}', '{"a": "x"}', "{}", '{"a": [2, 3]}']
    given = [part for body in bodies for part in ("--message", body)]
    for backend in ("python", "arrow", "spark"):
        assert printed(capsys, "/a * 2", *given, "--backend", backend) == "3.0\nNAN\nNULL\n4\n"
