"""The section "Begin" of docs/spark.md: its program runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from page_lab import blocks, page, run, sections, served

SECTIONS = sections("spark.md")
SECTION = SECTIONS["Begin"]


def test_the_first_program_runs(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [_settings], [program] = blocks(SECTION, "toml"), blocks(SECTION, "python")
    with served(SECTION, spark, tmp_path, monkeypatch) as names:
        assert program.count('url = "penstock://localhost"\n') == 1, "it runs as it stands"
        run([program.replace('"penstock://localhost"', repr(names["url"]))], {})
    assert capsys.readouterr().out == "0 99\n"


def test_every_section_is_named_at_the_top() -> None:
    text = page("spark.md")
    named = set(re.findall(r"\[([^]]*)\]\(#", text[: text.index("## Begin")]))
    assert set(SECTIONS) - {"Streams and what they hold"} == named
