"""What of a queue's state may leave the heap for an arena: every part that holds something for each message.

Parts whose size is bounded (target lists, letters, holes) stay.  Nothing of this changes what the queue does.
"""

from __future__ import annotations

from penstock.core.arena import Move
from penstock.core.queue.contents import Contents


def page(queue: Contents, move: Move) -> None:
    """Move what is old, as far as there is room."""
    queue.main.page(move)
    queue.tail.page(move)
    queue.returned.page(move)
    queue.delays.retries.page(move)
    queue.delays.scheduled.page(move)
    queue.expiry.page(move)
    if queue.ranks is not None:
        queue.ranks.page(move)
    if queue.shares is not None:
        queue.shares.page(move)
    for barrier in queue.barriers.waiting():
        if barrier.main is not None:
            barrier.main.page(move)
        if barrier.back is not None:
            barrier.back.page(move)
    if queue.older is not None:
        queue.older.chunks = [move.chunk(chunk) for chunk in queue.older.chunks]
    for consumer in queue.holders():
        consumer.leases.page(move)
