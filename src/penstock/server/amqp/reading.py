"""AMQP connections whose bytes come to this process: what a read brings, and the machine that reads it.

Per read: publishes of a run become one batch, acks become chunks per consumer, other methods go to `commands`; a read
that is one plain message or some acks is gathered with those of others.  Per turn: one write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.server.amqp.connection import Connection
from penstock.server.amqp.session import Outgoing
from penstock.wire.amqp import events
from penstock.wire.amqp.walk import ACK, ACK_FRAME, PUBLISH, SMALL

if TYPE_CHECKING:
    from penstock.server.amqp.connection import Reception
    from penstock.server.amqp.links import Link
    from penstock.server.amqp.publishers import Publishers
    from penstock.server.counters import Counters
    from penstock.server.logins import Logins
    from penstock.server.strangers import Stranger
    from penstock.server.tls import Peer
    from penstock.wire.amqp.machine import ServerConnection


class Reading(Connection):
    """A session with a peer.  `receive` for bytes in; `outgoing` has the bytes out until the end of the turn."""

    __slots__ = ("reader",)

    def __init__(
        self,
        reception: Reception,
        publishers: Publishers,
        logins: Logins,
        counters: Counters,
        machine: ServerConnection,
        link: Link,
        peer: str,
        local: str = "",
        tls: Peer | None = None,
        stranger: Stranger | None = None,
    ) -> None:
        """stranger: what it is to the guard until it has logged in; None: nobody guards."""
        engine = publishers.engine
        outgoing = Outgoing(engine, machine, link, self.go_on_delivering, self.linger)
        super().__init__(
            reception, publishers, logins, counters, machine, outgoing, link, peer, local, tls, stranger
        )  # fmt: skip
        self.reader = machine

    # -- bytes

    def receive(self, data: bytes) -> int:
        """Handle what one read brought; microseconds that this took."""
        incoming, machine = self.incoming, self.reader
        if machine.finished:
            return 0  # it has not heard our last word yet
        if ACK_FRAME <= len(data) <= SMALL and self._small(data):
            return 0
        began = incoming.begin(len(data))
        published = incoming.take(machine.receive(data))
        while machine.unread and not self.closing:
            published |= incoming.take(machine.receive(b""))
        if machine.partial_size != self._partial:
            self.count_partial()
        self.outgoing.mark_dirty()
        if published and not self.closing:
            incoming.pace(len(data), self._unconfirmed)
        self.engine.arm()
        return self.engine.clock.mono() - began

    def _small(self, data: bytes) -> bool:
        """Gather a read that is one plain message, or some acks, or both, as most clients send it; False: it is as any.

        This is the one place that says when that may be.  What is gathered is decided under what holds for all
        (`Gathering`): room, alarms, full queues, filters, a topology that has changed.
        """
        if self.closing or self.incoming.holding:
            return False
        machine, gathering = self.reader, self._gathering
        run: events.AckRun | None = None
        if data[10] == PUBLISH:
            message = machine.lone_message(data)
            if message is None:
                return False
            end = message[-1]
            if end < len(data) and (run := machine.lone_acks(data, end)) is None:
                return False
            target, header, body, mode, _ = message
            if not self._gather(target, header, body, mode):
                return False
        elif data[10] != ACK or (run := machine.lone_acks(data)) is None:
            return False
        if run is not None:
            if gathering.empty:
                gathering.begin()
            self._ack(run)
        self.incoming.count(len(data), gathering.mono)
        self.engine.arm()
        return True
