"""The section "Begin" of docs/spark.md: its program runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import penstock.spark
from live_server import LiveServer

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "spark.md").read_text()
SECTION = re.split(r"^## ", PAGE[PAGE.index("## Begin") + 3 :], flags=re.MULTILINE)[0]


def test_the_first_program_runs(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [settings] = re.findall(r"```toml\n(.*?)```", SECTION, re.DOTALL)
    [program] = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    (tmp_path / "penstock.toml").write_text(settings)
    monkeypatch.setattr(penstock.spark, "session", lambda: spark)
    with LiveServer(tmp_path, [str(tmp_path / "penstock.toml")], flight=True) as server:
        exec(compile(program, "docs/spark.md", "exec"), {"url": f"penstock://guest:guest@{server.ready['flight']}"})
    assert capsys.readouterr().out == "0 99\n"


def test_every_section_is_named_at_the_top() -> None:
    sections = set(re.findall(r"^## (.*)$", PAGE, re.MULTILINE)) - {"Streams and what they hold"}
    named = set(re.findall(r"\[([^]]*)\]\(#", PAGE[: PAGE.index("## Begin")]))
    assert sections == named
