"""The process of the HTTP door: `python -m penstock.server.http.front CONTROL LINES MEMORY`.

It takes clients with TLS or without and reads their requests strictly (`connections`).  What needs no server it answers
itself (`reception`); each other goes to the server over a
line of its own (`calls`), and its answer comes back there.  It reads the JSON of bodies, and makes the digests of
passwords.  It knows nobody's rights, no queue and no log.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from time import monotonic
from typing import Any

import orjson

from penstock.errors import InvalidArgument, Unavailable
from penstock.server.doors import front
from penstock.server.doors.front import Front, Identities
from penstock.server.doors.line import Ended, Kind, handed, plain
from penstock.server.http.calls import (
    PIECE,
    Call,
    CallLine,
    coded,
    failed,
    headers_of,
    latin,
    pieces_of,
    recipe_of,
    wanted_of,
)
from penstock.server.http.connections import HttpLink, HttpServer
from penstock.server.http.reception import Reception, first_of
from penstock.server.sockets.listening import Entry, Listener
from penstock.server.sockets.tls_transport import cut_off
from penstock.wire.http.bodies import Reading, Room

CALLS_MOST = 768
"""Requests that are with the server at a time; others wait."""

IDLE_S = 10.0
KEPT_MOST = 32
"""Lines that wait for the next request, and for how long."""

LOOK_S = 0.25
"""How often it is asked whether the server still waits for a client that does not read."""

ANSWER_MOST = 1 << 20
RECIPE_MOST = 4096

_MAY = {
    Kind.ANSWER: ANSWER_MOST, Kind.WORDS: PIECE, Kind.DONE: 0, Kind.WELCOME: 0, Kind.DERIVE: RECIPE_MOST,
    Kind.MORE: RECIPE_MOST,
}  # fmt: skip

TOLD = frozenset({b"accept", b"last-event-id", b"x-reason"})
"""Headers that the server asks for."""


Off = Callable[[Callable[[], bytes]], Awaitable[bytes]]


class HttpFront(Front):
    """HTTP's door."""

    def __init__(self, control: socket.socket, lines: socket.socket) -> None:
        super().__init__(control, lines)
        self._server: HttpServer | None = None
        self._relay: Relay | None = None

    async def begin(self, told: Mapping[str, Any]) -> None:
        """Have somebody who reads requests."""
        self._relay = Relay(self.lines, self.off)
        self._server = HttpServer(Reception(self._relay, frozenset(told["open"]), told["trusted"]), told["head_most"])
        await self._server.begin()

    def listener(self, entry: Entry, name: str, identity: Identities | None) -> Listener:
        """Of connections that uvicorn has."""
        assert self._server is not None
        return self._server.listener(entry, name, identity)

    @property
    def owes(self) -> bool:
        """Whether something is being answered; nothing new is, once that was asked."""
        if self._server is None:
            return False
        self._server.stop()
        return not self._server.over

    def end(self) -> None:
        """Close the lines."""
        if self._relay is not None:
            self._relay.close()


class Relay:
    """ASGI's application: whatever is asked, the server answers."""

    def __init__(self, lines: socket.socket, off: Off) -> None:
        """lines: takes the server's end of each line.  off: does what takes long."""
        self._lines = lines
        self._idle = list[tuple[float, CallLine]]()  # since when; the newest last
        self._places = asyncio.Semaphore(CALLS_MOST)
        self._room = Room(pieces_of)  # of bodies
        self._off = off

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        """One request."""
        async with self._places:
            try:
                line = await self._take()
            except OSError as error:
                await _refused(send, f"the door has no line to the server: {error.strerror}")
                return
            relayed = _Relayed(line, scope, receive, send, self._off, self._room)
            try:
                await relayed.run()
            except Ended:  # the server has no more to say
                cut_off(scope["state"]["transport"])
                line.close()
                return
            except MemoryError:
                front.end_without_memory()
                raise
            except BaseException:
                line.close()
                raise
            self._give(line)

    def close(self) -> None:
        """Nothing is asked any more."""
        for _, line in self._idle:
            line.close()

    async def _take(self) -> CallLine:
        self._tidy()
        while self._idle:
            _, line = self._idle.pop()
            if not line.gone:
                return line
            line.close()
        ours = handed(self._lines)
        ours.setblocking(False)
        return await CallLine.of(ours)

    def _give(self, line: CallLine) -> None:
        if len(self._idle) < KEPT_MOST and not line.gone:
            self._idle.append((monotonic(), line))
        else:
            line.close()

    def _tidy(self) -> None:
        """Close those that nobody wanted for a while."""
        while self._idle and monotonic() - self._idle[0][0] > IDLE_S:
            self._idle.pop(0)[1].close()


class _Relayed:
    """One request, from its head to the end of its answer."""

    def __init__(self, line: CallLine, scope: Mapping[str, Any], receive: Any, send: Any, off: Off, room: Room) -> None:
        self._line = line
        self._scope = scope
        self._receive = receive
        self._send = send
        self._off = off
        self._room = room
        self._login: tuple[str, str] | None = scope.get("login")
        self._over = False  # the answer is whole
        self._pump: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """The line can take the next one afterwards.  Raises Ended when the server has no more to say."""
        line, scope = self._line, self._scope
        line.number += 1
        body = any(
            name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
            for name, value in scope["headers"]
        )
        line.send(Kind.CALL, Call(
            scope["method"], scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1"),
            latin([one for one in scope["headers"] if one[0] in TOLD]),
            scope["http_version"], scope["scheme"], tuple(scope["client"]), tuple(scope["server"]), body, self._login,
        ).encoded())  # fmt: skip
        try:
            await self._answered(body=body)
        finally:
            pump, self._pump = self._pump, None  # what it ends with leads back here
            if pump is not None:
                pump.cancel()

    async def _answered(self, *, body: bool) -> None:
        line, send = self._line, self._send
        visitor: HttpLink = self._scope["state"]["visitor"]
        while True:
            kind, _, payload = await line.receive(_MAY)
            match kind:
                case Kind.WELCOME:
                    visitor.known()
                    if not body:
                        self._pump = asyncio.ensure_future(self._watch())
                case Kind.MORE:
                    self._pump = asyncio.ensure_future(self._read(wanted_of(payload)))
                case Kind.DERIVE:
                    _, password = self._login or ("", "")
                    digest = await self._off(partial(recipe_of(payload).digest, password))
                    line.send(Kind.DERIVED, digest)
                case Kind.ANSWER:
                    told = plain(memoryview(payload))
                    head = {"status": told["status"], "headers": coded(headers_of(told))}
                    await send({"type": "http.response.start", **head})
                case Kind.WORDS:
                    await self._pass_on({"type": "http.response.body", "body": payload, "more_body": True})
                case _:
                    self._over = True
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    return

    async def _pass_on(self, message: Mapping[str, Any]) -> None:
        """Send a piece.  Ended when the server has hung up before the client took it."""
        visitor: HttpLink = self._scope["state"]["visitor"]
        if not visitor.stands:
            await self._send(message)
            return
        sending = asyncio.ensure_future(self._send(message))
        try:
            while not (await asyncio.wait({sending}, timeout=LOOK_S))[0]:
                if self._line.hung_up:
                    raise Ended
            sending.result()
        finally:
            sending.cancel()

    async def _watch(self) -> None:
        """See when the client leaves."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._over:
            self._line.close()

    async def _read(self, wanted: Reading) -> None:
        """Hand on what the body holds, then see when the client leaves."""
        line, headers = self._line, first_of(self._scope["headers"])
        announced = headers.get(b"content-length", b"").decode("latin-1")
        user = "" if self._login is None else self._login[0]
        try:
            try:
                pieces: list[bytes] = await self._room.read(user, announced, self._receive, wanted)
            except (InvalidArgument, Unavailable) as error:
                line.send(Kind.FAILED, failed(error))
            else:
                for piece in pieces[:-1]:
                    line.send(Kind.WORDS, piece)
                    await line.drain()
                line.send(Kind.WORDS, pieces[-1], later=True)
                line.send(Kind.END)
            await self._watch()
        except Ended:
            pass  # whoever waits for the answer sees it, too
        except MemoryError:
            line.close()
            front.end_without_memory()
            raise
        except Exception:
            line.close()
            raise


async def _refused(send: Any, why: str) -> None:
    body = orjson.dumps({"error": "service_unavailable", "reason": why})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def run(control: socket.socket, lines: socket.socket) -> None:
    """The door in a thread of the server's own process."""
    with asyncio.Runner() as runner:
        runner.run(HttpFront(control, lines).run())


def main() -> None:
    """The door as a process; never returns."""
    front.main(run)


if __name__ == "__main__":
    main()
