"""Longer leases for a consumer that needs more time.  Session state alone: nothing of it is logged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.records.chunks import Chunk

if TYPE_CHECKING:
    from penstock.core.queue.dispatching.consumers import Consumer
    from penstock.core.queue.view import Queue


def extend(queue: Queue, consumer: Consumer, chunk: Chunk, deadline: int) -> int:
    """Let what the consumer holds of the chunk end at `deadline` (monotonic microseconds) at the earliest.

    Returns how many messages it holds of them; a lease that does not end by time stays so.
    """
    count = consumer.leases.extend(chunk, deadline)
    if count:
        queue.leases_in_order = False
    return count
