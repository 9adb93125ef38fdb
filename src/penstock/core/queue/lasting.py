"""What lasts of a queue: its waiting messages and what is remembered of each, out and in; and a recount of it all."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.queue.barriers.barriers import split
from penstock.core.queue.depth import draw_bound
from penstock.core.queue.order.runs import NEVER, Run, packed, sorted_chunk, tidy
from penstock.core.queue.priority.order import PriorityOrder
from penstock.core.queue.priority.ranking import load_ranks
from penstock.core.queue.settling.attempts import FRESH, Tally
from penstock.core.queue.settling.leases import SLOT
from penstock.core.queue.shares.setting import stage
from penstock.core.state.capture import Contained
from penstock.core.state.durable import Ints, flat, spread
from penstock.records.chunks import Chunk, as_chunk

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents


def capture(queue: Contents) -> Contained:
    """What waits, in any state, and what is remembered of it.  Costs a reference a chunk; nothing of it will change."""
    main = queue.main
    loose = main.copies() if isinstance(main, PriorityOrder) else []
    out = Contained([] if loose else list(main.chunks()), loose=loose)
    if queue.shares is not None:
        if queue.shares.groups is not None:
            out.loose += queue.shares.groups.waiting()
        out.main += queue.shares.in_order()
    if queue.tail.count:
        out.inactive = list(queue.tail.chunks())
    if queue.ranks is not None and queue.settings.rank_text is not None:
        out.ranks = queue.ranks.copy()
        out.unranked = queue.ranking.pieces(queue) if queue.ranking is not None else []
    if queue.last_values is not None:
        out.keys = queue.last_values.known.copy()
    if queue.dedup is not None and queue.dedup.living is not None:
        out.dedup = queue.dedup.living.copy()
    out.retries = [_copy(run) for run in queue.delays.retries.runs()]
    out.runs = [_copy(run) for run in queue.runs_held() if len(run.chunk)] + out.retries
    if queue.shares is not None:
        out.runs += [_copy(run) for run in queue.shares.runs()]
    out.scheduled = list(queue.delays.scheduled.items())
    if not queue.expiry.empty:
        out.expiry = queue.expiry.copy()
    if len(queue.barriers) or queue.barriers.dormant:
        out.main += queue.barriers.chunks()
        out.runs += [_copy(run) for run in queue.barriers.runs()]
        out.barriers = queue.barriers.marked()
    if queue.older is not None:
        out.main += queue.older.chunks
        out.barriers = sorted_chunk([out.barriers, as_chunk(sorted(queue.older.barriers))])
    return out


def _copy(run: Run) -> Run:
    return Run(run.chunk, run.solid, run.tally, run.place, run.deadline)


def load(queue: Contents, waiting: Sequence[Chunk], columns: Mapping[str, array[int]]) -> None:
    """Take up what a snapshot or the fold says; the queue is new and empty.  `tick` does what fell due meanwhile."""
    _load(queue, waiting, columns)
    if queue.last_values is not None:
        lsns = flat(waiting)
        queue.last_values.known.load(lsns, spread(lsns, columns.get("key", array("q"))))
        queue.last_values.loaded = queue.hungry = True  # what was out for delivery may have been replaced
    if queue.dedup is not None and "dedup" in columns:
        lsns = flat(waiting)
        queue.dedup.load(lsns, spread(lsns, columns["dedup"]))
    if queue.shares is not None:
        stage(queue)
    if len(queue.barriers):
        queue.hungry = True  # one may be free: what it waited for may have been delivered at most once
    if queue.settings.target_queue_depth:
        draw_bound(queue)
    queue.weigh()
    if (limits := queue.limits) is not None and limits.drops:
        queue.overfull = limits.exceeded(queue)


def _load(queue: Contents, waiting: Sequence[Chunk], columns: Mapping[str, array[int]]) -> None:
    if not columns and queue.ranks is None and all(a[-1] < b[0] for a, b in pairwise(waiting)):
        for chunk in waiting:
            queue.filled().append(chunk)
        queue.ready = queue.main.count
        return
    lsns = flat(waiting)
    if not len(lsns):
        return
    if queue.ranks is not None:
        load_ranks(queue, lsns, spread(lsns, columns.get("rank", array("q"))))
    if "expires_at" in columns:
        queue.timed().load(lsns, spread(lsns, columns["expires_at"]))
    keys: list[tuple[int, int]] = []
    if "barrier" in columns:
        lsns, keys = _without_barriers(queue, lsns, columns)
    queue.ready = len(lsns)
    told = [
        spread(lsns, columns.get(name, array("q")))
        for name in ("deliveries", "failures", "cancels", "unseen", "place", "not_before")
    ]
    aside = np.logical_or.reduce([column > 0 for column in told])
    apart = lsns[aside]
    late = [lsn for place, lsn in keys if place != lsn]
    strangers = np.union1d(apart, np.array(late, dtype=np.int64)) if late else apart  # LSNs that others may lie around
    if queue.ranks is not None:
        queue.filled().append(packed(lsns[~aside]))
    for chunk, _ in tidy(lsns[~aside]) if queue.ranks is None else ():
        before, within = np.searchsorted(strangers, (queue.main.last(), chunk[0]))
        if before != within:
            queue.filled().seal(int(strangers[within - 1]))
        queue.filled().append(chunk, solid=bool(np.searchsorted(strangers, chunk[-1]) == within))
    if len(strangers):
        queue.filled().seal(int(strangers[-1]))
    if not len(apart):
        split(queue, keys)
        return
    queue.overspent = True
    table = np.stack([column[aside] for column in told], axis=1)
    kinds, which = np.unique(table, axis=0, return_inverse=True)
    which = which.reshape(-1)
    order = np.argsort(which, kind="stable")
    ends = np.cumsum(np.bincount(which, minlength=len(kinds)))
    fresh: list[tuple[int, int]] = []
    for i, (deliveries, failures, cancels, unseen, place, due) in enumerate(kinds.tolist()):
        mine = apart[order[ends[i - 1] if i else 0 : ends[i]]]
        tally = Tally(deliveries, failures, cancels, unseen)
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
    split(queue, keys)


def _without_barriers(
    queue: Contents, lsns: Ints, columns: Mapping[str, array[int]]
) -> tuple[Ints, list[tuple[int, int]]]:
    """All but the barriers that wait, and those as (place, LSN), ascending; of the delayed ones note what they are."""
    barrier = spread(lsns, columns["barrier"]) > 0
    delayed = spread(lsns, columns.get("not_before", array("q"))) > 0
    queue.fenced().dormant.update(lsns[barrier & delayed].tolist())
    waiting = barrier & ~delayed
    place = spread(lsns, columns.get("place", array("q")))[waiting]
    own = lsns[waiting]
    keys = sorted(zip(np.where(place > 0, place, own).tolist(), own.tolist(), strict=True))
    return lsns[~waiting], keys


def check(queue: Contents) -> None:
    """Recount everything; AssertionError names what is off."""
    main = sum(map(len, queue.main.chunks()))
    assert main == queue.main.count, f"{queue!r}: main {main}, counted {queue.main.count}"
    returned = sum(len(run.chunk) for run in queue.returned.runs())
    assert returned == queue.returned.count, f"{queue!r}: returned {returned}, counted {queue.returned.count}"
    behind = 0 if queue.shares is None else queue.shares.count
    assert main + returned + behind == queue.ready, f"{queue!r}: {main + returned} + {behind} are ready"
    if queue.shares is not None:
        queue.shares.check(queue)
    if queue.weight >= 0 and queue.weighing is None:
        assert queue.weight == queue.ready_bytes, f"{queue!r}: {queue.ready_bytes} bytes, counted {queue.weight}"
    inactive = sum(map(len, queue.tail.chunks()))
    assert inactive == queue.tail.count, f"{queue!r}: {inactive} are inactive, counted {queue.tail.count}"
    assert queue.delays.count == queue.delayed, f"{queue!r}: {queue.delays.count} are delayed"
    kept = sum(map(len, queue.barriers.chunks())) + sum(len(run.chunk) for run in queue.barriers.runs())
    kept += sum(map(len, queue.older.chunks)) if queue.older is not None else 0
    assert kept == queue.held, f"{queue!r}: {kept} are held back, counted {queue.held}"
    _check_barriers(queue)
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
    solid += ((run.chunk, "a run held back") for run in queue.barriers.runs() if run.solid)
    for barrier in queue.barriers.waiting():
        if barrier.main is not None:
            solid += ((segment.chunk, "a part") for segment in barrier.main.segments if segment.solid)
    for chunk, where in solid:
        low, high = np.searchsorted(everything, (chunk[0], chunk[-1] + 1)).tolist()
        assert high - low <= len(chunk), f"{queue!r}: {where} calls {chunk} solid, strangers to it lie between"


def _check_barriers(queue: Contents) -> None:
    """Each barrier stands before what it holds back and behind everything else; delayed messages are counted."""
    barriers = queue.barriers
    if not len(barriers):
        return
    late = [run.chunk for run in queue.delays.retries.runs()] + [block.lsns for block in queue.delays.scheduled.blocks]
    delayed = np.array([lsn for chunk in late for lsn in chunk if lsn not in barriers.dormant], dtype=np.int64)
    before, count = 0, barriers.delayed
    parts: list[tuple[Chunk, ...]] = [(*queue.main.chunks(), *(run.chunk for run in queue.returned.runs()))]
    for barrier in (*barriers.waiting(), None):
        edge = NEVER if barrier is None else barrier.place
        for chunk in parts[-1]:
            assert before < chunk[0], f"{queue!r}: {chunk} is not behind {before}"
            assert chunk[-1] < edge, f"{queue!r}: {chunk} is not before {edge}"
        here = int(np.count_nonzero((delayed > before) & (delayed < edge)))
        assert here == count, f"{queue!r}: {here} delayed between {before} and {edge}, counted {count}"
        if barrier is not None:
            main = () if barrier.main is None else barrier.main.chunks()
            back = () if barrier.back is None else barrier.back.runs()
            parts.append((*main, *(run.chunk for run in back)))
            before, count = edge, barrier.delayed
