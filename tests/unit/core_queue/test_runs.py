"""Chunks parted: what remains of a range without some of its messages."""

from __future__ import annotations

import random
from array import array
from itertools import pairwise

import pytest

from choices import spread
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
