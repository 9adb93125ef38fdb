"""What an administrator does to a queue: other settings, a pause, other times, and removing what waits.

A purge is said in few pairs.  A pair of LSNs names all messages of the queue between its ends that still live: one is
enough for all that is ready between two messages which are leased, delayed or dying, however many holes lie there.

Only what waits can be withdrawn or moved to another time: what is leased is its holder's, what is dying is on its way
out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from penstock.core.effects import Cancelled, Sink
from penstock.core.queue.contents import Contents
from penstock.core.queue.dispatching.attendance import altered
from penstock.core.queue.dispatching.joining import close
from penstock.core.queue.held import mixed
from penstock.core.queue.lasting import follow_settings
from penstock.core.queue.limits import Pace, limits_of
from penstock.core.queue.order.runs import NEVER, Run, all_within, holds, packed, pairs_body, view, without
from penstock.core.queue.owning import ours_among
from penstock.core.queue.settling.attempts import FRESH
from penstock.core.queue.settling.settle import from_holders
from penstock.core.queue.stages import marked
from penstock.core.queue.whole import AT_ONCE, DISPATCH, PACE, PAUSE, TRIM
from penstock.core.state.lsns import FEW, Ints, flat, to_array
from penstock.errors import NotFound
from penstock.records.causes import CANCELLED, LEFT_BEHIND
from penstock.records.chunks import Chunk, Now, pack_pairs
from penstock.records.kinds import Kind
from penstock.records.queue_settings import QueueSettings


def alter(queue: Contents, now: Now, settings: QueueSettings, sink: Sink) -> None:
    """New settings, at once.  Deadlines that messages and leases already have stay as they are."""
    queue.catch_up(now, sink)
    if settings.lease_period != queue.settings.lease_period and queue.outstanding:
        queue.leases_in_order = False
    before, queue.settings = queue.settings, settings
    queue.plan = None
    queue.limits = limits_of(settings)
    queue.agenda &= ~TRIM  # whether anything is too much is looked at anew
    if queue.bytes_limited != (queue.weight >= 0):
        queue.weigh()
    follow_settings(queue, before)
    if settings.rate_limit[:2] != before.rate_limit[:2]:
        rate = settings.rate_limit
        queue.pace = Pace(rate[0], rate[1], now.mono) if rate[0] else None
        queue.agenda |= PACE
    for consumer in queue.all_consumers:
        consumer.set_limit()
        queue.roster.wake(consumer)
    altered(queue, now, before)
    queue.carry_on(now, sink)


def pause(queue: Contents, now: Now, until: int, sink: Sink, by: str = "") -> None:
    """Deliver nothing before `until` (wall; `NEVER`: before somebody says so), or go on with 0.  The record lasts."""
    queue.catch_up(now, sink)
    pause_due(queue, until, sink, by)
    queue.carry_on(now, sink)


def pause_due(queue: Contents, until: int, sink: Sink, by: str = "") -> None:
    """`pause`, without doing first what is due."""
    if until != queue.paused_until:
        stay_paused(queue, until)
        sink.record(Kind.PAUSE, queue.name, _with_author({"until": until}, by), pack_pairs(queue.id, ()))


def stay_paused(queue: Contents, until: int) -> None:
    """Set the pause that a record already says."""
    queue.paused_until = until
    if until:
        queue.agenda |= PAUSE


def drain(queue: Contents, now: Now, draining: bool, sink: Sink) -> None:
    """Deliver nothing while the server drains, or go on.  There is no record: it ends with the process."""
    queue.catch_up(now, sink)
    queue.draining = draining
    queue.carry_on(now, sink)


def await_sites(queue: Contents, now: Now, sites: tuple[str, ...], sink: Sink) -> None:
    """Deliver nothing until these sites have reported what happened.  No record: it ends with the process."""
    queue.catch_up(now, sink)
    queue.behind = sites
    queue.carry_on(now, sink)


def withdraw(queue: Contents, now: Now, wanted: Chunk, sink: Sink, by: str = "") -> int:
    """Remove the wanted messages that wait, in any state, without dead letters; how many."""
    queue.catch_up(now, sink)
    count = _dropped(queue, queue.extract(wanted), CANCELLED, sink, by)
    queue.carry_on(now, sink)
    return count


def leave_behind(queue: Contents, now: Now, start: int, sink: Sink) -> int:
    """Remove what is older than `start`, the new beginning of the queue, waiting or leased; how many.

    No dead letter comes of it.  What another site owns stays, for it would go at every site.  What a stream has planned
    stays with its batch, which must be the same whenever it is asked for; what is dying is gone already.  What a queue
    keeps for everybody it hands out without leasing it.
    """
    queue.catch_up(now, sink)
    old: Chunk = range(start)
    if queue.foreign is not None:
        old = ours_among(queue, all_within(queue.chunks(), 0, start))
    holders = [] if queue.settings.non_destructive or not len(old) else list(queue.holders())
    runs, _, _ = from_holders(queue, old, [one for one in holders if not one.fenced])
    runs += queue.extract(old) if len(old) else []
    count = _dropped(queue, runs, LEFT_BEHIND, sink)
    queue.carry_on(now, sink)
    return count


def reschedule(queue: Contents, now: Now, wanted: Chunk, when: int, sink: Sink, by: str = "") -> int:
    """Delay the wanted messages that wait until `when` (wall), whatever they waited for; how many.

    When another site's may be delivered its owner says.
    """
    queue.catch_up(now, sink)
    ours = ours_among(queue, wanted)
    count = delay_waiting(queue, ours, when, sink, by) if len(ours) else 0
    if queue.is_due(now):
        queue.tick(now, sink)
    else:
        queue.carry_on(now, sink)
    return count


def purge(queue: Contents, now: Now, sink: Sink) -> int:
    """Drop everything that is ready or held back; returns how much that was."""
    queue.catch_up(now, sink)
    count = drop_all(queue, sink)
    queue.agenda &= ~DISPATCH
    if queue.targets.lists:
        queue.targets.ask(queue.main, sink)
    return count


def drop_all(queue: Contents, sink: Sink) -> int:
    count = queue.available + queue.inactive
    if count:
        sink.record(Kind.PURGE, queue.name, None, pack_pairs(queue.id, ready_pairs(queue)))
        queue.drop_ready()
    queue.targets.forget()
    queue.agenda &= ~TRIM
    return count


def delete(queue: Contents, now: Now, sink: Sink) -> int:
    """End all consumers and forget everything; the caller writes the record.  Returns how much was ready."""
    for consumer in list(queue.all_consumers):
        if not consumer.closed:
            if not consumer.fenced:  # a stream's silent one: its reader hears of it when it asks
                sink.effect(Cancelled(consumer, _deleted(queue)))
            close(queue, consumer)
        queue.freed(consumer, consumer.leases.clear())
        queue.drop_if_done(consumer)
    count = queue.available + queue.inactive
    queue.bury()
    queue.lease_due = NEVER
    queue.agenda &= ~AT_ONCE
    queue.carry_on(now, sink)
    return count


def _deleted(queue: Contents) -> NotFound:
    return NotFound(f"queue '{queue.name}' in vhost '{queue.vhost}' was deleted")


def ready_pairs(queue: Contents) -> list[int]:
    """Flat pairs, ascending, that hold what is ready or held back, and nothing else that lives."""
    ready = _gathered(list(queue.chunks("ready", "held", "inactive")))
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


def _gathered(chunks: Sequence[Chunk]) -> list[Chunk]:
    """These chunks; the small ones, of which there may be very many, are one."""
    few = flat([chunk for chunk in chunks if len(chunk) < FEW])
    gathered = [to_array(few)] if len(few) else []
    return [*gathered, *[chunk for chunk in chunks if len(chunk) >= FEW]]


def _widen(spans: dict[int, tuple[int, int]], group: int, low: int, high: int) -> None:
    here = spans.get(group)
    spans[group] = (low, high) if here is None else (min(here[0], low), max(here[1], high))


def _staying(queue: Contents, low: int, high: int) -> Ints:
    """LSNs between the two that are in the queue and not ready; ascending."""
    staying = queue.chunks("leased", "delayed", "dying", "foreign")
    overlapping = [chunk for chunk in staying if len(chunk) and chunk[0] <= high and low <= chunk[-1]]
    return flat([chunk[bisect_left(chunk, low) : bisect_left(chunk, high + 1)] for chunk in overlapping])


def _dropped(queue: Contents, runs: Sequence[Run], reason: str, sink: Sink, by: str = "") -> int:
    """Log that these, taken out of their places, have left the queue; how many."""
    if not runs:
        return 0
    queue.left(runs)
    sink.record(Kind.DROP, queue.name, _with_author({"reason": reason}, by), pairs_body(queue.id, runs))
    count = sum(len(run.chunk) for run in runs)
    queue.counted().expired(reason, count)
    return count


def _with_author(header: dict[str, object], by: str) -> dict[str, object]:
    return {**header, "by": by} if by else header


def delay_waiting(queue: Contents, wanted: Chunk, when: int, sink: Sink, by: str) -> int:
    """Delay the messages that wait until `when`; how many.

    What was never delivered takes the place of its next DUE record, what was returns to its own place then.
    """
    moved = queue.delays.move(wanted, when) if queue.delayed else None
    moving: list[Run] = []
    if moved is not None and len(moved):
        moving.append(Run(packed(np.sort(moved)), False))
        wanted = without(wanted, moving[0].chunk)
    fences = _fences(queue, wanted)
    runs = queue.extract(wanted) if len(wanted) else []
    if not moving and not runs:
        return 0
    header = _with_author({"not_before": when}, by)
    sink.record(Kind.RESCHEDULE, queue.name, header, pairs_body(queue.id, moving + runs))
    if queue.shares is not None:
        queue.shares.moved(queue, runs)
    if queue.last_values is not None:
        queue.last_values.moved(runs)
    _keep_until(queue, runs, when, fences)
    return sum(len(run.chunk) for run in moving + runs)


def _keep_until(queue: Contents, runs: Sequence[Run], when: int, fences: set[int]) -> None:
    """Delay runs that were taken out of their place.  fences: those of them that are barriers."""
    late = queue.ensure_delays()
    for run in runs:
        run.deadline, run.place, run.granted = when, 0, 0
        if run.tally == FRESH:
            lsns = view(run.chunk)
            late.schedule_older(lsns, np.full(len(lsns), when, dtype=np.int64))
        else:
            late.retry(run)
        if fences:
            queue.ensure_barriers().dormant.update(lsn for lsn in run.chunk if lsn in fences)
    if fences:  # what stood before and behind one was joined, and it lives on between them
        mixed(queue, max(fences))


def _fences(queue: Contents, wanted: Chunk) -> set[int]:
    """Those of the wanted that are barriers."""
    return {lsn for lsn in marked(queue) if len(wanted) and holds(wanted, lsn)}
