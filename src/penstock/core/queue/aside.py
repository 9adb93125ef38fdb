"""Messages that nobody can be given, because their bodies cannot be read: leased to nobody, without an end.

They are neither dropped nor settled: they stay in the queue, count as leased, and hold what retention would delete.
But they are in nobody's backlog, nor in that of the queue, so that one damaged batch takes nobody's credit for long.
Whoever may settle what others hold can settle them; a restart makes them ready, since a lease dies with the process,
and they are delivered if they can be read then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.settling.leases import SLOT
from penstock.records.chunks import Chunk

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue

NOBODY = 0
"""Serial number of the holder that is nobody; consumers have higher ones."""


def set_aside(queue: Queue, consumer: Consumer, chunk: Chunk) -> int:
    """Take these from a consumer that holds them; how many.  What it does not hold is left alone."""
    runs = consumer.leases.take(chunk)[0]
    if not runs:
        return 0
    count, slots = queue.freed(consumer, runs)
    kept = [run for run in runs if run.place != SLOT]
    if kept:
        holder = nobody(queue)
        if holder is None:
            holder = Consumer(queue, NOBODY, tag="", holder=None, passive=True)
            holder.closed = True  # it is forgotten once it holds nothing
            queue.enlist(holder)
        for run in kept:
            run.deadline = 0
            holder.leases.add(run)
        queue.leased += count - slots
    return count


def nobody(queue: Queue) -> Consumer | None:
    """Who holds what is set aside; None when nothing is."""
    return next((holder for holder in queue.holders() if holder.serial == NOBODY), None)


def count(queue: Queue) -> int:
    """How many messages are set aside."""
    holder = nobody(queue)
    return holder.leases.count if holder is not None else 0
