"""Messages on their way into a queue in which a barrier waits, or with barriers among them."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from penstock.core.effects import Sink
from penstock.core.queue.arrival import append_around, append_rest
from penstock.core.queue.barriers.barriers import Barrier, hold_back
from penstock.core.queue.barriers.release import release
from penstock.core.queue.order.runs import Run, sift, sorted_chunk
from penstock.core.queue.parts import NO_BARRIERS
from penstock.core.queue.stages import Newcomers, Stage
from penstock.records.chunks import Chunk, Now

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents
    from penstock.core.queue.view import Queue


class _BehindBarriers(Stage):
    """Newcomers stand behind the last barrier, and each barrier among them behind what came before it."""

    def present(self, queue: Queue) -> bool:
        return queue.barriers is not NO_BARRIERS

    def wanted(self, new: Newcomers) -> bool:
        return new.barriers is not None

    def admit(self, queue: Queue, now: Now, new: Newcomers, sink: Sink) -> None:
        if new.barriers is None and not queue.barriers.held:
            return
        barriers, chunk, marked = queue.fenced(), new.chunk, new.barriers or ()
        gone = sorted_chunk(new.gone)
        delayed = queue.delayed - (0 if new.delayed is None else len(new.delayed))
        start = 0
        for lsn in marked:
            if _among(gone, lsn):
                continue
            at = bisect_left(chunk, lsn, start)
            _append(queue, new, start, at, gone)
            barriers.add(lsn, lsn, delayed)
            start = at + 1
        _append(queue, new, start, len(chunk), gone)
        if new.delayed is not None:
            barriers.dormant.update(lsn for lsn in marked if _among(new.delayed, lsn))
            barriers.delay(new.delayed, 1)
        new.placed = True

    def readmit(self, queue: Contents, run: Run) -> list[Run]:
        return list(hold_back(queue, run))

    def delayed(self, queue: Contents, run: Run) -> None:
        queue.barriers.delay(run.chunk, 1)

    def release(self, queue: Queue, now: Now, sink: Sink) -> None:
        if queue.barriers.held:
            release(queue, now, sink)


BEHIND_BARRIERS = _BehindBarriers()


def _append(queue: Queue, new: Newcomers, start: int, stop: int, gone: Chunk) -> None:
    """Add those of a stretch that did not go elsewhere to the last part of the queue."""
    if start == stop:
        return
    part = new.part(start, stop)
    out = sift(gone, part.chunk)[0] if len(gone) else None
    last = queue.barriers.last
    if last is not None:
        _hold(queue, last, part.chunk, out)
    else:
        part.taken = out
        append_rest(queue, part)


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
