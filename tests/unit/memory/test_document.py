"""`docs/proofs/massive-queues.md` names a test for each sentence, and each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_every_row_names_tests_that_exist() -> None:
    text = (ROOT / "docs/proofs/massive-queues.md").read_text()
    rows = [line for line in text[text.index("## The proposal") :].splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not row.startswith(("| ---", "| the proposal", "| question"))]
    assert len(rows) > 25
    defined = {
        name
        for file in (ROOT / "tests/unit/memory").glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    for row in rows:
        proof = row.rstrip("| ").rpartition("|")[2]
        tests = re.findall(r"`(test_\w+)`", proof)
        files = re.findall(r"`(tests/[\w/]+\.py)`", proof)
        assert tests or files, row
        assert set(tests) <= defined, row
        assert all((ROOT / file).exists() for file in files), row
