"""Sums over what a login sees: who has `monitoring` is told the server's, everybody else those of his own things.

Connections and channels are his own, queues are those of his lists, and what went through is what went through these.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.topology.topology import PREDECLARED
from penstock.records.rights import MONITORING
from penstock.wire.http.lists import gathered

if TYPE_CHECKING:
    from penstock.server.people.access import Who
    from penstock.server.services import Server


class Sums(NamedTuple):
    """Of queues; counts are since the start of the process."""

    queues: int = 0
    ready: int = 0
    leased: int = 0
    delayed: int = 0
    consumers: int = 0
    published: int = 0
    delivered: int = 0
    acknowledged: int = 0


class Seen:
    """What somebody sees of a server, counted anew with each question."""

    def __init__(self, server: Server, who: Who) -> None:
        self._server = server
        self._who = who

    def connections(self) -> tuple[int, int]:
        """How many there are, and how many channels they have."""
        mine = None if MONITORING.holds(self._who.tags) else self._who.user
        found = [one for one in self._server.amqp.sessions if one.opened and mine in {None, one.user}]
        return len(found), sum(len(one.channels) for one in found)

    def exchanges(self) -> int:
        """Those that each vhost has are counted too."""
        shown = {vhost for vhost in self._server.accounts.vhosts if self._who.has(vhost, MONITORING)}
        topology = self._server.engine.core.topology
        return len(PREDECLARED) * len(shown) + sum(vhost in shown for vhost, _ in topology.exchanges)

    async def queues(self) -> Sums:
        """Others have their turn meanwhile."""
        rows = await gathered(self._rows())
        return Sums(*map(sum, zip(*rows, strict=True))) if rows else Sums()

    def _rows(self) -> Iterator[Sums]:
        rights = None if MONITORING.holds(self._who.tags) else self._who.rights
        for queue in self._server.engine.core.queues():
            if rights is None or rights.sees_queue(queue.vhost, queue.name):
                yield Sums(
                    1, queue.available, queue.leased, queue.delayed, len(queue.consumers),
                    queue.arrived, queue.so_far.delivered, queue.so_far.acked,
                )  # fmt: skip
