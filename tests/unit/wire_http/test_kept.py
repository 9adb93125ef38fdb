"""A connection that waits for its next request: how long, and who gives way where descriptors are short."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.server.http.connections import HttpServer
from penstock.server.sockets.listening import Entry, bind, patient

ASK = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


class Leaping:
    """The time of a loop, which goes on by leaps."""

    def __init__(self, loop: asyncio.AbstractEventLoop, patch: pytest.MonkeyPatch) -> None:
        self._ahead, before = 0.0, loop.time
        patch.setattr(loop, "time", lambda: before() + self._ahead)

    async def leap(self, seconds: float) -> None:
        self._ahead += seconds
        for _ in range(5):  # what is due is done, and what follows from that
            await asyncio.sleep(0)


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self) -> bool:
        """Whether a request is answered, or the connection has ended."""
        self._writer.write(ASK)
        return b"204" in await self._reader.read(1000)

    async def begin(self) -> None:
        """Half of a request."""
        self._writer.write(ASK[:10])

    async def end(self) -> bool:
        self._writer.write(ASK[10:])
        return b"204" in await self._reader.read(1000)


@asynccontextmanager
async def door(*, known: bool) -> AsyncIterator[tuple[Entry, Callable[[], Any]]]:
    """A door, and what connects to it.  known: whether each request logs in."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if known:
            scope["state"]["visitor"].known()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    server, writers = HttpServer(app, 8192), list[asyncio.StreamWriter]()
    await server.begin()
    entry = patient(asyncio.get_running_loop())
    listener = server.listener(entry, "http")
    host, port = listener.open(bind("127.0.0.1", 0))

    async def connect() -> Client:
        reader, writer = await asyncio.open_connection(host, port)
        writers.append(writer)
        return Client(reader, writer)

    yield entry, connect
    for writer in writers:
        writer.close()
    listener.close()
    server.stop()
    await server.ended()


async def test_who_asks_once_a_minute_keeps_his_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended after five seconds, and a request that was on its way then had no answer."""
    time = Leaping(asyncio.get_running_loop(), monkeypatch)
    async with door(known=True) as (_, connect):
        client = await connect()
        for _ in range(5):
            assert await client.ask()
            await time.leap(65)
        assert await client.ask()
        await time.leap(80)
        assert not await client.ask()


async def test_where_descriptors_are_short_who_has_rested_longest_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Leaping(asyncio.get_running_loop(), monkeypatch)
    async with door(known=True) as (entry, connect):
        clients = [await connect() for _ in range(8)]
        for client in clients:
            assert await client.ask()
            await time.leap(0.1)
        await clients[0].begin()
        await asyncio.sleep(0)
        for _ in range(2):
            entry.refused_by_system()
            await time.leap(0.2)
        assert await clients[0].end(), "it was in the middle of a request"
        there = [await client.ask() for client in clients[1:]]
        assert there == [False] * 4 + [True] * 3, "a quarter of those that rest, at each look"


async def test_who_has_not_logged_in_is_counted_among_strangers_as_he_rests() -> None:
    async with door(known=False) as (entry, connect):
        assert await (await connect()).ask()
        assert len(entry.guards.of("http")) == 1
    async with door(known=True) as (entry, connect):
        assert await (await connect()).ask()
        assert len(entry.guards.of("http")) == 0
