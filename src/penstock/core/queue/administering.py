"""What an administrator does to a queue: other settings, a halt, other times, and removing what waits.

A purge is said in few pairs.  A pair of LSNs names all messages of the queue between its ends that still live: one is
enough for all that is ready between two messages which are leased, delayed or dying, however many holes lie there.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.effects import Cancelled, Sink
from penstock.core.queue import weighing
from penstock.core.queue.agenda import AT_ONCE, DISPATCH, PACE, TRIM
from penstock.core.queue.barriers.barriers import dissolve
from penstock.core.queue.dispatching.attendance import altered
from penstock.core.queue.dispatching.joining import close
from penstock.core.queue.limits.limits import limits_of
from penstock.core.queue.order.runs import NEVER, view
from penstock.core.queue.priority.ranking import change_ranks
from penstock.core.queue.shares.pace import Pace
from penstock.core.queue.shares.setting import stage
from penstock.core.queue.shares.shares import expressions
from penstock.core.queue.timed import moving
from penstock.core.state.lsns import Ints, flat
from penstock.records.chunks import Chunk, Now, pack_pairs
from penstock.records.kinds import Kind
from penstock.records.queue_settings import QueueSettings

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents
    from penstock.core.queue.view import Queue


def alter(queue: Queue, now: Now, settings: QueueSettings, sink: Sink) -> None:
    """New settings, at once.  Deadlines that messages and leases already have stay as they are."""
    if queue.is_due(now):
        queue.tick(now, sink)
    if settings.lease_period != queue.settings.lease_period and queue.outstanding:
        queue.leases_in_order = False
    before, queue.settings = queue.settings, settings
    queue.plan = None
    queue.limits = limits_of(settings)
    queue.agenda &= ~TRIM  # whether anything is too much is looked at anew
    weighing.begin(queue)
    if settings.barrier_expression is None and (len(queue.barriers) or queue.barriers.dormant):
        dissolve(queue)
    if settings.last_value_key != before.last_value_key:
        queue.renew_keys()
    if (settings.dedup_key, settings.dedup_window, settings.unique) != (
        before.dedup_key, before.dedup_window, before.unique
    ):  # fmt: skip
        queue.renew_dedup(before)
    ordered_anew = settings.rank_text != before.rank_text
    if expressions(settings) != expressions(before) or (ordered_anew and queue.shares is not None):
        ordered_anew |= queue.ranking is not None
        stage(queue)
    elif queue.shares is not None and queue.shares.tenants is not None:
        queue.shares.tenants.change(settings)
    if ordered_anew:
        change_ranks(queue)
    if settings.rate_limit[:2] != before.rate_limit[:2]:
        rate = settings.rate_limit
        queue.pace = Pace(rate[0], rate[1], now.mono) if rate[0] else None
        queue.agenda |= PACE
    for consumer in queue.all_consumers:
        consumer.set_limit()
        if consumer.targets is not None:
            consumer.targets.wake(consumer)
    altered(queue, now, before)
    queue.carry_on(now, sink)


def halt(queue: Queue, now: Now, until: int, sink: Sink, by: str = "") -> None:
    """Deliver nothing before `until` (wall; `NEVER`: before somebody says so), or go on with 0."""
    if queue.is_due(now):
        queue.tick(now, sink)
    moving.pause(queue, until, sink, by)
    queue.carry_on(now, sink)


def drain(queue: Queue, now: Now, draining: bool, sink: Sink) -> None:
    """Deliver nothing while the server drains, or go on."""
    if queue.is_due(now):
        queue.tick(now, sink)
    moving.drain(queue, draining)
    queue.carry_on(now, sink)


def withdraw(queue: Queue, now: Now, wanted: Chunk, sink: Sink, by: str = "") -> int:
    """Remove those of the wanted that wait, for they are not wanted any more; how many."""
    if queue.is_due(now):
        queue.tick(now, sink)
    count = moving.withdraw(queue, wanted, sink, by)
    queue.carry_on(now, sink)
    return count


def leave_behind(queue: Queue, now: Now, start: int, sink: Sink) -> int:
    """Remove what is older than `start`, waiting or leased, for the queue begins there now; how many."""
    if queue.is_due(now):
        queue.tick(now, sink)
    count = moving.leave_behind(queue, start, sink)
    queue.carry_on(now, sink)
    return count


def reschedule(queue: Queue, now: Now, wanted: Chunk, when: int, sink: Sink, by: str = "") -> int:
    """Delay those of the wanted that wait until `when` (wall), whatever they waited for; how many."""
    if queue.is_due(now):
        queue.tick(now, sink)
    count = moving.reschedule(queue, wanted, when, sink, by)
    if queue.is_due(now):
        queue.tick(now, sink)
    else:
        queue.carry_on(now, sink)
    return count


def purge(queue: Queue, now: Now, sink: Sink) -> int:
    """Drop everything that is ready or held back; returns how much that was."""
    if queue.is_due(now):
        queue.tick(now, sink)
    count = drop_all(queue, sink)
    queue.agenda &= ~DISPATCH
    if queue.targets.lists:
        queue.targets.ask(queue.main, sink)
    return count


def drop_all(queue: Queue, sink: Sink) -> int:
    count = queue.available + queue.inactive
    if count:
        sink.record(Kind.PURGE, queue.name, None, pack_pairs(queue.id, ready_pairs(queue)))
        queue.drop_ready()
    queue.targets.forget()
    queue.agenda &= ~TRIM
    return count


def delete(queue: Queue, now: Now, sink: Sink) -> int:
    """End all consumers and forget everything; the caller writes the record.  Returns how much was ready."""
    for consumer in list(queue.all_consumers):
        if not consumer.closed:
            if not consumer.fenced:  # a stream's silent one: its reader hears of it when it asks
                sink.effect(Cancelled(consumer))
            close(queue, consumer)
        queue.freed(consumer, consumer.leases.clear())
        queue.drop_if_done(consumer)
    count = queue.available + queue.inactive
    queue.bury()
    queue.lease_due = NEVER
    queue.agenda &= ~AT_ONCE
    queue.carry_on(now, sink)
    return count


def ready_pairs(queue: Contents) -> list[int]:
    """Flat pairs, ascending, that hold what is ready or held back, and nothing else that lives."""
    ready = list(queue.chunks("ready", "held", "inactive"))
    if not ready:
        return []
    low, high = min(chunk[0] for chunk in ready), max(chunk[-1] for chunk in ready)
    stay = _staying(queue, low, high)
    if not len(stay):
        return [low, high + 1]
    spans: dict[int, tuple[int, int]] = {}  # by how many of those that stay come before
    for chunk in ready:
        first, last = np.searchsorted(stay, (chunk[0], chunk[-1])).tolist()
        if first == last:
            _widen(spans, first, chunk[0], chunk[-1])
            continue
        lsns = view(chunk)
        before = np.searchsorted(stay, lsns)
        ends = np.append(np.flatnonzero(np.diff(before)), len(lsns) - 1)
        starts = np.concatenate(([0], ends[:-1] + 1))
        for group, a, b in zip(before[starts].tolist(), lsns[starts].tolist(), lsns[ends].tolist(), strict=True):
            _widen(spans, group, a, b)
    return [end for _, (a, b) in sorted(spans.items()) for end in (a, b + 1)]


def _widen(spans: dict[int, tuple[int, int]], group: int, low: int, high: int) -> None:
    here = spans.get(group)
    spans[group] = (low, high) if here is None else (min(here[0], low), max(here[1], high))


def _staying(queue: Contents, low: int, high: int) -> Ints:
    """LSNs that live and are not ready, between the two; ascending."""
    staying = queue.chunks("leased", "delayed", "dying")
    overlapping = [chunk for chunk in staying if len(chunk) and chunk[0] <= high and low <= chunk[-1]]
    return flat([chunk[bisect_left(chunk, low) : bisect_left(chunk, high + 1)] for chunk in overlapping])
