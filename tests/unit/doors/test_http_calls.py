"""Requests between HTTP's door and the server: what comes through whole, and what becomes of a door that lies."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any

import orjson
import pytest

from choices import EFFORT, SEED
from penstock.errors import InvalidArgument
from penstock.records.password_hashes import Slow
from penstock.records.properties import EMPTY, Properties, encode
from penstock.server.doors.line import HEAD, VERSION, Ended, Kind, with_head
from penstock.server.http.calls import PIECE, Call, CallLine, call_of, wanted_of
from penstock.server.http.doorway import HttpDoors
from penstock.server.http.front import Relay
from penstock.server.sockets.strangers import Terms
from penstock.wire.http.bodies import LARGE_MOST, Brought, Reading

HEAD_MOST = 4096
CALL = Call("GET", "/api/x%20y", "a=b", [("host", "h"), ("x", "\xff")], "1.1", "http", ("::1", 5), ("::1", 80), False)

App = Callable[[Any, Any, Any], Awaitable[None]]


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Say what was asked, and send the body back, written anew."""
    scope["state"]["visitor"].known()
    await send({"type": "http.response.start", "status": 201, "headers": [(b"path", scope["path"].encode())]})
    values = await scope["state"]["visitor"].read(Reading(LARGE_MOST))
    await send({"type": "http.response.body", "body": orjson.dumps(values), "more_body": False})


async def at_once(work: Callable[[], bytes]) -> bytes:
    return work()


class Both:
    """The two ends in one loop: the server's and, unless the test plays it, the door's."""

    def __init__(self, app: App = echo) -> None:
        loop = asyncio.get_running_loop()
        self.doors = HttpDoors(Terms(), HEAD_MOST, loop, apart=False)
        self.doors.app = app
        self.cut = list[str]()
        self.doors.processes[0].cut_off = self.cut.append  # type: ignore[method-assign]
        self.theirs, ours = socket.socketpair()
        ours.setblocking(False)
        self.relay = Relay(self.theirs, at_once)
        self._ours = ours
        loop.add_reader(ours, self._came)

    def _came(self) -> None:
        _, fds, _, _ = socket.recv_fds(self._ours, 1, 1)
        for fd in fds:
            self.attach(socket.socket(fileno=fd))

    def attach(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.doors.attach(1, sock)

    async def line(self) -> CallLine:
        """A door's end, for a test that plays it."""
        ours, theirs = socket.socketpair()
        self.attach(theirs)
        ours.setblocking(False)
        return await CallLine.of(ours)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._ours)
        self._ours.close()
        self.theirs.close()
        self.relay.close()


class Client:
    """A request, as uvicorn has it."""

    def __init__(self, *pieces: bytes, headers: Any = ()) -> None:
        self.got = list[Any]()
        self.answered = asyncio.Event()
        self.known_times = 0
        self.aborted = False
        self.leave = asyncio.Event()
        self.stands = False  # it does not read
        self._reads_on = asyncio.Event()
        self._pieces = list(pieces)
        length = [(b"content-length", b"%d" % sum(map(len, pieces)))] if pieces else []
        self.scope = {
            "type": "http", "method": "POST", "raw_path": b"/a%20b", "query_string": b"q=1", "scheme": "http",
            "http_version": "1.1", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
            "headers": [*length, *headers], "state": {"visitor": self, "transport": self},
        }  # fmt: skip

    def known(self) -> None:
        self.known_times += 1

    def abort(self) -> None:
        self.aborted = True

    def get_protocol(self) -> object:
        """Its connection is not lost."""
        return self

    async def receive(self) -> Any:
        if self._pieces:
            return {"type": "http.request", "body": self._pieces.pop(0), "more_body": bool(self._pieces)}
        if self._pieces is not None and not self.scope.get("told"):
            self.scope["told"] = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.leave.wait()
        return {"type": "http.disconnect"}

    def read_on(self) -> None:
        self.stands = False
        self._reads_on.set()

    async def send(self, message: Any) -> None:
        if self.stands and self.got:  # the head is small
            await self._reads_on.wait()
        self.got.append(message)
        self.answered.set()

    @property
    def body(self) -> bytes:
        return b"".join(one["body"] for one in self.got[1:])


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(bounded())


def test_a_request_and_its_answer_come_through_whole() -> None:
    """Bodies of any size, and one line for one after the other."""

    async def test() -> None:
        both = Both()
        for size in (0, 1, PIECE, 5 * PIECE + 7):
            body = orjson.dumps({"body": "7" * size}) if size else b""
            client = Client(*([body] if size else []))
            await both.relay(client.scope, client.receive, client.send)
            assert client.got[0]["status"] == 201
            assert (b"path", b"/a b") in client.got[0]["headers"]
            assert client.body == (body or b"{}")
            assert client.known_times == 1
        assert not both.cut
        both.close()

    run(test)


def test_a_body_that_nobody_wanted_to_read_is_dropped() -> None:
    async def test() -> None:
        async def refuses(scope: Any, receive: Any, send: Any) -> None:
            scope["state"]["visitor"].known()
            await asyncio.sleep(0.01)  # all of the body is here
            await send({"type": "http.response.start", "status": 400, "headers": []})

        both = Both(refuses)
        for _ in range(3):
            client = Client(b"one", b"two")
            await both.relay(client.scope, client.receive, client.send)
            assert client.got[0]["status"] == 400
        assert not both.cut
        both.close()

    run(test)


def test_who_leaves_is_told_to_the_application() -> None:
    async def test() -> None:
        left = asyncio.Event()

        async def waits(scope: Any, receive: Any, send: Any) -> None:
            scope["state"]["visitor"].known()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while (await receive())["type"] != "http.disconnect":
                pass
            left.set()

        both, client = Both(waits), Client()
        asked = asyncio.ensure_future(both.relay(client.scope, client.receive, client.send))
        await client.answered.wait()
        client.leave.set()
        await left.wait()
        await asked
        both.close()

    run(test)


def test_an_answer_that_ends_in_the_middle_cuts_the_client_off() -> None:
    async def test() -> None:
        async def fails(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            raise ZeroDivisionError

        both, client = Both(fails), Client()
        await both.relay(client.scope, client.receive, client.send)
        assert client.aborted
        assert not both.cut
        both.close()

    run(test)


def test_who_does_not_read_is_cut_off_when_the_server_says_so() -> None:
    """While the door waits for its client it does not read the line, whose end it has to see all the same."""

    async def test() -> None:
        async def gives_up(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    while True:
                        await send({"type": "http.response.body", "body": bytes(PIECE), "more_body": True})
            scope["state"]["transport"].abort()

        both, client = Both(gives_up), Client()
        client.stands = True
        await both.relay(client.scope, client.receive, client.send)
        assert client.aborted
        assert not both.cut
        both.close()

    run(test)


def test_who_reads_late_gets_all_of_it() -> None:
    async def test() -> None:
        async def long(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": bytes(9 * PIECE), "more_body": False})

        both, client = Both(long), Client()
        client.stands = True
        asked = asyncio.ensure_future(both.relay(client.scope, client.receive, client.send))
        await client.answered.wait()
        asyncio.get_running_loop().call_soon(client.read_on)
        await asked
        assert not client.aborted
        assert len(client.body) == 9 * PIECE
        both.close()

    run(test)


def test_a_bug_before_the_answer_is_told_with_500_and_the_line_goes_on() -> None:
    async def test() -> None:
        async def fails(scope: Any, receive: Any, send: Any) -> None:
            raise ZeroDivisionError

        both, client = Both(fails), Client()
        await both.relay(client.scope, client.receive, client.send)
        assert [one["status"] for one in client.got[:1]] == [500]
        both.doors.app = echo
        client = Client(b'{"hello":1}')
        await both.relay(client.scope, client.receive, client.send)
        assert client.body == b'{"hello":1}'
        both.close()

    run(test)


def test_digests_of_passwords_are_made_by_the_door() -> None:
    how = Slow(b"0123456789abcdef", 32, 1, 1, 64)

    async def test() -> None:
        heard = list[bytes | None]()

        async def logs_in(scope: Any, receive: Any, send: Any) -> None:
            done = asyncio.Event()

            def hear(digest: bytes | None) -> None:
                heard.append(digest)
                done.set()

            scope["state"]["visitor"].derive(how, hear)
            await done.wait()
            await echo(scope, receive, send)

        both = Both(logs_in)
        client = Client(b'{"a":1}')
        client.scope["login"] = "ann", "secret"
        await both.relay(client.scope, client.receive, client.send)
        assert heard == [how.digest("secret")]
        assert client.body == b'{"a":1}'
        both.close()

    run(test)


def frame(kind: int, payload: bytes = b"", number: int = 1, version: int = VERSION, size: int | None = None) -> bytes:
    return HEAD.pack(len(payload) if size is None else size, kind, version, 0, number, 0) + payload


def said(**changed: object) -> bytes:
    """A CALL with something else in it."""
    return frame(Kind.CALL, orjson.dumps({**CALL._asdict(), **changed}))


LIES = {
    "another version": frame(Kind.CALL, CALL.encoded(), version=VERSION + 1),
    "no kind": frame(200),
    "a kind of the server's": frame(Kind.DONE),
    "a body before a request": frame(Kind.WORDS, b"x"),
    "a body of a request to come": frame(Kind.WORDS, b"x", number=2),
    "no number": frame(Kind.CALL, CALL.encoded(), number=0),
    "a head that is too large": frame(Kind.CALL, size=6 * HEAD_MOST + 5000),
    "a piece that is too large": said(body=True) + frame(Kind.WORDS, size=PIECE + 1),
    "a request within a request": said(body=True) + said(),
    "a digest that nobody asked for": said(body=True) + frame(Kind.DERIVED, b"x"),
    "a body that was not announced": said() + frame(Kind.WORDS, b"x"),
    "no JSON": frame(Kind.CALL, b"{"),
    "no object": frame(Kind.CALL, b"[]"),
    "too many parameters": said(query="&" * 1024),
    "no headers": said(headers=None),
    "headers that are no pairs": said(headers=[["a"]]),
    "a header with a line end": said(headers=[["a", "b\r\nc: d"]]),
    "a header with a name that is none": said(headers=[["a b", "c"]]),
    "a header beyond Latin-1": said(headers=[["a", "\u20ac"]]),
    "more headers than there may be": said(headers=[["a", "b"]] * 300),
    "a method that is none": said(method="GET /"),
    "a path with a space": said(path="/a b"),
    "a query with a zero": said(query="\0"),
    "another version of HTTP": said(version="2"),
    "another scheme": said(scheme="file"),
    "a client that is no address": said(client="127.0.0.1"),
    "a port that is none": said(client=["127.0.0.1", 70_000]),
    "a login that is none": said(login=["ann"]),
    "a password that is none": said(login=["ann", 7]),
}  # fmt: skip

OF_A_BODY = {
    "values that are none": frame(Kind.WORDS, b"{") + frame(Kind.END),
    "a list": frame(Kind.WORDS, b"[]") + frame(Kind.END),
    "nothing": frame(Kind.END),
    "more than was wanted": frame(Kind.WORDS, b" " * PIECE) * 3,
    "no reason": frame(Kind.FAILED, b"{}"),
    "a reason that is too long": frame(Kind.FAILED, size=1 << 20),
    "a digest": frame(Kind.DERIVED, b"x"),
    "another request": said(),
}

OF_A_MESSAGE = {
    "no head": b"",
    "a head that is longer than all": (9).to_bytes(4, "little") + b"{}",
    "a key that is none": b"".join(with_head({"key": 1, "header": 2}, EMPTY)),
    "a key that is too long": b"".join(with_head({"key": "k" * 256, "header": 2}, EMPTY)),
    "a header that is longer than all": b"".join(with_head({"key": "k", "header": 3}, EMPTY)),
    "a header that is none": b"".join(with_head({"key": "k", "header": 3}, b"\xff\xff\xff")),
    "a header with bytes behind it": b"".join(with_head({"key": "k", "header": 4}, EMPTY + b"..")),
    "less than nothing": b"".join(with_head({"key": "k", "header": -1}, EMPTY)),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_door_that_lies_is_cut_off(lie: str) -> None:
    async def test() -> None:
        async def waits(scope: Any, receive: Any, send: Any) -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        both = Both(waits)
        line = await both.line()
        line.transport.write(LIES[lie])
        with pytest.raises(Ended):
            await line.receive({})
        assert len(both.cut) == 1
        line.close()
        both.close()

    run(test)


@pytest.mark.parametrize(("words", "message"), [
    *((words, False) for words in OF_A_BODY.values()),
    *((frame(Kind.WORDS, whole) + frame(Kind.END), True) for whole in OF_A_MESSAGE.values()),
], ids=[*OF_A_BODY, *OF_A_MESSAGE])  # fmt: skip
def test_what_a_door_says_of_a_body_is_judged(words: bytes, message: bool) -> None:
    """Also where it has the right size: the server believes none of it."""

    async def test() -> None:
        async def reads(scope: Any, receive: Any, send: Any) -> None:
            await scope["state"]["visitor"].read(Reading(1000, message=message))

        both = Both(reads)
        line = await both.line()
        line.transport.write(said(body=True))
        kind, _, wanted = await line.receive({Kind.MORE: 1000})
        assert kind is Kind.MORE
        assert wanted_of(wanted) == Reading(1000, message=message)
        line.transport.write(words)
        with pytest.raises(Ended):
            await line.receive({Kind.ANSWER: 1000, Kind.WORDS: 1000, Kind.DONE: 0})
        assert len(both.cut) == 1
        line.close()
        both.close()

    run(test)


def test_a_message_comes_as_its_key_header_and_body() -> None:
    async def test() -> None:
        brought = list[Brought]()

        async def reads(scope: Any, receive: Any, send: Any) -> None:
            brought.append(await scope["state"]["visitor"].read(Reading(LARGE_MOST, message=True)))
            await send({"type": "http.response.start", "status": 200, "headers": []})

        both = Both(reads)
        body = {
            "routing_key": "k", "payload": "aGVsbG8=", "payload_encoding": "base64",
            "properties": {"message_id": "7", "headers": {"x": 1}},
        }  # fmt: skip
        client = Client(orjson.dumps(body))
        await both.relay(client.scope, client.receive, client.send)
        assert brought == [Brought("k", encode(Properties(message_id="7", headers={"x": 1})), b"hello")]
        both.close()

    run(test)


@pytest.mark.parametrize(("body", "why"), [
    (b"[1]", "not a JSON object"),
    (b"{", "is not JSON"),
    (b'{"a":' * 600 + b"1" + b"}" * 600, "is not JSON"),
    (b'{"a":1,"a":2}', "is there twice"),
    (b'{"a":"' + b"x" * 2000 + b'"}', "are allowed"),
])  # fmt: skip
def test_why_a_body_cannot_be_used_is_for_the_application_to_say(body: bytes, why: str) -> None:
    async def test() -> None:
        async def reads(scope: Any, receive: Any, send: Any) -> None:
            with pytest.raises(InvalidArgument, match=why):
                await scope["state"]["visitor"].read(Reading(1900, once=True) if len(body) < 2100 else Reading())
            await send({"type": "http.response.start", "status": 400, "headers": []})

        both = Both(reads)
        for _ in range(2):  # on the same line
            client = Client(body)
            await both.relay(client.scope, client.receive, client.send)
            assert client.got[0]["status"] == 400
        assert not both.cut
        both.close()

    run(test)


def test_sockets_that_would_outlive_their_door_end_with_it() -> None:
    async def test() -> None:
        both = Both()
        for listens in (False, True):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            if listens:
                sock.bind("")
                sock.listen()
            both.attach(sock)
        ours, theirs = socket.socketpair()
        ours.shutdown(socket.SHUT_RDWR)
        both.attach(theirs)
        await asyncio.sleep(0.01)  # all of them are waited for
        both.doors._lost("1")
        await asyncio.wait(both.doors._tasks)
        assert not both.doors._lines
        ours.close()
        both.close()

    run(test)


def test_whatever_comes_the_server_goes_on() -> None:
    """Streams of a door, broken somewhere: a request is what `call_of` says, or the door is cut off."""

    async def test() -> None:
        both, chance, heard = Both(), Random(SEED), 0
        values = orjson.dumps({"x": "x" * 50})
        good = said(body=True) + frame(Kind.WORDS, values) + frame(Kind.END) + said(method="PUT") + said()
        for _ in range(400 * EFFORT):
            broken = bytearray(good)
            for _ in range(chance.randint(1, 4)):
                broken[chance.randrange(len(broken))] = chance.randrange(256)
            line = await both.line()
            line.transport.write(bytes(broken))
            line.transport.write_eof()
            with suppress(Ended):
                while True:
                    kind, _, _ = await line.receive(
                        {Kind.WELCOME: 0, Kind.MORE: 1000, Kind.ANSWER: 1 << 20, Kind.WORDS: PIECE, Kind.DONE: 0}
                    )
                    heard += kind is Kind.DONE
            line.close()
        assert heard
        assert both.cut
        line = await both.line()
        line.transport.write(said())
        assert (await line.receive({Kind.WELCOME: 0}))[0] is Kind.WELCOME
        line.close()
        both.close()

    run(test)


def test_a_request_says_the_same_on_both_sides() -> None:
    assert call_of(CALL.encoded()) == CALL._replace(headers=[("host", "h"), ("x", "\xff")])


def test_a_line_that_broke_while_it_was_written_leaves_nothing_and_says_nothing() -> None:
    """What was written stood in the frames of the error, which its own transport held: 30 MiB in two minutes."""

    async def run() -> None:
        loop, said = asyncio.get_running_loop(), list[object]()
        loop.set_exception_handler(lambda _, told: said.append(told))
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        line = await CallLine.of(ours)
        theirs.close()
        line.send(Kind.ANSWER, bytes(1 << 20))
        assert line.gone
        for _ in range(3):
            await asyncio.sleep(0)
        left = weakref.ref(line)  # the frames that wrote have it
        line.close()
        del line
        for _ in range(5):
            await asyncio.sleep(0)
        assert left() is None, "it needs no collection of cycles"
        assert said == []

    gc.collect()
    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()
