"""What arrives as nearly all does: at a plain queue without consumers, or where one has room and nothing waits.

There it stands in the main order, here it goes straight to whose turn it is: one message each for some consumers need
not be offered and dealt as many are.  What comes of it is the same to the last record as by the way that all others
go (`core.queue.flow`, `dispatch`).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from penstock.core.effects import Deliver, Sink
from penstock.core.queue.dispatching.attendance import watch
from penstock.core.queue.dispatching.dispatch import HALF_FROM, in_turn
from penstock.core.queue.dispatching.granting import first_header, first_terms, grant_each
from penstock.core.queue.stages import PLAIN, is_quiet
from penstock.records.chunks import Chunk, Now
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents
    from penstock.records.queue_settings import QueueSettings

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
