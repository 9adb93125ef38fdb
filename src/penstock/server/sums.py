"""Sums over what a login sees: who has `monitoring` is told the server's, everybody else those of his own things.

Connections and channels are his own, queues are those of his lists, and what went through is what went through these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.topology.topology import PREDECLARED
from penstock.records.rights import MONITORING
from penstock.server.counters import Counts, queue_counts
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
    to_consumers: int = 0  # to be acknowledged
    unacked: int = 0  # to consumers without acks
    fetched: int = 0
    fetched_unacked: int = 0
    acknowledged: int = 0
    redelivered: int = 0

    @property
    def counts(self) -> Counts:
        """What happened to messages, as `queue_counts`."""
        return self[self._fields.index("published") :]


class Seen:
    """What somebody sees of a server, counted anew with each question."""

    def __init__(self, server: Server, who: Who) -> None:
        self._server = server
        self._who = who
        self.everything = MONITORING.holds(who.tags)
        self.whose = "" if self.everything else who.user  # all who see everything see the same

    def counts(self, vhost: str | None) -> Counts:
        """What the server has counted of messages, or what is of a vhost, in the order of `STATS`."""
        return self._server.amqp.counted(vhost).stats()

    def connections(self) -> tuple[int, int]:
        """How many there are, and how many channels they have."""
        mine = None if self.everything else self._who.user
        found = [one for one in self._server.amqp.sessions if one.opened and mine in {None, one.user}]
        return len(found), sum(len(one.channels) for one in found)

    def exchanges(self) -> int:
        """Those that each vhost has are counted too."""
        shown = {vhost for vhost in self._server.accounts.vhosts if self._who.has(vhost, MONITORING)}
        topology = self._server.engine.core.topology
        return len(PREDECLARED) * len(shown) + sum(vhost in shown for vhost, _ in topology.exchanges)

    async def queues(self) -> Sums:
        """Others have their turn meanwhile."""
        return _summed([sums for _, sums in await gathered(self._rows())])

    async def vhosts(self) -> Mapping[str, Sums]:
        """The same of each vhost."""
        found = defaultdict[str, list[Sums]](list)
        for vhost, sums in await gathered(self._rows()):
            found[vhost].append(sums)
        return defaultdict(Sums, {vhost: _summed(some) for vhost, some in found.items()})

    def _rows(self) -> Iterator[tuple[str, Sums]]:
        rights = None if self.everything else self._who.rights
        for queue in self._server.engine.core.queues():
            if rights is None or rights.sees_queue(queue.vhost, queue.name):
                standing = queue.available, queue.leased, queue.delayed, len(queue.consumers)
                yield queue.vhost, Sums(1, *standing, *queue_counts(queue))


def _summed(some: Sequence[Sums]) -> Sums:
    return Sums(*map(sum, zip(*some, strict=True))) if some else Sums()
