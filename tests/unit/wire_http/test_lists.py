"""Lists of everything: how much of one is there at a time, how long all of them together let others wait, and how long
an answer waits for its reader.
"""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message

from penstock.errors import Unavailable
from penstock.records.rights import LOGIN
from penstock.server.doors.line import Ended
from penstock.server.http import door, routes
from penstock.server.http.connections import HttpServer
from penstock.server.http.routes import Ask, Row, Table
from penstock.server.people.access import Who
from penstock.wire.http.lists import SENT, encoded, gathered, listed


class Item(dict[str, object]):
    """One that can be watched."""


async def test_a_long_list_is_made_and_let_go_of_as_it_is_sent() -> None:
    """3,000 queues are 13 MiB as objects: 120 lists that nobody read took 1.6 GB.

    Whoever stands still has the text of one slice: with the objects 264 lists took 870 MB, now 128.
    """
    watched = list[weakref.ref[Item]]()

    def items() -> Iterator[Item]:
        for number in range(3 * SENT):
            item = Item(name=number)
            watched.append(weakref.ref(item))
            yield item

    response = await listed(items(), {})
    assert isinstance(response, StreamingResponse)
    made, most, text = list[int](), 0, b""
    async for piece in response.body_iterator:
        assert isinstance(piece, bytes)
        made.append(len(watched))
        most = max(most, sum(one() is not None for one in watched))
        text += piece
    assert made == [SENT, 2 * SENT, 3 * SENT, 3 * SENT]
    assert most <= 1, "what was sent is not let go of while its reader has it"
    assert [one["name"] for one in json.loads(text)] == list(range(3 * SENT))


async def test_many_lists_have_one_step_in_a_round_of_the_loop() -> None:
    """Each had one: 120 lists of 3,000 queues kept a confirm for four seconds."""
    steps = list[int]()

    def items(number: int) -> Iterator[dict[str, object]]:
        for _ in range(5):
            steps.append(number)
            yield {"name": "q" * 10}
            # longer than a step may take, so that the next item is in another one
            until = asyncio.get_running_loop().time() + 0.005
            while asyncio.get_running_loop().time() < until:
                pass

    async def one(number: int) -> None:
        found = await gathered(items(number))
        assert len(found) == 5
        assert json.loads(await encoded(list[object](found))) == found

    many = asyncio.gather(*map(one, range(10)))
    while not many.done():
        before = len(steps)
        await asyncio.sleep(0)
        assert len(steps) - before <= 2, "an item, and the one that showed that time was up"
    await many
    assert sorted(steps) == sorted(5 * list(range(10)))
    assert steps[:10] != [steps[0]] * 10, "they take turns"


class Lists:
    """A table with one list, of three items, asked as some user."""

    def __init__(self) -> None:
        self.begun = list[str]()
        self.table = Table({"/"}, [Row("GET", "/api/things", self._list, "things", LOGIN, many=True)])

    async def _list(self, ask: Ask) -> Response:
        self.begun.append(ask.user)
        return await ask.listed({"name": number} for number in (2, 1, 3))

    async def ask(self, user: str, stack: ExitStack, query: str = "sort=name", *, gone: bool = False) -> list[object]:
        async def receive() -> Message:
            if not gone:
                await asyncio.Event().wait()
            return {"type": "http.disconnect"}

        scope = {"type": "http", "method": "GET", "path": "/api/things", "query_string": query.encode(), "headers": []}

        async def reader(*_: object) -> None: ...

        response = await self.table.answer(Request(scope, receive), user, Who(user, ("management",)), reader, stack)
        return [one["name"] for one in json.loads(bytes(response.body))]


async def test_a_user_has_one_sorted_list_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is there as a whole until it is sent: 128 of 10,000 queues took 3 GB."""
    monkeypatch.setattr(routes, "LOOK_S", 0.01)
    lists = Lists()
    with ExitStack() as first, ExitStack() as second, ExitStack() as other:
        assert await lists.ask("ann", first) == [1, 2, 3]
        waits = asyncio.ensure_future(lists.ask("ann", second))
        left = asyncio.ensure_future(lists.ask("ann", other, gone=True))
        assert await lists.ask("bob", other) == [1, 2, 3], "another user's does not wait"
        assert await lists.ask("ann", other, "sort=") == [2, 1, 3], "nor one that is not sorted"
        with pytest.raises(Unavailable, match="the client is gone"):
            await left
        assert not waits.done()
        assert lists.begun == ["ann", "bob", "ann"]
        first.close()  # its answer is out
        assert await waits == [1, 2, 3]
    with ExitStack() as again:
        assert await lists.ask("cid", again) == [1, 2, 3]
    assert "cid" not in lists.table._sorting, "nothing is kept of who asks for nothing"


async def test_an_answer_that_nobody_reads_ends_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two users who asked for 128 long lists each, and read nothing, left no request to others for good."""
    monkeypatch.setattr(door, "UNREAD_S", 0.05)

    async def never(message: Mapping[str, Any]) -> None:
        await asyncio.Event().wait()

    with pytest.raises(Ended):
        await door._taken(never, {"type": "http.response.body", "body": b"x", "more_body": True})


async def test_who_is_answered_in_part_is_cut_off_and_that_is_no_fault(capfd: pytest.CaptureFixture[str]) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise Ended

    server = HttpServer(app, 4096)
    await server.begin()
    listener = await asyncio.get_running_loop().create_server(lambda: server._link(Nobody()), "127.0.0.1", 0)  # type: ignore[arg-type]
    reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
    writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await reader.readuntil(b"\r\n0\r\n")
    writer.close()
    listener.close()
    server.stop()
    await server.ended()
    assert capfd.readouterr() == ("", "")


class Nobody:
    """Whom nobody counts."""

    idle = counted = False

    def heard(self, size: int) -> None: ...
    def again(self, idle: bool = False) -> None: ...
    def gone(self) -> None: ...
