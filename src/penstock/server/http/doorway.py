"""HTTP's door that is a process, as the server keeps it: what it has read of requests goes to the application here.

The door is not believed: what it says is judged as if a stranger said it, and who somebody is, and what he may, is
decided here alone.  It can see what its clients may see, and no more.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import orjson

from penstock.errors import InvalidArgument
from penstock.server.base import loading
from penstock.server.base.faults import reports
from penstock.server.doors.doors import Doors
from penstock.server.doors.line import Broken, Ended, Kind
from penstock.server.http.calls import (
    PIECE,
    WHY_MOST,
    Call,
    CallLine,
    call_of,
    coded,
    failure_of,
    found_of,
    latin,
    recipe,
)
from penstock.wire.http.bodies import Reading, read_as

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Scope

    from penstock.records.password_hashes import Slow
    from penstock.server.doors.door_process import Spawned
    from penstock.server.sockets.strangers import Terms

MODULE = "penstock.server.http.front"

LINES_MOST = 1024
"""Requests that are under way at a time; the door has fewer."""

DIGEST_MOST = 1024

GROWS = 4
"""A document that is written anew has at most so many times its bytes: `1e15` becomes 18."""

_READ = {Kind.WORDS: PIECE, Kind.END: 0, Kind.FAILED: 8 * WHY_MOST}
_LATE = {**_READ, Kind.DERIVED: DIGEST_MOST}


class HttpDoors(Doors):
    """The process of HTTP and HTTPS.  For the loop's thread, where nothing else is said."""

    def __init__(
        self,
        terms: Terms,
        head_most: int,
        loop: asyncio.AbstractEventLoop,
        *,
        open_paths: AbstractSet[str] = frozenset(),
        trusted: Sequence[str] = (),
        apart: bool = True,
        first: Spawned | None = None,
    ) -> None:
        """terms: of strangers.  head_most: bytes of a request's head.  open_paths, trusted: as of `Reception`."""
        begin = {"head_most": head_most, "open": sorted(open_paths), "trusted": list(trusted)}
        super().__init__("http", MODULE, begin, terms, loop, memory=loading.HTTP[1], apart=apart, first=first)
        self.app: ASGIApp | None = None  # there before the door listens
        self._call_most = 6 * head_most + 4096  # as JSON a byte is six letters at most
        self._lines = set[CallLine]()
        self._ended = 0  # doors

    def attach(self, place: int, sock: socket.socket) -> None:
        """A line for requests, one after the other."""
        if len(self._tasks) >= LINES_MOST:
            sock.close()
            self.processes[place - 1].cut_off(f"it has more than {LINES_MOST} requests under way")
            return
        self.keep(self._serve(place, sock, self._ended))

    async def _serve(self, place: int, sock: socket.socket, ended: int) -> None:
        """Until the door closes the line.  ended: doors that had ended when it came."""
        line = await CallLine.of(sock)
        if ended != self._ended:
            line.close()
            return
        self._lines.add(line)
        try:
            while True:
                kind, call, payload = await line.receive({Kind.CALL: self._call_most, **_LATE}, _LATE)
                if (kind is Kind.CALL) is not (call > line.number):
                    raise Broken(f"a frame of kind {kind} of the request {call}, after {line.number}")
                if kind is Kind.CALL:  # else what nobody wanted to read of the last one
                    line.number = call
                    await self._answer(line, payload)
        except Ended:
            pass
        except Broken as broken:
            self.processes[place - 1].cut_off(str(broken))
        finally:
            self._lines.discard(line)
            line.close()

    def _lost(self, name: str) -> None:
        """Lines end with their door also where it has given away sockets that do not."""
        super()._lost(name)
        with suppress(RuntimeError):  # the loop is closed already
            self.loop.call_soon_threadsafe(self._end_lines)

    def _end_lines(self) -> None:
        self._ended += 1
        for line in self._lines:
            line.close()

    async def _answer(self, line: CallLine, payload: bytes) -> None:
        """One request."""
        request = _Request(line, call_of(payload))
        app = self.app
        assert app is not None
        try:
            await app(request.scope(), request.receive, request.send)
        except (Ended, Broken):
            raise
        except Exception as error:  # noqa: BLE001 - the border of one request: nothing else is touched behind it
            reports.tell(error, "http")
            if request.started:
                raise Ended from None
            await request.send({"type": "http.response.start", "status": 500, "headers": []})
        finally:
            request.end()
        if request.started and not request.done:
            await request.send({"type": "http.response.body", "body": b"", "more_body": False})


class _Request:
    """One request, as ASGI's application knows it; under `state` it is the `visitor`."""

    def __init__(self, line: CallLine, call: Call) -> None:
        self.call = call
        self.started = self.done = False  # the answer
        self._line = line
        self._body = call.body  # there is one, and nobody has asked for it
        self._told = False  # that none comes by itself
        self._deriving: asyncio.Task[None] | None = None
        self._heard: Callable[[bytes | None], None] | None = None  # who waits for a digest
        self._broken: Broken | None = None

    def scope(self) -> Scope:
        """ASGI's."""
        call = self.call
        return {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": call.version,
            "server": call.server, "client": call.client, "scheme": call.scheme, "method": call.method,
            "root_path": "", "path": unquote(call.path), "raw_path": call.path.encode("latin-1"),
            "query_string": call.query.encode("latin-1"), "headers": coded(call.headers), "login": call.login,
            "state": {"transport": self._line.transport, "visitor": self},
        }  # fmt: skip

    # -- its login

    def known(self) -> None:
        """It has logged in: the door counts it no more among the strangers."""
        self._line.send(Kind.WELCOME, later=True)

    async def read(self, wanted: Reading) -> Any:
        """What is wanted of its body, which the door has read.  Raises InvalidArgument, Unavailable, Broken."""
        if not self._body:
            return read_as(wanted, b"")
        self._body = False
        self._line.send(Kind.MORE, orjson.dumps(wanted._asdict()))
        pieces, size = list[bytes](), 0
        while True:
            try:
                kind, _, payload = await self._line.receive(_READ, _LATE)
            except Ended:
                raise InvalidArgument("the body ended before its announced length") from None
            if kind is Kind.FAILED:
                raise failure_of(payload)
            if kind is Kind.END:
                return found_of(wanted, b"".join(pieces))
            size += len(payload)
            if size > GROWS * wanted.most + PIECE:
                raise Broken(f"a body of more than {size} bytes, of {wanted.most} that were wanted")
            pieces.append(payload)

    def derive(self, how: Slow, heard: Callable[[bytes | None], None]) -> None:
        """Have the door make a digest of the password; None: it is gone."""
        self._line.send(Kind.DERIVE, recipe(how))
        self._heard = heard
        self._deriving = asyncio.ensure_future(self._derived())

    async def _derived(self) -> None:
        digest: bytes | None = None
        try:
            _, _, digest = await self._line.receive({Kind.DERIVED: DIGEST_MOST}, _LATE)
        except Ended:
            pass
        except Broken as broken:
            self._broken = broken
        self._hear(digest)

    def _hear(self, digest: bytes | None) -> None:
        heard, self._heard = self._heard, None
        if heard is not None:
            heard(digest)

    def end(self) -> None:
        """Nobody waits for anything any more.  Broken when the door said meanwhile what it may not say."""
        if self._deriving is not None:
            self._deriving.cancel()
        self._hear(None)
        if self._broken is not None:
            raise self._broken

    # -- ASGI's

    async def receive(self) -> Message:
        """No body, which is `read`; then: the client is gone."""
        if not self._told:
            self._told = True
            return {"type": "http.request", "body": b"", "more_body": False}
        try:
            await self._line.receive({}, _LATE)
        except Ended:
            pass
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """The head of the answer, or a piece of its body."""
        if message["type"] == "http.response.start":
            self.started = True
            told = {"status": message["status"], "headers": latin(message.get("headers", ()))}
            self._line.send(Kind.ANSWER, orjson.dumps(told), later=True)
            return
        body: Any = message.get("body", b"")
        more = bool(message.get("more_body", False))
        for at in range(0, len(body), PIECE):
            last = not more and at + PIECE >= len(body)
            self._line.send(Kind.WORDS, body[at : at + PIECE], later=last)
            try:
                if not last:
                    await self._line.drain()
            except Ended:
                return  # who reads it is gone, which `receive` tells
        if not more:
            self.done = True
            self._line.send(Kind.DONE)
