"""A socket over TLS that behaves as one without: `BlockingIOError` where it would wait, and nothing left behind."""

from __future__ import annotations

import socket
import ssl


class TlsSocket:
    """Wraps a connected socket; what `amqp_client` uses of a socket and no more."""

    def __init__(self, plain: socket.socket, context: ssl.SSLContext) -> None:
        self._sock = context.wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=True)
        self._blocking = True

    def fileno(self) -> int:
        """For poll."""
        return self._sock.fileno()

    def setsockopt(self, level: int, name: int, value: int) -> None:
        """Of the socket below."""
        self._sock.setsockopt(level, name, value)

    def setblocking(self, blocking: bool) -> None:
        """Whether calls wait."""
        self._blocking = blocking
        self._sock.setblocking(blocking)

    def settimeout(self, seconds: float) -> None:
        """How long they wait."""
        self._blocking = True
        self._sock.settimeout(seconds)

    def send(self, data: memoryview) -> int:
        """As much as goes; after BlockingIOError the same bytes must be sent again, as OpenSSL wants it."""
        try:
            return self._sock.send(data)
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            raise BlockingIOError from None

    def sendall(self, data: bytes | memoryview) -> None:
        """All of it."""
        self._sock.sendall(data)

    def recv(self, size: int) -> bytes:
        """All that is there, up to about `size`: poll does not tell of what OpenSSL has taken from the kernel."""
        if self._blocking:
            return self._sock.recv(size)
        parts: list[bytes] = []
        left = size
        while left > 0:
            try:
                part = self._sock.recv(left)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            if not part:
                return b"".join(parts)
            parts.append(part)
            left -= len(part)
        while self._sock.pending():
            parts.append(self._sock.recv(self._sock.pending()))
        if not parts:
            raise BlockingIOError
        return b"".join(parts)

    def close(self) -> None:
        """At once."""
        self._sock.close()
