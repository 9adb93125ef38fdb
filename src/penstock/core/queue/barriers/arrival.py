"""Messages on their way into a queue in which a barrier waits, or with barriers among them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.core.queue.arrival import append_around, append_rest
from penstock.core.queue.barriers.barriers import Barrier
from penstock.core.queue.order.runs import sift, sorted_chunk
from penstock.records.chunks import Chunk
from penstock.records.entries import Publishes

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue


def arrive_behind(
    queue: Queue,
    chunk: Chunk,
    batch: Publishes | None,
    rows: Sequence[int] | None,
    marked: Sequence[int],
    elsewhere: Chunk | None,
    dead: Chunk | None,
) -> None:
    """Append a chunk, its barriers (`marked`, ascending) each behind what came before it.

    elsewhere, dead    messages of the chunk that are delayed, counted already, and that do not go in at all
    """
    barriers = queue.fenced()
    gone = sorted_chunk([part for part in (elsewhere, dead) if part is not None])
    delayed = queue.delayed - (0 if elsewhere is None else len(elsewhere))
    if rows is None and batch is not None:
        rows = range(len(batch))
    start = 0
    for lsn in marked:
        if _among(gone, lsn):
            continue
        at = bisect_left(chunk, lsn, start)
        _append(queue, chunk[start:at], batch, rows and rows[start:at], gone)
        barriers.add(lsn, lsn, delayed)
        start = at + 1
    _append(queue, chunk[start:], batch, rows and rows[start:], gone)
    if elsewhere is not None:
        barriers.dormant.update(lsn for lsn in marked if _among(elsewhere, lsn))
        barriers.delay(elsewhere, 1)


def _append(queue: Queue, chunk: Chunk, batch: Publishes | None, rows: Sequence[int] | None, gone: Chunk) -> None:
    """Add what did not go elsewhere to the last part of the queue."""
    if not len(chunk):
        return
    out = sift(gone, chunk)[0] if len(gone) else None
    last = queue.barriers.last
    if last is not None:
        _hold(queue, last, chunk, out)
    elif out is not None:
        append_rest(queue, chunk, batch, rows, [out])
    else:
        if queue.targets.lists:
            queue.targets.arrive(chunk, batch, rows, queue.main)
        queue.filled().append(chunk)


def _hold(queue: Queue, last: Barrier, chunk: Chunk, out: Chunk | None) -> None:
    main = last.order()
    before = main.count
    if out is None:
        main.append(chunk)
    else:
        append_around(main, sorted_chunk(sift(chunk, out)[1]), out)
    queue.barriers.held += main.count - before


def _among(chunk: Chunk, lsn: int) -> bool:
    at = bisect_left(chunk, lsn)
    return at < len(chunk) and chunk[at] == lsn
