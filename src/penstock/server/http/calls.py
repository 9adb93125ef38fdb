"""Requests on their way from HTTP's door to the server: a socket for each that is under way, frames as of Flight's.

    door                                    server
    CALL     what is asked, and by whom  ->
                                         <-   DERIVE   what digest is made of the password; DERIVED brings it
                                         <-   WELCOME  its sender has logged in
                                         <-   MORE     how its body is read
    WORDS, END  what it holds            ->
    FAILED      or why it cannot be used ->
                                         <-   ANSWER   status and headers; WORDS, DONE  the body

What strangers have written is parsed in the door: of a body that is JSON its values come, written anew, of one that
holds a message its key, header and body.

A client that leaves is a socket that the door closes.  A server that closes it in mid-answer has the client cut off.
The kernel's buffers are the back-pressure.  What comes late, of a call that has ended meanwhile, is dropped.
"""

from __future__ import annotations

import asyncio
import base64
import re
import select
import socket
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import orjson

from penstock.errors import InvalidArgument, ProtocolError, Unavailable
from penstock.records.password_hashes import Slow
from penstock.records.properties import peeked
from penstock.server.doors.line import (
    HEAD,
    KINDS,
    VERSION,
    Broken,
    Ended,
    Kind,
    head_of,
    number,
    plain,
    text,
    with_head,
)
from penstock.server.sockets.tls_transport import cut_off
from penstock.wire.fields import NAME_LIMIT, PROPERTIES_MOST
from penstock.wire.http.bodies import Brought, Reading

BUFFER = 64 << 10
"""Bytes that wait on one side for the other one; the kernel has as many."""

PIECE = 64 << 10
"""Bytes of a body that one frame has at most."""

HEADERS_MOST = 256
"""Lines of a head; the door takes fewer."""

PARAMETERS_MOST = 1024
"""Of a query; each takes far more memory than its bytes."""

WHY_MOST = 4096
"""Characters of why a body cannot be used."""

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
    body: bool  # there is one
    login: tuple[str, str] | None = None  # a user and a password

    def encoded(self) -> bytes:
        """The payload of CALL."""
        return orjson.dumps(self._asdict())


def call_of(payload: bytes) -> Call:
    """The inverse of `encoded`.  Broken for what no door says."""
    told = plain(memoryview(payload))
    call = Call(
        text(told, "method"), text(told, "path"), text(told, "query"), headers_of(told), text(told, "version"),
        text(told, "scheme"), _address(told, "client"), _address(told, "server"), told.get("body") is True,
        _login(told.get("login")),
    )  # fmt: skip
    if not _TOKEN.fullmatch(call.method) or call.version not in ("1.0", "1.1") or call.scheme not in ("http", "https"):
        raise Broken("a request with a method, version or scheme that there is not")
    if not _TARGET.fullmatch(call.path) or not _TARGET.fullmatch(call.query):
        raise Broken("a request for what is no path")
    if call.query.count("&") >= PARAMETERS_MOST:
        raise Broken("a query with more parameters than a door takes")
    return call


def _address(told: dict[str, Any], name: str) -> tuple[str, int]:
    match told.get(name):
        case [str(host), port]:
            return host, number({name: port}, name, 65_535)
        case _:
            raise Broken(f"{name} is no address")


def _login(told: object) -> tuple[str, str] | None:
    match told:
        case None:
            return None
        case [str(user), str(password)]:
            return user, password
        case _:
            raise Broken("a login that is none")


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


def wanted_of(payload: bytes) -> Reading:
    """Of MORE, for the door, which believes the server."""
    return Reading(**orjson.loads(payload))


def pieces_of(wanted: Reading, found: Any) -> list[bytes]:
    """What was wanted of a body, as the payloads of WORDS.  Raises InvalidArgument."""
    if wanted.message:
        brought: Brought = found
        told: dict[str, object] = {"key": brought.key, "header": len(brought.header)}
        whole = b"".join(with_head(told, brought.header, brought.body))
    else:
        try:
            whole = orjson.dumps(found)
        except TypeError as error:  # it goes less deep than what is read
            raise InvalidArgument(f"the request's body is not JSON that can be read: {error}") from None
    return [whole[at : at + PIECE] for at in range(0, len(whole), PIECE)]


def found_of(wanted: Reading, whole: bytes) -> Any:
    """The inverse, for the server.  Broken for what no door says."""
    if not wanted.message:
        return plain(memoryview(whole))
    told, rest = head_of(memoryview(whole))
    key, size = text(told, "key"), number(told, "header", len(rest))
    header = bytes(rest[:size])
    if len(key.encode(errors="replace")) > NAME_LIMIT:
        raise Broken("a key that is too long")
    if len(header) > PROPERTIES_MOST:
        raise Broken("properties that are too long")
    try:
        peeked(header)
    except ProtocolError as error:
        raise Broken(f"a header of a message that is none: {error}") from None
    return Brought(key, header, bytes(rest[size:]))


def failed(error: InvalidArgument | Unavailable) -> bytes:
    """The payload of FAILED: why, and whether it may do later."""
    return orjson.dumps({"later": isinstance(error, Unavailable), "why": str(error)[:WHY_MOST]})


def failure_of(payload: bytes) -> InvalidArgument | Unavailable:
    """The inverse.  Broken for what is none."""
    told = plain(memoryview(payload))
    return (Unavailable if told.get("later") is True else InvalidArgument)(text(told, "why"))


class CallLine:
    """One side of such a socket.  One task receives at a time; one that is cancelled meanwhile loses nothing."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = 0  # of the call that is under way
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._begun: tuple[int, Kind, int] | None = None  # bytes, kind and call of a frame whose head has come
        self._kept = list[bytes]()  # what leaves with the next frame
        self._flushes = False  # or in the next turn, if there is none

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

    def send(self, kind: Kind, payload: bytes = b"", *, later: bool = False) -> None:
        """A frame of the call that is under way; what nobody reads any more is dropped.

        later: it may leave with the next one, if that comes in this turn of the loop.
        """
        if self._writer.is_closing():
            return
        self._kept += (HEAD.pack(len(payload), kind, VERSION, 0, self.number, 0), payload)
        if not later:
            self._flush()
        elif not self._flushes:
            self._flushes = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        kept, self._kept = self._kept, []
        self._flushes = False
        if kept and not self._writer.is_closing():
            self._writer.write(b"".join(kept))

    async def drain(self) -> None:
        """Wait while much is unsent."""
        self._flush()
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
        self._kept.clear()
        cut_off(self._writer.transport)
        self._loop.call_soon(self._let_go)  # once the reader knows of an error that ended it

    def _let_go(self) -> None:
        """An error that a write ended with has in its traceback what was written, and the transport that holds it."""
        ending = self._writer.wait_closed()
        try:
            ending.send(None)  # it waits for nothing, now that the transport has ended
        except (StopIteration, OSError):
            pass
        finally:
            ending.close()
        if (error := self._reader.exception()) is not None:
            error.__traceback__ = None
