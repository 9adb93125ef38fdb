"""Bytes of what a queue holds, by state: counted when somebody asks, from what is there at that moment.

Body bytes alone count: no header, no key.  A range of messages costs two searches, scattered ones a look at each.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents
    from penstock.records.chunks import Chunk


def ready_bytes(queue: Contents) -> int:
    """Of the messages that may be delivered now: those that `ready` counts."""
    size = _sum(queue, queue.main.chunks()) + _sum(queue, (run.chunk for run in queue.returned.runs()))
    if (shares := queue.shares) is not None:
        size += _sum(queue, shares.chunks()) + _sum(queue, (run.chunk for run in shares.runs()))
    return size


def leased_bytes(queue: Contents) -> int:
    """Of those that are delivered and not settled."""
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


def total_bytes(queue: Contents) -> int:
    """Of all of them, in whatever state: also those beyond the target depth, and those that die."""
    return (
        ready_bytes(queue)
        + leased_bytes(queue)
        + delayed_bytes(queue)
        + held_bytes(queue)
        + _sum(queue, queue.tail.chunks())
        + _sum(queue, (run.chunk for run in queue.letters.runs()))
    )


def _sum(queue: Contents, chunks: Iterable[Chunk]) -> int:
    return sum(map(queue.sizes.total, chunks))
