"""docs/amps.md names a test for every sentence of the documents: each of them exists, and no row is without one."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PAGE = (TESTS.parent / "docs" / "amps.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`(test_[a-z0-9_]+)`")


def existing() -> set[str]:
    """The names of all test functions."""
    found: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        found.update(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    return found


def rows() -> list[list[str]]:
    """The rows of the tables whose last column is called `test`."""
    found: list[list[str]] = []
    inside = False
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells:
            inside = False
        elif inside and not set("".join(cells)) <= set("-"):
            found.append(cells)
        elif cells[-1] == "test":
            inside = True
    return found


def test_every_test_that_the_page_names_exists() -> None:
    assert sorted(set(NAMED.findall(PAGE)) - existing()) == []


def test_no_sentence_is_without_a_test() -> None:
    assert len(rows()) > 190
    assert [cells for cells in rows() if not NAMED.search(cells[-1])] == []
