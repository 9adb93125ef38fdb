"""One tenant of a queue: what of it may be delivered, in the order of the queue, and what is out.

In a queue with priorities that is the highest priority first, each tenant's for itself.

For those who want the oldest of all tenants, whosever turn it is, a heap has the places of their first messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush, heapreplace

from penstock.core.queue.limits.limits import Pace
from penstock.core.queue.order.main_order import Main
from penstock.core.queue.order.returned import Returned, take_oldest
from penstock.core.queue.order.runs import END, Key, Run
from penstock.core.queue.priority.order import PriorityOrder
from penstock.core.queue.priority.ranks import Ranks
from penstock.core.queue.priority.returned import PriorityReturned
from penstock.core.queue.settling.attempts import FRESH
from penstock.records.chunks import Chunk


class Tenant:
    """One key: what of it may be delivered, and what is out."""

    __slots__ = ("_newest", "deficit", "leased", "main", "number", "pace", "ranks", "returned", "standing", "weight")

    def __init__(self, number: int, weight: float, pace: Pace | None, ranks: Ranks | None) -> None:
        self.number = number
        self.weight = weight
        self.pace = pace
        self.deficit = 0.0
        self.leased = 0
        self.standing = False  # in the ring
        self.ranks = ranks  # priorities, those of the queue
        self._newest = 0  # of those that were added
        self.main = Main() if ranks is None else PriorityOrder(ranks)
        self.returned: Returned | None = None

    @property
    def count(self) -> int:
        """Messages that could be delivered."""
        return self.main.count + (self.returned.count if self.returned is not None else 0)

    def head(self) -> Key:
        """Where its first message stands."""
        first = self.main.key() if self.main.count else END
        return first if self.returned is None or not self.returned.count else min(first, self.returned.head())

    def add(self, chunk: Chunk) -> bool:
        """New messages, behind all that are here; False: some here are newer."""
        main = self.main
        if self.ranks is None:
            if chunk[0] <= main.last():
                return False
        elif main.count and chunk[0] <= self._newest:
            return False
        self._newest = chunk[-1]
        main.append(chunk, solid=False)
        return True

    def put(self, run: Run) -> None:
        """A run at its place."""
        if run.tally == FRESH and not run.place and self.add(run.chunk):
            return
        if self.returned is None:
            self.returned = Returned() if self.ranks is None else PriorityReturned(self.ranks)
        run.solid = False
        self.returned.push(run)

    def take(self, count: int) -> list[Run]:
        """The first so many, which there are."""
        returned = self.returned
        if returned is None or not returned.count:
            return self.main.take(count)
        return take_oldest(self.main, returned, count)

    def extract(self, wanted: Chunk) -> list[Run]:
        """Take those of the wanted that are here."""
        out = self.main.extract(wanted)
        if self.returned is not None:
            out += self.returned.extract(wanted)
        return out


LEAST = 1024
"""Places in the heap before those of tenants that have none are dropped."""


class Heads:
    """A heap of the places of first messages, kept from when somebody asks."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[Key, int]] | None = None  # a place that no message of a tenant stands before, its number

    def put(self, tenant: Tenant, tenants: Mapping[int, Tenant]) -> None:
        """Something came to one of the tenants."""
        heap = self._heap
        if heap is not None:
            if len(heap) > 2 * len(tenants) + LEAST:
                self._heap = None
            else:
                heappush(heap, (tenant.head(), tenant.number))

    def oldest(self, tenants: Mapping[int, Tenant]) -> Key | None:
        """Where the first message of all these stands; None without one."""
        heap = self._heap
        if heap is None:  # nobody asked yet
            heap = self._heap = [(one.head(), one.number) for one in tenants.values() if one.count]
            heapify(heap)
        while heap:
            told, number = heap[0]
            tenant = tenants.get(number)
            if tenant is None or not tenant.count:
                heappop(heap)
            elif (head := tenant.head()) == told:
                return head
            else:
                heapreplace(heap, (head, number))
        return None
