"""What is opened at its first use, for whoever asks: in any event loop, and though who asked is cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

import penstock
from penstock import aio
from penstock.client import client as blocking
from penstock.client.messages import Receipt
from penstock.testing import Broker
from waiting import eventually

FOREVER_S = 60


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Broker({"queue": [{"name": "q"}]}) as broker:
        yield broker.flight_url


class Door:
    """Opens when it is told to; counts who tried."""

    def __init__(self, url: str, *, away: bool = False) -> None:
        self.open, self.asked, self.tried = threading.Event(), threading.Event(), list[blocking.Client]()
        self.away, self.calls = away, 0
        self._url = url

    def __call__(self) -> blocking.Client:
        self.calls += 1
        self.asked.set()
        assert self.open.wait(FOREVER_S)
        if self.away:
            raise penstock.Unavailable("nobody is there")
        self.tried.append(penstock.connect(self._url))
        return self.tried[-1]


async def asked(door: Door, *waiting: asyncio.Task[Any]) -> None:
    """Until somebody stands at the door, and the others behind him."""
    assert await asyncio.to_thread(door.asked.wait, FOREVER_S)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)


def test_one_loop_after_another(url: str) -> None:
    """After calls together that found no server, every call of another loop was told of a lock of the first one."""
    door = Door(url, away=True)
    door.open.set()
    client = aio.Client(door)

    async def together() -> list[object]:
        return await asyncio.gather(*(client.publish("q", b"") for _ in range(3)), return_exceptions=True)

    assert [type(one) for one in asyncio.run(together())] == [penstock.Unavailable] * 3
    door.away = False
    assert [type(one) for one in asyncio.run(together())] == [Receipt] * 3
    asyncio.run(client.close())


def test_loops_of_several_threads_at_once(url: str) -> None:
    """The first calls of each were refused, or waited for ever."""
    door, errors, begun = Door(url), list[BaseException](), threading.Barrier(5)
    client = aio.Client(door)

    async def together() -> None:
        for one in await asyncio.gather(*(client.publish("q", b"") for _ in range(3)), return_exceptions=True):
            if isinstance(one, BaseException):
                errors.append(one)

    def run() -> None:
        begun.wait(FOREVER_S)
        asyncio.run(together())

    threads = [threading.Thread(target=run, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    begun.wait(FOREVER_S)
    assert door.asked.wait(FOREVER_S)
    door.open.set()
    for thread in threads:
        thread.join(FOREVER_S)
    assert not any(thread.is_alive() for thread in threads)
    assert (errors, door.calls) == ([], 1)
    asyncio.run(client.close())


async def test_who_waits_together_is_told_together(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tried anew when it was his turn: with a server that says nothing the last one waited for all of them."""
    behind = list[object]()

    class Watched(Future[Any]):
        """Knows who waits for it."""

        def result(self, timeout: float | None = None) -> Any:
            behind.append(self)
            return super().result(timeout)

    monkeypatch.setattr("penstock.client.waiting.Future", Watched)
    door = Door(url, away=True)
    client = aio.Client(door)
    calls = [asyncio.create_task(client.publish("q", b"")) for _ in range(4)]
    await asked(door, *calls)
    await asyncio.to_thread(eventually, lambda: len(behind) == 3)  # each in a thread of his own, which may begin late
    door.open.set()
    told = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(one) for one in told] == [penstock.Unavailable] * 4
    assert door.calls == 1
    door.away = False
    assert (await client.publish("q", b"")).outcome == "stored"
    await client.close()


async def test_a_connection_is_kept_though_who_asked_for_it_is_cancelled(url: str) -> None:
    """It was dropped, and the next one made another."""
    door = Door(url)
    client = aio.Client(door)
    first = asyncio.create_task(client.publish("q", b""))
    await asked(door, first)
    first.cancel()
    door.open.set()
    assert (await client.publish("q", b"")).outcome == "stored"
    assert door.calls == 1
    await client.close()
    assert [one.closed for one in map(_link, door.tried)] == [True]


async def test_a_connection_that_comes_after_the_end_is_closed(url: str) -> None:
    door = Door(url)
    client = aio.Client(door)
    first = asyncio.create_task(client.publish("q", b""))
    await asked(door, first)
    await client.close()
    door.open.set()
    with pytest.raises(penstock.Unavailable, match="the connection is closed"):
        await first
    assert [one.closed for one in map(_link, door.tried)] == [True]


def _link(client: blocking.Client) -> Any:
    return client._link  # pyright: ignore[reportPrivateUsage]


async def test_a_consumer_is_kept_though_who_asked_for_it_is_cancelled(url: str) -> None:
    """Each taker that was cancelled meanwhile left one that was dropped, with a warning, and held messages."""
    door, made = Door(url), list[Any]()
    client = aio.Client(door)
    consumer = client.consume("q")
    begin = consumer._start  # pyright: ignore[reportPrivateUsage]

    def counted() -> Any:
        made.append(begin())
        return made[-1]

    consumer._start = counted  # pyright: ignore[reportPrivateUsage]
    first = asyncio.create_task(consumer.take())
    await asked(door, first)
    first.cancel()
    door.open.set()
    await client.publish("q", b"x")
    message = await consumer.take(FOREVER_S)
    assert message is not None
    await message.ack()
    assert len(made) == 1
    await consumer.close()
    await client.close()


async def test_a_consumer_that_comes_after_its_end_is_closed(url: str) -> None:
    door = Door(url)
    client = aio.Client(door)
    consumer = client.consume("q")
    first = asyncio.create_task(consumer.take())
    await asked(door, first)
    await consumer.close()
    door.open.set()
    with pytest.raises(penstock.Unavailable, match="closed before it was opened"):
        await first
    assert (await client.queue("q"))["consumers"] == 0
    await client.close()
