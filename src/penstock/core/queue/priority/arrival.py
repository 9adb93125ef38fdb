"""Messages on their way into a queue with priorities.

Message by message is the definition: whoever has room when a message arrives is given it, whatever its priority, and
only what nobody takes finds its place among the others.  So a batch is cut where somebody has room.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.core.effects import Sink
from penstock.core.queue.dispatching.dispatch import dispatch
from penstock.core.queue.order.main_order import Main
from penstock.core.queue.order.runs import sift, sorted_chunk
from penstock.core.queue.priority.ranks import DEAD_MOST, LOWEST
from penstock.records.chunks import Chunk, Now, as_chunk
from penstock.records.entries import Publishes

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue


def note_ranks(queue: Queue, chunk: Chunk, ranks: Sequence[int] | None) -> None:
    """Remember the ranks of new messages; without any they have the lowest.

    With too many of messages that are gone they begin to be forgotten: `tick` does that in steps.
    """
    known = queue.ranks
    assert known is not None
    living = queue.ready + queue.leased + queue.delayed + queue.dying
    if known.count > 2 * living + DEAD_MOST and queue.older is None and not known.forgetting:
        known.begin_to_forget(queue.living_pieces())
    known.add(chunk, [LOWEST] * len(chunk) if ranks is None else ranks)


def arrive_by_priority(
    queue: Queue,
    now: Now,
    chunk: Chunk,
    batch: Publishes | None,
    rows: Sequence[int] | None,
    without: list[Chunk],
    sink: Sink,
) -> None:
    """Put new messages into the queue, but for those that went elsewhere."""
    if without:
        gone = sorted_chunk(without)
        left = sorted_chunk(sift(chunk, gone)[1])
        if batch is not None:
            every = rows if rows is not None else range(len(batch))
            out = set(gone)
            rows = [row for lsn, row in zip(chunk, every, strict=True) if lsn not in out]
        chunk = left
    start = 0
    while start < len(chunk):
        end = _ahead(queue, chunk, batch, rows, start)
        if end > start:
            _put(queue, chunk[start:end], batch, _some(batch, rows, start, end))
            start = end
            continue
        if queue.targets.lists:
            end = start + 1
            _put(queue, chunk[start:end], batch, _some(batch, rows, start, end))
            dispatch(queue, now, sink)
        else:
            end = min(len(chunk), start + _room(queue))
            _through(queue, now, chunk[start:end], sink)
        start = end


def _some(batch: Publishes | None, rows: Sequence[int] | None, start: int, end: int) -> Sequence[int] | None:
    return None if batch is None else (rows if rows is not None else range(len(batch)))[start:end]


def _ahead(queue: Queue, chunk: Chunk, batch: Publishes | None, rows: Sequence[int] | None, start: int) -> int:
    """Up to where nobody takes any of them at once."""
    if not _room(queue):
        return len(chunk)
    lists = queue.targets.lists
    if not lists or any(not c.paused and c.room > 0 for c in queue.roster.plain):
        return start
    if batch is None:
        return len(chunk)
    part = chunk[start:]
    found = queue.targets.matches(part, batch, _some(batch, rows, start, len(chunk)) or ())
    if found is None:
        return len(chunk)
    first = len(part)
    for targets, places in found:
        if places and any(not (c.paused or c.passive) and c.room > 0 for c in targets.consumers):
            first = min(first, places[0])
    return start + first


def _room(queue: Queue) -> int:
    """How many messages those with room would take."""
    if queue.hungry or queue.ranking is not None or queue.older is not None:
        return 0
    if queue.shares is not None and queue.shares.unordered:
        return 0
    if queue.expiry.busy or queue.overfull or not queue.roster.all or queue.paused_until:
        return 0
    return max(0, min(queue.room, sum(max(c.room, 0) for c in queue.roster.all if not c.paused)))


def _put(queue: Queue, chunk: Chunk, batch: Publishes | None, rows: Sequence[int] | None) -> None:
    if queue.targets.lists:
        queue.targets.arrive(chunk, batch, rows, queue.main)
    queue.filled().append(chunk)
    if queue.weight >= 0:
        queue.weight += queue.sizes.total(chunk)


def _through(queue: Queue, now: Now, chunk: Chunk, sink: Sink) -> None:
    """Hand messages to those who wait for any, in the order of arrival; nothing else is ready."""
    order, queue.main = queue.main, Main()
    queue.main.append(as_chunk(chunk), solid=False)
    if queue.weight >= 0:
        queue.weight += queue.sizes.total(chunk)
    dispatch(queue, now, sink)
    while queue.hungry and queue.main.count:
        dispatch(queue, now, sink)
    rest, queue.main = queue.main, order
    for part in rest.chunks():
        order.append(part)


__all__ = ["arrive_by_priority", "note_ranks"]
