"""What lasts of a queue: its waiting messages and what is remembered of each, out and in; and a recount of it all.

What of it may leave the heap for an arena is said here, too: every place, and what is known of messages.  Parts whose
size is bounded (target lists, letters, holes) stay, and nothing of this changes what the queue does.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.arena import Move
from penstock.core.queue.agenda import ATTEMPTS, DISPATCH, TRIM
from penstock.core.queue.barrier_release import split
from penstock.core.queue.contained import Contained
from penstock.core.queue.contents import Contents
from penstock.core.queue.order.runs import NEVER, Run, packed, sorted_chunk, tidy
from penstock.core.queue.places import STATES
from penstock.core.queue.priority.ranking import load_ranks
from penstock.core.queue.reordering import draw_bound, stage
from penstock.core.queue.settling.attempts import FRESH, Tally
from penstock.core.state.lsns import Ints, flat, spread
from penstock.records.chunks import Chunk, as_chunk

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents


def capture(queue: Contents) -> Contained:
    """What waits, in any state, and what is remembered of it.  Costs a reference a chunk; nothing of it will change."""
    out = Contained()
    for place in queue.places():
        if place.state == "inactive":
            out.inactive += place.chunks()
            continue
        if place.part == "scheduled":
            out.scheduled = list(queue.delays.scheduled.items())
        elif place.loose is not None:
            out.loose += place.loose()
        else:
            out.main += place.fresh()
        runs = [_copy(run) for run in place.back() if len(run.chunk)]
        out.runs += runs
        if place.part == "retries":
            out.retries = runs
    _capture_columns(queue, out)
    return out


def _capture_columns(queue: Contents, out: Contained) -> None:
    """What is known of messages, wherever they stand."""
    if queue.ranks is not None and queue.settings.rank_text is not None:
        out.ranks = queue.ranks.copy()
        out.unranked = queue.ranking.pieces(queue.main) if queue.ranking is not None else []
    if queue.last_values is not None:
        out.keys = queue.last_values.known.copy()
    if queue.dedup is not None and queue.dedup.living is not None:
        out.dedup = queue.dedup.living.copy()
    if not queue.expiry.empty:
        out.expiry = queue.expiry.copy()
    if len(queue.barriers) or queue.barriers.dormant:
        out.barriers = queue.barriers.marked()
    if queue.older is not None:
        out.barriers = sorted_chunk([out.barriers, as_chunk(sorted(queue.older.barriers))])


def _copy(run: Run) -> Run:
    return Run(run.chunk, run.solid, run.tally, run.place, run.deadline)


def load(queue: Contents, waiting: Sequence[Chunk], columns: Mapping[str, array[int]]) -> None:
    """Take up what a snapshot or the fold says; the queue is new and empty.  `tick` does what fell due meanwhile."""
    _load(queue, waiting, columns)
    if queue.last_values is not None:
        lsns = flat(waiting)
        queue.last_values.known.load(lsns, spread(lsns, columns.get("key", array("q"))))
        queue.last_values.loaded = True  # what was out for delivery may have been replaced
        queue.agenda |= DISPATCH
    if queue.dedup is not None and "dedup" in columns:
        lsns = flat(waiting)
        queue.dedup.load(lsns, spread(lsns, columns["dedup"]))
    if queue.shares is not None:
        stage(queue)
    if len(queue.barriers):
        queue.agenda |= DISPATCH  # one may be free: what it waited for may have been delivered at most once
    if queue.settings.target_queue_depth:
        draw_bound(queue)
    queue.weigh()
    if (limits := queue.limits) is not None and limits.drops and limits.exceeded(queue):
        queue.agenda |= TRIM


def _load(queue: Contents, waiting: Sequence[Chunk], columns: Mapping[str, array[int]]) -> None:
    if not columns and queue.ranks is None and all(a[-1] < b[0] for a, b in pairwise(waiting)):
        for chunk in waiting:
            queue.ensure_main().append(chunk)
        return
    lsns = flat(waiting)
    if not len(lsns):
        return
    if queue.ranks is not None:
        load_ranks(queue, lsns, spread(lsns, columns.get("rank", array("q"))))
    if "expires_at" in columns:
        queue.ensure_expiry().load(lsns, spread(lsns, columns["expires_at"]))
    keys: list[tuple[int, int]] = []
    if "barrier" in columns:
        lsns, keys = _without_barriers(queue, lsns, columns)
    told = [
        spread(lsns, columns.get(name, array("q")))
        for name in ("deliveries", "failures", "cancels", "unseen", "place", "not_before")
    ]
    aside = np.logical_or.reduce([column > 0 for column in told])
    late = [lsn for place, lsn in keys if place != lsn]
    _load_fresh(queue, lsns[~aside], np.union1d(lsns[aside], np.array(late, dtype=np.int64)))
    if aside.any():
        queue.agenda |= ATTEMPTS
        _load_apart(queue, lsns[aside], np.stack([column[aside] for column in told], axis=1))
    split(queue, keys)


def _load_fresh(queue: Contents, lsns: Ints, strangers: Ints) -> None:
    """What was never delivered and stands at its own place; strangers: LSNs that it may lie around."""
    if queue.ranks is not None:
        queue.ensure_main().append(packed(lsns))
    for chunk, _ in tidy(lsns) if queue.ranks is None else ():
        before, within = np.searchsorted(strangers, (queue.main.last(), chunk[0]))
        if before != within:
            queue.ensure_main().seal(int(strangers[within - 1]))
        queue.ensure_main().append(chunk, solid=bool(np.searchsorted(strangers, chunk[-1]) == within))
    if len(strangers):
        queue.ensure_main().seal(int(strangers[-1]))


def _load_apart(queue: Contents, lsns: Ints, table: Ints) -> None:
    """The rest: of each its tally, its place and when it is due, as rows."""
    kinds, which = np.unique(table, axis=0, return_inverse=True)
    which = which.reshape(-1)
    order = np.argsort(which, kind="stable")
    ends = np.cumsum(np.bincount(which, minlength=len(kinds)))
    fresh: list[tuple[int, int]] = []
    for i, (deliveries, failures, cancels, unseen, place, due) in enumerate(kinds.tolist()):
        mine = lsns[order[ends[i - 1] if i else 0 : ends[i]]]
        tally = Tally(deliveries, failures, cancels, unseen)
        if due and tally == FRESH and not place:
            fresh += ((lsn, due) for lsn in mine.tolist())
            continue
        for chunk, _ in tidy(mine):
            run = Run(chunk, False, tally if tally != FRESH else FRESH, place, due)
            if due:
                queue.ensure_delays().retry(run)
            else:
                queue.ensure_returned().push(run)
    if fresh:
        fresh.sort()
        queue.ensure_delays().schedule([lsn for lsn, _ in fresh], [due for _, due in fresh])


def _without_barriers(
    queue: Contents, lsns: Ints, columns: Mapping[str, array[int]]
) -> tuple[Ints, list[tuple[int, int]]]:
    """All but the barriers that wait, and those as (place, LSN), ascending; of the delayed ones note what they are."""
    barrier = spread(lsns, columns["barrier"]) > 0
    delayed = spread(lsns, columns.get("not_before", array("q"))) > 0
    queue.ensure_barriers().dormant.update(lsns[barrier & delayed].tolist())
    waiting = barrier & ~delayed
    place = spread(lsns, columns.get("place", array("q")))[waiting]
    own = lsns[waiting]
    keys = sorted(zip(np.where(place > 0, place, own).tolist(), own.tolist(), strict=True))
    return lsns[~waiting], keys


def check(queue: Contents) -> None:
    """Recount everything; AssertionError names what is off."""
    counts = dict.fromkeys(STATES, 0)
    for place in queue.places():
        there = sum(map(len, place.chunks()))
        assert there == place.count, f"{queue!r}: {place.part} has {there}, counted {place.count}"
        counts[place.state] += there
        lowest = min(chunk[0] for chunk in place.chunks())
        assert queue.floor() <= lowest, f"{queue!r}: {lowest} of {place.part} is below the floor {queue.floor()}"
    told = (queue.ready, queue.held, queue.inactive, queue.delayed, queue.leased, queue.dying)
    assert tuple(counts.values()) == told, f"{queue!r}: there is {counts}, counted {told}"
    if queue.shares is not None:
        queue.shares.check(queue)
    if queue.weight >= 0 and queue.weighing is None:
        assert queue.weight == queue.ready_bytes, f"{queue!r}: {queue.ready_bytes} bytes, counted {queue.weight}"
    _check_barriers(queue)
    _check_leases(queue)
    everything = flat(capture(queue).waiting())
    assert len(np.unique(everything)) == len(everything), f"{queue!r}: a message is in two states"
    for place in queue.places():
        for chunk in (*place.solid(), *(run.chunk for run in place.back() if run.solid and len(run.chunk))):
            low, high = np.searchsorted(everything, (chunk[0], chunk[-1] + 1)).tolist()
            assert high - low <= len(chunk), f"{queue!r}: {place.part} calls {chunk} solid, strangers lie between"


def _check_leases(queue: Contents) -> None:
    """What each holds is what it is told to hold."""
    outstanding = 0
    for consumer in queue.holders():
        count = sum(len(run.chunk) for run in consumer.leases.held())
        assert count == consumer.leases.count, f"{consumer!r}: holds {count}"
        outstanding += count if consumer.serial else 0
    assert outstanding == queue.outstanding, f"{queue!r}: {outstanding} outstanding, counted {queue.outstanding}"


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


def page(queue: Contents, move: Move) -> None:
    """Move what is old, as far as there is room."""
    for place in queue.places():
        place.page(move)
    for known in (queue.expiry, queue.ranks, queue.shares):
        if known is not None:
            known.page(move)
