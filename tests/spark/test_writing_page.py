"""The section "Writing" of docs/spark.md: its examples run in order against a server with its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from page_lab import blocks, run, sections, served
from penstock.spark.options import WRITE
from penstock.spark.sink_rows import BESIDE

SECTION = sections("spark.md")["Writing"]


def test_the_examples_run(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(SECTION, spark, tmp_path, monkeypatch) as names:
        run(blocks(SECTION, "python"), names)
    assert capsys.readouterr().out == "['EU', 'US']\n11 9 20\nTrue\n"


def test_every_option_and_column_of_a_write_is_named() -> None:
    other = {"url", "user", "password", "token", "vhost", "path", "ca", "cert", "key", "verify"}  # of all
    assert {name for name in WRITE if f"`{name}`" not in SECTION} == other
    assert [name for name in BESIDE if f"`{name}`" not in SECTION] == []
