"""Messages on their way into a queue: what is not due goes to the delays, what is overdue does not go in at all.

The rest is appended to the main order.  A message that went elsewhere lies between others: no chunk may span it and
still be called solid.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.queue.order.runs import packed, sift, sorted_chunk, view
from penstock.core.queue.timed.expiry import deadlines, queue_deadline
from penstock.records.chunks import Chunk, Now, as_chunk
from penstock.records.entries import Publishes

if TYPE_CHECKING:
    from penstock.core.queue.order.main_order import Main
    from penstock.core.queue.view import Queue


def divert(queue: Queue, now: Now, chunk: Chunk, not_before: Sequence[int]) -> Chunk | None:
    """Send what is not due yet to the delays; returns it."""
    later = [(lsn, when) for lsn, when in zip(chunk, not_before, strict=True) if when > now.wall]
    if not later:
        return None
    queue.late().schedule([lsn for lsn, _ in later], [when for _, when in later])
    return as_chunk([lsn for lsn, _ in later])


def set_deadlines(
    queue: Queue, now: Now, chunk: Chunk, expires_at: Sequence[int] | None, elsewhere: Chunk | None
) -> Chunk | None:
    """Work out when the messages expire; returns those that already have, and are not delayed."""
    common = queue_deadline(queue.settings, now.wall)
    if expires_at is None or not any(expires_at):
        own = None
    else:
        own = np.array(expires_at, dtype=np.int64)
    if own is None:
        if not common:
            if not queue.expiry.empty:
                queue.expiry.part()
            return None
        queue.timed().add(chunk, common)
        return None
    times = deadlines(queue.settings, now.wall, own)
    lsns = view(chunk)
    past = (times > 0) & (times < now.wall)
    if elsewhere is not None:
        past &= ~np.isin(lsns, view(elsewhere), assume_unique=True)
    queue.timed().add_each(lsns[~past], times[~past], common)
    return packed(lsns[past]) if past.any() else None


def append_rest(
    queue: Queue, chunk: Chunk, batch: Publishes | None, rows: Sequence[int] | None, without: list[Chunk]
) -> None:
    """Append a chunk some of whose messages went elsewhere: no array may span those and be solid."""
    gone = sorted_chunk(without)
    left = sorted_chunk(sift(chunk, gone)[1])
    if len(left):
        if queue.targets.lists:
            if batch is not None:
                every = rows if rows is not None else range(len(batch))
                out = set(gone)
                rows = [row for lsn, row in zip(chunk, every, strict=True) if lsn not in out]
            queue.targets.arrive(left, batch, rows, queue.main)
        if queue.weight >= 0:
            queue.weight += queue.sizes.total(left)
    append_around(queue.filled(), left, gone)


def append_around(main: Main, left: Chunk, gone: Chunk) -> None:
    """Append what is left of a chunk without those that are gone, ascending and at least one."""
    if len(left):
        before = bisect_left(gone, left[0])
        if before:
            main.seal(gone[before - 1])
        main.append(left, solid=isinstance(left, range) or gone[-1] < left[0] or gone[0] > left[-1])
    main.seal(gone[-1])
