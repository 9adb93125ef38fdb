"""The stream between two members as bytes: who it is, then messages, each with its lengths before it.

    leader's side   <- 32 random bytes                          (it is called)
    follower        -> 32 random bytes, HMAC-SHA256(secret, "follower" + theirs + ours)
    leader's side   <- HMAC-SHA256(secret, "leader" + theirs + ours)
    then either way    u32 head, u32 body (little endian), head, body

A follower begins with hello; a person's `ask` is one question and one answer.  The secret is the cluster's, the same in
all settings files: whoever has it may read the whole log.  With TLS all of this goes over it, and each side shows a
certificate of the cluster's CA.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
import socket
import ssl
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from penstock.errors import ProtocolError, SettingsError, Unavailable
from penstock.replication.messages import PIECE_MOST, Here, Look, Message, decode, encode
from penstock.server.sockets.tls_transport import cut_off
from penstock.units import parted_address

if TYPE_CHECKING:
    from penstock.server.sockets.certificates import Files


logger = logging.getLogger("penstock.cluster")

NONCE = 32
HEAD_MOST = 1 << 20
HIGH_WATER = 1 << 18
"""Bytes that the system did not take at once: no more are read from files before most of these have gone."""
JOINED = 1 << 14
"""Bytes of a message that are copied behind its head; more are given to the system where they are."""
ROOM = 1 << 16
"""Bytes that a connection takes at once, before it has to take more."""
PATIENCE_S = 5.0
"""For the other side to show that it has the secret."""
_LENGTHS = struct.Struct("<II")


def called(tls: Files) -> ssl.SSLContext:
    """For who is called.  SettingsError names what cannot be used."""
    return _filled(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), tls)


def calling(tls: Files) -> ssl.SSLContext:
    """For who calls, read for each call: the certificate there must be for the address.  SettingsError."""
    return _filled(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), tls)


def _filled(context: ssl.SSLContext, tls: Files) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    tls.fill(context)
    return context


class Shown:
    """What the side that is called shows: new files from the next call on, if they can be used."""

    def __init__(self, tls: Files) -> None:
        """SettingsError."""
        self.tls = tls
        self.context = called(tls)
        self._stamp = tls.stamp()

    def current(self) -> Shown:
        """This, with what is in the files now."""
        if (stamp := self.tls.stamp()) != self._stamp:
            self._stamp = stamp
            try:
                self.context = called(self.tls)
            except SettingsError as error:
                logger.warning("%s; the old ones go on", error)
        return self


def _proof(secret: bytes, side: str, first: bytes, second: bytes) -> bytes:
    return hmac.digest(secret, side.encode() + first + second, "sha256")


class Listener(Protocol):
    """A member, as its links know it."""

    def heard(self, link: Peer, message: Message) -> None: ...
    def gathered(self, link: Peer) -> None: ...
    def lost(self, link: Peer | None) -> None: ...
    def writable(self, link: Peer) -> None: ...


class Peer(asyncio.BufferedProtocol):
    """One connection.  `known` is called once, when both have shown that they have the secret."""

    def __init__(
        self,
        secret: bytes,
        listener: Listener,
        known: Callable[[Peer], None],
        failed: Callable[[], None],
        *,
        calls: bool,
        refused: Callable[[str], None] | None = None,
    ) -> None:
        """calls: it is the follower's side, which waits `PATIENCE_S`; who is called has a guard for that.

        failed: it ended before anything was known of it.  refused: why, where the other side is to blame.
        """
        self._secret, self._listener, self._known, self._failed = secret, listener, known, failed
        self._calls = calls
        self._refused = refused
        self._ours = secrets.token_bytes(NONCE)
        self._theirs = b""
        self._buffer = bytearray(ROOM)
        self._begin = self._end = 0  # what has come and was not read
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1  # of the socket, where what is written goes out as it is
        self._shook = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self.full = False

    # asyncio's

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(HIGH_WATER)
        plain = transport.get_extra_info("ssl_object") is None
        if plain and (sock := transport.get_extra_info("socket")) is not None:
            self._descriptor = sock.fileno()
        if self._calls:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE_S, self.close)
        else:
            self._transport.write(self._ours)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._closed:
            self._begin = self._end = 0
        return memoryview(self._buffer)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        if self._closed:
            return
        try:
            self._take()
        except ProtocolError as error:
            logger.warning("a stream of the cluster ended: %s", error)
            self.close()
        except OSError as error:
            # of the disk: asyncio would take it for one of the connection, end that, and go on with a copy that lacks
            # what it believes to have
            self.close()
            asyncio.get_running_loop().call_exception_handler({"message": "a stream's disk failed", "exception": error})

    def _take(self) -> None:
        if not self._shook and not self._shake():
            return
        while (message := self._next()) is not None and not self._closed:
            self._listener.heard(self, message)
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
        start = _LENGTHS.pack(len(head), len(body)) + head
        if len(body) <= JOINED:
            self._transport.write(start + body)
            return
        sent = 0 if self._descriptor < 0 or self._transport.get_write_buffer_size() else self._at_once(start, body)
        if sent < len(start):
            self._transport.write(start[sent:])
        if rest := memoryview(body)[max(0, sent - len(start)) :]:
            self._transport.write(rest)  # of which no part is copied before it waits

    def _at_once(self, start: bytes, body: bytes | memoryview) -> int:
        """Bytes that the system took in one call: a head that goes by itself wakes who reads it for nothing."""
        try:
            return os.writev(self._descriptor, (start, body))
        except OSError:
            return 0  # there is no room, or it has ended: the transport is told the same, and knows what to do

    def abort(self) -> None:
        """End it at once."""
        self._closed = True
        if self._transport is not None:
            cut_off(self._transport)

    def close(self) -> None:
        """What was given goes out; nothing more is heard."""
        self._closed = True
        if self._transport is not None:
            self._transport.close()

    # who it is

    @property
    def asked(self) -> bool:
        """Whether it has said something that shows who it is."""
        return bool(self._theirs)

    def _shake(self) -> bool:
        """The first bytes; whether the other side has shown that it has the secret."""
        wanted = NONCE if self._calls else 2 * NONCE
        if self._end - self._begin < wanted:
            return False
        said = bytes(self._taken(wanted))
        assert self._transport is not None
        if self._calls and not self._theirs:
            self._theirs = said
            self._transport.write(self._ours + _proof(self._secret, "follower", said, self._ours))
            return self._end - self._begin >= NONCE and self._shake()
        if self._calls:
            right = hmac.compare_digest(said, _proof(self._secret, "leader", self._ours, self._theirs))
        else:
            self._theirs, proof = said[:NONCE], said[NONCE:]
            right = hmac.compare_digest(proof, _proof(self._secret, "follower", self._ours, self._theirs))
            if right:
                self._transport.write(_proof(self._secret, "leader", self._theirs, self._ours))
        if not right:
            if self._refused is not None:
                self._refused("it does not know the cluster's secret")
            else:
                logger.warning("%s does not know the cluster's secret", self._transport.get_extra_info("peername"))
            self.close()
            return False
        self._shook = True
        if self._timer is not None:
            self._timer.cancel()
        self._known(self)
        return True

    def _taken(self, size: int) -> memoryview:
        """The next bytes.  They stay what they are until more come."""
        at = self._begin
        self._begin = at + size
        return memoryview(self._buffer)[at : at + size]

    def _next(self) -> Message | None:
        has = self._end - self._begin
        if not has:
            self._begin = self._end = 0
            return None
        if has < _LENGTHS.size:
            self._have_room(_LENGTHS.size)
            return None
        head, body = _LENGTHS.unpack_from(self._buffer, self._begin)
        if head > HEAD_MOST or body > PIECE_MOST:
            raise ProtocolError(f"a message of {head} and {body} bytes came")
        if has < _LENGTHS.size + head + body:
            self._have_room(_LENGTHS.size + head + body)
            return None
        self._taken(_LENGTHS.size)
        return decode(bytes(self._taken(head)), self._taken(body))

    def _have_room(self, size: int) -> None:
        """The message that has begun to come takes so much: what has come of it moves where it finds room."""
        buffer, at = self._buffer, self._begin
        if at + size <= len(buffer):
            return
        came = memoryview(buffer)[at : self._end]
        if size > len(buffer):
            self._buffer = bytearray(size + ROOM)
        memoryview(self._buffer)[: len(came)] = came  # which minds that one may lie over the other
        self._begin, self._end = 0, len(came)


CALL_S = 2.0


async def reach(made: Callable[[], Peer], address: str, tls: Files | None) -> None:
    """Connect to a member.  Unavailable says why not: an address is what others have told, files are what is there."""
    host, port = parted_address(address)
    loop = asyncio.get_running_loop()
    try:
        context = None if tls is None else calling(tls)
        await asyncio.wait_for(loop.create_connection(made, host, int(port), ssl=context), CALL_S)
    except (OSError, TimeoutError, ValueError, OverflowError, SettingsError) as error:
        raise Unavailable(f"{address} cannot be reached: {error}") from error


class Answer(NamedTuple):
    """Of a member that was asked."""

    here: Here
    ahead_s: float  # of its clock, to that of who asked
    within_s: float  # give or take


def ask(address: str, secret: bytes, tls: Files | None, patience_s: float) -> Answer:
    """Who is at a member's address, and what its clock says.  It blocks.

    OSError where nobody can be reached, ProtocolError for one that has another secret or says something else.
    """
    host, port = parted_address(address)
    with ExitStack() as open_, socket.create_connection((host, int(port)), patience_s) as plain:
        sock = plain if tls is None else open_.enter_context(calling(tls).wrap_socket(plain, server_hostname=host))
        ours, theirs = secrets.token_bytes(NONCE), _exactly(sock, NONCE)
        sock.sendall(ours + _proof(secret, "follower", theirs, ours))
        if not hmac.compare_digest(_exactly(sock, NONCE), _proof(secret, "leader", ours, theirs)):
            raise ProtocolError("it does not know the cluster's secret")
        head, _ = encode(Look())
        began = time.time()
        sock.sendall(_LENGTHS.pack(len(head), 0) + head)
        length, body = _LENGTHS.unpack(_exactly(sock, _LENGTHS.size))
        if length > HEAD_MOST or body:
            raise ProtocolError(f"a message of {length} and {body} bytes came")
        here, ended = decode(_exactly(sock, length), b""), time.time()
    if not isinstance(here, Here):
        raise ProtocolError(f"it says {type(here).__name__.lower()}, and not who it is")
    return Answer(here, here.wall / 1e6 - (began + ended) / 2, (ended - began) / 2)


def _exactly(sock: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        if not (part := sock.recv(size - len(found))):
            raise ProtocolError("it ended the call: it has another secret, or is of an older version")
        found += part
    return found
