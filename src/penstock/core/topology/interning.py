"""Interned numbers in the log: which queues took a message (ROUTE), and which vhost and exchange it came by (VIA).

Keys that a message has and nobody is shown (BCC) are part of what its VIA says: a dead letter of it goes there, too,
whenever it dies, and no reader of rows sees them.

A number is given once and never used again for anything else, so the fold may read all of them before any message.
When a process has as many live routes as a segment may name, further combinations are written beside their rows (TOOK).
"""

from __future__ import annotations

import struct

from penstock.core.effects import Effect
from penstock.core.outbox import Outbox
from penstock.core.queue.queue import Queue
from penstock.core.state.durable import DurableState
from penstock.core.topology.topology import DEFAULT
from penstock.records.chunks import Chunk, pack_pairs, pairs_of
from penstock.records.entries import Topic
from penstock.records.kinds import NO_ROUTE, NO_VIA, Kind

DEFAULT_VHOST = "/"
ROUTES_MAX = 65_536

BLIND_BYTES = 4 << 20
"""Memory that BCC keys may take, each combination counted once.  Messages with further ones are stored without them."""

_BLIND_ENTRY = 256
"""Bytes of a combination besides its text."""


class Interning:
    """The two tables, and the records that tell of them."""

    def __init__(self, outbox: Outbox[Effect], routes_max: int = ROUTES_MAX) -> None:
        self._outbox = outbox
        self._routes_max = routes_max
        self._routes: dict[tuple[int, ...], int] = {}
        self._queues: dict[int, tuple[int, ...]] = {}  # the same the other way round
        self._vias: dict[tuple[str, str, tuple[str, ...]], int] = {}
        self._blind: dict[int, tuple[str, ...]] = {}  # BCC keys by via, where there are any
        self._blind_room = BLIND_BYTES
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
        if topic.via == NO_VIA and (topic.exchange != DEFAULT or topic.vhost != DEFAULT_VHOST or topic.blind):
            topic.via = self.via(topic.vhost, topic.exchange, topic.blind)

    def via(self, vhost: str, exchange: str, blind: tuple[str, ...] = ()) -> int:
        """The number of a (vhost, exchange, BCC keys); `NO_VIA` for the default ones."""
        if vhost == DEFAULT_VHOST and exchange == DEFAULT and not blind:
            return NO_VIA
        number = self._vias.get((vhost, exchange, blind))
        if number is None:
            number = self._next_via
            self._add_via(number, vhost, exchange, blind)
            header: dict[str, object] = {"vhost": vhost, "exchange": exchange}
            if blind:
                header["bcc"] = blind
            self._outbox.record(Kind.VIA, exchange, header, via=number)
        return number

    def _add_via(self, number: int, vhost: str, exchange: str, blind: tuple[str, ...]) -> None:
        self._vias[vhost, exchange, blind] = number
        self._next_via = max(self._next_via, number + 1)
        if blind:
            self._blind[number] = blind
            self._blind_room -= _weight(blind)

    def hiding(self, topic: Topic, blind: tuple[str, ...]) -> Topic | None:
        """The same topic for newcomers with these BCC keys; None: there is no room to remember them."""
        if (topic.vhost, topic.exchange, blind) not in self._vias and _weight(blind) > self._blind_room:
            return None
        return topic.with_blind(blind)

    def blind_of(self, topic: Topic) -> tuple[str, ...]:
        """BCC keys of messages with this topic, as they were stored."""
        return topic.blind or self._blind.get(topic.via, ())

    def load(self, state: DurableState) -> None:
        """Take over a decoded state."""
        for number, pair in state.vias.items():
            self._add_via(number, *pair, state.blind.get(number, ()))
        self._next_route = state.next_route
        for number, queues in state.routes.items():
            self._add_route(queues, number)

    def save(self, state: DurableState) -> None:
        """Put a copy of both tables into a state."""
        state.routes = {number: queues for queues, number in self._routes.items()}
        state.vias = {number: (vhost, exchange) for (vhost, exchange, _), number in self._vias.items()}
        state.blind = dict(self._blind)
        state.next_route = self._next_route


def _weight(blind: tuple[str, ...]) -> int:
    return _BLIND_ENTRY + sum(map(len, blind))
