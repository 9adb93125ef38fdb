"""What lasts of a queue: its waiting messages and what is remembered of each, out and in; and a recount of it all."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.queue.attempts import FRESH, Tally
from penstock.core.queue.leases import SLOT
from penstock.core.queue.runs import Run, tidy
from penstock.core.state.capture import Contained
from penstock.core.state.durable import flat, spread
from penstock.records.chunks import Chunk

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents


def capture(queue: Contents) -> Contained:
    """What waits, in any state, and what is remembered of it.  Costs a reference a chunk; nothing of it will change."""
    out = Contained(list(queue.main.chunks()))
    out.retries = [_copy(run) for run in queue.delays.retries.runs()]
    out.runs = [_copy(run) for run in queue.runs_held() if len(run.chunk)] + out.retries
    out.scheduled = list(queue.delays.scheduled.items())
    if not queue.expiry.empty:
        out.expiry = queue.expiry.copy()
    return out


def _copy(run: Run) -> Run:
    return Run(run.chunk, run.solid, run.tally, run.place, run.deadline)


def load(queue: Contents, waiting: Sequence[Chunk], columns: Mapping[str, array[int]]) -> None:
    """Take up what a snapshot or the fold says; the queue is new and empty.  `tick` does what fell due meanwhile."""
    if not columns and all(a[-1] < b[0] for a, b in pairwise(waiting)):
        for chunk in waiting:
            queue.main.append(chunk)
        queue.ready = queue.main.count
        return
    lsns = flat(waiting)
    if not len(lsns):
        return
    queue.ready = len(lsns)
    if "expires_at" in columns:
        queue.timed().load(lsns, spread(lsns, columns["expires_at"]))
    told = [
        spread(lsns, columns.get(name, array("q")))
        for name in ("deliveries", "failures", "cancels", "place", "not_before")
    ]
    aside = np.logical_or.reduce([column > 0 for column in told])
    apart = lsns[aside]
    for chunk, _ in tidy(lsns[~aside]):
        before, within = np.searchsorted(apart, (queue.main.last(), chunk[0]))
        if before != within:
            queue.main.seal(int(apart[within - 1]))
        queue.main.append(chunk, solid=bool(np.searchsorted(apart, chunk[-1]) == within))
    if not len(apart):
        return
    queue.main.seal(int(apart[-1]))
    queue.overspent = True
    table = np.stack([column[aside] for column in told], axis=1)
    kinds, which = np.unique(table, axis=0, return_inverse=True)
    which = which.reshape(-1)
    order = np.argsort(which, kind="stable")
    ends = np.cumsum(np.bincount(which, minlength=len(kinds)))
    fresh: list[tuple[int, int]] = []
    for i, (deliveries, failures, cancels, place, due) in enumerate(kinds.tolist()):
        mine = apart[order[ends[i - 1] if i else 0 : ends[i]]]
        tally = Tally(deliveries, failures, cancels)
        if due:
            queue.ready -= len(mine)
            queue.delayed += len(mine)
        if due and tally == FRESH and not place:
            fresh += ((lsn, due) for lsn in mine.tolist())
            continue
        for chunk, _ in tidy(mine):
            run = Run(chunk, False, tally if tally != FRESH else FRESH, place, due)
            if due:
                queue.late().retry(run)
            else:
                queue.coming_back().push(run)
    if fresh:
        fresh.sort()
        queue.late().schedule([lsn for lsn, _ in fresh], [due for _, due in fresh])


def check(queue: Contents) -> None:
    """Recount everything; AssertionError names what is off."""
    main = sum(map(len, queue.main.chunks()))
    assert main == queue.main.count, f"{queue!r}: main {main}, counted {queue.main.count}"
    returned = sum(len(run.chunk) for run in queue.returned.runs())
    assert returned == queue.returned.count, f"{queue!r}: returned {returned}, counted {queue.returned.count}"
    assert main + returned == queue.ready, f"{queue!r}: {main + returned} are ready"
    assert queue.delays.count == queue.delayed, f"{queue!r}: {queue.delays.count} are delayed"
    dying = sum(len(run.chunk) for run in queue.letters.runs())
    assert dying == queue.dying, f"{queue!r}: {dying} are dying"
    leased = outstanding = 0
    for consumer in queue.holders():
        held = list(consumer.leases.held())
        count = sum(len(run.chunk) for run in held)
        assert count == consumer.leases.count, f"{consumer!r}: holds {count}"
        outstanding += count if consumer.serial else 0
        leased += sum(len(run.chunk) for run in held if run.place != SLOT)
    assert leased == queue.leased, f"{queue!r}: {leased} are leased"
    assert outstanding == queue.outstanding, f"{queue!r}: {outstanding} outstanding, counted {queue.outstanding}"
    everything = flat(capture(queue).waiting())
    assert len(np.unique(everything)) == len(everything), f"{queue!r}: a message is in two states"
    solid = [(segment.chunk, "main") for segment in queue.main.segments if segment.solid]
    solid += ((run.chunk, "a run") for run in queue.runs() if run.solid and len(run.chunk))
    for chunk, where in solid:
        low, high = np.searchsorted(everything, (chunk[0], chunk[-1] + 1)).tolist()
        assert high - low <= len(chunk), f"{queue!r}: {where} calls {chunk} solid, strangers to it lie between"
