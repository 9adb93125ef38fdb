"""What a purge takes, said in few words: everything ready between the messages that stay.

A pair of LSNs names all messages of the queue between its ends that still live.  So one pair is enough for all that is
ready between two messages which are leased, delayed or dying, however many holes and strangers lie there.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.queue.order.runs import view
from penstock.core.state.durable import Ints, flat

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents


def ready_pairs(queue: Contents) -> list[int]:
    """Flat pairs, ascending, that hold what is ready or held back, and nothing else that lives."""
    ready = list(queue.chunks("ready", "held", "inactive"))
    if not ready:
        return []
    low, high = min(chunk[0] for chunk in ready), max(chunk[-1] for chunk in ready)
    stay = _staying(queue, low, high)
    if not len(stay):
        return [low, high + 1]
    spans: dict[int, tuple[int, int]] = {}  # by how many of those that stay come before
    for chunk in ready:
        first, last = np.searchsorted(stay, (chunk[0], chunk[-1])).tolist()
        if first == last:
            _widen(spans, first, chunk[0], chunk[-1])
            continue
        lsns = view(chunk)
        before = np.searchsorted(stay, lsns)
        ends = np.append(np.flatnonzero(np.diff(before)), len(lsns) - 1)
        starts = np.concatenate(([0], ends[:-1] + 1))
        for group, a, b in zip(before[starts].tolist(), lsns[starts].tolist(), lsns[ends].tolist(), strict=True):
            _widen(spans, group, a, b)
    return [end for _, (a, b) in sorted(spans.items()) for end in (a, b + 1)]


def _widen(spans: dict[int, tuple[int, int]], group: int, low: int, high: int) -> None:
    here = spans.get(group)
    spans[group] = (low, high) if here is None else (min(here[0], low), max(here[1], high))


def _staying(queue: Contents, low: int, high: int) -> Ints:
    """LSNs that live and are not ready, between the two; ascending."""
    staying = queue.chunks("leased", "delayed", "dying")
    overlapping = [chunk for chunk in staying if len(chunk) and chunk[0] <= high and low <= chunk[-1]]
    return flat([chunk[bisect_left(chunk, low) : bisect_left(chunk, high + 1)] for chunk in overlapping])
