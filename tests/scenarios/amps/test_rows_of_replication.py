"""Every sentence of the documents on replication has its row, and each row a test: docs/proofs/amps.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from claims.rows import NAMED, TESTS

PAGE = Path(__file__).resolve().parents[3] / "docs/proofs/amps.md"
ROWS = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
SENTENCES = (
    "messages are replicated between instances with the guarantees kept",
    "`Queue` is distributed, `LocalQueue` stays here, `GroupLocalQueue` is on some",
    "distributed by default; guarantees as if it were one queue",
    "a local queue's topic may not be replicated",
    "a group names the first owner of its messages",
    "its identity is its name with its domain or its group",
    "only instances that define a group's queue take part in it",
    "each instance for its own subscribers",
    "a transfer request beyond the limit reads on up to that message",
    "every instance that takes publishes for a distributed queue hosts it",
    "`QueueDefinition` is another word for `Queue`",
    "the elements are the same whatever the tag",
    "of each instance its own, not replicated",
    "the count is lost at a restart, and not replicated",
    "a transfer request beyond it reads on up to that message",
    "required for `GroupLocalQueue`, not for the others",
    "owns the messages first; the same in all instances; not checked for being there",
    "`MessageSource`",
    "`do-enable-proxied-transfer`",
)
"""What the user guide and the reference of queues say that needs more than one instance, in the page's words."""

WANTING = re.compile(r"\brefused\b|\bmissing\b|not done here|not in this version|is not shared")


@pytest.fixture(scope="module")
def written() -> str:
    """All test files."""
    return "\n".join(file.read_text() for file in TESTS.rglob("test_*.py"))


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_sentence_on_replication_has_its_row_and_tests_that_are_there(sentence: str, written: str) -> None:
    rows = [row for row in ROWS if sentence in row]
    assert rows, "no row says so"
    for row in rows:
        named = NAMED.findall(row)
        assert named, row
        assert [name for name in named if f"def {name}(" not in written] == []
        what = row.split("|")[-3]
        assert not WANTING.search(what) or "by choice" in what or "of a link" in what, row
