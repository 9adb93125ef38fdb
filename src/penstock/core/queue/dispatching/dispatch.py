"""Ready messages to consumers: who gets which, in what order, and who the next when several could take it.

The definition: again and again, the oldest ready message that some consumer with room wants goes to one of those that
want it, of the highest consumer priority (whoever let a lease end is behind all others: `roster`), picked
by the fairness model.  Without filters a whole slice is dealt at once; with filters, and where consumers have credit
together, `matched` looks at those that match.  `dealing` has the models.

What arrives as nearly all does needs less (`straight`): at a plain queue without consumers it stands in the main order,
where one has room and nothing waits it goes to whose turn it is: one message each for some consumers need not be
offered and dealt as many are.  What comes of it is the same to the last record as by the way that all others go.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from penstock.core.effects import Deliver, Sink
from penstock.core.queue.dispatching.attendance import watch
from penstock.core.queue.dispatching.browsing import browse_all
from penstock.core.queue.dispatching.consumers import Consumer, serial_of
from penstock.core.queue.dispatching.dealing import pick, share_out
from penstock.core.queue.dispatching.granting import (
    first_header,
    first_terms,
    grant,
    grant_all,
    grant_each,
    is_fresh,
    one_each,
)
from penstock.core.queue.dispatching.matched import dispatch_matched
from penstock.core.queue.dispatching.roster import SPARE_MOST
from penstock.core.queue.order.runs import Run
from penstock.core.queue.stages import PLAIN, is_quiet
from penstock.core.queue.whole import DISPATCH
from penstock.records.chunks import Chunk, Now
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents
    from penstock.records.queue_settings import QueueSettings


TENANTS_MOST = 512
"""Messages granted in one step where tenants take turns, which costs a few microseconds a message."""

LOOKS_MOST = 32_768
"""Looks at filters' lists, and at runs of what came back, in one step where that is given out: each message of it is
taken by itself from the runs and told to the lists, some 0.3 us each."""

MANY = 2
"""Consumers of one priority from which on it is first asked whose turn it is, where nothing else has to be known."""

HALF_FROM = 32
"""Consumers of one priority from which on as many messages as half of them are worth a look at each."""

LOOK_LEAST = 16
"""Consumers looked at in one go, at least."""


def dispatch(queue: Contents, now: Now, sink: Sink) -> None:
    """Grant what can be granted, `DISPATCH_MOST` at most, to tenants `TENANTS_MOST`, to many filters fewer."""
    if queue.agenda:
        queue.agenda &= ~DISPATCH
    offered = queue.offered
    if not offered or not queue.roster.all or queue.busy:
        return
    if queue.settings.non_destructive:
        browse_all(queue, sink, queue.dispatch_most)
        return
    budget = queue.dispatch_most
    if queue.shares is not None or queue.pace is not None:
        budget = _limited(queue, now, budget)
    if not budget:
        return
    limited = queue.sharing > 0 or queue.settings.max_backlog > 0 or queue.settings.max_leased[0] > 0
    entangled = limited and _entangled(queue)
    if entangled or queue.targets.lists:
        dispatch_matched(queue, now, sink, _in_looks(queue, budget), singly=entangled)
    else:
        _by_level(queue, now, sink, offered, budget)


def _limited(queue: Contents, now: Now, budget: int) -> int:
    """What tenants, or a rate, leave of it."""
    if queue.shares is not None:
        queue.shares.mono = now.mono
        if queue.shares.tenants is not None:
            budget = min(budget, TENANTS_MOST)
    return budget if queue.pace is None else min(budget, queue.pace.allowed(now.mono))


def _in_looks(queue: Contents, budget: int) -> int:
    """What may be looked at of it in one step where some came back."""
    if not queue.returned.count:
        return budget
    return min(budget, LOOKS_MOST // (len(queue.targets.lists) + queue.returned.heaped_runs + 1) + 1)


def _by_level(queue: Contents, now: Now, sink: Sink, offered: int, budget: int) -> None:
    """To those of the highest priority first, whole slices to each."""
    roster, fairness = queue.roster, queue.settings.fairness_model
    if queue.sharing:
        roster.spare = None  # others use what one has room by
    by_turn = roster.spare is None and roster.in_order and queue.shares is None and fairness == "round-robin"
    for level in roster.levels:
        given: int | None = 0
        if by_turn and len(level) >= MANY:
            given = _to_whose_turn_it_is(queue, now, sink, level, offered, budget)
        given = given or _slices(queue, now, sink, level, offered, budget)
        if given is None:
            return
        budget -= given
        offered -= given
        if not offered:
            return
    if budget > 0 < queue.room and _is_vast(queue):
        roster.spare = {}  # each had what it has room for


def _is_vast(queue: Contents) -> bool:
    """Whether consumers are so many that those with room are known, and whether what one has is its own."""
    return len(queue.roster.all) > SPARE_MOST and queue.shares is None and not queue.sharing


def _with_room(some: Iterable[Consumer]) -> list[Consumer]:
    """Those that take more.  The first test alone answers for most of many: `room` is a call."""
    return [
        one for one in some if one.leases.count < one.limit and not one.choked and (one.shared is None or one.room > 0)
    ]


def _to_whose_turn_it_is(
    queue: Contents, now: Now, sink: Sink, level: Sequence[Consumer], offered: int, budget: int
) -> int:
    """One to each of some, if that is all there is to give; how many, 0: not so."""
    count, most = min(offered, queue.room), len(level)
    if not 0 < count <= min(most if most < HALF_FROM else most // 2, budget):
        return 0
    if count == 1:
        one = queue.roster.whose_turn(level)
        several = [] if one is None else [one]
    else:
        several = in_turn(level, queue.roster.turn, count)
    if len(several) < count:
        return 0
    _one_each(queue, now, sink, several)
    return count


def _slices(queue: Contents, now: Now, sink: Sink, level: Sequence[Consumer], offered: int, budget: int) -> int | None:
    """Give those of one priority what they take; how many messages.  None: nothing more may go now."""
    free = _with_room(level if queue.roster.spare is None else queue.roster.spare_of(level))
    if not free:
        return 0
    limit = min(offered, queue.room)
    want = min(limit, free[0].room if len(free) == 1 else sum([consumer.room for consumer in free]))
    count = min(want, budget)
    if count < want:
        queue.agenda |= DISPATCH
    if count <= 0:
        return None
    runs = queue.take_ready(count)
    if queue.shares is not None:  # a tenant may not have more out
        count = sum([len(run.chunk) for run in runs])
        if not count:
            queue.agenda &= ~DISPATCH  # what is left may not go now: there is nothing to come back for
            return None
    if len(free) == 1:
        grant(queue, now, sink, free[0], runs)
        queue.roster.turn = free[0].serial
    else:
        _deal(queue, now, sink, free, runs, count)
    return count


def in_turn(level: Sequence[Consumer], turn: int, count: int) -> list[Consumer]:
    """So many consumers with room, each once, beginning with whose turn it is; fewer if there are no more.

    Of a thousand those alone are looked at that get something, and who has no room before them.
    """
    first = bisect_right(level, turn, key=serial_of)
    out: list[Consumer] = []
    for start, stop in ((first, len(level)), (0, first)):
        while start < stop and len(out) < count:
            some = level[start : min(stop, start + max(count - len(out), LOOK_LEAST))]
            start += len(some)
            out += _with_room(some)
    return out[:count]


def _one_each(queue: Contents, now: Now, sink: Sink, consumers: list[Consumer]) -> None:
    """Give each of these one of the oldest, in their order."""
    runs = queue.take_ready(len(consumers))
    if len(runs) == 1 and is_fresh(runs[0]) and one_each(queue, consumers, runs[0].chunk):
        for consumer in consumers:
            consumer.leases.count += 1
        grant_each(queue, now, sink, consumers, runs[0].chunk)
    else:
        singles = [run.part(range(lsn, lsn + 1), True) for run in runs for lsn in run.chunk]
        grant_all(queue, now, sink, [(one, [run]) for one, run in zip(consumers, singles, strict=True)])
    queue.roster.turn = consumers[-1].serial


def room_now(queue: Contents, now: Now) -> int:
    """How many messages would be dispatched at once, if there were as many.

    Where credit is shared perhaps fewer; more where `some_fill_nothing`.
    """
    if not queue.roster.all or queue.busy:
        return 0
    rooms = [max(one.room, 0) for level in queue.roster.levels for one in level if not one.choked]
    room = min(queue.room, sum(rooms))
    return room if queue.pace is None else min(room, queue.pace.allowed(now.mono))


def some_fill_nothing(queue: Contents) -> bool:
    """Whether the queue may have so many outstanding, and what one of its consumers is given is none of these."""
    settings = queue.settings
    limited = settings.max_backlog or settings.max_leased[0]
    return limited > 0 and any(consumer.no_ack for consumer in queue.roster.all)


def _entangled(queue: Contents) -> bool:
    """Whether what one consumer takes may change another's room otherwise than by the message."""
    if some_fill_nothing(queue):
        return True
    if not queue.sharing:
        return False
    if queue.targets.lists:
        return True
    seen = [id(consumer.shared) for consumer in queue.roster.all if consumer.shared is not None]
    return len(set(seen)) < len(seen)


def _deal(queue: Contents, now: Now, sink: Sink, free: Sequence[Consumer], runs: list[Run], count: int) -> None:
    if count == 1:
        consumer = pick(queue.settings.fairness_model, free, queue.roster.turn)
        grant(queue, now, sink, consumer, runs)
        queue.roster.turn = consumer.serial
        return
    shares, last = share_out(queue.settings.fairness_model, free, queue.roster.turn, runs, count)
    grant_all(queue, now, sink, [(one, share) for one, share in zip(free, shares, strict=True) if share])
    queue.roster.turn = last.serial


_pack, _GRANT = struct.Struct("<3q").pack, Kind.GRANT  # looked up once: members of an enum are slow


def is_usual(settings: QueueSettings) -> bool:
    """Whether a message of such a queue is leased without an end, sent at once, and goes to whose turn it is."""
    return (
        settings.semantics == "at-least-once" and settings.deliver == "early" and not settings.lease_period
        and settings.fairness_model == "round-robin" and not settings.non_destructive
        and not settings.max_backlog and not settings.max_leased[0]
    )  # fmt: skip


def straight(queue: Contents, now: Now, chunk: Chunk, sink: Sink) -> bool:
    """Let messages arrive that are due at once; False: nothing is done, and they arrive as any."""
    if (queue.agenda or queue.plan is not PLAIN or queue.targets.lists) and not is_quiet(queue, now):
        return False
    if not queue.roster.all:
        if queue.declared.waits or queue.settings.purge_on_no_consumers:
            return False
        (queue.main if queue.main.count else queue.ensure_main()).append(chunk)
        return True
    settings = queue.settings
    if queue.usual is not settings:
        if not is_usual(settings):
            return False
        queue.usual = settings
    if _is_held(queue, chunk[0]):
        return False
    return (_give_each if len(chunk) > 1 else _give_one)(queue, now, chunk, sink)


def _is_held(queue: Contents, first: int) -> bool:
    """Whether others wait, or more than the order of subscription says who gets what and when."""
    roster = queue.roster
    return bool(
        len(roster.levels) > 1 or not roster.in_order
        or queue.main.segments or queue.returned.count or queue.sharing or queue.pace is not None or queue.draining
        or queue.paused_until > 0 or queue.behind or queue.ranking is not None or queue.older is not None
        or first < queue.redelivered_below
    )  # fmt: skip


def _give_one(queue: Contents, now: Now, chunk: Chunk, sink: Sink) -> bool:
    """Grant a message to the consumer whose turn it is; False: none has room, or it does not acknowledge."""
    roster = queue.roster
    one = roster.whose_turn(roster.levels[0])
    if one is None or one.no_ack:
        return False
    roster.turn = one.serial
    mono, leases, lsn = now.mono, one.leases, chunk[0]
    terms = first_terms(mono, 0)
    leases.count += 1
    if leases.count == 1:
        leases.lone, leases.terms = lsn, terms  # as `add_lone` does
    else:
        leases.add_lone(lsn, terms)
    if one.timeout:
        watch(queue, mono + one.timeout)
    sink.record(_GRANT, queue.name, one.first_grant or first_header(one), _pack(queue.id, lsn, lsn + 1))
    sink.effect(Deliver(one, queue, chunk, 1, False, 0))
    figures = queue.figures or queue.counted(mono)
    figures.delivered += 1
    queue.outstanding += 1
    queue.leased += 1
    return True


def _give_each(queue: Contents, now: Now, chunk: Chunk, sink: Sink) -> bool:
    """Grant one message to each of some consumers, whose turn it is; False: they have no room for all."""
    level, count = queue.roster.levels[0], len(chunk)
    if count > (len(level) if len(level) < HALF_FROM else len(level) // 2):
        return False
    several = in_turn(level, queue.roster.turn, count)
    if len(several) < count or [one for one in several if one.no_ack]:
        return False
    for one in several:
        one.leases.count += 1
    grant_each(queue, now, sink, several, chunk)
    queue.roster.turn = several[-1].serial
    return True
