"""Requests on their way from HTTP's door to the server: a socket for each that is under way, frames as of Flight's.

    door                                    server
    CALL     the head of a request       ->
                                         <-   DERIVE   what digest is made of the password; DERIVED brings it
                                         <-   WELCOME  its sender has logged in: the body, if there is one
    WORDS, END  the body                 ->
                                         <-   ANSWER   status and headers; WORDS, DONE  the body

A client that leaves is a socket that the door closes.  A server that closes it in mid-answer has the client cut off.
The kernel's buffers are the back-pressure.  What comes late, of a call that has ended meanwhile, is dropped.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import select
import socket
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import orjson

from penstock.records.password_hashes import Slow
from penstock.records.tokens import login_of
from penstock.server.doors.line import HEAD, KINDS, VERSION, Broken, Ended, Kind, number, plain, text

BUFFER = 64 << 10
"""Bytes that wait on one side for the other one; the kernel has as many."""

PIECE = 64 << 10
"""Bytes of a body that one frame has at most."""

HEADERS_MOST = 256
"""Lines of a head; the door takes fewer."""

HEADER_LIMIT = 4096
"""Bytes of an Authorization header; a longer one is no login."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET = re.compile(r"[\x21-\x7e\x80-\xff]*")

Headers = Sequence[tuple[str, str]]
"""Names in small letters; text is Latin-1."""


class Call(NamedTuple):
    """The head of a request."""

    method: str
    path: str  # as it came, without the query
    query: str
    headers: Headers
    version: str  # 1.0 or 1.1
    scheme: str
    client: tuple[str, int]
    server: tuple[str, int]
    body: bool  # one follows

    def encoded(self) -> bytes:
        """The payload of CALL."""
        return orjson.dumps(self._asdict())


def call_of(payload: bytes) -> Call:
    """The inverse of `encoded`.  Broken for what no door says."""
    told = plain(memoryview(payload))
    call = Call(
        text(told, "method"), text(told, "path"), text(told, "query"), headers_of(told), text(told, "version"),
        text(told, "scheme"), _address(told, "client"), _address(told, "server"), told.get("body") is True,
    )  # fmt: skip
    if not _TOKEN.fullmatch(call.method) or call.version not in ("1.0", "1.1") or call.scheme not in ("http", "https"):
        raise Broken("a request with a method, version or scheme that there is not")
    if not _TARGET.fullmatch(call.path) or not _TARGET.fullmatch(call.query):
        raise Broken("a request for what is no path")
    return call


def _address(told: dict[str, Any], name: str) -> tuple[str, int]:
    found: object = told.get(name)
    if not isinstance(found, list):
        raise Broken(f"{name} is no address")
    parts = cast("list[object]", found)
    if len(parts) != 2 or not isinstance(parts[0], str):
        raise Broken(f"{name} is no address")
    return parts[0], number({name: parts[1]}, name, 65_535)


def headers_of(told: dict[str, Any]) -> Headers:
    """Of a head.  Broken for what are none."""
    found: object = told.get("headers")
    if not isinstance(found, list):
        raise Broken("headers that are none")
    rows = cast("list[object]", found)
    if len(rows) > HEADERS_MOST:
        raise Broken(f"{len(rows)} headers")
    out = list[tuple[str, str]]()
    for row in rows:
        match row:
            case [str(name), str(value)] if _TOKEN.fullmatch(name) and not {"\r", "\n", "\0"} & set(value):
                out.append((name, value))
            case _:
                raise Broken("a header that is none")
    return out


def latin(headers: Sequence[tuple[bytes, bytes]]) -> Headers:
    """Headers as ASGI has them, as text."""
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


def coded(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The inverse.  Broken for letters that no header has."""
    try:
        return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    except UnicodeEncodeError:
        raise Broken("a header with letters that no header has") from None


def recipe(how: Slow) -> bytes:
    """The payload of DERIVE."""
    return orjson.dumps({**how._asdict(), "salt": base64.b64encode(how.salt).decode()})


def recipe_of(payload: bytes) -> Slow:
    """The inverse, for the door, which believes the server."""
    told: dict[str, Any] = orjson.loads(payload)
    told["salt"] = base64.b64decode(told["salt"])
    return Slow(**told)


def credentials(header: str) -> tuple[str, str] | None:
    """User and password of an Authorization header, or None.  Source: RFC 7617."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() == "bearer" and len(header) <= HEADER_LIMIT:  # RFC 6750
        return login_of(encoded)
    if scheme.lower() != "basic" or len(header) > HEADER_LIMIT:
        return None
    try:
        told = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
    user, colon, password = told.partition(":")
    return (user, password) if colon else None


class CallLine:
    """One side of such a socket.  One task receives at a time; one that is cancelled meanwhile loses nothing."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = 0  # of the call that is under way
        self._reader = reader
        self._writer = writer
        self._begun: tuple[int, Kind, int] | None = None  # bytes, kind and call of a frame whose head has come

    @classmethod
    async def of(cls, sock: socket.socket) -> CallLine:
        """Of a socket, which is this object's now."""
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        reader, writer = await asyncio.open_connection(sock=sock, limit=BUFFER)
        return cls(reader, writer)

    @property
    def transport(self) -> asyncio.WriteTransport:
        """Of the bytes that go out."""
        return self._writer.transport

    @property
    def gone(self) -> bool:
        """Whether the other side has closed."""
        return self._reader.at_eof() or self._writer.is_closing()

    @property
    def hung_up(self) -> bool:
        """The same where nothing is read at the time, so that nobody but the kernel has seen it."""
        if self._writer.is_closing():
            return True
        poller = select.poll()
        poller.register(self._writer.get_extra_info("socket"), select.POLLRDHUP)
        return bool(poller.poll(0))

    def send(self, kind: Kind, payload: bytes = b"") -> None:
        """A frame of the call that is under way; what nobody reads any more is dropped."""
        if not self._writer.is_closing():
            self._writer.write(HEAD.pack(len(payload), kind, VERSION, 0, self.number, 0) + payload)

    async def drain(self) -> None:
        """Wait while much is unsent."""
        try:
            await self._writer.drain()
        except OSError:
            raise Ended from None

    async def receive(self, may: Mapping[Kind, int], late: Mapping[Kind, int] | None = None) -> tuple[Kind, int, bytes]:
        """The next frame: its kind, its call and its payload.

        may: what may come now, and with how many bytes.  late: of former calls: it is dropped.
        Ended when the other side is gone; Broken for a frame that may not come.
        """
        late = late or {}
        try:
            while True:
                if self._begun is None:
                    size, code, version, _, call, _ = HEAD.unpack(await self._reader.readexactly(HEAD.size))
                    kind = KINDS.get(code)
                    old = call < self.number and kind in late
                    most = (late if old else may).get(kind) if kind is not None else None
                    if kind is None or version != VERSION or most is None:
                        raise Broken(f"a frame of kind {code} and version {version}, which may not come now")
                    if size > most:
                        raise Broken(f"a frame of kind {code} with {size} bytes, of {most} that may come")
                    self._begun = size, kind, call
                size, kind, call = self._begun
                payload = await self._reader.readexactly(size)
                self._begun = None
                if not (call < self.number and kind in late):
                    return kind, call, payload
        except (asyncio.IncompleteReadError, OSError):
            raise Ended from None

    def close(self) -> None:
        """The other side sees it at once; what it has not taken is dropped."""
        self._writer.transport.abort()
