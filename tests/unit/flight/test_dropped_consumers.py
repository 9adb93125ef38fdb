"""A consumer that its caller drops and does not close: what it held goes back, and no thread of it stays."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

import penstock
from penstock.testing import Broker
from waiting import eventually


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker({"queue": [{"name": "q"}]}) as broker:
        for number in range(5):
            broker.publish("q", b"%d" % number)
        yield broker


def _threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith(("penstock-consumer", "penstock-aio-"))]


def _never_used(client: penstock.Client) -> None:
    assert client.consume("q").tag  # it has subscribed


def _taken_from(client: penstock.Client) -> None:
    consumer = client.consume("q", timeout="20s")
    assert consumer.take() is not None


def _as_a_batch(client: penstock.Client) -> None:
    assert client.consume("q", timeout="20s").take_batch() is not None


def _half_iterated(client: penstock.Client) -> None:
    assert next(iter(client.consume("q", timeout="20s"))) is not None


WAYS = [_never_used, _taken_from, _as_a_batch, _half_iterated]


@pytest.mark.parametrize("use", WAYS)
def test_what_a_dropped_consumer_held_goes_back(broker: Broker, use: Callable[[penstock.Client], None]) -> None:
    with penstock.connect(broker.flight_url) as client:
        use(client)
        gc.collect()
        eventually(lambda: broker.stats("q")["consumers"] == 0, "it consumes")
        eventually(lambda: broker.stats("q")["ready"] == 5, "it holds them")
        eventually(lambda: not _threads(), "its threads are there")
        [message] = broker.subscribe("q", max_backlog=1).take()
        assert message.attempt == (1 if use is _never_used else 2)


def test_who_has_a_message_has_its_consumer(broker: Broker) -> None:
    with penstock.connect(broker.flight_url) as client:
        message = client.consume("q", backlog=1, timeout="20s").take()
        assert message is not None
        gc.collect()
        message.extend("1m")
        assert message.ack()
        del message
        gc.collect()
        eventually(lambda: broker.stats("q")["consumers"] == 0, "it consumes")
        assert broker.stats("q")["ready"] == 4


async def begun_and_cancelled(call: Coroutine[Any, Any, object], begun: Callable[[], bool]) -> None:
    """A call that somebody waited for until this was so."""
    waiting = asyncio.create_task(call)
    await asyncio.to_thread(eventually, begun)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


@pytest.mark.parametrize("opened", [True, False])
def test_an_async_consumer_that_is_dropped_goes_back_as_well(broker: Broker, opened: bool) -> None:
    async def work() -> None:
        async with penstock.aio.connect(broker.flight_url) as client:
            consumer = client.consume("q", filter="/id = 1")  # none of them: who waits for one waits for ever
            if opened:
                await begun_and_cancelled(consumer.take(), lambda: broker.stats("q")["consumers"] == 1)
            del consumer
            gc.collect()
            await asyncio.to_thread(eventually, lambda: not _threads() and not broker.stats("q")["consumers"])

    asyncio.run(work())


def test_a_process_ends_with_an_async_consumer_that_waits(broker: Broker) -> None:
    program = """if True:
        import asyncio, sys, penstock
        async def work():
            kept.append(client := await penstock.aio.connect(sys.argv[1]))
            kept.append(consumer := client.consume("q", filter="/id = 1"))
            waiting = asyncio.create_task(consumer.take())
            while not (await client.stats("q"))["consumers"]:
                pass
            waiting.cancel()
            await asyncio.wait([waiting])
            print("it was cancelled" if waiting.cancelled() else waiting)
        kept = []
        asyncio.run(work())
    """
    done = subprocess.run(
        [sys.executable, "-c", program, broker.flight_url], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "it was cancelled\n"
    eventually(lambda: broker.stats("q")["consumers"] == 0)
    assert broker.stats("q")["ready"] == 5
