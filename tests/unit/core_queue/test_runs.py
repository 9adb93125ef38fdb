"""Chunks parted: what remains of a range without some of its messages."""

from __future__ import annotations

import random
from array import array
from itertools import pairwise

import pytest

from choices import spread
from penstock.core.queue.order import runs
from penstock.core.queue.order.runs import SMALL, gaps, sift


@pytest.mark.parametrize("seed", spread(range(20), 8))
def test_what_remains_without_few_or_many(seed: int) -> None:
    chance = random.Random(seed)
    chunk = range(1000, 1000 + chance.randrange(300, 3000))
    low = chance.choice([0, 0, 70])
    stretch = chunk[low : chance.choice([len(chunk), len(chunk) - 1, low + 200])]
    holes = array("q", sorted(chance.sample(stretch, min(len(stretch), chance.choice([3, SMALL, 80, 150])))))
    found = list(gaps(chunk, holes))
    assert [lsn for piece in found for lsn in piece] == sorted(set(chunk) - set(holes))
    edges = [chunk.start - 1, *holes, chunk.stop]
    long = [range(a + 1, b) for a, b in pairwise(edges) if b - a > SMALL]
    assert [piece for piece in found if isinstance(piece, range)] == long


def test_the_ends_may_be_holes() -> None:
    chunk = range(300)
    holes = array("q", [0, *range(100, 100 + SMALL), 299])
    assert list(gaps(chunk, holes)) == [range(1, 100), range(100 + SMALL, 299)]
    inside, outside, slices = sift(chunk, holes)
    assert inside == holes
    assert not slices
    assert [lsn for piece in outside for lsn in piece] == [*range(1, 100), *range(100 + SMALL, 299)]


def test_what_stands_one_by_one_is_put_together_without_a_table_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 300,000 messages that were due one by one a look at the queue took a fifth of a second."""
    monkeypatch.setattr(runs, "view", None)
    monkeypatch.setattr(runs, "TOGETHER", 1000)
    single = [array("q", [lsn]) for lsn in range(6000, 0, -2)]
    paged = memoryview(array("q", [7001, 7003])).toreadonly()
    found = list(runs.in_fewer([range(8000, 8500), *single, range(7005, 7006), paged, array("q", range(9000))]))
    assert [len(chunk) for chunk in found] == [500, 1000, 1000, 1000, 9000, 3]
    assert [list(chunk) for chunk in found[1:4]] == [list(range(low, low + 2000, 2)) for low in (4002, 2002, 2)]
    assert list(found[-1]) == [7001, 7003, 7005]
