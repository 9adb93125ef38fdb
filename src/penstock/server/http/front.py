"""The process of the HTTP door: `python -m penstock.server.http.front CONTROL LINES MEMORY`.

It takes clients with TLS or without and reads their requests strictly (`connections`); each goes to the server over a
line of its own (`calls`), and its answer comes back there.  It makes the digests of passwords.  It knows nobody's
rights, no queue and no log.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import orjson

from penstock.server.doors import front
from penstock.server.doors.front import Front, Identities
from penstock.server.doors.line import Ended, Kind, plain
from penstock.server.http.calls import PIECE, Call, CallLine, coded, credentials, headers_of, latin, recipe_of
from penstock.server.http.connections import HttpServer

if TYPE_CHECKING:
    from penstock.server.http.connections import HttpLink
    from penstock.server.listening import Entry, Listener

CALLS_MOST = 768
"""Requests that are with the server at a time; others wait."""

IDLE_S = 10.0
KEPT_MOST = 32
"""Lines that wait for the next request, and for how long."""

WORKERS = 2
"""Threads that make digests of passwords; each takes 19 MiB meanwhile."""

LOOK_S = 0.25
"""How often it is asked whether the server still waits for a client that does not read."""

ANSWER_MOST = 1 << 20
RECIPE_MOST = 4096

_MAY = {Kind.ANSWER: ANSWER_MOST, Kind.WORDS: PIECE, Kind.DONE: 0, Kind.WELCOME: 0, Kind.DERIVE: RECIPE_MOST}


class HttpFront(Front):
    """HTTP's door."""

    def __init__(self, control: socket.socket, lines: socket.socket) -> None:
        super().__init__(control, lines)
        self._server: HttpServer | None = None
        self._relay: Relay | None = None

    async def begin(self, told: Mapping[str, Any]) -> None:
        """Have somebody who reads requests."""
        self._relay = Relay(self.lines)
        self._server = HttpServer(self._relay, told["head_most"])
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

    def __init__(self, lines: socket.socket) -> None:
        """lines: takes the server's end of each line."""
        self._lines = lines
        self._idle = list[tuple[float, CallLine]]()  # since when; the newest last
        self._room = asyncio.Semaphore(CALLS_MOST)
        self._pool: ThreadPoolExecutor | None = None

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        """One request."""
        async with self._room:
            try:
                line = await self._take()
            except OSError as error:
                await _refused(send, f"the door has no line to the server: {error.strerror}")
                return
            relayed = _Relayed(line, scope, receive, send, self._off)
            try:
                whole = await relayed.run()
            except MemoryError:
                front.end_without_memory()
                raise
            except BaseException:
                line.close()
                raise
            if whole:
                self._give(line)
            else:
                line.close()

    def close(self) -> None:
        """Nothing is asked any more."""
        for _, line in self._idle:
            line.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def _take(self) -> CallLine:
        self._tidy()
        while self._idle:
            _, line = self._idle.pop()
            if not line.gone:
                return line
            line.close()
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._lines, [b"+"], [theirs.fileno()])
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

    async def _off(self, work: Any) -> bytes:
        """What takes long, by a thread of few."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(WORKERS, "penstock-login")
        made: bytes = await asyncio.get_running_loop().run_in_executor(self._pool, work)
        return made


class _Relayed:
    """One request, from its head to the end of its answer."""

    def __init__(self, line: CallLine, scope: Mapping[str, Any], receive: Any, send: Any, off: Any) -> None:
        self._line = line
        self._scope = scope
        self._receive = receive
        self._send = send
        self._off = off
        self._sent = False  # all of its body
        self._over = False  # the answer is whole
        self._pump: asyncio.Task[None] | None = None

    async def run(self) -> bool:
        """Whether the line can take the next one."""
        line, scope = self._line, self._scope
        line.number += 1
        headers = latin(scope["headers"])
        body = any(
            name == "transfer-encoding" or (name == "content-length" and value != "0") for name, value in headers
        )
        self._sent = not body
        line.send(Kind.CALL, Call(
            scope["method"], scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1"), headers,
            scope["http_version"], scope["scheme"], tuple(scope["client"]), tuple(scope["server"]), body,
        ).encoded())  # fmt: skip
        try:
            return await self._answered()
        except Ended:  # the server has no more to say
            scope["state"]["transport"].abort()
            return False
        finally:
            if self._pump is not None:
                self._pump.cancel()

    async def _answered(self) -> bool:
        line, send = self._line, self._send
        visitor: HttpLink = self._scope["state"]["visitor"]
        while True:
            kind, _, payload = await line.receive(_MAY)
            match kind:
                case Kind.WELCOME:
                    visitor.known()
                    self._pump = asyncio.ensure_future(self._body())
                case Kind.DERIVE:
                    await self._derive(payload)
                case Kind.ANSWER:
                    told = plain(memoryview(payload))
                    head = {"status": told["status"], "headers": coded(headers_of(told))}
                    await send({"type": "http.response.start", **head})
                case Kind.WORDS:
                    await self._pass_on({"type": "http.response.body", "body": payload, "more_body": True})
                case _:
                    self._over = True
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    return self._sent

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

    async def _derive(self, payload: bytes) -> None:
        """What the server compares; it says for which hash."""
        found = dict(latin(self._scope["headers"])).get("authorization", "")
        _, password = credentials(found) or ("", "")
        self._line.send(Kind.DERIVED, await self._off(partial(recipe_of(payload).digest, password)))

    async def _body(self) -> None:
        """Hand on what the client sends, and see when it leaves."""
        line = self._line
        try:
            while True:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    if not self._over:
                        line.close()
                    return
                body = message.get("body", b"")
                for at in range(0, len(body), PIECE):
                    line.send(Kind.WORDS, body[at : at + PIECE])
                    await line.drain()
                if not message.get("more_body") and not self._sent:
                    self._sent = True
                    line.send(Kind.END)
        except Ended:
            pass  # whoever waits for the answer sees it, too


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
