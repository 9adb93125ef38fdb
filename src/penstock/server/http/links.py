"""Connections and channels: what sessions of the AMQP door look like to administrators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.errors import NotFound
from penstock.server.http.rates import Rates

if TYPE_CHECKING:
    from penstock.server.amqp.channel import Channel
    from penstock.server.amqp.connection import Connection
    from penstock.server.services import Server


def name_of(session: Connection) -> str:
    """How a connection is called: both of its ends."""
    return f"{session.peer} -> {session.local}"


def _ends(session: Connection) -> dict[str, object]:
    host, _, port = session.peer.rpartition(":")
    return {"peer_host": host, "peer_port": int(port) if port.isdecimal() else 0}


class Links:
    """Looks at sessions as they are."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._rates = Rates()

    def connections(self, user: str | None, vhost: str | None = None) -> Iterator[dict[str, object]]:
        node = self.server.settings.server.name
        sessions = sorted(self.server.amqp.sessions, key=lambda one: one.opened_at)
        for session in sessions:
            if session.opened and user in {None, session.user} and vhost in {None, session.vhost}:
                yield self._connection(session, node)

    def _connection(self, session: Connection, node: str) -> dict[str, object]:
        machine, clock = session.machine, self.server.engine.clock
        incoming, outgoing = session.incoming, session.outgoing
        waits = incoming.paused or self.server.amqp.holding.holds(session)
        local_host, _, local_port = session.local.rpartition(":")
        age_us = clock.mono() - session.opened_at
        called = machine.client_properties.get("connection_name")
        return {
            "name": name_of(session),
            "node": node,
            "vhost": session.vhost,
            "user": session.user,
            "user_who_performed_action": session.user,
            "type": "network",
            "protocol": "AMQP 0-9-1",
            "auth_mechanism": machine.mechanism,
            "state": "closing" if session.closing else "blocked" if waits else "running",
            "ssl": session.tls is not None,
            **({} if session.tls is None else session.tls.plain()),
            **_ends(session),
            "host": local_host,
            "port": int(local_port) if local_port.isdecimal() else 0,
            "channels": len(session.channels),
            "channel_max": machine.channel_max,
            "frame_max": machine.frame_max,
            "timeout": machine.heartbeat,
            "connected_at": (clock.wall() - age_us) // 1000,
            "client_properties": machine.client_properties,
            **({"user_provided_name": called} if isinstance(called, str) else {}),
            **self._rates.told(
                name_of(session), clock.mono(), ("recv_oct", "send_oct"), (incoming.received, outgoing.sent)
            ),
            "recv_cnt": incoming.reads,
            "send_cnt": outgoing.writes,
            "send_pend": session.link.buffered(),
        }

    def channels(
        self, user: str | None, vhost: str | None = None, connection: str | None = None
    ) -> Iterator[dict[str, object]]:
        """Open channels, by connection and number."""
        node = self.server.settings.server.name
        for session in sorted(self.server.amqp.sessions, key=lambda one: one.opened_at):
            name = name_of(session)
            if user not in {None, session.user} or vhost not in {None, session.vhost}:
                continue
            if connection in {None, name}:
                for number, channel in sorted(session.channels.items()):
                    yield _channel(session, channel, name, number, node)

    def close(self, name: str, reason: str) -> None:
        """Close with 320; what the connection holds goes back to its queues."""
        session = next((one for one in self.server.amqp.sessions if name_of(one) == name), None)
        if session is None or session.closing:
            raise NotFound("Not Found")
        session.close_by_server(320, reason)
        self.server.engine.arm()


def _channel(session: Connection, channel: Channel, connection: str, number: int, node: str) -> dict[str, object]:
    consumers = [*channel.consumers.values(), *channel.getters.values(), *channel.cancelled_consumers]
    unacknowledged = sum(one.outstanding for one in consumers)
    return {
        "name": f"{connection} ({number})",
        "number": number,
        "node": node,
        "vhost": session.vhost,
        "user": session.user,
        "user_who_performed_action": session.user,
        "state": "running",
        "confirm": channel.confirming,
        "transactional": channel.tx is not None,
        "prefetch_count": channel.prefetch,
        "global_prefetch_count": 0 if channel.shared is None else channel.shared.limit,
        "consumer_count": len(channel.consumers) + len(channel.followings) + len(channel.subscriptions),
        "messages_unacknowledged": unacknowledged,
        "messages_unconfirmed": channel.unconfirmed,
        "messages_uncommitted": 0 if channel.tx is None else channel.tx.published,
        "acks_uncommitted": 0 if channel.tx is None else channel.tx.acknowledged,
        "connection_details": {"name": connection, **_ends(session)},
    }
