"""What arrives as nearly all does: at a plain queue without consumers, or where one has room and nothing waits.

There it stands in the main order, here it goes straight to whose turn it is: one message for one consumer need not be
offered, dealt and granted as many are.  What comes of it is the same to the last record as by the way that all others
go (`core.queue.flow`, `dispatch`).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import TYPE_CHECKING

from penstock.core.effects import Deliver, Sink
from penstock.core.queue.dispatching.attendance import watch
from penstock.core.queue.dispatching.granting import first_header, terms_of
from penstock.core.queue.stages import is_quiet
from penstock.records.chunks import Chunk, Now
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents
    from penstock.core.queue.dispatching.consumers import Consumer
    from penstock.records.queue_settings import QueueSettings

_pack = struct.Struct("<3q").pack


def is_usual(settings: QueueSettings) -> bool:
    """Whether a message of such a queue is leased without an end, sent at once, and goes to whose turn it is."""
    return (
        settings.semantics == "at-least-once" and settings.deliver == "early" and not settings.lease_period
        and settings.fairness_model == "round-robin" and not settings.non_destructive
        and not settings.max_backlog and not settings.max_leased[0]
    )  # fmt: skip


def straight(queue: Contents, now: Now, chunk: Chunk, sink: Sink) -> bool:
    """Let messages arrive that are due at once; False: nothing is done, and they arrive as any."""
    if not is_quiet(queue, now):
        return False
    if not queue.roster.all:
        if queue.onward is not None or queue.settings.purge_on_no_consumers:
            return False
        queue.ensure_main().append(chunk)
        return True
    levels = queue.roster.levels
    if len(chunk) > 1 or len(levels) > 1 or queue.main.segments or queue.returned.count or queue.sharing:
        return False
    return _give(queue, now, chunk[0], levels[0], sink)


def _give(queue: Contents, now: Now, lsn: int, level: list[Consumer], sink: Sink) -> bool:
    """Grant a message to the consumer whose turn it is; False: nothing is done."""
    settings = queue.settings
    if queue.usual is not settings:
        if not is_usual(settings):
            return False
        queue.usual = settings
    if (
        queue.pace is not None or queue.draining or queue.paused_until > 0 or queue.behind or queue.ranking is not None
        or queue.older is not None or lsn < queue.redelivered_below or not queue.roster.in_order
    ):  # fmt: skip
        return False
    one = _next(level, queue.roster.turn)
    if one is None or one.no_ack:
        return False
    queue.roster.turn = one.serial
    leases, terms = one.leases, terms_of(now.mono, 0)
    leases.count += 1
    if leases.count == 1:
        leases.lone, leases.terms = lsn, terms  # as `add_lone` does
    else:
        leases.add_lone(lsn, terms)
    if one.timeout:
        watch(queue, now.mono + one.timeout)
    sink.record(Kind.GRANT, queue.name, one.first_grant or first_header(one), _pack(queue.id, lsn, lsn + 1))
    sink.effect(Deliver(one, queue, range(lsn, lsn + 1), 1, False, 0))
    figures = queue.figures
    if figures is None:
        figures = queue.counted(now.mono)
    figures.delivered += 1
    queue.outstanding += 1
    queue.leased += 1
    return True


def _next(level: list[Consumer], turn: int) -> Consumer | None:
    """Who comes next after this one, of those with room."""
    first = 0
    if level[0].serial <= turn < level[-1].serial:
        first = bisect_right(level, turn, key=_serial_of)
    for one in level[first:]:
        if one.leases.count < one.limit and not one.choked:
            return one
    for one in level[:first]:
        if one.leases.count < one.limit and not one.choked:
            return one
    return None


def _serial_of(consumer: Consumer) -> int:
    return consumer.serial
