"""The oldest message that still lives in some queue, without asking all of them each time.

A queue's floor only rises: what arrives is newer than all before.  So a floor looked up earlier is still true, if low,
and the queues that moved since can be asked again a few at a time.
"""

from __future__ import annotations

from penstock.core.queue.order.runs import NEVER
from penstock.core.queue.view import Queue


class Floors:
    """The floors of the queues that hold something."""

    def __init__(self) -> None:
        self.moved: set[Queue] = set()  # touched since they were asked
        self._known: dict[int, int] = {}  # by queue id

    def forget(self, queue: Queue) -> None:
        """The queue is gone."""
        self.moved.discard(queue)
        self._known.pop(queue.id, None)

    def look(self, most: int) -> bool:
        """Ask up to so many of those that moved; whether some are left."""
        moved = self.moved
        while moved and most:
            most -= 1
            queue = moved.pop()
            floor = queue.floor()
            if floor < NEVER:
                self._known[queue.id] = floor
            else:
                self._known.pop(queue.id, None)
        return bool(moved)

    def lowest(self) -> int:
        """No message of any queue is older, of those asked."""
        return min(self._known.values(), default=NEVER)
