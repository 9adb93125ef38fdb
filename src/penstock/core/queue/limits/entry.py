"""Where the commands of a queue with limits meet these: as messages arrive, and as time makes some ready."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.core.effects import Sink
from penstock.core.queue.dispatching.dispatch import dispatch
from penstock.core.queue.limits.ring import enter_scheduled, replace
from penstock.core.queue.limits.trimming import trim
from penstock.core.queue.order.runs import NEVER
from penstock.core.queue.shares.staging import Told
from penstock.core.queue.timed.due import end_retries, end_scheduled, expire_due
from penstock.records.causes import MAXLEN
from penstock.records.chunks import Chunk, Now
from penstock.records.entries import Publishes

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue


def together(queue: Queue, chunk: Chunk) -> int:
    """How many of these newcomers, from the first on, may be decided as a whole.

    Not where it shows who came between whom: priorities with dead letters or with sizes; keys, where who gives way lets
    another come; and a ring with a limit beside it, where each arrival asks both.
    """
    limits = queue.limits
    assert limits is not None
    n = len(chunk)
    if not limits.drops and (queue.shares is None or limits.ring == NEVER):
        return n
    if (
        queue.shares is None
        and limits.ring == NEVER
        and (queue.ranks is None or (limits.size == NEVER and not queue.wants_letter(MAXLEN)))
    ):
        return n
    fits = min(limits.length, limits.ring) - queue.ready
    if limits.size < NEVER and queue.weight + queue.sizes.total(chunk) > limits.size:
        fits = 1
    return min(n, max(fits, 1))


def arrive_in_parts(
    queue: Queue,
    now: Now,
    chunk: Chunk,
    sink: Sink,
    batch: Publishes | None,
    rows: Sequence[int] | None,
    expires_at: Sequence[int] | None,
    not_before: Sequence[int] | None,
    priority: Sequence[int] | None,
    ranks: Sequence[int] | None,
    keys: Sequence[Told] | None,
) -> None:
    """Let newcomers arrive in parts that may be decided as a whole."""
    if batch is not None and rows is None:
        rows = range(len(batch))
    columns = (rows, expires_at, not_before, priority, ranks)
    start = 0
    while start < len(chunk):
        stop = start + together(queue, chunk[start:])
        mine, dead, late, urgent, placed = [None if column is None else column[start:stop] for column in columns]
        queue.arrive(
            now, chunk[start:stop], sink, batch=batch, rows=mine, expires_at=dead, not_before=late, priority=urgent,
            ranks=placed, keys=None if keys is None else keys[start:stop],
        )  # fmt: skip
        start = stop


def begin(queue: Queue, now: Now, sink: Sink, count: int) -> int:
    """Before so many messages arrive: finish what has begun, as far as it matters; how many are ready then.

    An older trim takes none of the newcomers, and a dispatch that stopped at its bound comes before theirs.
    """
    limits = queue.limits
    assert limits is not None
    while queue.overfull and queue.roster.all and not queue.expiry.busy and queue.ranking is None:
        trim(queue, sink)
    while queue.hungry and queue.ready + count > limits.ring:
        queue.serve(now, sink)
    return queue.ready


def end(queue: Queue, now: Now, sink: Sink, before: int) -> None:
    """They have arrived, and who has room was given some: go on with that while too much is ready, then let it go."""
    limits = queue.limits
    assert limits is not None
    while queue.hungry and (queue.ready > limits.ring or limits.exceeded(queue)):
        dispatch(queue, now, sink)
    if queue.ready > limits.ring and queue.ranking is None:
        replace(queue, min(queue.ready - before, queue.ready - limits.ring), sink)
    trim(queue, sink, NEVER)


def keep_time(queue: Queue, now: Now, sink: Sink) -> None:
    """Delays end and messages expire.

    What failed returns to its place, and the oldest give way to it as to any return.  A scheduled message enters like a
    newcomer: it is offered first.  Into a ring it enters at the head, and a full one refuses it.
    """
    limits = queue.limits
    assert limits is not None
    if queue.delays.due <= now.wall:
        end_retries(queue, now, sink)
    if queue.expiry.due <= now.wall:
        expire_due(queue, now, sink)
    trim(queue, sink)
    if queue.delays.due <= now.wall:
        before = queue.ready
        if limits.ring < NEVER:
            enter_scheduled(queue, now, sink)
        else:
            end_scheduled(queue, now, sink)
        if queue.ready > before and limits.drops:
            offer_first(queue, now, sink)
            trim(queue, sink, NEVER)


def offer_first(queue: Queue, now: Now, sink: Sink) -> None:
    """Something entered like a newcomer: whoever has room is given some before anything gives way to it."""
    limits = queue.limits
    assert limits is not None
    dispatch(queue, now, sink)
    while queue.hungry and limits.exceeded(queue):
        dispatch(queue, now, sink)
