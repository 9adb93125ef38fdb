"""Bytes of what a queue holds, by state: counted when somebody asks, from what is there at that moment.

Body bytes alone count: no header, no key.  A range of messages costs two searches, scattered ones a look at each.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents
    from penstock.core.queue.parts import Parts
    from penstock.records.chunks import Chunk


class Weight(NamedTuple):
    """Bytes of a queue's messages."""

    ready: int
    leased: int
    held: int
    total: int  # in whatever state: also delayed, beyond the target depth, and dying


def ready_bytes(queue: Parts) -> int:
    """Of the messages that may be delivered now: those that `ready` counts."""
    if not queue.ready:
        return 0
    size = _sum(queue, queue.main.chunks()) if queue.main.count else 0
    if queue.returned.count:
        size += _sum(queue, (run.chunk for run in queue.returned.runs()))
    if (shares := queue.shares) is not None:
        size += _sum(queue, shares.chunks()) + _sum(queue, (run.chunk for run in shares.runs()))
    return size


def leased_bytes(queue: Contents) -> int:
    """Of those that are delivered and not settled."""
    if not queue.leased:
        return 0
    return _sum(queue, (run.chunk for run in queue.leased_runs()))


def delayed_bytes(queue: Contents) -> int:
    """Of those that wait for a time."""
    if not queue.delayed:
        return 0
    return _sum(queue, (run.chunk for run in queue.delays.retries.runs())) + _sum(
        queue, (lsns for lsns, _ in queue.delays.scheduled.items())
    )


def held_bytes(queue: Contents) -> int:
    """Of those that nobody may be given yet: see `Contents.held`."""
    if not queue.held:
        return 0
    found = queue.older.chunks if queue.older is not None else []
    return (
        _sum(queue, queue.barriers.chunks())
        + _sum(queue, (run.chunk for run in queue.barriers.runs()))
        + _sum(queue, found)
    )


def weighed(queue: Contents) -> Weight:
    """Of all of it."""
    ready, leased, held = ready_bytes(queue), leased_bytes(queue), held_bytes(queue)
    total = ready + leased + held
    if queue.delayed:
        total += delayed_bytes(queue)
    if queue.tail.count:
        total += _sum(queue, queue.tail.chunks())
    if queue.dying:
        total += _sum(queue, (run.chunk for run in queue.letters.runs()))
    return Weight(ready, leased, held, total)


def _sum(queue: Parts, chunks: Iterable[Chunk]) -> int:
    return sum(map(queue.sizes.total, chunks))
