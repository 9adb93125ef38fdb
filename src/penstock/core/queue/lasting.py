"""What lasts of a queue, out and in; messages older than some it has had; and how all of it is put in order anew.

Its waiting messages and what is remembered of each are taken up after a start.  What of it may leave the heap for an
arena is said here, too: every place, and what is known of messages.  Parts whose size is bounded (target lists,
letters, holes) stay, and nothing of this changes what the queue does.

What a pass over the log finds for a queue that serves in order of arrival stands at its own place at once.  Where the
order says more than that (barriers, priorities, a target depth) nothing goes out before the last of them is there: they
wait (`order.pool`).  At the end of the pass, as after a start and where settings ask for it, all that is ready is taken
from where it stands and flows in again; with very many that is done in steps, by whoever they wait for.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import attrgetter

import numpy as np

from penstock.core.arena import Move
from penstock.core.queue.columns import Contained, load_known, take_known
from penstock.core.queue.contents import Contents
from penstock.core.queue.held import dissolve, mixed, move_up, split
from penstock.core.queue.order.main_order import Main
from penstock.core.queue.order.pool import Older, Pool
from penstock.core.queue.order.priority import PriorityOrder, Ranking
from penstock.core.queue.order.ranking import take_unranked
from penstock.core.queue.order.ranks import LOWEST, Ranks
from penstock.core.queue.order.run_heap import joined
from penstock.core.queue.order.runs import NEVER, Run, holds, packed, tidy
from penstock.core.queue.owning import sort_out
from penstock.core.queue.places import STATES, Place
from penstock.core.queue.settling.attempts import FRESH, Tally
from penstock.core.queue.shares import Shares, expressions
from penstock.core.queue.stages import marked
from penstock.core.queue.whole import ATTEMPTS, DISPATCH, RANKS, SHARES, TRIM
from penstock.core.state.lsns import Ints, alike, flat, spread
from penstock.expr import compile_filter
from penstock.expr.context import EVERYTHING
from penstock.records.chunks import Chunk, ascend
from penstock.records.compute import distinct_numbers
from penstock.records.message_types import typed
from penstock.records.queue_settings import QueueSettings


def follow_settings(queue: Contents, before: QueueSettings) -> None:
    """The settings are others: what stands, and is remembered, by the old ones does so by the new."""
    settings = queue.settings
    if settings.message_type != before.message_type:
        _reread(queue)
    if _is_rid_of_barriers(queue):
        dissolve(queue)
        sort_out(queue)
    if settings.last_value_key != before.last_value_key:
        queue.renew_keys()
    if (settings.dedup_key, settings.dedup_window, settings.unique) != (
        before.dedup_key, before.dedup_window, before.unique
    ):  # fmt: skip
        queue.renew_dedup(before)
    by_rank = by_key = False
    if _ordering(settings) != _ordering(before):
        by_rank = settings.rank_text != before.rank_text
        by_key = expressions(settings) != expressions(before) or (by_rank and queue.shares is not None)
    if by_key:
        reorder(queue, by_key=True, by_rank=by_rank or queue.ranking is not None)
        return
    if queue.shares is not None and queue.shares.tenants is not None:
        queue.shares.tenants.change(settings)
    if by_rank:
        reorder(queue, by_rank=True)


def _is_rid_of_barriers(queue: Contents) -> bool:
    """Whether there are some, and the settings know none any more."""
    return queue.settings.barrier_expression is None and bool(len(queue.barriers) or queue.barriers.dormant)


def _reread(queue: Contents) -> None:
    """What consumers have asked for is looked for anew: bodies have fields that they had not."""
    for consumer in queue.all_consumers:
        if consumer.filter is not None:
            consumer.filter = compile_filter(typed(consumer.filter.text, queue.settings.message_type), EVERYTHING)
    queue.renew_targets()


_ordering = attrgetter(
    "group_key", "fairness_key", "max_priority", "priority_ageing", "priority_expression", "message_type"
)
"""All that says in which order messages go."""


def reorder(queue: Contents, more: Sequence[Chunk] = (), *, by_key: bool = False, by_rank: bool = False) -> None:
    """All that is ready is taken from where it stands, and flows in anew: the queue is loaded, or its settings changed.

    more     messages that are ready too, and counted as such; by_rank: their ranks are known or mixed in
    by_key   the expressions of keys are others, or nobody asked them yet: what has such waits for its keys
    by_rank  the expression of priorities has changed, or came, or went: ranks are worked out anew

    What costs more with very many that wait is done in steps, by `Shares.ask` and `ranking.go_on`.
    """
    fresh, back = list[Chunk](more), list[Run]()
    for place in queue.places("ready"):
        fresh += place.lsns()
        back += [Run(run.chunk, False, run.tally, run.place) for run in place.back()]
    back = joined(back)
    queue.main = queue.main.emptied()
    queue.clear_returned()
    if by_key:
        before, queue.shares = queue.shares, None
        if expressions(queue.settings):
            queue.shares = Shares(queue.settings, queue.ranks)
            queue.shares.follow(before)
        queue.plan = None
        queue.agenda |= SHARES
    if by_rank:
        _begin_ranking(queue, fresh, back)
    if queue.shares is not None:
        _stage(queue, queue.shares, fresh, back)
    else:
        if not by_rank:  # else they lie in the pool
            _append_all(queue, queue.main, fresh)
        for run in back:
            queue.ensure_returned().push(run)
    queue.renew_targets()


def _append_all(queue: Contents, main: Main, chunks: Sequence[Chunk]) -> None:
    """Append these, in any order, to an empty order; the main order knows that they may go past it."""
    everything = packed(flat([chunk for chunk in chunks if len(chunk)]))
    for start in range(0, len(everything), 8192):
        main.append(everything[start : start + 8192], solid=False)
    if len(everything):
        queue.main.seal(everything[-1])


def _stage(queue: Contents, shares: Shares, fresh: Sequence[Chunk], back: Sequence[Run]) -> None:
    """All that is ready waits for its keys; what is out already is asked about first."""
    staging = shares.staging
    shares.yielding.forget()
    _append_all(queue, staging.main, fresh)
    for run in back:
        staging.returned.push(run)
    for run in queue.leased_runs():
        staging.out.update(dict.fromkeys(run.chunk, True))
    for run in queue.delays.retries.runs():
        staging.out.update(dict.fromkeys(run.chunk, False))


def _begin_ranking(queue: Contents, fresh: Sequence[Chunk], back: Sequence[Run]) -> None:
    """Ranks of all are worked out, from the lowest on; what is ready stands nowhere while this is called."""
    elsewhere = [*(run.chunk for run in back), *queue.chunks()]
    ranks = queue.ranks
    if ranks is None:
        ranks = queue.ranks = Ranks()
        queue.plan = None
        queue.agenda |= RANKS
        if queue.shares is not None:
            queue.shares.serve_by(ranks)
        ranks.level(flat([*fresh, *elsewhere]), LOWEST)
    else:
        ranks.make_level(LOWEST)
    pool, lsns = Pool(ranks.firsts), Pool(ranks.firsts)
    for piece in elsewhere:
        lsns.put(piece)
    for piece in fresh:  # it waits for keys, too, where there are such
        (pool if queue.shares is None else lsns).put(piece)
    order = queue.main = PriorityOrder(ranks)
    order.use_pool(pool)
    queue.ranking = Ranking(queue.settings.rank_text, lsns)
    queue.ranking.more = True


def draw_bound(queue: Contents) -> None:
    """After a start or a pass all that was never delivered stands in the main order: what is too much is inactive."""
    active = queue.ready + queue.leased + queue.delays.retries.count
    if queue.main.count and active > queue.settings.target_queue_depth:
        tail, queue.main = queue.main, queue.main.emptied()
        for chunk in tail.chunks():
            queue.ensure_tail().append(chunk, solid=False)
        move_up(queue)


def capture(queue: Contents) -> Contained | None:
    """What waits, in any state, and what is remembered of it; None for an empty queue.

    Costs a reference a chunk; nothing of it will change.
    """
    if not any(queue.places()):
        return None
    out = Contained()
    for place in queue.places():
        if place.part == "scheduled":
            out.scheduled = list(queue.delays.scheduled.items())
        elif place.loose is not None:
            out.loose += place.loose()
        else:
            out.main += place.fresh()
        runs, scattered = place.copies()
        out.runs += runs
        out.scattered += scattered
        if place.part == "retries":
            out.retries = runs
    out.known = take_known(queue)
    out.barriers = marked(queue)
    return out


def snapshot(queue: Contents) -> tuple[list[Chunk], dict[str, array[int]]]:
    """`waiting`, in any order, and `columns` of a `QueueState`; `transient` and `letter` are not known here."""
    contained = capture(queue)
    return ([], {}) if contained is None else (contained.waiting(), contained.columns())


def load(queue: Contents, waiting: Sequence[Chunk], columns: Mapping[str, array[int]]) -> None:
    """Take up what a snapshot or the fold says; the queue is new and empty.  `tick` does what fell due meanwhile."""
    queue.loaded = sum(map(len, waiting))
    load_known(queue, waiting, columns)
    _load(queue, waiting, columns)
    if queue.shares is not None:
        reorder(queue, by_key=True)
    if len(queue.barriers):
        queue.agenda |= DISPATCH  # one may be free: what it waited for may have been delivered at most once
    if queue.settings.target_queue_depth:
        draw_bound(queue)
    queue.weigh()
    if (limits := queue.limits) is not None and limits.mode.drops_head and limits.exceeded(queue):
        queue.agenda |= TRIM


_APART = (*Tally._fields, "place", "not_before")
"""Columns of messages that were delivered before, or do not stand at their own LSN, or not yet."""


def _load(queue: Contents, waiting: Sequence[Chunk], columns: Mapping[str, array[int]]) -> None:
    if not columns and queue.ranks is None and ascend(waiting):
        for chunk in waiting:
            queue.ensure_main().append(chunk)
        return
    lsns = flat(waiting)
    if not len(lsns):
        return
    theirs = lsns[:0] if queue.foreign is None else lsns[spread(lsns, columns.get("owner", array("q"))) > 0]
    keys: list[tuple[int, int]] = []
    if "barrier" in columns:
        lsns, keys = _without_barriers(queue, lsns, columns)
    told = {name: spread(lsns, columns[name]) for name in _APART if name in columns}
    aside = np.isin(lsns, theirs, assume_unique=True) if len(theirs) else np.zeros(len(lsns), dtype=np.bool_)
    for values in told.values():
        aside |= values > 0
    late = [lsn for place, lsn in keys if place != lsn]
    others = distinct_numbers(np.concatenate((lsns[aside], np.array(late, dtype=np.int64))))
    _load_fresh(queue, lsns[~aside], others)
    if aside.any():
        queue.agenda |= ATTEMPTS
        _load_apart(queue, lsns[aside], {name: values[aside] for name, values in told.items()})
    split(queue, keys)


def _load_fresh(queue: Contents, lsns: Ints, strangers: Ints) -> None:
    """What was never delivered and stands at its own place; strangers: LSNs that it may lie around."""
    if queue.ranks is not None:
        queue.ensure_main().append(packed(lsns))
    for chunk in tidy(lsns) if queue.ranks is None else ():
        before, within = np.searchsorted(strangers, (queue.main.last(), chunk[0]))
        if before != within:
            queue.ensure_main().seal(int(strangers[within - 1]))
        queue.ensure_main().append(chunk, solid=bool(np.searchsorted(strangers, chunk[-1]) == within))
    if len(strangers):
        queue.ensure_main().seal(int(strangers[-1]))


def _load_apart(queue: Contents, lsns: Ints, columns: Mapping[str, Ints]) -> None:
    """The rest: of each its tally, its place and when it is due."""
    fresh: list[tuple[int, int]] = []
    for told, rows in alike(len(lsns), columns):
        *counts, place, due = [told.get(name, 0) for name in _APART]
        mine, tally = lsns[rows], Tally(*counts)
        if due and tally == FRESH and not place:
            fresh += ((lsn, due) for lsn in mine.tolist())
            continue
        for chunk in tidy(mine):
            _put_back(queue, Run(chunk, False, FRESH if tally == FRESH else tally, place, due))
    if fresh:
        fresh.sort()
        queue.ensure_delays().schedule([lsn for lsn, _ in fresh], [due for _, due in fresh])


def _put_back(queue: Contents, run: Run) -> None:
    """To what is due later, or to what came back and is here."""
    if run.deadline:
        queue.ensure_delays().retry(run)
        return
    for part in [run] if queue.foreign is None else queue.foreign.keep(run):
        queue.ensure_returned().push(part)


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
        _check_between(queue, place)
        assert queue.floor() <= lowest, f"{queue!r}: {lowest} of {place.part} is below the floor {queue.floor()}"
    told = (queue.ready, queue.held, queue.inactive, queue.delayed, queue.leased, queue.dying, queue.foreign_count)
    assert tuple(counts.values()) == told, f"{queue!r}: there is {counts}, counted {told}"
    if queue.shares is not None:
        queue.shares.check(queue)
        if queue.ranking is None:
            queue.shares.yielding.check((run for _, run, _ in queue.standing("ready")), queue.ranks)
    if queue.weight >= 0:
        assert queue.weight == queue.ready_bytes, f"{queue!r}: {queue.ready_bytes} bytes, counted {queue.weight}"
    _check_barriers(queue)
    _check_leases(queue)
    _check_spare(queue)
    _check_solid(queue)


def _check_between(queue: Contents, place: Place) -> None:
    """What is told to stand between two LSNs is what stands there."""
    if place.between is not None:
        everything = flat(place.chunks()).tolist()
        cuts = [0, len(everything) // 3, 2 * len(everything) // 3, len(everything)]
        for at, end in pairwise(cuts):
            first, stop = everything[at] if at else 0, everything[end] if end < len(everything) else NEVER
            there, told = everything[at:end], list(place.between(first, stop))
            assert told == there, f"{queue!r}: {told} of {place.part} between {first} and {stop}, there is {there}"


def _check_solid(queue: Contents) -> None:
    """A message stands once, and nothing lies within what is called solid."""
    everything = flat(snapshot(queue)[0])
    assert len(distinct_numbers(everything)) == len(everything), f"{queue!r}: a message is in two states"
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


def _check_spare(queue: Contents) -> None:
    """Of many consumers those with room are known."""
    if (spare := queue.roster.spare) is not None and not queue.sharing:
        others = [one for one in queue.roster.all if one.targets is None and not one.choked and one not in spare]
        assert not (out := [one for one in others if one.room > 0]), f"{queue!r}: {out} have room, and nobody knows it"


def _check_barriers(queue: Contents) -> None:
    """Each barrier stands before what it holds back and behind everything else; those that sleep are delayed."""
    strangers = queue.barriers.dormant.difference(*queue.chunks("delayed"))
    assert not strangers, f"{queue!r}: barriers {strangers} are not delayed"
    before = 0
    parts: list[tuple[Chunk, ...]] = [(*queue.main.chunks(), *(run.chunk for run in queue.returned.runs()))]
    for barrier in (*queue.barriers.waiting(), None):
        edge = NEVER if barrier is None else barrier.place
        for chunk in parts[-1]:
            assert before < chunk[0], f"{queue!r}: {chunk} is not behind {before}"
            assert chunk[-1] < edge, f"{queue!r}: {chunk} is not before {edge}"
        if barrier is not None:
            parts.append(tuple(barrier.pieces()))
            before = edge


def page(queue: Contents, move: Move) -> None:
    """Move what is old, as far as there is room."""
    for place in queue.places():
        place.page(move)
    for known in (queue.expiry, queue.ranks, queue.shares):
        if known is not None:
            known.page(move)


def waits(queue: Contents) -> bool:
    """Whether the queue has to be put in order before it may go on."""
    settings = queue.settings
    ordered = settings.barrier_expression is not None or settings.rank_text is not None
    ordered = ordered or bool(settings.target_queue_depth) or queue.shares is not None
    return ordered or queue.held > 0 or queue.ranks is not None


def expect_older(queue: Contents) -> None:
    """A pass begins or goes on: nothing goes out before its end where the order says more than arrival does."""
    if queue.older is None and waits(queue):
        queue.older = Older()


def take_older(
    queue: Contents, lsns: Ints, deadlines: Ints | None, not_before: Ints | None, barriers: Sequence[int]
) -> None:
    """Take messages, ascending, that a record says the queue took.

    deadlines, not_before    microseconds, 0 for never and at once; None: all are 0
    barriers                 those of them that are barriers
    """
    if queue.ranks is not None:
        take_unranked(queue, lsns)
    if deadlines is not None or not queue.expiry.empty:
        queue.ensure_expiry().add_older(lsns, np.zeros(len(lsns), dtype=np.int64) if deadlines is None else deadlines)
    if len(lsns) and int(lsns[-1]) >= queue.floor():
        _mix(queue, int(lsns[-1]))
    if not_before is not None and (late := not_before > 0).any():
        _schedule(queue, lsns[late], not_before[late], barriers)
        lsns = lsns[~late]
    if not len(lsns):
        return
    if queue.older is not None:
        chunk = packed(lsns)
        queue.older.add(chunk, [lsn for lsn in barriers if holds(chunk, lsn)])
        return
    _stand(queue, lsns)


def _stand(queue: Contents, lsns: Ints) -> None:
    """They stand behind all that there is, or each at its own place."""
    if queue.main.last() >= int(lsns[0]):
        for chunk in tidy(lsns):
            queue.put_back(Run(chunk, False))
        return
    queue.targets.rewind(int(lsns[0]) - 1)  # lists have looked past them, where newer ones came and went
    for chunk in tidy(lsns):
        queue.ensure_main().append(chunk, solid=False)
    if queue.weight >= 0:
        queue.weight += queue.sizes.total(packed(lsns))


def _schedule(queue: Contents, lsns: Ints, times: Ints, barriers: Sequence[int]) -> None:
    """Those of them that are not due yet."""
    queue.ensure_delays().schedule_older(lsns, times)
    dormant = set(lsns.tolist()).intersection(barriers)
    if dormant:
        queue.ensure_barriers().dormant.update(dormant)
    queue.ensure_main().seal(int(lsns[-1]))


def _mix(queue: Contents, last: int) -> None:
    """What comes, up to `last`, may lie between others: no array may be called solid any more."""
    mixed(queue, last)
    for place in queue.places():
        for run in place.back():
            run.solid = False
    for consumer in queue.holders():  # of leases in no order `runs` told copies
        consumer.leases.loosen()


def put_in_order(queue: Contents, last: int) -> None:
    """The pass is over: what was found takes its place among what is ready or held.  `last`: the last LSN given."""
    older, queue.older = queue.older, None
    if older is None:
        return
    if queue.ranks is not None:
        by_key = queue.shares is not None
        reorder(queue, older.chunks, by_key=by_key, by_rank=not by_key)
        queue.weigh()
        return
    contained = Contained([*older.chunks])
    for place in queue.places("ready", "held", "inactive"):
        contained.main += place.fresh()
        contained.runs += (Run(run.chunk, False, run.tally, run.place) for run in place.back())
    barriers = np.array(sorted({*older.barriers, *queue.barriers.all_lsns()}), dtype=np.int64)
    contained.barriers = packed(barriers) if len(barriers) else range(0)
    dormant = queue.barriers.dormant
    queue.drop_ready()  # for a moment: `contained` has it all
    if dormant:
        queue.ensure_barriers().dormant = dormant
    load(queue, contained.waiting(), contained.columns())
    mixed(queue, last)
    queue.ensure_tail().loosen()
    queue.ensure_tail().seal(last)
    queue.renew_targets()
    queue.weigh()
