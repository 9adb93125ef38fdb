"""The page for those who come from AMPS: every element has its row, every test in it is there."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.config.ampsconfig.elements import QUEUE

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "amps.md").read_text()


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    there = {
        name for file in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text())
    }
    assert sorted(named - there) == []


def test_every_element_of_a_queue_has_a_row() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert sorted(set(QUEUE) - {"Topic"} - rows) == []


def test_every_example_has_a_row() -> None:
    examples = (ROOT / "tests" / "scenarios" / "amps").glob("*.xml")
    assert sorted(path.name for path in examples if f"`tests/scenarios/amps/{path.name}`" not in PAGE) == []
