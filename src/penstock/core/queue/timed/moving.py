"""What somebody decides about messages that wait: withdrawn, moved to another time, the whole queue halted.

Only what waits can be moved: what is leased is its holder's, what is dying is on its way out.  The caller dispatches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.effects import Sink
from penstock.core.queue.agenda import PAUSE
from penstock.core.queue.figures import Figures
from penstock.core.queue.order.runs import NEVER, Run, packed, pairs_body, sift, sorted_chunk, view
from penstock.core.queue.settling.attempts import FRESH
from penstock.core.queue.settling.leases import SLOT
from penstock.records.causes import CANCELLED, LEFT_BEHIND
from penstock.records.chunks import Chunk, pack_pairs
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue

DRAINING = NEVER + 1
"""When a queue is paused until that nobody paused, while the server drains."""


def paused_until(queue: Queue) -> int:
    """What somebody said of this queue, whatever the server does: wall, `NEVER` for good, 0 for not paused."""
    return 0 if queue.paused_until == DRAINING else queue.paused_until


def stay_paused(queue: Queue, until: int) -> None:
    """It is paused until then, as a record says that is written already."""
    queue.paused_until = until
    queue.agenda |= PAUSE


def drain(queue: Queue, draining: bool) -> None:
    """Nothing is delivered while the server drains.  There is no record: it ends with the process."""
    queue.draining = draining
    if draining:
        queue.paused_until = queue.paused_until or DRAINING
    elif queue.paused_until == DRAINING:
        queue.paused_until = 0


def pause(queue: Queue, until: int, sink: Sink, by: str = "") -> None:
    """Nothing is delivered before `until` (wall); 0: it goes on once the server does not drain.  The record lasts."""
    if until == paused_until(queue):
        return
    stay_paused(queue, until or (DRAINING if queue.draining else 0))
    header: dict[str, object] = {"until": until}
    if by:
        header["by"] = by
    sink.record(Kind.PAUSE, queue.name, header, pack_pairs(queue.id, ()))


def withdraw(queue: Queue, wanted: Chunk, sink: Sink, by: str) -> int:
    """Remove those that wait, in any state.  No dead letter comes of them; how many there were."""
    runs = queue.extract(wanted)
    header: dict[str, object] = {"reason": CANCELLED}
    if by:
        header["by"] = by
    return _dropped(queue, runs, header, sink)


def leave_behind(queue: Queue, start: int, sink: Sink) -> int:
    """Remove what is older than `start`, whether it waits or is leased; no dead letter comes of it; how many.

    What a stream has planned stays with its batch, which must be the same whenever it is asked for; what is dying is
    gone already.  What a queue keeps for everybody it hands out without leasing it.
    """
    old, runs = range(start), list[Run]()
    if not old:
        return 0
    for holder in () if queue.settings.non_destructive else tuple(queue.holders()):
        if not holder.fenced:
            held = [inside for run in holder.leases.held() if run.place != SLOT if (inside := sift(run.chunk, old)[0])]
            taken = holder.leases.take(sorted_chunk(held))[0] if held else []
            queue.freed(holder, taken)
            runs += taken
    runs += queue.extract(old)
    return _dropped(queue, runs, {"reason": LEFT_BEHIND}, sink)


def _dropped(queue: Queue, runs: Sequence[Run], header: dict[str, object], sink: Sink) -> int:
    """Say that these, which are in no place any more, have left the queue; how many."""
    if not runs:
        return 0
    queue.left(runs)
    sink.record(Kind.DROP, queue.name, header, pairs_body(queue.id, runs))
    count = sum(len(run.chunk) for run in runs)
    if queue.figures is None:
        queue.figures = Figures()
    queue.figures.expired(str(header["reason"]), count)
    return count


def reschedule(queue: Queue, wanted: Chunk, when: int, sink: Sink, by: str) -> int:
    """Delay those that wait until `when`; how many.

    What was never delivered takes the place of its next DUE record, what was returns to its own place then.
    """
    moved = queue.delays.move(wanted, when) if queue.delayed else None
    moving: list[Run] = []
    if moved is not None and len(moved):
        moving.append(Run(packed(np.sort(moved)), False))
        wanted = _without(wanted, moving[0].chunk)
    fences = _fences(queue, wanted)
    runs = queue.extract(wanted) if len(wanted) else []
    if not moving and not runs:
        return 0
    header: dict[str, object] = {"not_before": when}
    if by:
        header["by"] = by
    sink.record(Kind.RESCHEDULE, queue.name, header, pairs_body(queue.id, moving + runs))
    if queue.shares is not None:
        queue.shares.moved(queue, runs)
    late = queue.late()
    if queue.last_values is not None:
        queue.last_values.moved(runs)
    for run in runs:
        run.deadline, run.place, run.granted = when, 0, 0
        if run.tally == FRESH:
            lsns = view(run.chunk)
            late.schedule_older(lsns, np.full(len(lsns), when, dtype=np.int64))
        else:
            late.retry(run)
        if fences:
            queue.fenced().dormant.update(lsn for lsn in run.chunk if lsn in fences)
        queue.barriers.delay(run.chunk, 1)
    if fences:  # what stood before and behind one was joined, and it lives on between them
        for main in (queue.filled(), *(barrier.order() for barrier in queue.barriers.waiting())):
            main.loosen()
            main.seal(max(fences))
    return sum(len(run.chunk) for run in moving + runs)


def _without(wanted: Chunk, moved: Chunk) -> Chunk:
    return sorted_chunk(sift(wanted, moved)[1])


def _fences(queue: Queue, wanted: Chunk) -> set[int]:
    """Those of the wanted that are barriers."""
    barriers = queue.barriers
    out: set[int] = set()
    if len(wanted) and (len(barriers) or barriers.dormant):
        marked = barriers.marked()
        inside = sift(marked, wanted)[0] if len(marked) else None
        out.update(() if inside is None else inside)
    if queue.older is not None and queue.older.barriers:
        out.update(queue.older.barriers.intersection(wanted))
    return out
