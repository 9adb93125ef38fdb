"""Who reads a stream and has waited long enough may ask again: nothing that came meanwhile is lost."""

from __future__ import annotations

import _thread
from collections.abc import Callable
from typing import Any

import pytest

import penstock
import penstock.aio
from penstock.testing import Broker

CONFIG = {
    "topic": [{"name": "people", "key": ["/id"]}],
    "queue": [{"name": "jobs"}],
    "view": [{"name": "count", "source": "people", "select": "COUNT(/id) AS /id"}],
}
SHORT = 0.05
STREAMS: dict[str, Callable[[Any], Any]] = {
    "replay": lambda client: client.replay("people", "NOW", follow=True, timeout=SHORT),
    "records": lambda client: client.sow_and_subscribe("people", timeout=SHORT),
    "deltas": lambda client: client.delta_subscribe("people", timeout=SHORT),
    "rows": lambda client: client.sow_and_subscribe("count", timeout=SHORT),
    "queue": lambda client: client.consume("jobs", timeout=SHORT),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_goes_on_after_nothing_came_for_a_while(name: str) -> None:
    with Broker(CONFIG) as broker, penstock.connect(broker.flight_url) as client:
        topic = "jobs" if name == "queue" else "people"
        with STREAMS[name](client) as stream:
            while stream.take() is not None:
                pass  # of a view the row that counts nothing
            for number in (1, 2):
                assert stream.take() is None
                client.publish(topic, {"id": number})
                assert stream.take(20).json() == {"id": number}
            assert list(stream) == []
            client.publish(topic, {"id": 3})
            assert stream.take(20).json() == {"id": 3}
        assert stream.take() is None


@pytest.mark.asyncio
@pytest.mark.parametrize("name", STREAMS)
async def test_and_so_does_one_of_asyncio(name: str) -> None:
    with Broker(CONFIG) as broker:
        async with penstock.aio.connect(broker.flight_url) as client:
            topic = "jobs" if name == "queue" else "people"
            async with STREAMS[name](client) as stream:
                while await stream.take() is not None:
                    pass
                for number in (1, 2):
                    assert await stream.take() is None
                    await client.publish(topic, {"id": number})
                    assert (await stream.take(20)).json() == {"id": number}
            assert await stream.take() is None


@pytest.mark.parametrize("name", STREAMS)
def test_without_a_block_the_loop_closes_it(name: str) -> None:
    with Broker(CONFIG) as broker, penstock.connect(broker.flight_url) as client:
        stream = STREAMS[name](client)
        list(stream)
        client.publish("jobs" if name == "queue" else "people", {"id": 1})
        assert stream.take() is None


@pytest.mark.asyncio
async def test_a_closed_client_of_asyncio_says_so_as_the_blocking_one_does() -> None:
    with Broker(CONFIG) as broker:
        client = await penstock.aio.connect(broker.flight_url)
        await client.close()
        with pytest.raises(penstock.Unavailable, match="is closed"):
            await client.queues()


def test_who_waits_for_messages_where_threads_are_greenlets_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """gevent and eventlet put theirs in the place of threads: the first one that waited for the server stopped all."""

    def spawned(*_: object) -> int:
        raise AssertionError("a greenlet was begun")

    with Broker(CONFIG) as broker, penstock.connect(broker.flight_url) as client:
        with monkeypatch.context() as patched:
            patched.setattr(_thread, "start_new_thread", spawned)
            waits: list[Callable[[], object]] = [
                lambda: client.consume("jobs"),
                lambda: client.replay("jobs", follow=True),
                lambda: client.sow_and_subscribe("latest"),
                lambda: client.delta_subscribe("latest"),
            ]
            for wait in waits:
                with pytest.raises(penstock.PreconditionFailed, match="gevent or eventlet has replaced the threads"):
                    wait()
            assert client.publish("jobs", b"x").outcome == "stored"
        with client.consume("jobs", timeout="20s") as consumer:
            message = consumer.take()
            assert message is not None
            assert message.ack()
