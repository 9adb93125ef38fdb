"""What a consumer had fetched and nobody saw: it goes back when the consumer is closed, and counts for no limit."""

from __future__ import annotations

import json

import pytest

import penstock
from flight_house import FlightHouse
from forked import penstock as command

pytestmark = pytest.mark.conformance


def publish(client: penstock.Client, queue: str, count: int = 3) -> None:
    for n in range(count):
        client.publish(queue, str(n).encode())


def test_what_was_never_taken_is_no_delivery(house: FlightHouse) -> None:
    with penstock.connect(house.url) as client:
        client.declare("m", max_deliveries=1)
        publish(client, "m")
        for message in client.consume("m", timeout=30):
            assert message.body == b"0"
            message.ack()
            break
        assert (client.queue("m")["ready"], client.queue("m")["stale"]) == (2, 0)
        with client.consume("m", timeout=30) as consumer:
            seen = consumer.take()
            assert seen is not None
            assert seen.body == b"1"
        # it was taken, and its one delivery is used up
        assert client.queue("m")["ready"] == 1
        assert [message.body for message in client.peek("m")] == [b"2"]


def test_a_consumer_of_many_queues_gives_back_what_nobody_saw(house: FlightHouse) -> None:
    with penstock.connect(house.url) as client:
        for name in ("many-a", "many-b"):
            client.declare(name, max_deliveries=1, leasing="strict")
            publish(client, name)
        for _ in range(3):
            with client.consume("many-.*", timeout=30) as consumer:
                assert consumer.queues == ["many-a", "many-b"]
        with client.consume("many-.*", timeout=30) as consumer:
            message = consumer.take()
            assert message is not None
            message.ack()
        assert client.queue("many-a")["ready"] + client.queue("many-b")["ready"] == 5


async def test_the_async_consumer_does_the_same(house: FlightHouse) -> None:
    async with penstock.aio.connect(house.url) as client:
        await client.declare("m", max_deliveries=1)
        for n in range(3):
            await client.publish("m", str(n).encode())
        async with client.consume("m") as consumer:
            message = await consumer.take(30)
            assert message is not None
            await message.ack()
        assert (await client.queue("m"))["ready"] == 2


@pytest.mark.parametrize("count", [1, 3])
def test_a_count_is_never_passed(house: FlightHouse, count: int) -> None:
    with penstock.connect(house.url) as client:
        client.declare("m")
        publish(client, "m", 5)
        done = command("consume", "m", "--count", str(count), "--json", "--url", house.url)
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) == count
        assert json.loads(done.stdout.splitlines()[0])["attempt"] == 1
        assert [message.attempt for message in client.peek("m")] == [0] * (5 - count)
