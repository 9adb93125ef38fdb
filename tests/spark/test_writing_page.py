"""The section "Writing" of docs/spark.md: its examples run in order against a server with its settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import penstock.spark
from live_server import LiveServer
from penstock.spark.writing.options import WRITE
from penstock.spark.writing.outgoing import BESIDE

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "spark.md").read_text()
SECTION = re.split(r"^## ", PAGE[PAGE.index("## Writing") + 3 :], flags=re.MULTILINE)[0]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", SECTION, re.DOTALL)


def test_the_examples_run(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "penstock.toml").write_text("\n".join(blocks("toml")))
    monkeypatch.setattr(penstock.spark, "session", lambda: spark)
    with LiveServer(tmp_path, [str(tmp_path / "penstock.toml")], flight=True) as server:
        names: dict[str, Any] = {"url": f"penstock://guest:guest@{server.ready['flight']}"}
        for block in blocks("python"):
            exec(compile(block, "docs/spark.md", "exec"), names)
    assert capsys.readouterr().out == "['EU', 'US']\n11 9 20\nTrue\n"


def test_every_option_and_column_of_a_write_is_named() -> None:
    other = {"url", "user", "password", "vhost", "path"}
    assert {name for name in WRITE if f"`{name}`" not in SECTION} == other
    assert [name for name in BESIDE if f"`{name}`" not in SECTION] == []
