"""A queue is put in order anew: after a start, at the end of a pass over older messages, and where settings ask for it.

All that is ready is taken from where it stands and flows in again: it waits for keys, or for ranks, or stands behind a
target depth.  What that costs with very many that wait is done in steps, by whoever they wait for.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.queue.agenda import RANKS, SHARES
from penstock.core.queue.barrier_release import dissolve
from penstock.core.queue.contents import Contents
from penstock.core.queue.order.pool import Pool
from penstock.core.queue.order.runs import Run, sorted_chunk
from penstock.core.queue.priority.order import PriorityOrder, Ranking
from penstock.core.queue.priority.ranks import LOWEST, Ranks
from penstock.core.queue.shares.shares import Shares, expressions
from penstock.core.state.lsns import flat
from penstock.records.chunks import Chunk
from penstock.records.queue_settings import QueueSettings


def follow_settings(queue: Contents, before: QueueSettings) -> None:
    """The settings are others: what stands, and is remembered, by the old ones does so by the new."""
    settings = queue.settings
    if settings.barrier_expression is None and (len(queue.barriers) or queue.barriers.dormant):
        dissolve(queue)
    if settings.last_value_key != before.last_value_key:
        queue.renew_keys()
    if (settings.dedup_key, settings.dedup_window, settings.unique) != (
        before.dedup_key, before.dedup_window, before.unique
    ):  # fmt: skip
        queue.renew_dedup(before)
    by_rank = settings.rank_text != before.rank_text
    if expressions(settings) != expressions(before) or (by_rank and queue.shares is not None):
        by_rank |= queue.ranking is not None
        stage(queue)
    elif queue.shares is not None and queue.shares.tenants is not None:
        queue.shares.tenants.change(settings)
    if by_rank:
        change_ranks(queue)


def stage(queue: Contents, more: Sequence[Chunk] = ()) -> None:
    """The queue, new or loaded, or with other settings: what is ready waits for its keys from now on.

    more    messages that are ready too, and counted as such
    """
    settings = queue.settings
    fresh: list[Chunk] = [*more]
    back: list[Run] = []
    for place in queue.places("ready"):
        fresh += place.fresh()
        back += [Run(run.chunk, False, run.tally, run.place) for run in place.back()]
    queue.main = queue.main.emptied()
    queue.clear_returned()
    everything = sorted_chunk([chunk for chunk in fresh if len(chunk)])
    queue.shares = shares = Shares(settings, queue.ranks) if expressions(settings) else None
    queue.plan = None
    queue.agenda |= SHARES
    main = queue.main if shares is None else shares.staging.main
    if len(everything):
        for start in range(0, len(everything), 8192):
            main.append(everything[start : start + 8192], solid=False)
        queue.main.seal(everything[-1])
    if shares is None:
        for run in back:
            queue.ensure_returned().push(run)
    else:
        for run in back:
            shares.staging.returned.push(run)
        for run in queue.leased_runs():
            shares.staging.out.update(dict.fromkeys(run.chunk, True))
        for run in queue.delays.retries.runs():
            shares.staging.out.update(dict.fromkeys(run.chunk, False))
    queue.renew_targets()


def change_ranks(queue: Contents, more: Sequence[Chunk] = ()) -> None:
    """The expression has changed, or came, or went; `more` messages, whose ranks are known or mixed in, are ready too.

    What costs more with many that wait is done by `go_on`.
    """
    expression = queue.settings.rank_text
    back = [Run(run.chunk, run.solid, run.tally, run.place) for run in queue.returned.runs()]
    others = [chunk for place in queue.places() if place.part != "main" for chunk in place.chunks()]
    before = queue.main
    ready = [*(before.pieces() if isinstance(before, PriorityOrder) else before.chunks()), *more]
    ranks = queue.ranks
    if ranks is None:
        ranks = queue.ranks = Ranks()
        queue.plan = None
        queue.agenda |= RANKS
        if queue.shares is not None:
            queue.shares.serve_by(ranks)
        ranks.level(flat([*ready, *others]), LOWEST)
    else:
        ranks.make_level(LOWEST)
    queue.clear_returned()
    pool, lsns = Pool(ranks.firsts), Pool(ranks.firsts)
    for piece in ready:
        pool.put(piece)
    for piece in others:
        lsns.put(piece)
    order = queue.main = PriorityOrder(ranks)
    order.use_pool(pool)
    for run in back:
        queue.ensure_returned().push(run)
    queue.ranking = Ranking(expression, lsns)
    queue.ranking.more = True
    queue.renew_targets()


def draw_bound(queue: Contents) -> None:
    """After a start or a pass all that was never delivered stands in the main order: what is too much is inactive."""
    depth = queue.settings.target_queue_depth
    others = queue.ready - queue.main.count + queue.leased + queue.delays.retries.count
    keep = max(depth - others, 0)
    if queue.main.count <= keep:
        return
    tail = queue.main
    queue.main = tail.emptied()
    for run in tail.take(keep):
        queue.main.append(run.chunk, solid=False)
    for chunk in tail.chunks():
        queue.ensure_tail().append(chunk, solid=False)
