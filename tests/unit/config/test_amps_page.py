"""The page for those who come from AMPS: every element and every example has its row."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.config.foreign.amps_elements import QUEUE

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "proofs" / "amps.md").read_text()


def test_every_element_of_a_queue_has_a_row() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert sorted(set(QUEUE) - {"Topic"} - rows) == []


def test_every_example_has_a_row() -> None:
    examples = (ROOT / "tests" / "scenarios" / "amps").glob("*.xml")
    assert sorted(path.name for path in examples if f"`tests/scenarios/amps/{path.name}`" not in PAGE) == []
