"""The stages of queues with priorities, and ranks that are not known yet.

Those are of messages that the log brought after the last checkpoint, or after a change of the expression.  Their bodies
are read and judged in steps, off the loop, and nothing is delivered before the last of them.

Until then such a message has the lowest rank.  Where very many change their order at once, those that were never
delivered lie in a pool meanwhile, which is put in order of their LSNs in steps.

Message by message is the definition of an arrival: whoever has room when a message arrives is given it, whatever its
priority, and only what nobody takes finds its place among the others.  So a batch is cut where somebody has room.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.effects import Purpose, Rate, Sink, Token
from penstock.core.queue.dispatching.dispatch import dispatch, room_now
from penstock.core.queue.order.main_order import Main
from penstock.core.queue.order.pool import Pool
from penstock.core.queue.order.priority import PriorityOrder, Ranking, pool_of
from penstock.core.queue.order.ranks import LOWEST, UNKNOWN, Ints, compile_ranking, priority_of
from penstock.core.queue.order.runs import packed, tidy
from penstock.core.queue.stages import Newcomers, Stage
from penstock.core.queue.whole import DISPATCH
from penstock.core.state.lsns import flat, to_array
from penstock.records.chunks import Chunk, Now, as_chunk

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents
    from penstock.core.queue.dispatching.consumers import Consumer


STEP = 512
"""Messages that are judged at once."""


_serials = iter(range(1, 1 << 62))
"""Numbers of questions: an answer to a ranking that was given up means nothing."""


def load_ranks(queue: Contents, lsns: Ints, ranks: Ints) -> None:
    """What a saved state says of the messages that a new queue will hold, ascending; those it does not know wait."""
    assert queue.ranks is not None
    assert isinstance(queue.main, PriorityOrder)
    if queue.ranks.count:  # it was put in order again: they are known, or waited for
        if queue.ranking is not None:
            queue.main.use_rows(anyhow=True)
        return
    unknown = ranks == UNKNOWN
    queue.ranks.load(lsns, np.where(unknown, LOWEST, ranks))
    if unknown.any():
        _wait_for(queue, queue.main, [to_array(lsns[unknown])])


def take_unranked(queue: Contents, lsns: Ints) -> None:
    """Messages whose rank is not known, ascending, are about to come; some may be older than others here."""
    assert queue.ranks is not None
    assert isinstance(queue.main, PriorityOrder)
    queue.ranks.mix(lsns, LOWEST)
    before = queue.ranking.lsns.pieces() if queue.ranking is not None else ()
    _wait_for(queue, queue.main, [*map(to_array, before), to_array(lsns)])


def _wait_for(queue: Contents, order: PriorityOrder, pieces: Iterable[Chunk]) -> None:
    expression = queue.settings.rank_text
    assert queue.ranks is not None
    lsns = Pool(queue.ranks.firsts)
    for piece in pieces:
        lsns.put(piece)
    queue.ranking = Ranking(expression, lsns)
    queue.ranking.more = True
    order.use_rows(anyhow=True)


def go_on(queue: Contents, sink: Sink) -> None:
    """One step of putting in order, or have the world judge the next messages, if it is not at it."""
    ranking = queue.ranking
    if ranking is None or len(ranking.asked):
        return
    pool = pool_of(queue.main)
    ranking.more = (pool is not None and pool.sort_some()) or ranking.lsns.sort_some()
    if ranking.more:
        return
    if ranking.expression is None:
        _without_ranks(queue)
        return
    while ranking.left(queue.main):
        chunk = _next(ranking, pool)
        living = _living(queue, chunk)
        if len(living):
            ranking.asked = living
            ranking.serial = next(_serials)
            sink.effect(
                Rate(Token(queue.id, ranking.serial, Purpose.RANK), compile_ranking(ranking.expression), living)
            )
            return
        ranking.lsns.take_upto(chunk[-1])
    queue.ranking = None
    order = queue.main
    assert isinstance(order, PriorityOrder)
    order.anyhow, order.pool = False, None
    queue.renew_targets()


def _next(ranking: Ranking, pool: Pool | None) -> Chunk:
    """The oldest whose rank is not known."""
    lsns = ranking.lsns.first(STEP)
    if pool is not None and pool.count:
        lsns = np.sort(np.concatenate((lsns, pool.first(STEP))))
    return packed(lsns[:STEP])


def _without_ranks(queue: Contents) -> None:
    """All are in order of their LSNs: that is the order of the queue from now on."""
    order = queue.main
    assert isinstance(order, PriorityOrder)
    assert queue.ranks is not None
    last = queue.ranks.last
    back = list(queue.returned.runs())
    main = Main()
    parts = [*(order.pool.all() if order.pool is not None else ()), flat(order.fresh())]
    for part in parts:
        for chunk in tidy(part):
            main.append(chunk, solid=False)
    main.seal(last)
    queue.main, queue.ranks, queue.ranking = main, None, None
    if queue.shares is not None:
        queue.shares.serve_by(None)
    queue.clear_returned()
    for run in back:
        queue.ensure_returned().push(run)
    queue.renew_targets()


def _living(queue: Contents, chunk: Chunk) -> Chunk:
    assert queue.ranks is not None
    return queue.ranks.among(chunk)


def rated(queue: Contents, token: Token, chunk: Chunk, ranks: Sequence[int], sink: Sink) -> None:
    """The answer to a `Rate`: the ranks of the messages of the chunk, which is the first part of what was asked.

    Of a chunk that is empty nothing can be read: what was asked keeps the rank it has.
    """
    ranking = queue.ranking
    if ranking is None or token.serial != ranking.serial or not len(ranking.asked):
        return
    asked, ranking.asked = ranking.asked, range(0)
    last = chunk[-1] if len(chunk) else asked[-1]
    known, order = queue.ranks, queue.main
    assert known is not None
    assert isinstance(order, PriorityOrder)
    ranking.lsns.take_upto(last)
    taken = order.take_unranked(asked[0], last)
    back = queue.returned.extract(chunk) if len(chunk) else []
    if len(chunk):
        known.replace(chunk, ranks)
    order.put_again(taken)
    for run in back:
        queue.ensure_returned().push(run)
    go_on(queue, sink)


PRIORITIES_MOST = 10
"""Priorities that are told of a queue."""


def priorities(queue: Contents) -> dict[str, object]:
    """For those who ask about a queue with priorities: the highest of what was never delivered, and how many of each.

    `unranked` are messages whose priority is still worked out; nothing is delivered meanwhile.
    """
    if not isinstance(queue.main, PriorityOrder):
        return {}
    aged = queue.settings.priority_ageing > 0  # ranks are times then, and tell nothing
    told = queue.main.priorities(PRIORITIES_MOST) if queue.main.count and not aged else []
    return {
        "priorities": {str(priority_of(rank)) if rank != LOWEST else "lowest": count for rank, count in told},
        "unranked": queue.ranking.left(queue.main) if queue.ranking is not None else 0,
    }


class _Ranked(Stage):
    """The ranks of newcomers are remembered; without any they have the lowest.

    With too many of messages that are gone they begin to be forgotten: `tick` does that in steps.
    """

    def present(self, queue: Contents) -> bool:
        return queue.ranks is not None

    def admit(self, queue: Contents, now: Now, new: Newcomers, sink: Sink) -> None:
        known = queue.ranks
        if known is None:
            return
        if queue.older is None:
            known.forget_if_many(queue.total, queue.living_pieces)
        known.add(new.chunk, [LOWEST] * len(new) if new.ranks is None else new.ranks)

    def prepare(self, queue: Contents, sink: Sink) -> None:
        if queue.ranking is not None:
            go_on(queue, sink)


class _ByPriority(Stage):
    """Newcomers find their places by rank, but for those that somebody takes at once."""

    def present(self, queue: Contents) -> bool:
        return queue.ranks is not None

    def admit(self, queue: Contents, now: Now, new: Newcomers, sink: Sink) -> None:
        if new.placed or queue.ranks is None:
            return
        chunk, rows = new.left()
        start = 0
        while start < len(chunk):
            end = _ahead(queue, now, chunk, new, rows, start)
            if end > start:
                _put(queue, chunk[start:end], new, new.rows_of(rows, start, end))
            elif queue.targets.lists:
                end = start + 1
                _put(queue, chunk[start:end], new, new.rows_of(rows, start, end))
                dispatch(queue, now, sink)
            else:
                end = min(len(chunk), start + _room(queue, now))
                _through(queue, now, chunk[start:end], sink)
            start = end
        new.placed = True


RANKED, BY_PRIORITY = _Ranked(), _ByPriority()


def _ahead(queue: Contents, now: Now, chunk: Chunk, new: Newcomers, rows: Sequence[int] | None, start: int) -> int:
    """Up to where nobody takes any of them at once."""
    if not _room(queue, now):
        return len(chunk)
    lists = queue.targets.lists
    if not lists or _has_room(queue.roster.plain):
        return start
    if new.batch is None:
        return len(chunk)
    found = queue.targets.matches(chunk[start:], new.batch, new.rows_of(rows, start, len(chunk)) or ())
    taken = [start + places[0] for targets, places in found or () if places and _has_room(targets.consumers)]
    return min(taken, default=len(chunk))


def _has_room(consumers: Iterable[Consumer]) -> bool:
    return any(not (one.choked or one.passive) and one.room > 0 for one in consumers)


def _room(queue: Contents, now: Now) -> int:
    """How many messages those with room would take."""
    return 0 if queue.agenda & DISPATCH else max(0, room_now(queue, now))


def _put(queue: Contents, chunk: Chunk, new: Newcomers, rows: Sequence[int] | None) -> None:
    if queue.targets.lists:
        queue.targets.arrive(chunk, new.batch, rows, queue.main)
    queue.ensure_main().append(chunk)
    if queue.weight >= 0:
        queue.weight += queue.sizes.total(chunk)


def _through(queue: Contents, now: Now, chunk: Chunk, sink: Sink) -> None:
    """Hand messages to those who wait for any, in the order of arrival; nothing else is ready."""
    order, queue.main = queue.main, Main()
    queue.main.append(as_chunk(chunk), solid=False)
    if queue.weight >= 0:
        queue.weight += queue.sizes.total(chunk)
    dispatch(queue, now, sink)
    while queue.agenda & DISPATCH and queue.main.count:
        dispatch(queue, now, sink)
    rest, queue.main = queue.main, order
    for part in rest.chunks():
        order.append(part)
