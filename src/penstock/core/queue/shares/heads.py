"""Where the first message of all tenants stands, for those who want the oldest, whosever turn it is."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush, heapreplace

from penstock.core.queue.order.runs import Key
from penstock.core.queue.shares.tenant import Tenant

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
