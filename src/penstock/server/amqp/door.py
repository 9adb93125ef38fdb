"""The AMQP door: listens, gives each connection a session, checks logins, beats hearts, and coalesces confirms."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Any, cast

from penstock.errors import DiskFull, Draining, Refused
from penstock.server.amqp.alarm import DiskAlarm
from penstock.server.amqp.appetite import Appetite
from penstock.server.amqp.holding import Holding
from penstock.server.amqp.outgoing import SEND_MOST
from penstock.server.amqp.session import Session
from penstock.server.opening.listening import BACKLOG, bind
from penstock.wire.amqp import events, methods
from penstock.wire.amqp.conversation import Phase
from penstock.wire.amqp.frames import Limits
from penstock.wire.amqp.handshake import EXTERNAL, SPEAKS_TLS
from penstock.wire.amqp.machine import ServerConnection

if TYPE_CHECKING:
    from penstock.server.amqp.admission import Admission
    from penstock.server.amqp.channel import Channel
    from penstock.server.counters import Counters
    from penstock.server.engine import Engine
    from penstock.server.entitlements import Rights
    from penstock.server.tls.handshakes import Handshakes
    from penstock.server.tls.keeping import Keeper
    from penstock.server.tls.peer import Peer

logger = logging.getLogger("penstock.server.amqp")

HEADER_TIMEOUT_US = 10_000_000
LOGIN_TIMEOUT_US = 30_000_000
CLOSE_TIMEOUT_US = 10_000_000
"""A client that does not answer our close for so long is cut off."""
REFUSED_LOGIN_DELAY_S = 1.0
"""A refused login is answered late, to slow guessing."""

CheckLogin = Callable[[str, str, str], bool]
"""(user, password, peer host) -> may log in."""

Admits = Callable[[str, str], bool]
"""(user, peer host) -> may log in, its certificate having said who it is."""


def unlimited(user: str) -> None:
    """Everybody may do everything."""


class AmqpDoor:
    """All AMQP sessions of a server."""

    def __init__(
        self,
        engine: Engine,
        check_login: CheckLogin,
        vhosts: Container[str],
        counters: Counters,
        limits: Limits | None = None,
        rights: Callable[[str], Rights | None] = unlimited,
        admission: Admission | None = None,
        admits: Admits | None = None,
    ) -> None:
        """`rights`: what a user may read and write; None where nothing is limited.  `vhosts` may change.

        admits: whom certificates log in (SASL EXTERNAL); without it that is not offered.
        """
        self.admission = admission
        self._admits = admits
        self._handshakes: Handshakes | None = None
        self.rights = rights
        self.engine = engine
        self.check_login = check_login
        self.vhosts = vhosts
        self.limits = limits or Limits()
        self.sessions: set[Session] = set()
        self.counters = counters
        self.holding = Holding(engine)
        self.alarm = DiskAlarm(engine, self.holding)
        self._confirms: dict[Channel, int] = {}
        self._servers: list[asyncio.Server] = []
        engine.on_broken.append(self._broken)

    # -- listening

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Start to accept; returns the address that was bound."""
        return await self.open(bind(host, port))

    async def open(self, sockets: Sequence[socket.socket]) -> tuple[str, int]:
        """Accept who waits at these listening sockets, and who comes; returns the first one's address."""
        loop = asyncio.get_running_loop()
        for sock in sockets:
            server = await loop.create_server(lambda: AmqpLink(self), sock=sock, backlog=BACKLOG)
            self._servers.append(server)
        bound = sockets[0].getsockname()
        return bound[0], bound[1]

    def open_tls(self, sockets: Sequence[socket.socket], keeper: Keeper) -> tuple[str, int]:
        """The same for clients with TLS."""
        from penstock.server.amqp.tls_link import TlsLink
        from penstock.server.tls.handshakes import Handshakes

        self._handshakes = Handshakes("amqps", keeper.current, lambda: TlsLink(self))
        return self._handshakes.open(sockets)

    def stop_listening(self) -> None:
        """Accept nobody any more."""
        if self._handshakes is not None:
            self._handshakes.close()
        for server in self._servers:
            server.close()

    def close_all(self, text: str) -> None:
        """connection.close 320 to everybody."""
        for session in list(self.sessions):
            session.close_by_server(320, text)

    def open_session(self, link: AmqpLink, peer: str, local: str = "", tls: Peer | None = None) -> Session:
        """A connection came from one address to another.  tls: what its handshake has shown, where there was one."""
        external = self._admits is not None and tls is not None and tls.der is not None
        session = Session(self, ServerConnection(self.limits, external=external), link, peer, local, tls)
        self.sessions.add(session)
        self.counters.connections_opened += 1
        return session

    def forget(self, session: Session) -> None:
        """A connection is gone."""
        if session in self.sessions:
            self.sessions.discard(session)
            self.alarm.forget(session)
            self.holding.forget(session)
            self.counters.connections_closed += 1
            if session.opened:
                self.engine.notices.connection(session, opened=False)

    # -- logins

    def login(self, session: Session, event: events.LoginAsked) -> None:
        """Accept, or refuse late."""
        host = session.peer.rsplit(":", 1)[0]
        user = event.user
        if event.mechanism == EXTERNAL:
            user = (session.tls.user() if session.tls is not None else None) or ""
            good = bool(user) and self._admits is not None and self._admits(user, host)
        else:
            good = self.check_login(user, event.password, host)
        if good:
            session.user = user
            session.rights = self.rights(user)
            session.machine.accept_login()
            session.outgoing.mark_dirty()
            return

        def refuse() -> None:
            if not session.closed:
                session.machine.refuse_login()
                session.outgoing.mark_dirty()
                self.engine.arm()

        asyncio.get_running_loop().call_later(REFUSED_LOGIN_DELAY_S, refuse)

    def open_vhost(self, session: Session, vhost: str) -> None:
        """connection.open."""
        if vhost not in self.vhosts:
            session.machine.fail_connection(530, f"vhost {vhost} not found", methods.ConnectionOpen)
        elif self.admission is not None and (why := self.admission.to_vhost(session, vhost)) is not None:
            session.machine.fail_connection(530, why, methods.ConnectionOpen)
        else:
            session.vhost = vhost
            session.opened = True
            session.machine.accept_open()
            self.engine.notices.connection(session, opened=True)
        session.outgoing.mark_dirty()

    def tell_stranger(self, session: Session, event: events.ConnectionFailed) -> None:
        """Somebody who does not speak AMQP came: a client with TLS is told of, for its settings are wrong."""
        if event.text == SPEAKS_TLS:
            logger.warning("amqp: %s was sent away: %s", session.peer, event.text)

    def generated_name(self, prefix: str) -> str:
        """A name nobody else has."""
        return prefix + secrets.token_urlsafe(16)

    # -- publishers

    def refusal(self) -> Refused | None:
        """Why no message can be taken at present, if so."""
        if self.engine.broken is not None:
            return Refused(f"the log is broken: {self.engine.broken}")
        if self.engine.log.full:
            return DiskFull("the log has no room")
        if self.engine.core.draining:
            return Draining("the server drains: it takes no new messages")
        return None

    def confirm(self, channel: Channel, sequence: int) -> None:
        """Everything up to `sequence` is durable: told once a channel and commit."""
        if not self._confirms:
            self.engine.on_flush.insert(0, self.flush_confirms)
        self._confirms[channel] = sequence

    def flush_confirms(self) -> None:
        """Send the gathered confirms."""
        confirms, self._confirms = self._confirms, {}
        for channel, sequence in confirms.items():
            if channel.open:
                channel.session.machine.confirm(channel.number, sequence, multiple=True)
                channel.session.outgoing.take_machine_output()

    def _broken(self, reason: str) -> None:
        """Publishers that wait for a confirm get a nack: the outcome is unknown."""
        self.flush_confirms()  # what is durable was promised
        for session in list(self.sessions):
            session.log_broken(reason)

    # -- hearts

    def beat(self) -> None:
        """Once a second: heartbeats out, silent peers and slow logins cut off."""
        now = self.engine.clock.mono()
        self.alarm.look()
        self.holding.beat()
        for session in list(self.sessions):
            session.outgoing.count_unsent()
            session_age = now - session.incoming.received_at
            if session.closing:
                if now - session.closing_at > CLOSE_TIMEOUT_US:
                    session.link.close()
                continue
            if not session.opened:
                limit = LOGIN_TIMEOUT_US if session.machine.phase is not Phase.HEADER else HEADER_TIMEOUT_US
                if now - session.opened_at > limit:
                    session.link.close()
                continue
            interval = session.machine.heartbeat * 1_000_000
            if not interval:
                continue
            if session_age > 2 * interval + 1_000_000 and not session.incoming.paused:
                session.link.close()
            elif now - session.outgoing.sent_at > interval // 2:
                session.machine.send_heartbeat()
                session.outgoing.mark_dirty()
        self.engine.arm()


class AmqpLink(asyncio.Protocol):
    """The asyncio transport of one session."""

    def __init__(self, door: AmqpDoor) -> None:
        self.door = door
        self.transport: asyncio.Transport
        self.session: Session
        self._tls: Peer | None = None
        self._appetite = Appetite()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's: a client connected."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none by class
        self.keep_below(SEND_MOST)
        self._read_at_most(self._appetite.size)
        host, port = self.transport.get_extra_info("peername")[:2]
        here = self.transport.get_extra_info("sockname")[:2]
        self.session = self.door.open_session(self, f"{host}:{port}", f"{here[0]}:{here[1]}", self._tls)

    def data_received(self, data: bytes) -> None:
        """asyncio's: bytes came."""
        mono = self.door.engine.clock.mono
        began = mono()
        self.session.receive(data)
        if self._appetite.took(len(data), mono() - began):
            self._read_at_most(self._appetite.size)

    def _read_at_most(self, size: int) -> None:
        """What asyncio asks of the socket at once: an attribute that all its socket transports have."""
        cast("Any", self.transport).max_size = size

    def pause_writing(self) -> None:
        """asyncio's: the peer does not read."""
        self.session.pause_writing()

    def resume_writing(self) -> None:
        """asyncio's: it reads again."""
        self.session.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's: the link is gone."""
        self.session.connection_lost()

    def write(self, data: bytes) -> None:
        """Bytes out."""
        self.transport.write(data)

    def buffered(self) -> int:
        """Bytes that the kernel has not taken."""
        return self.transport.get_write_buffer_size()

    def keep_below(self, size: int) -> None:
        """How much may wait until the session is told to pause; it goes on at a quarter."""
        self.transport.set_write_buffer_limits(high=size, low=size // 4)

    def close(self) -> None:
        """Send what is buffered, then close."""
        self.transport.close()

    def pause_reading(self) -> None:
        """Let the kernel hold the peer back."""
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self.transport.resume_reading()
