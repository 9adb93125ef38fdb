"""Acks of the one message that each of some consumers holds, where nothing waits for its place: prefetches of one."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from penstock.core.queue.settling.settle import by_each, by_one, count_acked
from penstock.core.queue.stages import is_quiet
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.effects import Sink
    from penstock.core.queue.contents import Contents
    from penstock.core.queue.settling.settle import Acked
    from penstock.records.chunks import Now

_pack, _SETTLE = struct.Struct("<3q").pack, Kind.SETTLE  # looked up once: members of an enum are slow


def acknowledge_lone(queue: Contents, now: Now, settled: Sequence[Acked], sink: Sink) -> bool:
    """What `acknowledge` does of these; False: that is not all there is to do, and nothing is done."""
    if queue.main.count or queue.returned.count or queue.sharing or queue.free_credit or queue.declared.actions:
        return False
    done: list[tuple[int, str]] = []
    terms = None
    for consumer, chunks in settled:
        leases = consumer.leases
        terms, lsn = leases.terms, leases.lone
        if terms is None or consumer.closed or len(chunks) != 1 or len(chunks[0]) != 1 or chunks[0][0] != lsn:
            return False
        done.append((lsn, consumer.client or consumer.tag))
    if terms is None or not is_quiet(queue, now):
        return False
    count, first = len(done), settled[0][0].leases.terms or terms
    if count > 1 and len({consumer for consumer, _ in settled}) < count:
        return False
    for consumer, _ in settled:
        leases = consumer.leases
        leases.count, leases.lone, leases.terms = 0, 0, None
    queue.leased -= count
    queue.outstanding -= count
    if count == 1:
        [(lsn, name)] = done
        sink.record(_SETTLE, queue.name, by_one(name), _pack(queue.id, lsn, lsn + 1))
    else:
        sink.record(_SETTLE, queue.name, *by_each(queue.id, done))
    count_acked(queue, now, first, count)
    return True
