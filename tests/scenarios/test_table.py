"""Pages that name a test for every sentence of a document: each of them exists, and no row is without one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PAGES = {"amps.md": 190, "limits-and-rings.md": 50}
"""Each page, and how many rows it has at least."""
NAMED = re.compile(r"`(test_[a-z0-9_]+)`")


def existing() -> set[str]:
    """The names of all test functions."""
    found: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        found.update(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    return found


def text_of(page: str) -> str:
    """What a page says."""
    return (TESTS.parent / "docs" / "proofs" / page).read_text(encoding="utf-8")


def rows(page: str) -> list[list[str]]:
    """The rows of the tables whose last column is called `test`."""
    found: list[list[str]] = []
    inside = False
    for line in text_of(page).splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells:
            inside = False
        elif inside and not set("".join(cells)) <= set("-"):
            found.append(cells)
        elif cells[-1] == "test":
            inside = True
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_the_page_names_exists(page: str) -> None:
    assert sorted(set(NAMED.findall(text_of(page))) - existing()) == []


@pytest.mark.parametrize("page", PAGES)
def test_no_sentence_is_without_a_test(page: str) -> None:
    assert len(rows(page)) > PAGES[page]
    assert [cells for cells in rows(page) if not NAMED.search(cells[-1])] == []
