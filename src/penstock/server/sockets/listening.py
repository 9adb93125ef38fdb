"""Listening sockets of a door, and who comes in at them: counted from the first moment, with TLS or without.

    accept -> stranger -> task: TLS's handshake, where there is TLS -> the door's protocol, which knows its stranger
                            '-> a line in the log that says whose and why, and nothing else happens

While a door has as many strangers as it may nobody is accepted: who comes waits in the kernel's queue.  The same where
the process has no descriptors left: silent strangers of all doors have less patience then.  Each handshake is a task
of its own, so one that is slow stops no other; the identity is asked for at each, so that a renewed one holds from the
next client on.  For the loop's thread.

It also makes the guards as the settings and the process's limit of descriptors ask for them, and binds sockets that
listen before their door is ready: the kernel takes connections, and what clients send waits there.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Protocol

from penstock.server.sockets.strangers import Complaints, Guard, Guards, Stranger, Terms

if TYPE_CHECKING:
    import asyncio

    from penstock.config.settings import Settings
    from penstock.server.sockets.tls_transport import TlsTransport


AT_ONCE = 32
"""Connections accepted in one turn of the loop."""

REST_S = 0.25
"""Nothing is accepted for so long when the process has no descriptors left."""

SHORT_FOR_S = 10.0
"""So long after a connection could not be taken health tells of it."""


class Identified(Protocol):
    """What a handshake is made with."""

    @property
    def context(self) -> ssl.SSLContext: ...


Serves = Callable[[Stranger], asyncio.BaseProtocol]
"""Makes the protocol of one connection, which takes over its stranger's `close` and says when it is known and gone."""


_RECEIVED = 128
"""Where TCP_INFO has tcpi_bytes_received (linux/tcp.h, since Linux 4.1)."""


def received(sock: socket.socket) -> int:
    """Bytes that came at a connection, as the kernel counts them, read or not; 1 for one that is closed already."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED + 8)
    except OSError:
        return 1
    return int(struct.unpack_from("=Q", info, _RECEIVED)[0]) if len(info) >= _RECEIVED + 8 else 1


class Entry:
    """How the doors of one server take their clients: whose guards they ask, and when none could be taken."""

    def __init__(self, guards: Guards, now: Callable[[], float]) -> None:
        """now: seconds that never go back."""
        self.guards = guards
        self._now = now
        self.exhausted = 0  # times that no descriptor was left for a connection
        self._exhausted_at = -inf  # when it was so last

    @property
    def short(self) -> bool:
        """Whether no descriptor was left for a connection a moment ago."""
        return self._now() - self._exhausted_at < SHORT_FOR_S

    def refused_by_system(self) -> None:
        """No descriptor was left for a connection, or no memory: the silent of all doors have less patience."""
        self.exhausted += 1
        self._exhausted_at = self._now()
        self.guards.press()

    def listener(self, door: str, protocol: Serves, identity: Callable[[], Identified] | None = None) -> Listener:
        """One for a door of this name.  identity: what is shown in TLS's handshake; without it there is none."""
        return Listener(self, self.guards.of(door), protocol, identity)


class Listener:
    def __init__(self, entry: Entry, guard: Guard, protocol: Serves, identity: Callable[[], Identified] | None) -> None:
        self.refused = 0  # handshakes that failed
        self._entry = entry
        self._guard = guard
        self._protocol = protocol
        self._identity = identity
        self._buffer: memoryview | None = None  # what TLS reads into
        self._sockets = list[socket.socket]()
        self._tasks = set[asyncio.Task[None]]()
        self._accepting = False
        self._closed = False
        self._rest: asyncio.TimerHandle | None = None

    def open(self, sockets: Sequence[socket.socket]) -> tuple[str, int]:
        """Accept at these non-blocking, listening sockets, which are this object's now; the first one's address."""
        self._sockets += sockets
        self._accept_again()
        bound = sockets[0].getsockname()
        return bound[0], bound[1]

    def close(self) -> None:
        """Accept nobody any more; handshakes under way end."""
        self._closed = True
        self._pause()
        if self._rest is not None:
            self._rest.cancel()
        for sock in self._sockets:
            sock.close()
        for task in self._tasks:
            task.cancel()

    def _accept_again(self) -> None:
        if not self._accepting and not self._closed:
            self._accepting = True
            loop = asyncio.get_running_loop()
            for sock in self._sockets:
                loop.add_reader(sock, self._accept, sock)

    def _pause(self) -> None:
        if self._accepting:
            self._accepting = False
            loop = asyncio.get_running_loop()
            for sock in self._sockets:
                loop.remove_reader(sock)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(AT_ONCE):
            if not self._guard.room:
                self._pause()
                self._guard.when_room(self._accept_again)
                return
            try:
                connection, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._refused_by_system(error)
                return
            connection.setblocking(False)
            self._take(connection, address[0], address[1])

    def _refused_by_system(self, error: OSError) -> None:
        """No descriptor or no memory is left for a connection: later there may be."""
        self._entry.refused_by_system()
        self._guard.tell("whoever comes", f"no connection can be taken: {error.strerror}")
        self._pause()
        self._rest = asyncio.get_running_loop().call_later(REST_S, self._accept_again)

    def _take(self, connection: socket.socket, host: str, port: int) -> None:
        def close() -> None:  # until the protocol has the connection
            task.cancel()

        stranger = self._guard.enter(host, port, close)
        stranger.received = partial(received, connection)
        if self._identity is not None:
            stranger.doing = "its TLS handshake was not over"
        task = asyncio.get_running_loop().create_task(self._greet(connection, stranger))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _greet(self, connection: socket.socket, stranger: Stranger) -> None:
        """TLS's handshake, if there is one; then the connection is the protocol's."""
        loop, met = asyncio.get_running_loop(), False

        def protocol() -> asyncio.BaseProtocol:
            nonlocal met
            met = True
            return self._protocol(stranger)

        try:
            if self._identity is None:
                await loop.connect_accepted_socket(protocol, connection)
            else:
                tls = self._tls(self._identity().context, protocol)
                await loop.connect_accepted_socket(lambda: tls, connection)
                try:
                    await tls.greeted
                except asyncio.CancelledError:
                    tls.abort()
                    raise
        except (OSError, EOFError) as error:  # ssl's errors are among them
            self._refuse(stranger, error)
            error.with_traceback(None)  # the transport has the error, whose frames have the transport
        finally:
            if not met:
                stranger.gone()

    def _tls(self, context: ssl.SSLContext, protocol: Callable[[], asyncio.BaseProtocol]) -> TlsTransport:
        from penstock.server.sockets.tls_transport import GOODBYE_S, TlsTransport, read_buffer  # for those who have TLS

        if self._buffer is None:
            self._buffer = read_buffer()
        return TlsTransport(context, protocol, self._buffer, GOODBYE_S)

    def _refuse(self, stranger: Stranger, error: OSError | EOFError) -> None:
        from penstock.server.sockets.listening import why

        self.refused += 1
        if (reason := why(error)) is not None:
            stranger.tell(reason)


REASONS = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS, and this port speaks nothing else",
    "HTTP_REQUEST": "it speaks HTTP without TLS; this port wants https",
    "HTTPS_PROXY_REQUEST": "it asks for a proxy; this port is none",
    "UNSUPPORTED_PROTOCOL": "its TLS is older than tls.min_version",
    "NO_SHARED_CIPHER": "it has no cipher in common with this server",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate, and this port wants one (tls.fail_if_no_peer_cert)",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not know the CA of this server's certificate",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it wants another version of TLS",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept this server's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "to it this server's certificate has ended",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not accept this server's certificate",
}
"""OpenSSL's words in ours; others are told as they are."""


def why(error: OSError | EOFError) -> str | None:
    """The reason; None for who left before he said anything: a probe of the port."""
    if isinstance(error, ConnectionResetError | BrokenPipeError | EOFError):
        return None
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return REASONS.get(error.reason, error.reason.lower().replace("_", " "))
    return str(error)


BACKLOG = 512
"""Connections that may wait for `accept`; the system may allow fewer (`net.core.somaxconn`)."""


def bind(host: str, port: int, *, shared: bool = False, listens: bool = True) -> list[socket.socket]:
    """A listening socket for each address of the host; OSError when one of them is taken or not ours.

    shared: other processes of this user may bind the same, if they say so too.  listens=False: it is bound and no more.
    """
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets = list[socket.socket]()
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            if os.name == "posix":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            if listens:
                sock.listen(BACKLOG)
            sock.setblocking(False)
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


OWN = 64
"""Descriptors that a server with open doors and a few segments needs for itself, beside those kept for the log."""

LEAST = 8
"""Strangers of a door, however few descriptors there are."""


def entry_of(settings: Settings, loop: asyncio.AbstractEventLoop) -> Entry:
    """How the doors of a server take their clients.

    Strangers of all doors together get half of the descriptors at most: the others are for those who have logged in.
    """
    section = settings.before_login
    share = (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - OWN) // 2 // max(1, len(settings.listen.doors()))
    sockets = min(section.sockets, max(LEAST, share))
    terms = Terms(section.time / 1e6, sockets, min(section.per_address, max(LEAST // 2, sockets // 2)))
    return entry_for(terms, loop)


def connections_most(doors: int = 0) -> int:
    """Connections with a login that there are descriptors for, where no stranger has any.

    doors: processes that have them, each with as many; 0: this one has.
    """
    return max(1, doors) * max(LEAST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - OWN)


def patient(loop: asyncio.AbstractEventLoop) -> Entry:
    """`entry_of` for a broker in a test's own process: nobody is turned away for being slow."""
    return entry_for(replace(Terms(), time_s=inf), loop)


def entry_for(terms: Terms, loop: asyncio.AbstractEventLoop) -> Entry:
    """How clients are taken that are bound so before their login."""
    return Entry(Guards(terms, Complaints(loop.call_later), loop.time, loop.call_later), loop.time)
