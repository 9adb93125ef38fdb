"""One batch that arrives in several queues whose consumers share credit.

One message at a time is the definition: the first message that finds the counter used up waits, in whatever queue it
stands.  Within a batch credit is only used, never freed, so a batch may be given to its queues whole up to the first
message that could find nothing left; then it is looked at again.  It knows no route and no record.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np

from penstock.core.effects import Deliver, Effect, Sink
from penstock.core.queue.dispatching.consumers import Consumer, Credit
from penstock.core.queue.order.runs import view
from penstock.core.queue.view import Queue
from penstock.records.chunks import Chunk, Now
from penstock.records.dataclass import dataclass

Give = Callable[[Queue, Chunk, Sequence[int]], None]
"""Lets these messages, which are those rows of the batch, arrive in the queue."""


@dataclass(slots=True)
class Share:
    """What of the batch has still to arrive in one queue."""

    queue: Queue
    chunk: Chunk
    rows: Sequence[int]


def share_out(now: Now, shares: list[Share], sink: Sink, effects: Sequence[Effect], give: Give) -> None:
    """Let a batch arrive as if message by message, each in its queues in order of their ids.

    effects: the list that the sink appends to; what was granted is read from it.
    """
    shares.sort(key=_by_id)
    for share in shares:
        if share.queue.is_due(now):
            share.queue.tick(now, sink)  # what it frees, it frees before the batch
    before = len(effects)
    while shares:
        contested = _contested(shares)
        bound: set[int] = set()
        cut: tuple[int, int] | None = None
        for room, mine in contested:
            bound.update(share.queue.id for share in mine)
            first = _first_beyond(mine, room)
            if first is not None and (cut is None or first < cut):
                cut = first
        left: list[Share] = []
        for share in shares:
            chunk, rows = share.chunk, share.rows
            n = len(chunk)
            if cut is not None and share.queue.id in bound:
                n = bisect_left(chunk, cut[0])
                if share.queue.id < cut[1] and n < len(chunk) and chunk[n] == cut[0]:
                    n += 1
            if n < len(chunk):
                left.append(Share(share.queue, chunk[n:], rows[n:]))
            if n:
                give(share.queue, chunk[:n], rows[:n])
        shares = left
    _turn(effects[before:])


def _by_id(share: Share) -> int:
    return share.queue.id


def _contested(shares: list[Share]) -> list[tuple[int, list[Share]]]:
    """Credit with room for which consumers of several of these queues may compete: its room, and those queues."""
    wanting: dict[Credit, list[Share]] = {}
    for share in shares:
        queue = share.queue
        if queue.shares_credit and queue.room > 0:
            for credit in dict.fromkeys(consumer.shared for consumer in queue.consumers if _may_take(consumer)):
                if credit is not None and credit.room > 0:
                    wanting.setdefault(credit, []).append(share)
    return [(credit.room, mine) for credit, mine in wanting.items() if len(mine) > 1]


def _may_take(consumer: Consumer) -> bool:
    return not (consumer.no_ack or consumer.paused) and consumer.limit > consumer.leases.count


def _first_beyond(shares: list[Share], room: int) -> tuple[int, int] | None:
    """The first message, and the id of its queue, that may find the room used up; None if there is none."""
    if sum(len(share.chunk) for share in shares) <= room:
        return None
    lsns = np.concatenate([view(share.chunk) for share in shares])
    lsn = int(np.partition(lsns, room)[room])
    place = room - int(np.count_nonzero(lsns < lsn))
    takers = [share.queue.id for share in shares if _holds(share.chunk, lsn)]
    return lsn, takers[place]


def _holds(chunk: Chunk, lsn: int) -> bool:
    place = bisect_left(chunk, lsn)
    return place < len(chunk) and chunk[place] == lsn


def _turn(effects: Sequence[Effect]) -> None:
    """Who was served last comes last the next time credit is free: by message, not by queue."""
    last: dict[Consumer, tuple[int, int]] = {}
    for effect in effects:
        if isinstance(effect, Deliver) and effect.consumer.shared is not None and not effect.consumer.no_ack:
            last[effect.consumer] = (effect.chunk[-1], effect.queue.id)
    for consumer in sorted(last, key=last.__getitem__):
        if consumer.shared is not None:
            consumer.shared.served(consumer)


__all__ = ["Share", "share_out"]
