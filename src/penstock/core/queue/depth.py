"""The target depth of a queue: how many of its messages are active; what arrives beyond them is inactive.

Inactive messages are a main order of their own behind the active one.  Nobody is given any, no filter and no query
looks at them; they expire, may be acknowledged and are purged as others.  As active ones leave, the oldest move up.

Active are those that are ready, leased, or in back-off after a failure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.effects import Sink
from penstock.core.queue.dispatching.dispatch import dispatch
from penstock.core.queue.order.runs import sift, sorted_chunk
from penstock.records.chunks import Chunk, Now
from penstock.records.entries import Publishes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.queue.contents import Contents
    from penstock.core.queue.view import Queue


def free(queue: Contents) -> int:
    """How many more may be active."""
    active = queue.ready + queue.leased + queue.delays.retries.count
    depth = queue.settings.target_queue_depth
    return max(depth - active, 0) if depth else queue.tail.count


def arrive_behind_depth(
    queue: Queue, chunk: Chunk, batch: Publishes | None, rows: Sequence[int] | None, without: list[Chunk]
) -> None:
    """Put new messages into the queue, as many as the depth allows as active ones."""
    if without:
        gone = sorted_chunk(without)
        if batch is not None:
            lost = set(gone)
            every = range(len(batch)) if rows is None else rows
            rows = [row for lsn, row in zip(chunk, every, strict=True) if lsn not in lost]
        chunk = sorted_chunk(sift(chunk, gone)[1])
        queue.filled().seal(gone[-1])
    room = 0 if queue.tail.count else min(free(queue), len(chunk))
    if room:
        first = chunk[:room]
        if queue.targets.lists:
            some = None if batch is None else (range(len(batch)) if rows is None else rows)[:room]
            queue.targets.arrive(first, batch, some, queue.main)
        queue.filled().append(first, solid=False)
    if room < len(chunk):
        queue.inactive_order().append(chunk[room:], solid=False)


def activate(queue: Queue, now: Now, sink: Sink) -> None:
    """Let inactive messages move up, and be dispatched, until the depth is reached; of very many the first.

    A dispatch that stopped at its bound comes first: what moves up may stand before what it had still to give.
    """
    most = queue.dispatch_most
    while queue.tail.count and not queue.hungry and (moved := move_up(queue)):
        if queue.roster.all:
            dispatch(queue, now, sink)
        most -= moved
        if most <= 0 and queue.tail.count:
            queue.hungry = True
            return


def move_up(queue: Contents) -> int:
    """Make the oldest inactive messages active; how many there were."""
    runs = queue.tail.take(free(queue))
    for run in runs:
        if queue.targets.lists:
            queue.targets.arrive(run.chunk, None, None, queue.main)
        queue.filled().append(run.chunk, solid=False)
    return sum(len(run.chunk) for run in runs)


def draw_bound(queue: Contents) -> None:
    """After a start or a pass all that was never delivered stands in the main order: what is too much is inactive."""
    depth = queue.settings.target_queue_depth
    others = queue.ready - queue.main.count + queue.leased + queue.delays.retries.count
    keep = max(depth - others, 0)
    if queue.main.count <= keep:
        return
    tail = queue.main
    queue.main = tail.emptied()
    for run in tail.take(keep):
        queue.main.append(run.chunk, solid=False)
    for chunk in tail.chunks():
        queue.inactive_order().append(chunk, solid=False)


__all__ = ["activate", "arrive_behind_depth", "draw_bound", "free", "move_up"]
