"""A follower's Flight port: each call is refused with a sentence that says who leads.

gRPC itself is not loaded for that: a follower is small.  This speaks as much of HTTP/2 as the one answer takes, and no
field of a call is read, for all of them get the same.  Nobody logs in here, so who calls stays a stranger to the door's
guard, whose bounds hold: of time, of bytes, of connections.

    client   preface, SETTINGS, HEADERS (a call), DATA ...
    here     SETTINGS, for each call HEADERS with grpc-status 14 and the sentence, which end it

Sources: RFC 9113 (frames), RFC 7541 (fields, as literals), gRPC's "gRPC over HTTP2".
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import NotLeading
from penstock.server.sockets.listening import Entry, Listener, bind
from penstock.server.sockets.tls_transport import cut_off
from penstock.wire.flight.failures import encode_error

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.server.services import Say
    from penstock.server.sockets.strangers import Stranger
    from penstock.server.sockets.tls import Keeper

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD = struct.Struct(">BHBBI")
"""Of a frame: its length (a byte, then two), its type, flags, and the number of its stream."""

_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW, _MORE_HEADERS = 0, 1, 3, 4, 6, 7, 8, 9
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_FRAME_MOST = 1 << 14
"""Bytes, where nothing else was agreed."""

_UNREAD_MOST = 1 << 16
"""Bytes of answers that a client has not taken: it is cut off then."""

_NO_ERROR = bytes(4)
_STATUS_200 = b"\x88"
_UNAVAILABLE = b"14"


def _frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    size = len(content)
    return _HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream) + content


def _text(data: bytes) -> bytes:
    """A text of a field with its length before it, as it is."""
    size = len(data)
    if size < 127:
        return bytes([size]) + data
    head, rest = bytearray([127]), size - 127
    while rest >= 128:
        head.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*head, rest]) + data


def _field(name: bytes, value: bytes) -> bytes:
    """One that nobody is to remember."""
    return b"\0" + _text(name) + _text(value)


def _escaped(text: str) -> bytes:
    """As gRPC has a sentence in a field."""
    return b"".join(bytes([one]) if 32 <= one < 127 and one != 37 else b"%%%02X" % one for one in text.encode())


def refusal(stream: int, error: NotLeading) -> bytes:
    """The whole answer to a call."""
    fields = _field(b"content-type", b"application/grpc") + _field(b"grpc-status", _UNAVAILABLE)
    fields += _field(b"grpc-message", _escaped(encode_error(error)[0]))
    return _frame(_HEADERS, _END_STREAM | _END_HEADERS, stream, _STATUS_200 + fields)


class _Refusing(asyncio.Protocol):
    """One connection."""

    transport: asyncio.Transport

    def __init__(self, stranger: Stranger, why: Callable[[], NotLeading], there: set[_Refusing]) -> None:
        self._stranger, self._why, self._there = stranger, why, there
        self._come = bytearray()
        self._greeted = False
        self._last = 0  # the newest call

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._stranger.close = partial(cut_off, transport)
        self._there.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._there.discard(self)
        self._stranger.gone()

    def data_received(self, data: bytes) -> None:
        self._come += data
        self._stranger.heard(len(data))
        if not self._greeted and not self._greet():
            return
        while len(self._come) >= _HEAD.size and not self.transport.is_closing():
            high, low, kind, flags, stream = _HEAD.unpack_from(self._come)
            size = high << 16 | low
            if size > _FRAME_MOST:
                self.end()
                return
            if len(self._come) < _HEAD.size + size:
                return
            content = bytes(self._come[_HEAD.size : _HEAD.size + size])
            del self._come[: _HEAD.size + size]
            self._take(kind, flags, stream & 0x7FFFFFFF, content)
        if self.transport.get_write_buffer_size() > _UNREAD_MOST:
            cut_off(self.transport)

    def _greet(self) -> bool:
        """Whether it is a client of HTTP/2, and has said so."""
        said = bytes(self._come[: len(_PREFACE)])
        if said != _PREFACE[: len(said)]:
            self._stranger.tell("it does not speak HTTP/2")
            cut_off(self.transport)
        if said != _PREFACE:
            return False
        del self._come[: len(_PREFACE)]
        self._greeted = True
        self.transport.write(_frame(_SETTINGS, 0, 0))
        return True

    def _take(self, kind: int, flags: int, stream: int, content: bytes) -> None:
        write = self.transport.write
        if kind == _SETTINGS and not flags & _ACK:
            write(_frame(_SETTINGS, _ACK, 0))
        elif kind == _PING and not flags & _ACK:
            write(_frame(_PING, _ACK, 0, content))
        elif kind == _DATA and content:  # it may go on sending until it has read our answer
            write(_frame(_WINDOW, 0, 0, len(content).to_bytes(4, "big")))
        elif kind in (_HEADERS, _MORE_HEADERS) and flags & _END_HEADERS and stream > self._last:
            self._last = stream
            self._stranger.idle = True  # it has its answer, and owes nothing
            write(refusal(stream, self._why()))
            if not flags & _END_STREAM:
                write(_frame(_RESET, 0, stream, _NO_ERROR))
        elif kind == _GOAWAY:
            self.transport.close()

    def end(self) -> None:
        """Say that no call is taken any more, and hang up."""
        self.transport.write(_frame(_GOAWAY, 0, 0, self._last.to_bytes(4, "big") + _NO_ERROR))
        self.transport.close()


class FlightRefusals:
    """What listens where Flight's door will, for as long as this server follows.  For the loop's thread."""

    def __init__(self, entry: Entry, why: Callable[[], NotLeading]) -> None:
        """why: who leads now."""
        self._entry, self._why = entry, why
        self._listeners: list[Listener] = []
        self._there = set[_Refusing]()

    def open(self, settings: Settings, tls: Keeper | None, say: Say) -> dict[str, tuple[str, int]]:
        """Listen; the addresses by door.  One that cannot be had now is told, and may be had later."""
        listen, bound = settings.listen, dict[str, tuple[str, int]]()
        for door, address in (("flight", listen.flight), ("flight_tls", listen.flight_tls)):
            if address is None or (door == "flight_tls" and tls is None):
                continue
            identity = tls.for_http2 if tls is not None and door == "flight_tls" else None
            if identity is not None:
                identity()  # what is wrong with its files is told now
            try:
                sockets = bind(address.host, address.port)
            except OSError as error:
                say(f"listen.{door}: cannot bind {address} while this server follows: {error.strerror}")
                continue
            listener = self._entry.listener(door, partial(_Refusing, why=self._why, there=self._there), identity)
            bound[door] = listener.open(sockets)
            self._listeners.append(listener)
        return bound

    def close(self) -> None:
        """The addresses are free for the door itself."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        for one in list(self._there):
            one.end()
