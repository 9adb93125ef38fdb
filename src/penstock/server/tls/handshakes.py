"""A listening socket whose clients shake hands before a door sees them.

    accept -> task: handshake, `HANDSHAKE_S` at most -> the door's protocol, as for a client without TLS
                 '-> a line in the log that says whose and why, and nothing else happens

Each handshake is a task of its own, so one that is slow stops no other; of those at most `MOST` are under way, and who
comes then waits in the kernel's queue.  The identity is asked for at each handshake: a renewed one holds from the next
client on.  For the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence

from penstock.server.tls.files import Identity

logger = logging.getLogger("penstock.server.tls")

HANDSHAKE_S = 10.0
GOODBYE_S = 5.0
"""For the client's answer to our close."""

MOST = 256
AT_ONCE = 32
"""Connections accepted in one turn of the loop."""

REST_S = 1.0
"""Nothing is accepted for so long when the process has no descriptors left."""

TOLD_S = 10.0
"""The same complaint about one host is written once in this time."""

REASONS = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS, and this port speaks nothing else",
    "HTTP_REQUEST": "it speaks HTTP without TLS; this port wants https",
    "HTTPS_PROXY_REQUEST": "it asks for a proxy; this port is none",
    "UNSUPPORTED_PROTOCOL": "its TLS is older than tls.min_version",
    "NO_SHARED_CIPHER": "it has no cipher in common with this server",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate, which tls.fail_if_no_peer_cert wants",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not know the CA of this server's certificate",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it wants another version of TLS",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept this server's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "to it this server's certificate has ended",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not accept this server's certificate",
}
"""OpenSSL's words in ours; others are told as they are."""


class Handshakes:
    """Sockets of one door."""

    def __init__(
        self, door: str, identity: Callable[[], Identity], protocol: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        """door: its name in the log."""
        self.refused = 0
        self._door = door
        self._identity = identity
        self._protocol = protocol
        self._sockets = list[socket.socket]()
        self._tasks = set[asyncio.Task[None]]()
        self._told = dict[tuple[str, str], float]()
        self._accepting = False
        self._closed = False
        self._rest: asyncio.TimerHandle | None = None

    def open(self, sockets: Sequence[socket.socket]) -> tuple[str, int]:
        """Accept at these non-blocking, listening sockets, which are this object's now; the first one's address."""
        self._sockets = list(sockets)
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
        loop = asyncio.get_running_loop()
        for _ in range(AT_ONCE):
            if len(self._tasks) >= MOST:
                self._pause()  # `_over` goes on
                return
            try:
                connection, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.error("%s: no connection can be taken: %s", self._door, error.strerror)
                self._pause()
                self._rest = loop.call_later(REST_S, self._accept_again)
                return
            connection.setblocking(False)
            task = loop.create_task(self._shake(connection, address[0], address[1]))
            self._tasks.add(task)
            task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if len(self._tasks) < MOST and (self._rest is None or self._rest.when() <= asyncio.get_running_loop().time()):
            self._accept_again()

    async def _shake(self, connection: socket.socket, host: str, port: int) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol,
                connection,
                ssl=self._identity().context,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=GOODBYE_S,
            )
        except (OSError, EOFError) as error:  # ssl's errors and timeouts are among them
            self._refuse(host, port, error)

    def _refuse(self, host: str, port: int, error: OSError | EOFError) -> None:
        self.refused += 1
        if isinstance(error, ConnectionResetError | BrokenPipeError | EOFError):
            logger.debug("%s: %s:%d left before it said anything", self._door, host, port)  # a probe of the port
            return
        reason = why(error)
        now = asyncio.get_running_loop().time()
        self._told = {key: at for key, at in self._told.items() if now - at < TOLD_S}
        if (host, reason) not in self._told:
            self._told[host, reason] = now
            logger.warning("%s: %s:%d was sent away: %s", self._door, host, port, reason)


def why(error: OSError | EOFError) -> str:
    """The reason of a handshake that failed, for a person."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return REASONS.get(error.reason, error.reason.lower().replace("_", " "))
    if isinstance(error, ConnectionAbortedError | TimeoutError):
        return f"its handshake took longer than {HANDSHAKE_S:g} s"
    return str(error)
