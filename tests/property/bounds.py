"""Bounds of a queue that are so large that no walk would ever come to them: each walk draws some of them small.

Those of `STEPS` say how much is done in one step of something that takes several.  What is given out between two steps
may come in another order than if all were done at once, which the definition does: so the walks let nobody have
anything before the last step (`QueueMachine.in_steps`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any, TypeAlias
from unittest.mock import patch

from penstock.core.queue import contents, delays, expiry, held, owning, shares, staging, trimming, yielding
from penstock.core.queue.dispatching import dispatch, recalled, roster, takers
from penstock.core.queue.order import run_heap
from penstock.core.queue.settling import leases

Bound: TypeAlias = tuple[tuple[Any, ...], str, tuple[int, ...]]
"""Modules that know it, its name, and values to draw."""

BOUNDS: tuple[Bound, ...] = (
    ((expiry,), "SPAN_MOST", (1, 3, 10)),
    ((expiry,), "BLOCKS_MOST", (1, 2)),
    ((delays,), "MANY", (1, 2)),
    ((delays,), "SIFT", (1, 2, 6)),
    ((shares,), "WINDOW", (1, 2, 5)),
    ((staging,), "STEP", (1, 2, 5)),
    ((yielding,), "PORTION", (1, 2)),
    ((yielding,), "PART", (1, 2, 16)),
    ((held,), "RELEASE_MOST", (1, 2)),
    ((trimming,), "LOOK", (1, 2)),
    ((takers,), "STRETCH", (1, 2)),
    ((recalled,), "GONE_MOST", (1, 2)),
    ((dispatch,), "TENANTS_MOST", (1, 2)),
    ((dispatch,), "HALF_FROM", (2, 3)),
    ((dispatch,), "LOOK_LEAST", (1, 2)),
    ((dispatch, roster), "SPARE_MOST", (0, 1, 2)),
    ((run_heap,), "LOOSE_MOST", (0, 2)),
)
STEPS: tuple[Bound, ...] = (
    ((leases, contents, delays), "STEP_MOST", (1, 2, 5)),
    ((contents,), "OF_KEYS", (1, 4)),
    ((leases, delays), "STEP_RUNS", (1, 2)),
    ((delays,), "STEP_TIMES", (1, 2, 5)),
)
OF_SITES: tuple[Bound, ...] = (
    ((owning,), "PAIRS_MOST", (1, 2)),
    ((owning,), "SORTED_AT_ONCE", (1, 2)),
    ((owning,), "FEW_SPANS", (0, 1)),
)
"""Where messages belong to other sites."""

Change: TypeAlias = tuple[Any, str, int]


def small(bounds: Sequence[Bound]) -> list[Change]:
    """Every value of every bound."""
    return [(module, name, value) for modules, name, values in bounds for module in modules for value in values]


def drawn(dice: Random, bounds: Sequence[Bound], share: float = 0.3) -> list[Change]:
    """About this share of the bounds, each with one of its values."""
    out = list[Change]()
    for modules, name, values in bounds:
        if dice.random() < share:
            value = dice.choice(values)
            out += [(module, name, value) for module in modules]
    return out


@contextmanager
def bounded(changes: Sequence[Change]) -> Iterator[None]:
    """With these values."""
    with ExitStack() as stack:
        for change in changes:
            stack.enter_context(patch.object(*change))
        yield
