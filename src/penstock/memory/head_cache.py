"""HeadQueueCache: bodies nearest the head of queues that have no consumers, for consumers to come.

A simple FIFO for each queue, filled from the head on: what arrives is appended as long as nothing between was left out,
and when room is needed the newest go first, from the queue that has most.  A queue keeps a small share whatever the
others have.  It is what the rest of the budget leaves, and may be empty.  It knows no list and reads nothing.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.memory.budget import Account
from penstock.memory.shelf import Shelves
from penstock.memory.slab import Slab

SHARE_MOST = 64 << 10
"""Bytes that a queue keeps at its head whatever the others have, if the budget allows that to all who ask."""


class HeadQueueCache(Shelves):
    """A FIFO for each queue."""

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._parted: set[int] = set()  # queues of which something newer than their shelf was left out

    def follows_on(self, queue: int) -> bool:
        """Whether what arrives next in a queue comes right after what is here."""
        return queue not in self._parted

    def leave_out(self, queue: int) -> None:
        """Something of the queue is not put here: what comes later does not follow on."""
        self._parted.add(queue)

    def begin(self, queue: int) -> None:
        """Nothing of the queue was left out between what is here and what comes next."""
        self._parted.discard(queue)

    @property
    def remembered(self) -> int:
        """Of how many queues something is remembered, gone ones among them."""
        return len(self._parted)

    def forget_all_but(self, queues: Collection[int]) -> None:
        """Of what is remembered, keep what is about these queues."""
        self._parted.intersection_update(queues)

    def evict(self) -> int:
        """Drop the newest slab of the queue that holds most; the bytes that came free, 0 when nothing is here."""
        if self.account.bytes:
            self._parted.add(self.longest())
        return super().evict()

    def forget(self, queue: int) -> list[Slab]:
        """Drop all of a queue; what that was.  It begins anew."""
        self._parted.discard(queue)
        return super().forget(queue)
