"""The stream between two members as bytes: who it is, then messages, each with its lengths before it.

    leader's side   <- 32 random bytes                          (it is called)
    follower        -> 32 random bytes, HMAC-SHA256(secret, "follower" + theirs + ours)
    leader's side   <- HMAC-SHA256(secret, "leader" + theirs + ours)
    then either way    u32 head, u32 body (little endian), head, body

The secret is the cluster's, the same in all settings files: whoever has it may read the whole log.  With TLS all of
this goes over it, and each side shows a certificate of the cluster's CA.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import ssl
import struct
from collections.abc import Callable
from typing import NamedTuple, Protocol, cast

from penstock.errors import ProtocolError, SettingsError
from penstock.replication.messages import PIECE_MOST, Message, decode, encode

logger = logging.getLogger("penstock.cluster")

NONCE = 32
HEAD_MOST = 1 << 20
HIGH_WATER = 4 << 20
"""Bytes on their way to one follower: no more are read from files before these have gone."""
STRANGERS_MOST = 32
PATIENCE_S = 5.0
_LENGTHS = struct.Struct("<II")


class Tls(NamedTuple):
    """Files, PEM.  They are read for each call that is made; the side that is called reads them when it starts."""

    certificate: str
    key: str
    ca: str

    def server(self) -> ssl.SSLContext:
        """For who is called.  SettingsError names what cannot be used."""
        return self._filled(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    def client(self) -> ssl.SSLContext:
        """For who calls: the certificate must be for the address that is called."""
        return self._filled(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def _filled(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(self.certificate, self.key, password=lambda: b"")
            context.load_verify_locations(self.ca)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(f"cluster.certificate, key and ca cannot be used: {error}") from error
        return context


class Listener(Protocol):
    """A member, as its links know it."""

    def heard(self, link: Peer, message: Message) -> None: ...
    def gathered(self, link: Peer) -> None: ...
    def lost(self, link: Peer | None) -> None: ...
    def writable(self, link: Peer) -> None: ...


class Peer(asyncio.Protocol):
    """One connection.  `known` is called once, when both have shown that they have the secret."""

    def __init__(
        self,
        secret: bytes,
        listener: Listener,
        known: Callable[[Peer], None],
        failed: Callable[[], None],
        *,
        calls: bool,
    ) -> None:
        """calls: it is the follower's side.  failed: it ended before anything was known of it."""
        self._secret, self._listener, self._known, self._failed = secret, listener, known, failed
        self._calls = calls
        self._ours = secrets.token_bytes(NONCE)
        self._theirs = b""
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._shook = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self.full = False

    # asyncio's

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(HIGH_WATER)
        if not self._calls:
            self._transport.write(self._ours)
        self._timer = asyncio.get_running_loop().call_later(PATIENCE_S, self.close)

    def data_received(self, data: bytes) -> None:
        if self._closed:
            return
        self._buffer += data
        if not self._shook and not self._shake():
            return
        try:
            while (message := self._next()) is not None and not self._closed:
                self._listener.heard(self, message)
        except ProtocolError as error:
            logger.warning("a stream of the cluster ended: %s", error)
            self.close()
            return
        if not self._closed:
            self._listener.gathered(self)

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        """Soon, for the transport calls this within its own write: one that fails here would end it twice."""
        self.full = False
        asyncio.get_running_loop().call_soon(self._writable)

    def _writable(self) -> None:
        if not self._closed:
            self._listener.writable(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._shook:
            self._listener.lost(self)
        else:
            self._failed()

    # a link

    def send(self, message: Message) -> None:
        """Give it to the connection, whatever has gathered there."""
        if self._transport is None or self._transport.is_closing():
            return
        head, body = encode(message)
        self._transport.write(_LENGTHS.pack(len(head), len(body)) + head + body)

    def close(self) -> None:
        """What was given goes out; nothing more is heard."""
        self._closed = True
        if self._transport is not None:
            self._transport.close()

    # who it is

    def _shake(self) -> bool:
        """The first bytes; whether the other side has shown that it has the secret."""
        wanted = NONCE if self._calls else 2 * NONCE
        if len(self._buffer) < wanted:
            return False
        said = bytes(self._buffer[:wanted])
        del self._buffer[:wanted]
        assert self._transport is not None
        if self._calls and not self._theirs:
            self._theirs = said
            self._transport.write(self._ours + self._proof("follower", said, self._ours))
            return len(self._buffer) >= NONCE and self._shake()
        if self._calls:
            right = hmac.compare_digest(said, self._proof("leader", self._ours, self._theirs))
        else:
            self._theirs, proof = said[:NONCE], said[NONCE:]
            right = hmac.compare_digest(proof, self._proof("follower", self._ours, self._theirs))
            if right:
                self._transport.write(self._proof("leader", self._theirs, self._ours))
        if not right:
            logger.warning("%s does not know the cluster's secret", self._transport.get_extra_info("peername"))
            self.close()
            return False
        self._shook = True
        if self._timer is not None:
            self._timer.cancel()
        self._known(self)
        return True

    def _proof(self, side: str, first: bytes, second: bytes) -> bytes:
        return hmac.digest(self._secret, side.encode() + first + second, "sha256")

    def _next(self) -> Message | None:
        buffer = self._buffer
        if len(buffer) < _LENGTHS.size:
            return None
        head, body = _LENGTHS.unpack_from(buffer)
        if head > HEAD_MOST or body > PIECE_MOST:
            raise ProtocolError(f"a message of {head} and {body} bytes came")
        end = _LENGTHS.size + head + body
        if len(buffer) < end:
            return None
        view = bytes(buffer[_LENGTHS.size : end])
        del buffer[:end]
        return decode(view[:head], view[head:])
