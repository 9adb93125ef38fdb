"""An ack of the one message that a consumer holds, where nothing waits for its place, as with a prefetch of one."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from penstock.core.queue.settling.settle import by_one, count_acked
from penstock.core.queue.stages import is_quiet
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.effects import Sink
    from penstock.core.queue.contents import Contents
    from penstock.core.queue.dispatching.consumers import Consumer
    from penstock.records.chunks import Chunk, Now

_pack = struct.Struct("<3q").pack


def acknowledge_lone(queue: Contents, now: Now, consumer: Consumer, chunks: Sequence[Chunk], sink: Sink) -> bool:
    """Settle one message as any ack is settled; False: that is not all there is to do, and nothing is done."""
    leases = consumer.leases
    terms, lsn = leases.terms, leases.lone
    if terms is None or consumer.closed or len(chunks) != 1 or len(chunks[0]) != 1 or chunks[0][0] != lsn:
        return False
    if queue.main.count or queue.returned.count or queue.sharing or queue.free_credit or queue.actions:
        return False
    if not is_quiet(queue, now):
        return False
    leases.count, leases.lone, leases.terms = 0, 0, None
    queue.leased -= 1
    queue.outstanding -= 1
    sink.record(Kind.SETTLE, queue.name, by_one(consumer.client or consumer.tag), _pack(queue.id, lsn, lsn + 1))
    count_acked(queue, now, terms, 1)
    return True
