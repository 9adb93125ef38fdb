"""The AMQP door: listens, gives each connection a session, checks logins, vhosts and limits, and beats hearts.

Of connections whose bytes come to this process: per read, publishes of a run become one batch, acks become chunks per
consumer, other methods go to `commands`; a read that is one plain message or some acks is gathered with those of
others.  Per turn: one write.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING

from penstock.memory import Held
from penstock.records.dataclass import dataclass
from penstock.records.rights import MONITORING
from penstock.server.amqp.clients_log import ClientsLog
from penstock.server.amqp.connection import Connection, Reception
from penstock.server.amqp.links import SHORT_US, AmqpLink, Apart, Came, Conversing, Unheard
from penstock.server.amqp.publishers import Publishers
from penstock.server.amqp.session import Outgoing
from penstock.server.base.faults import Told
from penstock.server.sockets.listening import Entry, Listener, bind
from penstock.units import parted_address
from penstock.version import __version__
from penstock.wire.amqp import events, methods
from penstock.wire.amqp.conversation import EXTERNAL, silence
from penstock.wire.amqp.frames import NOT_ALLOWED, Limits
from penstock.wire.amqp.machine import ServerConnection
from penstock.wire.amqp.publishes import ACK, ACK_FRAME, PUBLISH, SMALL

if TYPE_CHECKING:
    from penstock.errors import MemoryShort
    from penstock.records.password_hashes import Slow
    from penstock.server.counters import Counters, MessageCounts
    from penstock.server.engine import Engine
    from penstock.server.people.entitlements import Rights
    from penstock.server.people.logins import Derive, Logins, Verdict
    from penstock.server.people.users import Users
    from penstock.server.sockets.tls import Keeper, Peer


class Reading(Connection):
    """A session with a peer.  `receive` for bytes in; `outgoing` has the bytes out until the end of the turn."""

    __slots__ = ("_counted_bodies", "_unheard", "reader")

    def __init__(self, reception: Reception, machine: ServerConnection, came: Came) -> None:
        outgoing = Outgoing(reception.engine, machine, came.link, self.go_on_delivering, self.linger)
        super().__init__(reception, machine, outgoing, came)
        self.reader = machine
        self._counted_bodies = 0  # of those that were announced
        self._unheard = b""  # what came while the others had their turn

    # -- bytes

    def receive(self, data: bytes) -> int:
        """Handle what one read brought; microseconds that this took."""
        try:
            incoming, machine = self.incoming, self.reader
            if machine.finished:
                return 0  # it has not heard our last word yet
            if ACK_FRAME <= len(data) <= SMALL and self._small(data):
                return 0
            if self._unheard or incoming.defer(self._hear_late):
                self._count_unheard(self._unheard + data)
                self.engine.arm()
                return SHORT_US  # which says nothing of how long it takes
            return self._hear(data)
        except Exception as error:  # noqa: BLE001 - the border of one connection
            self.engine.faults.contain(error, self)
            return 0

    def _hear(self, data: bytes) -> int:
        incoming, machine = self.incoming, self.reader
        began = incoming.begin(len(data))
        published = incoming.take(machine.receive(data))
        while machine.unread and not self.closing:
            published |= incoming.take(machine.receive(b""))
        size = machine.partial_size
        if size != self._counted_size or (size and machine.begun != self._counted_bodies):
            self._counted_bodies = machine.begun
            self.count_begun()
        self.outgoing.mark_dirty()
        if published and not self.closing:
            incoming.pace(len(data), self._unconfirmed)
        self.engine.arm()
        return self.engine.clock.mono() - began

    def _hear_late(self) -> None:
        data = self._unheard
        self._count_unheard(b"")
        self._hear(data)

    def _count_unheard(self, data: bytes) -> None:
        self.engine.bodies.partial.add(len(data) - len(self._unheard))
        self._unheard = data

    def _part(self) -> None:
        self._count_unheard(b"")
        super()._part()

    def _small(self, data: bytes) -> bool:
        """Gather a read that is one plain message, or some acks, or both, as most clients send it; False: it is as any.

        This is the one place that says when that may be.  What is gathered is decided under what holds for all
        (`Gathering`): room, alarms, full queues, filters, a topology that has changed.
        """
        incoming, machine, gathering = self.incoming, self.reader, self._gathering
        if self.closing or incoming.held is not None:
            return False
        run: events.AckRun | None = None
        if data[10] == PUBLISH:
            message = machine.lone_message(data)
            if message is None:
                return False
            end = message[-1]
            if end < len(data) and (run := machine.lone_acks(data, end)) is None:
                return False
            target, header, body, mode, _ = message
            if not self.gather(target, header, body, mode):
                return False
        elif data[10] != ACK or (run := machine.lone_acks(data)) is None:
            return False
        if run is not None:
            if not gathering.begun:
                gathering.begin()
            self._ack(run)
        incoming.received_at = gathering.mono
        incoming.received += len(data)
        incoming.reads += 1
        self.engine.arm()
        return True


class Admission:
    """Asked when a connection opens its vhost, and when it opens a channel."""

    def __init__(self, users: Users) -> None:
        self._users = users

    def to_vhost(self, session: Connection, vhost: str, others: Iterable[Connection]) -> str | None:
        """Why the session may not open the vhost, None if it may or there is none.  Whoever has opened one counts.

        Only who sees all vhosts, or may open any, is told that there is none.
        """
        user, accounts = session.user, self._users.accounts
        if vhost not in accounts.vhosts and self._users.who(user).has(vhost, MONITORING):
            return None
        if not self._users.enters(user, vhost):
            return f"access to vhost '{vhost}' refused for user '{user}'"
        most = accounts.limits_of_vhosts().get(vhost, {}).get("max-connections", -1)
        if most >= 0 and sum(one.vhost == vhost for one in _open(others)) >= most:
            return f"access to vhost '{vhost}' refused for user '{user}': connection limit ({most}) is reached"
        most = accounts.limits_of_users().get(user, {}).get("max-connections", -1)
        if most >= 0 and sum(one.user == user for one in _open(others)) >= most:
            return f"connection refused for user '{user}': user connection limit ({most}) is reached"
        return None

    def to_channel(self, session: Connection, others: Iterable[Connection]) -> str | None:
        """Why the session may not have one more channel than it has now."""
        most = self._users.accounts.limits_of_users().get(session.user, {}).get("max-channels", -1)
        if most < 0 or sum(len(one.channels) for one in others if one.user == session.user) < most:
            return None
        return f"number of channels opened for user '{session.user}' has reached the user's limit ({most})"


def _open(some: Iterable[Connection]) -> Iterator[Connection]:
    """Those that have opened a vhost and are not on their way out."""
    return (one for one in some if one.opened and not one.closing)


OPEN_TIMEOUT_US = 30_000_000
"""Who has logged in has so long, from the connection on, to open a vhost."""
CLOSE_TIMEOUT_US = 10_000_000
"""A client that does not answer our close, or does not close after the last word, for so long is cut off."""


def unlimited(user: str) -> None:
    """For servers without shares of users: everybody may do everything."""


@dataclass(eq=False)
class AmqpDoor:
    """All AMQP sessions of a server."""

    engine: Engine
    logins: Logins
    vhosts: Container[str]  # which may change
    counters: Counters
    wished: Limits | None = None  # limits, if not those that are usual
    rights: Callable[[str], Rights | None] = unlimited  # what a user may read and write; None: nothing is limited
    admission: Admission | None = None
    certificates: bool = False  # whether certificates log in (SASL EXTERNAL); else that is not offered
    entry: Entry | None = None  # how clients are taken; without it nobody listens
    _asking: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]], init=False)
    _listeners: list[Listener] = field(default_factory=list[Listener], init=False)
    sessions: set[Connection] = field(default_factory=set[Connection], init=False)

    def __post_init__(self) -> None:
        self.limits = self.wished or Limits()
        self.publishers = Publishers(self.engine, self.counters, self.limits.max_message_size)
        self.holding = self.publishers.holding
        self.clients_log = ClientsLog(self.engine.clock.mono)
        self.engine.relief.register("sending", lambda: unread(self.sessions))
        self.engine.on_broken.append(self._broken)

    # -- listening

    def listen(self, host: str, port: int) -> tuple[str, int]:
        """Start to accept; returns the address that was bound."""
        return self.open(bind(host, port))

    def open(self, sockets: Sequence[socket.socket], keeper: Keeper | None = None) -> tuple[str, int]:
        """Accept who waits at these listening sockets, and who comes; returns the first one's address.

        keeper: of the certificate, where clients come with TLS.
        """
        assert self.entry is not None
        name, identity = ("amqp", None) if keeper is None else ("amqps", keeper.current)
        listener = self.entry.listener(name, lambda stranger: AmqpLink(self.greet, stranger), identity)
        self._listeners.append(listener)
        return listener.open(sockets)

    def stop_listening(self) -> None:
        """No new connections; those there stay."""
        for listener in self._listeners:
            listener.close()

    def close_all(self, text: str) -> None:
        """connection.close 320 to everybody."""
        for session in list(self.sessions):
            session.close_by_server(text)
            if session.giving_back is not None:
                session.giving_back.finish()

    def greet(self, came: Came) -> Conversing:
        """A connection came; one whose session cannot begin is closed, and it alone."""
        try:
            return self.open_session(came)
        except Exception as error:  # noqa: BLE001 - the border of each client
            self.engine.faults.contain(error, Told("amqp", came.link.abort), sure=True)
            return Unheard()

    def open_session(self, came: Came) -> Reading:
        """A connection came."""
        external = self.certificates and came.tls is not None and came.tls.der is not None
        session = Reading(self, ServerConnection(self.limits, version=__version__, external=external), came)
        self.sessions.add(session)
        self.counters.connections_opened += 1
        return session

    def open_far(self, far: Apart, peer: str, local: str, tls: Peer | None) -> Connection:
        """A connection came to a door that is a process."""
        session = Connection(self, far, far, Came(far, peer, local, tls, far))
        self.sessions.add(session)
        self.counters.connections_opened += 1
        return session

    def counted(self, vhost: str | None = None) -> MessageCounts:
        """What happened to messages so far, by whatever door, in the server or in a vhost."""
        sessions = (one for one in self.sessions if vhost in {None, one.vhost})
        return self.counters.counted(vhost, (channel.counts for one in sessions for channel in one.channels.values()))

    def to_channel(self, session: Connection) -> str | None:
        """Why the connection may not have one more channel than it has now."""
        return None if self.admission is None else self.admission.to_channel(session, self.sessions)

    def forget(self, session: Connection) -> None:
        """A connection is gone, and counts for nobody any more."""
        if session in self.sessions:
            self.sessions.discard(session)
            session.give_back()
            self.publishers.alarm.forget(session)
            self.holding.forget(session)
            self.counters.connections_closed += 1
            if session.opened:
                self.engine.notices.connection(session, opened=False)

    # -- logins

    def login(self, session: Connection, event: events.LoginAsked) -> None:
        """Accept, or refuse late: at once, or when the password's hash has been worked out."""
        session.waits(for_us=True)
        host = parted_address(session.peer)[0]
        user = event.user
        if event.mechanism == EXTERNAL:
            user = (session.tls.user() if session.tls is not None else None) or ""
            verdict: Verdict | None = self.logins.by_certificate(user if self.certificates else "", host)
        else:
            verdict = self.logins.at_once("amqp", user, event.password, host)
        if verdict is not None:
            self._answer_login(session, user, verdict)
            return
        loop = asyncio.get_running_loop()
        began = loop.time()
        derived = None if session.stranger is None else session.stranger.derive

        async def ask() -> None:
            try:
                found = await self.logins.ask("amqp", user, event.password, host, derived and self._soon(derived))
                self._answer_login(session, user, found, loop.time() - began)
            except Exception as error:  # noqa: BLE001 - the border of one login
                self.engine.faults.contain(error, session)
            self.engine.arm()

        task = loop.create_task(ask())
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    def _soon(self, derive: Derive) -> Derive:
        """The same, and what it says leaves in a turn."""

        def ask(how: Slow, heard: Callable[[bytes | None], None]) -> None:
            derive(how, heard)
            self.engine.arm()

        return ask

    def _answer_login(self, session: Connection, user: str, verdict: Verdict, took_s: float = 0.0) -> None:
        """A refusal comes as late whatever was wrong, and however long that took to find out."""
        if verdict.good:
            if not session.closed:
                session.logged_in(self.logins.who(user))
                session.rights = self.rights(user)
                session.machine.accept_login()
                session.outgoing.mark_dirty()
                self.engine.event_exchange.logged_in(session)
            return

        def refuse() -> None:
            if not session.closed:
                session.waits(for_us=False)
                session.machine.refuse_login()
                session.outgoing.mark_dirty()
                self.engine.arm()

        late = partial(self.engine.faults.run, refuse, session)
        asyncio.get_running_loop().call_later(self.logins.delay_s - took_s, late)

    def open_vhost(self, session: Connection, vhost: str) -> None:
        """connection.open: let it in, or close it with the reason."""
        why = self._why_not(session, vhost)
        if why is not None:
            session.refuse(NOT_ALLOWED, why, methods.ConnectionOpen)
        else:
            session.vhost = vhost
            session.opened = True
            session.machine.accept_open()
            self.engine.notices.connection(session, opened=True)
        session.outgoing.mark_dirty()

    def _why_not(self, session: Connection, vhost: str) -> str | None:
        """Why a session may not open a vhost."""
        if session.refused is not None:
            return str(session.refused)
        if self.admission is not None and (why := self.admission.to_vhost(session, vhost, self.sessions)) is not None:
            return why
        return None if vhost in self.vhosts else f"vhost {vhost} not found"

    def tell_failed(self, session: Connection, event: events.ConnectionFailed) -> None:
        """A line in the log: a client's mistake, or somebody who does not speak AMQP came, whose settings are wrong."""
        if session.user:
            self.clients_log.connection_closed(session, 0, event.text)
        elif event.drop and session.stranger is not None:
            session.stranger.tell(event.text)

    # -- a broken log

    def _broken(self, reason: str) -> None:
        """Publishers that wait for a confirm get a nack: the outcome is unknown."""
        self.publishers.flush_confirms()  # what is durable was promised
        for session in list(self.sessions):
            session.log_broken(reason)

    # -- hearts

    def beat(self) -> None:
        """Once a second: heartbeats out, silent peers and slow logins cut off."""
        now = self.engine.clock.mono()
        self.publishers.alarm.look()
        self.clients_log.beat()
        self.holding.beat()
        self.publishers.begun.beat()
        for session in list(self.sessions):
            session.outgoing.count_unsent()
        for session in list(self.sessions):
            session_age = now - session.incoming.received_at
            if session.closed:
                continue
            if session.closing:
                if now - session.closing_at > CLOSE_TIMEOUT_US:
                    session.link.abort()
                continue
            if not session.opened:
                if now - session.opened_at > OPEN_TIMEOUT_US:
                    session.cut_off(f"it opened no vhost in {OPEN_TIMEOUT_US // 1_000_000} s")
                continue
            interval = session.machine.heartbeat * 1_000_000
            if not (interval and isinstance(session, Reading)):  # a door sees to the hearts of its own
                continue
            if session_age > 2 * interval + 1_000_000 and not session.incoming.paused:
                session.cut_off(silence(session.machine.heartbeat))
            elif now - session.outgoing.sent_at > interval // 2:
                session.reader.send_heartbeat()
                session.outgoing.mark_dirty()
        self.engine.arm()


def unread(sessions: Collection[Connection]) -> Iterator[Held]:
    """What waits for clients that do not read, which is memory that publishers want, for `memory`.

    While there is room a client may leave unread what it likes.  Where memory is short and stays so, the link of one
    that has taken nothing meanwhile is cut: its messages go back to their queues, as when it dies.
    """
    for session in list(sessions):
        if waiting := session.link.buffered():
            name = f"what {session.peer} does not read"
            yield Held(session, session.user, name, waiting, session.outgoing.taken, _cutting(session))


def _cutting(session: Connection) -> Callable[[MemoryShort], None]:
    """Who does not read cannot be told why; the log is."""
    return lambda short: session.cut_off(str(short))
