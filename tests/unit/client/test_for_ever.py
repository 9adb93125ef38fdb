"""Who waits for longer than a thread can, 292 years, waits for as good as ever: no call and no thread fails of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import penstock
import penstock.aio
from penstock.errors import InvalidArgument
from penstock.testing import Broker
from penstock.units import FOR_EVER_S, seconds_of, until_of
from penstock.worker.app import App

LONG = 1e12  # seconds: 31,700 years
CONFIG = {"queue": [{"name": "jobs"}], "topic": [{"name": "people", "key": ["/id"]}]}
STREAMS: dict[str, Callable[[Any], Any]] = {
    "consume": lambda client: client.consume("jobs", timeout=LONG, heartbeat=LONG, reconnect=LONG),
    "replay": lambda client: client.replay("people", follow=True, timeout=LONG, reconnect=LONG, rate_max_gap=LONG / 2),
    "records": lambda client: client.sow_and_subscribe("people", timeout=LONG, reconnect=LONG),
    "changes": lambda client: client.delta_subscribe("people", timeout=LONG),
}


def test_what_is_longer_is_for_ever() -> None:
    assert FOR_EVER_S < threading.TIMEOUT_MAX
    assert seconds_of("100000w", "timeout") == FOR_EVER_S
    assert seconds_of("5m", "timeout") == 300.0
    assert (until_of(5.0, 1e300), until_of(5.0, None)) == (5.0 + FOR_EVER_S, None)
    with pytest.raises(InvalidArgument, match="timeout"):
        seconds_of(-1, "timeout")


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_waits_for_ever(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = list[object]()
    monkeypatch.setattr(threading, "excepthook", failed.append)
    with Broker(CONFIG) as broker, penstock.connect(broker.flight_url, timeout=LONG) as client:
        with STREAMS[name](client) as stream:
            for number in (1, 2):
                broker.publish("jobs" if name == "consume" else "people", b'{"id": %d}' % number)
                assert stream.take(*[LONG][: number - 1]).json() == {"id": number}
            if name == "consume":
                stream.flush(LONG)
            assert failed == []
        assert client.peek("jobs", 1) is not None


@pytest.mark.asyncio
@pytest.mark.parametrize("name", STREAMS)
async def test_and_so_does_one_of_asyncio(name: str) -> None:
    with Broker(CONFIG) as broker:
        client = await penstock.aio.connect(broker.flight_url, timeout=LONG)
        async with client, STREAMS[name](client) as stream:
            for number in (1, 2):
                broker.publish("jobs" if name == "consume" else "people", b'{"id": %d}' % number)
                assert (await stream.take(*[LONG][: number - 1])).json() == {"id": number}


def test_workers_wait_so_long() -> None:
    app = App(grace=LONG)

    @app.worker("jobs", timeout=LONG)
    def work(body: bytes) -> None: ...

    assert app.workers[0].timeout == FOR_EVER_S


@pytest.mark.parametrize("heartbeat", [0, "100ms"])
def test_a_consumer_does_not_say_that_it_is_there_all_the_time(heartbeat: Any) -> None:
    with Broker(CONFIG) as broker, penstock.connect(broker.flight_url) as client:
        jobs = client.consume("jobs", heartbeat=heartbeat)
        assert (jobs._exchange._beat, jobs.effective_backlog) == (1 / 3, 32)
        jobs.close()


@pytest.mark.parametrize("within", ["50ms", timedelta(milliseconds=50), 0, -1.5])
def test_a_wait_is_said_as_every_duration_is(within: Any) -> None:
    """Below zero, what is left of a time that is over: nothing is waited for."""
    with Broker(CONFIG) as broker, penstock.connect(broker.flight_url) as client:
        with client.consume("jobs") as consumer, client.replay("people", follow=True) as replay:
            assert (consumer.take(within), consumer.take_batch(within), replay.take(within)) == (None, None, None)
            consumer.flush("5s")
        asyncio.run(_of_asyncio(broker.flight_url, within))


async def _of_asyncio(url: str, within: Any) -> None:
    client = await penstock.aio.connect(url)
    async with client, client.consume("jobs") as consumer, client.replay("people", follow=True) as replay:
        assert await consumer.take(within) is None
        assert await consumer.take_batch(within) is None
        assert await replay.take(within) is None
        await consumer.flush("5s")


@pytest.mark.parametrize("within", ["soon", True, float("nan"), [1]])
def test_and_what_is_no_duration_is_refused_by_name(within: Any) -> None:
    with (
        Broker(CONFIG) as broker,
        penstock.connect(broker.flight_url) as client,
        client.consume("jobs") as consumer,
        client.replay("people", follow=True) as replay,
    ):
        for call in (consumer.take, consumer.take_batch, consumer.flush, replay.take):
            with pytest.raises(InvalidArgument, match="timeout"):
                call(within)
