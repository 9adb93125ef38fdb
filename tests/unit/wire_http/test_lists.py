"""Lists of everything: how much of one is there at a time, how long all of them together let others wait, and how long
an answer waits for its reader.
"""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from starlette.responses import StreamingResponse

from penstock.server.doors.line import Ended
from penstock.server.http import door
from penstock.server.http.connections import HttpServer
from penstock.wire.http.lists import SLICE, encoded, gathered, listed


class Item(dict[str, object]):
    """One that can be watched."""


async def test_a_long_list_is_made_and_let_go_of_as_it_is_sent() -> None:
    """3,000 queues are 13 MiB as objects: 120 lists that nobody read took 1.6 GB."""
    watched = list[weakref.ref[Item]]()

    def items() -> Iterator[Item]:
        for number in range(3 * SLICE):
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
    assert made == [SLICE, 2 * SLICE, 3 * SLICE, 3 * SLICE]
    assert most <= SLICE + 1, "the next one is made before the last slice is let go of"
    assert [one["name"] for one in json.loads(text)] == list(range(3 * SLICE))


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
