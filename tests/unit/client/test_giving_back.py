"""What a closed consumer gives back goes to a ring as when its connection is lost: the newest first, and they stay."""

from __future__ import annotations

import asyncio
import gc
import logging

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
            message = consumer.take(60.0)
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


@pytest.mark.parametrize("closes", [True, False])
def test_of_what_is_dropped_only_what_holds_something_is_told(
    broker: Broker, caplog: pytest.LogCaptureFixture, closes: bool
) -> None:
    """What its client closed, what was refused and what came to its end held nothing, and each was told of."""

    async def main() -> None:
        client = aio.connect(broker.flight_url)
        lasts, ends = [client.consume("q"), client.replay("q", follow=True)], client.replay("q")
        for one in lasts:
            assert (await one.take("20s")) is not None
        while (await ends.take("20s")) is not None:
            pass
        refused = client.consume("none")
        with pytest.raises(penstock.NotFound):
            await refused.take("20s")
        if closes:
            await client.close()
        del refused, ends, one
        gc.collect()
        assert "dropped" not in caplog.text
        lasts.clear()
        gc.collect()
        await client.close()

    with broker, caplog.at_level(logging.WARNING, "penstock.client"):
        broker.publish("q", b"A")
        asyncio.run(main())
        assert caplog.text.count("was dropped and not closed") == (0 if closes else 2)
