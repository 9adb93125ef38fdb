"""An attempt counts the deliveries that somebody saw, alike through every client and every door that shows it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pika
import pytest
from tests.http_lab import Http

import penstock
from penstock.testing import Broker

Seen = list[tuple[int, bool]]


def sync(broker: Broker, seen: Seen) -> None:
    """The process fails with the first message that it takes, and so do those after it."""

    def fail(client: penstock.Client) -> None:
        for message in client.consume("q", timeout=20):
            with message:
                seen.append((message.attempt, message.redelivered))
                raise ValueError("no stock")

    with penstock.connect(broker.flight_url) as client, pytest.raises(ValueError, match="no stock"):
        fail(client)


def lingering(broker: Broker, seen: Seen) -> None:
    """The same, where the consumer is a context of its own and the failure is told before it is closed."""

    def fail(client: penstock.Client) -> None:
        with client.consume("q", timeout=20) as consumer:
            for message in consumer:
                try:
                    with message:
                        seen.append((message.attempt, message.redelivered))
                        raise ValueError("no stock")
                finally:
                    consumer.flush()

    with penstock.connect(broker.flight_url) as client, pytest.raises(ValueError, match="no stock"):
        fail(client)


def not_sync(broker: Broker, seen: Seen) -> None:
    """Of asyncio."""

    async def fail() -> None:
        async with penstock.aio.connect(broker.flight_url) as client, client.consume("q", timeout=20) as consumer:
            async for message in consumer:
                async with message:
                    seen.append((message.attempt, message.redelivered))
                    raise ValueError("no stock")

    with pytest.raises(ValueError, match="no stock"):
        asyncio.run(fail())


def worker(broker: Broker, seen: Seen) -> None:
    """A worker that is told to stop while it works on its first message; the others wait in it."""
    app = penstock.App()

    @app.worker("q", backlog=3)
    async def fails(message: penstock.Message) -> None:
        seen.append((message.attempt, message.redelivered))
        app.stop()
        raise ValueError("no stock")

    app.run(url=broker.flight_url)


def in_process(broker: Broker, seen: Seen) -> None:
    """The broker's own subscription."""
    subscription = broker.subscribe("q")
    message = subscription.take()[0]
    seen.append((message.attempt, message.redelivered))
    message.cancel()
    subscription.close()


CLIENTS = [sync, lingering, not_sync, worker, in_process]


@pytest.mark.parametrize("client", CLIENTS)
def test_attempts_count_the_deliveries_that_were_seen(client: Callable[[Broker, Seen], None]) -> None:
    with Broker({"queue": [{"name": "q", "max_deliveries": 4}]}) as broker:
        mark = broker.publish("q", b"first")
        broker.publish("q", b"second")
        seen: Seen = []
        for _ in range(3):
            client(broker, seen)
        assert seen == [(1, False), (2, True), (3, True)]
        (second,) = [one for one in broker.subscribe("q", max_backlog=2).take() if one.body == b"second"]
        assert (second.attempt, second.redelivered) == (1, False), "it was fetched, and nobody saw it"
        told = [one.details["attempt"] for one in broker.story(mark) if one.event == "leased"]
        assert told == sorted(told)
        assert told[-1] == 4, "this one"


async def test_what_came_for_a_caller_that_had_gone_was_not_seen() -> None:
    with Broker({"queue": [{"name": "q"}]}) as broker:
        async with penstock.aio.connect(broker.flight_url) as client:
            async with client.consume("q", timeout=20) as consumer:
                taking = asyncio.create_task(consumer.take())
                await asyncio.sleep(0)  # it asks for the consumer
                while (coming := consumer._coming) is None:  # pyright: ignore[reportPrivateUsage] - nothing else tells
                    await asyncio.wait({taking}, timeout=0.001)
                taking.cancel()
                await asyncio.wait({taking})
                broker.publish("q", b"x")
                await asyncio.wait({coming})
            async with client.consume("q", timeout=20) as consumer:
                message = await consumer.take()
                assert message is not None
                assert (message.attempt, message.redelivered) == (1, False)


class Looks:
    """Every door that shows how often a message that waits was delivered, without delivering it."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._http = broker, Http(broker)

    def ready(self) -> dict[str, object]:
        """By door."""
        with penstock.connect(self._broker.flight_url) as client:
            [peeked], [row] = client.peek("q"), client.query("SELECT attempt FROM q").to_arrow().to_pylist()
            [detail] = client.details("q")["messages"]
            why = client.explain("q", bookmark=detail["bookmark"])
        [seen] = self._http.get("queues/%2F/q/peek")
        times = re.search(r"after (\d+) deliver", str(why))
        return {
            "peek": peeked.attempt,
            "SQL": row["attempt"],
            "details": detail["deliveries"],
            "peek over HTTP": seen["attempt"],
            "redelivered over HTTP": int(seen["redelivered"]) and peeked.attempt,
            "explain": 0 if times is None else int(times[1]),
        }

    def leased(self) -> dict[str, object]:
        """The same of one that somebody holds."""
        with penstock.connect(self._broker.flight_url) as client:
            [peeked] = client.peek("q", states=["leased"])
            [detail] = client.details("q")["messages"]
            why = client.explain("q", bookmark=detail["bookmark"])
        [held] = self._http.get("queues/%2F/q/leases")
        times = re.search(r"attempt (\d+)", str(why))
        return {
            "peek": peeked.attempt,
            "details": detail["deliveries"],
            "leases over HTTP": held["deliveries"],
            "explain": 0 if times is None else int(times[1]),
        }


def agree(shown: dict[str, object], attempt: int) -> None:
    assert shown == dict.fromkeys(shown, attempt)


def test_every_door_shows_the_same_attempt() -> None:
    with Broker({"queue": [{"name": "q", "max_deliveries": 4}]}) as broker:
        broker.publish("q", b"x")
        agree(Looks(broker).ready(), 0)
        for times in (1, 2, 3):
            sync(broker, [])
            agree(Looks(broker).ready(), times)
        broker.restart()
        agree(Looks(broker).ready(), 3)
        [message] = broker.subscribe("q").take()
        assert (message.attempt, message.redelivered) == (4, True)
        agree(Looks(broker).leased(), 4)
        message.cancel()
        assert broker.stats("q")["ready"] == 0, "four of four"


def test_amqp_tells_the_same_of_what_nobody_saw() -> None:
    with Broker({"queue": [{"name": "q"}]}) as broker:
        broker.publish("q", b"x")
        broker.subscribe("q").close()
        with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
            channel = connection.channel()
            sent = channel.consume("q", arguments={"x-info": True}, inactivity_timeout=20)
            for count, (method, properties, _) in zip((None, 1, 2), sent, strict=False):
                assert method is not None
                assert properties is not None
                assert (properties.headers or {}).get("x-delivery-count") == count
                assert method.redelivered is (count is not None)
                channel.basic_nack(method.delivery_tag)
        assert [one["redelivered"] for one in Http(broker).take("q", mode="ack_requeue_true")] == [True]
        broker.publish("q", b"y")
        broker.subscribe("q", max_backlog=2).close()
        assert [one["redelivered"] for one in Http(broker).take("q")] == [True, False]


def test_a_settle_of_an_earlier_delivery_is_stale_though_nobody_saw_the_one_between() -> None:
    with Broker({"queue": [{"name": "q", "leasing": "strict"}]}) as broker:
        broker.publish("q", b"x")
        subscription = broker.subscribe("q")
        [first] = subscription.take()
        first.cancel()
        broker.subscribe("q").close()
        with pytest.raises(penstock.Fenced, match="delivery 1"), broker.transaction() as transaction:
            transaction.ack(first)
        [second] = subscription.take()
        assert second.attempt == 2
        assert not first.ack()
        assert second.ack()
