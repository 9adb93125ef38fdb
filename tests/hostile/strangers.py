"""What somebody without a login can do at each door: say nothing, say half, say it slowly, say far too much.

    STATES   how a connection may begin and not go on, by what the door speaks
    FLOODS   bytes without an end that never become a login
    JUNK     what is no beginning at all, and quick to answer

Everything goes out over plain sockets, from whichever loopback address is asked for.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Self

from tls_lab import over_tls

PROTOCOLS: Mapping[str, str] = {
    "amqp": "amqp", "amqps": "amqp", "http": "http", "https": "http", "flight": "http2", "flight_tls": "http2",
}  # fmt: skip
"""Doors, and what they speak."""

AMQP = b"AMQP\x00\x00\x09\x01"
HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
HTTP = b"GET /api/overview HTTP/1.1\r\nhost: x\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def h2_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame of HTTP/2 (RFC 9113, 4.1)."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header that goes into no table (RFC 7541, 6.2.2)."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


SETTINGS = h2_frame(4, 0, 0, b"")
PING = h2_frame(6, 0, 0, bytes(8))
CALL = b"".join(
    literal(name, value)
    for name, value in (
        (b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x"), (b"te", b"trailers"),
        (b":path", b"/arrow.flight.protocol.FlightService/DoAction"), (b"content-type", b"application/grpc"),
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class State:
    """Where a connection stops."""

    name: str
    begin: bytes = b""
    drip: bytes = b""  # sent again and again, slowly


STATES: Mapping[str, Sequence[State]] = {
    "amqp": (
        State("silent"),
        State("half a header", AMQP[:5]),
        State("a header", AMQP),
        State("heartbeats", AMQP, HEARTBEAT),
        State("half a start-ok", AMQP + b"\x01\x00\x00\x00\x00\x01\x00\x00\x0a\x00\x0b", b"x"),
    ),
    "http": (
        State("silent"),
        State("half a line", b"GET /heal", b"t"),
        State("headers", HTTP, b"x-more: 1\r\n"),
        State("a body", b"POST /api/overview HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n\r\n", b"x"),
        State("an open path's body", b"GET /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n\r\n", b"x"),
        State("chunks", b"GET /healthz HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        State("the next request", b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\nGET /", b"x"),
    ),
    "http2": (
        State("silent"),
        State("half a preface", PREFACE[:10]),
        State("a preface", PREFACE),
        State("settings", PREFACE + SETTINGS, SETTINGS),
        State("half a frame", PREFACE + SETTINGS + h2_frame(1, 4, 1, CALL)[:20], b"\x00"),
        State("an endless head", PREFACE + SETTINGS + h2_frame(1, 0, 1, CALL), h2_frame(9, 0, 1, b"\x00\x01a\x00")),
        State("a call without a message", PREFACE + SETTINGS + h2_frame(1, 4, 1, CALL), h2_frame(0, 0, 1, b"\x00")),
    ),
}  # fmt: skip

HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
UNDER_TLS = (State("silent below TLS"), State("half a hello", HELLO), State("a slow hello", HELLO, b"x"))


def floods(protocol: str) -> Mapping[str, Iterable[bytes]]:
    """Bytes without an end, by name."""
    kib = 1024
    if protocol == "amqp":
        return {
            "heartbeats": chain([AMQP], repeat(HEARTBEAT * kib)),
            "a frame of 4 GiB": chain([AMQP, b"\x01\x00\x00\xff\xff\xff\xf0"], repeat(bytes(8 * kib))),
        }
    if protocol == "http":
        return {
            "headers": chain([HTTP], repeat(b"x-more: 1\r\n" * kib)),
            "a line": chain([b"GET /"], repeat(b"x" * 8 * kib)),
            "a body": chain(
                [b"POST /api/overview HTTP/1.1\r\nhost: x\r\ncontent-length: 999999999999\r\n\r\n"],
                repeat(bytes(64 * kib)),
            ),
            "chunks": chain(
                [b"GET /healthz HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"], repeat(b"1\r\nx\r\n" * kib)
            ),
            "a chunk": chain(
                [b"GET /healthz HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nfffffffff\r\n"],
                repeat(bytes(64 * kib)),
            ),
        }  # fmt: skip
    opened = PREFACE + SETTINGS
    return {
        "settings": chain([PREFACE], repeat(h2_frame(4, 0, 0, b"\x00\x04\x00\x00\xff\xff") * kib)),
        "continuations": chain(
            [opened + h2_frame(1, 0, 1, CALL)], repeat(h2_frame(9, 0, 1, literal(b"x", b"y" * 100) * 100))
        ),
        "a message of 1 GiB": chain(
            [opened + h2_frame(1, 4, 1, CALL) + h2_frame(0, 0, 1, b"\x00\x40\x00\x00\x00")],
            repeat(h2_frame(0, 0, 1, bytes(16 * kib)) * 16),
        ),
    }  # fmt: skip


JUNK: Mapping[str, Sequence[bytes]] = {
    "amqp": (b"GET / HTTP/1.1\r\n\r\n", b"AMQP\x00\x01\x00\x00", HELLO, AMQP + b"\xff" * 40),
    "http": (PREFACE + SETTINGS, HELLO, AMQP, b"GET / HTTP/1.1\nhost: x\n\n", b"\x00" * 40, HTTP + b" folded\r\n\r\n"),
    "http2": (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", HELLO, AMQP, PREFACE + b"\xff" * 40),
}


class Stranger:
    """One connection, with TLS when a context is given; it reads and forgets what the server says."""

    def __init__(self, port: int, source: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        if tls is not None:
            self.socket: socket.socket = over_tls(tls, port, source=source)
        else:
            self.socket = socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(source, 0))
        self.socket.setblocking(False)
        self.open = True

    def send(self, data: bytes) -> int:
        """Bytes that went out; 0 when the peer takes none now, or no more."""
        try:
            return self.socket.send(data) if self.open and data else 0
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return 0
        except (OSError, ssl.SSLError):
            self.open = False
            return 0

    def look(self) -> bool:
        """Whether the connection is open still."""
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
            try:
                while self.open and self.socket.recv(65_536):
                    pass
                self.open = False
            except (OSError, ssl.SSLError) as error:
                if isinstance(error, BlockingIOError | ssl.SSLWantReadError):
                    raise
                self.open = False
        return self.open

    def close(self) -> None:
        self.socket.close()


class Crowd:
    """Many strangers; `with Crowd() as crowd:` closes them all."""

    def __init__(self) -> None:
        self.all = list[Stranger]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.all:
            one.close()

    def add(self, number: int, port: int, sources: Iterator[str]) -> None:
        """So many more that say nothing."""
        self.all += [Stranger(port, source) for source, _ in zip(sources, range(number), strict=False)]

    def open(self) -> int:
        """How many the server has not closed."""
        return sum(one.look() for one in self.all)


def addresses(network: int) -> Iterator[str]:
    """Different loopback addresses."""
    for number in range(1, 60_000):
        yield f"127.{network}.{number // 250}.{number % 250 + 1}"


def pour(stranger: Stranger, flood: Iterable[bytes], seconds: float) -> int:
    """Send until the server ends it or the time is over; the bytes that went out."""
    sent, until, selector = 0, time.monotonic() + seconds, selectors.DefaultSelector()
    with selector:
        selector.register(stranger.socket, selectors.EVENT_WRITE)
        for piece in flood:
            at = 0
            while at < len(piece):
                if time.monotonic() > until or not stranger.look():
                    return sent
                count = stranger.send(piece[at:])
                if not count and stranger.open:
                    selector.select(0.05)
                at += count
                sent += count
                if not stranger.open:
                    return sent
    return sent
