"""Interned numbers in the log: which queues took a message (ROUTE), and which vhost and exchange it came by (VIA).

A number is given once and never used again for anything else, so the fold may read all of them before any message.
When a process has as many live routes as a segment may name, further combinations are written beside their rows (TOOK).
"""

from __future__ import annotations

import struct

from penstock.core.effects import Effect
from penstock.core.outbox import Outbox
from penstock.core.queue.view import Queue
from penstock.core.state.durable import DurableState
from penstock.core.topology.topology import DEFAULT
from penstock.records.chunks import Chunk, pack_pairs, pairs_of
from penstock.records.entries import Topic
from penstock.records.kinds import NO_ROUTE, NO_VIA, Kind

DEFAULT_VHOST = "/"
ROUTES_MAX = 65_536


class Interning:
    """The two tables, and the records that tell of them."""

    def __init__(self, outbox: Outbox[Effect], routes_max: int = ROUTES_MAX) -> None:
        self._outbox = outbox
        self._routes_max = routes_max
        self._routes: dict[tuple[int, ...], int] = {}
        self._queues: dict[int, tuple[int, ...]] = {}  # the same the other way round
        self._vias: dict[tuple[str, str], int] = {}
        self._by_queue: dict[int, set[tuple[int, ...]]] = {}
        self._next_route = 0
        self._next_via = 0

    @property
    def full(self) -> bool:
        """Whether new combinations of queues get no number any more."""
        return len(self._routes) >= self._routes_max

    def route(self, queues: tuple[int, ...]) -> int:
        """The number of a combination of queue ids in ascending order; `NO_ROUTE` when the table is full."""
        number = self._routes.get(queues)
        if number is None:
            if self.full:
                return NO_ROUTE
            number = self._next_route
            self._add_route(queues, number)
            self._outbox.record(Kind.ROUTE, body=struct.pack(f"<{len(queues)}q", *queues), route=number)
        return number

    def queues_of(self, number: int) -> tuple[int, ...]:
        """The ids of the queues that a route names; none for `NO_ROUTE`, and for one that is not in use any more."""
        return self._queues.get(number, ())

    def without(self, queue: int) -> frozenset[int]:
        """Routes of rows that this queue has not taken, `NO_ROUTE` among them: as far as the rows can tell."""
        if self.full:
            return frozenset()  # who took a row may stand beside it
        return frozenset([NO_ROUTE, *(number for number, queues in self._queues.items() if queue not in queues)])

    def _add_route(self, queues: tuple[int, ...], number: int) -> None:
        self._routes[queues] = number
        self._queues[number] = queues
        self._next_route = max(self._next_route, number + 1)
        for queue in queues:
            self._by_queue.setdefault(queue, set()).add(queues)

    def forget_queue(self, queue: int) -> None:
        """A queue is gone: combinations with it will not be used again."""
        for queues in self._by_queue.pop(queue, ()):
            self._queues.pop(self._routes.pop(queues, NO_ROUTE), None)
            for other in queues:
                if other != queue:
                    self._by_queue[other].discard(queues)

    def took(self, queue: Queue, chunk: Chunk) -> None:
        """Say beside the rows that a queue took them."""
        pairs = pairs_of(chunk, False)
        self._outbox.record(Kind.TOOK, queue.name, body=pack_pairs(queue.id, pairs))

    def place(self, topic: Topic) -> None:
        """Give a topic its `via` before its first row is written."""
        if topic.via == NO_VIA and (topic.exchange != DEFAULT or topic.vhost != DEFAULT_VHOST):
            topic.via = self.via(topic.vhost, topic.exchange)

    def via(self, vhost: str, exchange: str) -> int:
        """The number of a (vhost, exchange); `NO_VIA` for the default ones."""
        if vhost == DEFAULT_VHOST and exchange == DEFAULT:
            return NO_VIA
        number = self._vias.get((vhost, exchange))
        if number is None:
            number = self._vias[vhost, exchange] = self._next_via
            self._next_via += 1
            self._outbox.record(Kind.VIA, exchange, {"vhost": vhost, "exchange": exchange}, via=number)
        return number

    def load(self, state: DurableState) -> None:
        """Take over a decoded state."""
        self._vias = {pair: number for number, pair in state.vias.items()}
        self._next_via = max(state.vias, default=-1) + 1
        self._next_route = state.next_route
        for number, queues in state.routes.items():
            self._add_route(queues, number)

    def save(self, state: DurableState) -> None:
        """Put a copy of both tables into a state."""
        state.routes = {number: queues for queues, number in self._routes.items()}
        state.vias = {number: pair for pair, number in self._vias.items()}
        state.next_route = self._next_route
