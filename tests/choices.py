"""How much random tests do, where their chance begins, and which of many cases a usual run asks.

A usual run chooses what every usual run chooses: what fails in it fails because of what has changed since.  A hunt,
which is a run with more effort (`make soak*`), chooses anew each time, and asks every case of every test.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

import pytest

EFFORT = int(os.environ.get("PENSTOCK_EFFORT", "1"))
"""By how much random and crash tests multiply their work: 1, or what `PENSTOCK_EFFORT` says."""

USUAL = 1
SEED = int(os.environ.get("PENSTOCK_SEED", "0")) or (USUAL if EFFORT == 1 else random.randrange(1, 1 << 30))
"""What `PENSTOCK_SEED` says; a failure names it."""


def seeds(count: int, part: int = 0, parts: int = 1) -> range:
    """Of so many schedules or walks, numbered from 0 in a usual run; `part`: one of so many parts of them."""
    return range(SEED - USUAL + part, SEED - USUAL + count, parts)


def examples(many: int, part: int = 3) -> int:
    """Of so many examples or walks of a thorough run: a third, or another part, in a usual run, more in a hunt."""
    return many * EFFORT if EFFORT > 1 else -(-many // part)


def stride(usual: int) -> int:
    """Of so many calls a usual run plants a fault in one; a hunt in three times as many for each part of its effort."""
    return usual if EFFORT == 1 else max(usual // (3 * EFFORT), 1)


Case = TypeVar("Case")


def spread(cases: Iterable[Case], usual: int) -> list[Case]:
    """Of cases that ask the same of many things a hunt has all, a usual run so many, evenly from first to last."""
    every = list(cases)
    if EFFORT > 1 or usual >= len(every):
        return every
    assert usual > 1, "the first and the last at least"
    return [every[round(place * (len(every) - 1) / (usual - 1))] for place in range(usual)]


def for_conformance(why: str) -> pytest.MarkDecorator:
    """What `make conformance` alone asks."""
    return pytest.mark.skipif("PENSTOCK_CONFORMANCE" not in os.environ, reason=f"{why}: make conformance")


WITH_PACKAGES = for_conformance("has packages of its own")


def is_left_out(bulk: bool, chosen: Iterable[str]) -> bool:
    """Whether a usual run leaves a test to a hunt: one marked as bulk that nobody has chosen by its name."""
    return bulk and EFFORT == 1 and not any("::" in one for one in chosen)


PATIENCE = 1_000
"""Schedules of a hunt that are tried besides, until all has happened that must: what comes in one of 33 is missing in
so many by chance once in 10^13."""


def tried(run: Callable[[int], Counter[str]], count: int, needed: Collection[str]) -> Counter[str]:
    """What happened in so many schedules, each of a seed; AssertionError: something of what is needed did not.

    With the usual seed it has to be among these, for it has been: else they no longer try what they are for.  With
    another one as many more are tried as it takes.
    """
    counts = Counter[str]()
    for n in range(count if SEED == USUAL else count + PATIENCE):
        if n >= count and all(counts[what] for what in needed):
            break
        counts += run(SEED + n)
    assert all(counts[what] for what in needed), counts
    return counts
