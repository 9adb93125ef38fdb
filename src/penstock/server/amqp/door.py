"""The AMQP door: listens, gives each connection a session, checks logins, beats hearts, and coalesces confirms."""

from __future__ import annotations

import asyncio
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
from penstock.server.opening.listening import bind
from penstock.version import __version__
from penstock.wire.amqp import events, methods
from penstock.wire.amqp.frames import Limits
from penstock.wire.amqp.handshake import EXTERNAL, SPEAKS_TLS
from penstock.wire.amqp.machine import ServerConnection

if TYPE_CHECKING:
    from penstock.server.amqp.admission import Admission
    from penstock.server.amqp.channel import Channel
    from penstock.server.counters import Counters
    from penstock.server.engine import Engine
    from penstock.server.entitlements import Rights
    from penstock.server.guard.listening import Entry, Listener
    from penstock.server.guard.strangers import Stranger
    from penstock.server.logins import Logins, Verdict
    from penstock.server.tls.keeping import Keeper
    from penstock.server.tls.peer import Peer

OPEN_TIMEOUT_US = 30_000_000
"""Who has logged in has so long, from the connection on, to open a vhost."""
CLOSE_TIMEOUT_US = 10_000_000
"""A client that does not answer our close, or does not close after the last word, for so long is cut off."""


def unlimited(user: str) -> None:
    """Everybody may do everything."""


class AmqpDoor:
    """All AMQP sessions of a server."""

    def __init__(
        self,
        engine: Engine,
        logins: Logins,
        vhosts: Container[str],
        counters: Counters,
        limits: Limits | None = None,
        rights: Callable[[str], Rights | None] = unlimited,
        admission: Admission | None = None,
        certificates: bool = False,
        entry: Entry | None = None,
    ) -> None:
        """`rights`: what a user may read and write; None where nothing is limited.  `vhosts` may change.

        certificates: whether certificates log in (SASL EXTERNAL); else that is not offered.
        entry: how clients are taken; without it nobody listens.
        """
        self.admission = admission
        self._certificates = certificates
        self._asking = set[asyncio.Task[None]]()
        self._entry = entry
        self._listeners: list[Listener] = []
        self.rights = rights
        self.engine = engine
        self.connections, self.replays = engine.shares.of("connections"), engine.shares.of("amqp_replays")
        self.logins = logins
        self.vhosts = vhosts
        self.limits = limits or Limits()
        self.sessions: set[Session] = set()
        self.counters = counters
        self.holding = Holding(engine)
        self.alarm = DiskAlarm(engine, self.holding)
        self._confirms: dict[Channel, int] = {}
        engine.on_broken.append(self._broken)

    # -- listening

    def listen(self, host: str, port: int) -> tuple[str, int]:
        """Start to accept; returns the address that was bound."""
        return self.open(bind(host, port))

    def open(self, sockets: Sequence[socket.socket]) -> tuple[str, int]:
        """Accept who waits at these listening sockets, and who comes; returns the first one's address."""
        assert self._entry is not None
        listener = self._entry.listener("amqp", lambda stranger: AmqpLink(self, stranger))
        self._listeners.append(listener)
        return listener.open(sockets)

    def open_tls(self, sockets: Sequence[socket.socket], keeper: Keeper) -> tuple[str, int]:
        """The same for clients with TLS."""
        from penstock.server.amqp.tls_link import TlsLink

        assert self._entry is not None
        listener = self._entry.listener("amqps", lambda stranger: TlsLink(self, stranger), keeper.current)
        self._listeners.append(listener)
        return listener.open(sockets)

    def stop_listening(self) -> None:
        """Accept nobody any more."""
        for listener in self._listeners:
            listener.close()

    def close_all(self, text: str) -> None:
        """connection.close 320 to everybody."""
        for session in list(self.sessions):
            session.close_by_server(320, text)

    def open_session(
        self, link: AmqpLink, peer: str, local: str = "", tls: Peer | None = None, stranger: Stranger | None = None
    ) -> Session:
        """A connection came from one address to another.  tls: what its handshake has shown, where there was one.

        stranger: how long it may be one is somebody's care.
        """
        external = self._certificates and tls is not None and tls.der is not None
        machine = ServerConnection(self.limits, version=__version__, external=external)
        session = Session(self, machine, link, peer, local, tls, stranger)
        self.sessions.add(session)
        self.counters.connections_opened += 1
        return session

    def forget(self, session: Session) -> None:
        """A connection is gone."""
        if session in self.sessions:
            self.sessions.discard(session)
            session.give_back()
            self.alarm.forget(session)
            self.holding.forget(session)
            self.counters.connections_closed += 1
            if session.opened:
                self.engine.notices.connection(session, opened=False)

    # -- logins

    def login(self, session: Session, event: events.LoginAsked) -> None:
        """Accept, or refuse late: at once, or when the password's hash has been worked out."""
        session.waits(for_us=True)
        host = session.peer.rsplit(":", 1)[0]
        user = event.user
        if event.mechanism == EXTERNAL:
            user = (session.tls.user() if session.tls is not None else None) or ""
            verdict: Verdict | None = self.logins.by_certificate("amqp", user if self._certificates else "", host)
        else:
            verdict = self.logins.at_once("amqp", user, event.password, host)
        if verdict is not None:
            self._answer_login(session, user, verdict)
            return
        loop = asyncio.get_running_loop()
        began = loop.time()

        async def ask() -> None:
            found = await self.logins.ask("amqp", user, event.password, host)
            self._answer_login(session, user, found, loop.time() - began)
            self.engine.arm()

        task = loop.create_task(ask())
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    def _answer_login(self, session: Session, user: str, verdict: Verdict, took_s: float = 0.0) -> None:
        """A refusal comes as late whatever was wrong, and however long that took to find out."""
        if verdict.good:
            if not session.closed:
                session.logged_in(self.logins.who(user))
                session.rights = self.rights(user)
                session.machine.accept_login()
                session.outgoing.mark_dirty()
            return

        def refuse() -> None:
            if not session.closed:
                session.waits(for_us=False)
                session.machine.refuse_login()
                session.outgoing.mark_dirty()
                self.engine.arm()

        asyncio.get_running_loop().call_later(self.logins.delay_s - took_s, refuse)

    def open_vhost(self, session: Session, vhost: str) -> None:
        """connection.open."""
        if session.refused is not None:
            session.machine.fail_connection(530, str(session.refused), methods.ConnectionOpen)
        elif self.admission is not None and (why := self.admission.to_vhost(session, vhost)) is not None:
            session.machine.fail_connection(530, why, methods.ConnectionOpen)
        elif vhost not in self.vhosts:
            session.machine.fail_connection(530, f"vhost {vhost} not found", methods.ConnectionOpen)
        else:
            session.vhost = vhost
            session.opened = True
            session.machine.accept_open()
            self.engine.notices.connection(session, opened=True)
        session.outgoing.mark_dirty()

    def tell_stranger(self, session: Session, event: events.ConnectionFailed) -> None:
        """Somebody who does not speak AMQP came: a client with TLS is told of, for its settings are wrong."""
        if event.text == SPEAKS_TLS and session.stranger is not None:
            session.stranger.tell(event.text)

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
                if now - session.opened_at > OPEN_TIMEOUT_US:
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

    def __init__(self, door: AmqpDoor, stranger: Stranger) -> None:
        self.door = door
        self.transport: asyncio.Transport
        self.session: Session
        self._stranger = stranger
        self._tls: Peer | None = None
        self._appetite = Appetite()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's: a client connected."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none by class
        self.keep_below(SEND_MOST)
        self._read_at_most(self._appetite.size)
        stranger, here = self._stranger, self.transport.get_extra_info("sockname")[:2]
        peer = f"{stranger.host}:{stranger.port}"
        self.session = self.door.open_session(self, peer, f"{here[0]}:{here[1]}", self._tls, stranger)
        stranger.close, stranger.doing = self.transport.abort, ""

    def data_received(self, data: bytes) -> None:
        """asyncio's: bytes came."""
        self._stranger.heard(len(data))
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
        self._stranger.gone()
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

    def end_writing(self) -> None:
        """Send what is buffered, then say that nothing follows, which TLS of asyncio cannot; read on."""
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def pause_reading(self) -> None:
        """Let the kernel hold the peer back."""
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self.transport.resume_reading()
