"""What a closed consumer gives back goes to a ring as when its connection is lost: the newest first, and they stay."""

from __future__ import annotations

import asyncio

import pytest

import penstock
from penstock import aio
from penstock.testing import Broker


def ready(broker: Broker) -> list[bytes]:
    return [message.body for message in broker.sow("q")]


@pytest.fixture
def broker() -> Broker:
    return Broker({"queue": [{"name": "q", "ring_size": 3}]})


def test_a_consumer_gives_back_the_newest_of_several_batches_first(broker: Broker) -> None:
    with broker, penstock.connect(broker.flight_url) as client:
        with client.consume("q", backlog=3) as consumer:
            assert consumer.effective_backlog == 3
            for body in b"ABC":  # each is a batch of its own
                broker.publish("q", bytes([body]))
            for body in b"DE":
                broker.publish("q", bytes([body]))
            assert broker.stats("q")["leased"] == 3
        assert ready(broker) == [b"C", b"D", b"E"]


def test_and_what_it_has_begun_to_take_of_one(broker: Broker) -> None:
    with broker, penstock.connect(broker.flight_url) as client:
        with client.consume("q", backlog=3) as consumer:
            assert consumer.effective_backlog == 3
            for body in b"ABC":
                broker.publish("q", bytes([body]))
            message = consumer.take(5.0)
            assert message is not None
            assert message.body == b"A"
            for body in b"DE":
                broker.publish("q", bytes([body]))
        assert ready(broker) == [b"C", b"D", b"E"]


def test_an_async_one_whose_caller_has_gone_does_so_too(broker: Broker) -> None:
    async def main() -> None:
        async with aio.connect(broker.flight_url) as client, client.consume("q", backlog=3) as consumer:
            assert await consumer.effective_backlog() == 3
            with pytest.raises(TimeoutError):  # who asked goes, and the next message comes for nobody
                await asyncio.wait_for(consumer.take(), 0.05)
            for body in b"ABCDE":
                await asyncio.to_thread(broker.publish, "q", bytes([body]))
            stats = await asyncio.to_thread(broker.stats, "q")
            assert stats["leased"] == 3

    with broker:
        asyncio.run(main())
        assert ready(broker) == [b"C", b"D", b"E"]
