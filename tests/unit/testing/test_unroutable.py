"""The client raises where nobody takes what it publishes over the default exchange; other clients see no difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pika
import pyarrow as pa
import pytest

import penstock
from penstock.client import TableReceipt
from penstock.errors import NotFound, Unroutable
from penstock.testing import Broker

CONFIG = {
    "queue": [
        {"name": "taken"},
        {"name": "paid", "underlying_topic": "orders", "filter": "/status = 'paid'"},
        {"name": "q", "max_deliveries": 2, "dead_letter_exchange": "", "dead_letter_routing_key": "taken"},
    ],
    "topic": [{"name": "kept", "key": ["/id"]}],
}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(CONFIG) as one:
        yield one


@pytest.fixture
def client(broker: Broker) -> Iterator[penstock.Client]:
    with penstock.connect(broker.flight_url) as one:
        one.declare_exchange("events", type="topic")
        yield one


def table(*bodies: bytes) -> pa.Table:
    return pa.table({"body": pa.array(bodies, pa.binary())})


Publish = Callable[..., object]
WAYS: list[Callable[[penstock.Client], Publish]] = [
    lambda client: lambda topic, **more: client.publish(topic, b'{"id": 1}', **more),
    lambda client: lambda topic, **more: client.delta_publish(topic, b'{"id": 1}', **more),
    lambda client: lambda topic, **more: client.publish_table(topic, table(b'{"id": 1}'), **more),
    lambda client: (
        lambda topic, **more: client.publish(
            topic, b'{"id": 1}', publisher="p", sequence=(client.last_sequence("p") or 0) + 1, **more
        )
    ),
    lambda client: lambda topic, **more: committed(client, topic, **more),
]


def committed(client: penstock.Client, topic: str, **more: object) -> object:
    transaction = client.transaction()
    transaction.publish(topic, b'{"id": 1}', **more)  # type: ignore[arg-type]  # options of a publish
    return transaction.commit()


@pytest.mark.parametrize("way", WAYS, ids=["publish", "delta", "table", "numbered", "transaction"])
def test_what_nobody_takes_is_an_error_of_the_default_exchange(
    client: penstock.Client, way: Callable[[penstock.Client], Publish]
) -> None:
    publish = way(client)
    publish("taken") if way is not WAYS[1] else publish("kept")
    with pytest.raises(Unroutable, match="no queue .*'?nobody'?"):
        publish("nobody")
    with pytest.raises(Unroutable, match="'?orders'?"):
        publish("orders")  # a queue looks at the topic, and does not want this message
    told = publish("nobody", mandatory=False)
    [receipt] = told if isinstance(told, tuple) else [told]
    if isinstance(receipt, TableReceipt):
        assert (receipt.stored, receipt.unroutable) == (0, 1)
    else:
        assert receipt.outcome == "unroutable"  # type: ignore[union-attr]  # of a publish
    if way is not WAYS[1]:
        publish("nobody", exchange="events")
        with pytest.raises(Unroutable, match="events/nobody"):
            publish("nobody", exchange="events", mandatory=True)
    assert issubclass(Unroutable, NotFound)
    assert penstock.Unroutable is Unroutable


def test_a_number_that_nobody_took_is_no_duplicate_later(client: penstock.Client) -> None:
    for send in (
        lambda number: client.publish("later", b"x", publisher="p", sequence=number),
        lambda number: client.publish_table("later", table(b"x"), publisher="p", sequence=number),
    ):
        with pytest.raises(Unroutable):
            send(1 if client.last_sequence("p") is None else 2)
        client.declare("later")
        send(1 if client.last_sequence("p") is None else 2)
        client.delete("later")


@pytest.mark.parametrize("topic", [None, "taken"])
def test_a_table_is_stored_as_far_as_somebody_takes_it(client: penstock.Client, topic: str | None) -> None:
    rows = pa.table({"topic": ["taken", "nobody", "taken"], "body": [b"1", b"2", b"3"]})
    told = "1 of 3 messages were not stored: no queue and no declared topic takes what column 'topic' says of them"
    with pytest.raises(Unroutable, match=told) as caught:
        client.publish_table(topic, rows)
    assert (caught.value.receipt.stored, caught.value.receipt.unroutable) == (2, 1)
    assert client.queue("taken")["ready"] == 2


def test_a_transaction_says_which_and_does_nothing(broker: Broker, client: penstock.Client) -> None:
    broker.publish("q", b"order")
    with client.consume("q", timeout=20) as consumer:
        message = next(iter(consumer))
        transaction = client.transaction()
        transaction.ack(message)
        transaction.publish("taken", b"1")
        transaction.publish("nobody", b"2", mandatory=False)
        transaction.publish("nowhere", b"3", exchange="events")
        transaction.publish("orders", {"status": "new"})
        transaction.publish("nobody", b"4")
        with pytest.raises(Unroutable, match="of its 5 messages .* message 4 for 'orders', message 5 for 'nobody':"):
            transaction.commit()
        assert (broker.stats("taken")["ready"], broker.stats("q")["leased"], message.outcome) == (0, 1, None)
        with pytest.raises(Unroutable, match="message 1 for 'nobody'"):
            message.ack(publish=[("nobody", b"5")])
        message.ack(publish=[("nobody", b"5", {"mandatory": False}), ("orders", {"status": "paid"})])
    assert (broker.stats("q")["leased"], broker.stats("paid")["ready"]) == (0, 1)


async def test_the_client_for_asyncio_raises_alike(broker: Broker) -> None:
    async with penstock.aio.connect(broker.flight_url) as client:
        with pytest.raises(Unroutable):
            await client.publish("nobody", b"x")
        assert (await client.publish("nobody", b"x", mandatory=False)).outcome == "unroutable"
        with pytest.raises(Unroutable):
            await client.publish_table("nobody", table(b"x"))
        transaction = client.transaction()
        transaction.publish("nobody", b"x")
        with pytest.raises(Unroutable, match="message 1 for 'nobody'"):
            await transaction.commit()


def test_a_worker_whose_result_nobody_takes_retries_and_says_why(broker: Broker) -> None:
    app, calls = penstock.App(), list[int]()

    @app.worker("q", publish="nobody")
    def answers(body: bytes, message: penstock.Message) -> bytes:
        calls.append(message.attempt)
        return b"answer"

    mark = broker.publish("q", b"x")
    [counts] = app.run(url=broker.flight_url, burst=True).values()
    assert (calls, counts.done, counts.retried) == ([1, 2], 0, 2)
    why = next(one.details["why"] for one in broker.story(mark) if one.event == "returned")
    assert str(why).startswith("Unroutable: ")
    assert broker.stats("taken")["ready"] == 1, "its dead letter"


@pytest.mark.parametrize(("place", "mandatory"), [("nobody", False), ("events/nobody", None)])
def test_a_worker_may_publish_into_the_void(broker: Broker, place: str, mandatory: bool | None) -> None:
    app = penstock.App()

    @app.worker("q", publish=place, mandatory=mandatory)
    def answers(body: bytes) -> bytes:
        return b"answer"

    with penstock.connect(broker.flight_url) as client:
        client.declare_exchange("events", type="topic")
    broker.publish("q", b"x")
    [counts] = app.run(url=broker.flight_url, burst=True).values()
    assert (counts.done, counts.retried) == (1, 0)


def test_a_worker_publishes_to_an_exchange_and_to_keys_with_a_slash(broker: Broker) -> None:
    app = penstock.App()

    @app.worker("q", publish="events/taken")
    def to_exchange(body: bytes) -> bytes:
        return b"answer"

    @app.worker("taken", publish="a/b")
    def to_key(body: bytes) -> bytes:
        return body + b"!"

    with penstock.connect(broker.flight_url) as client:
        client.declare_exchange("events", type="topic")
        client.bind("taken", "events", "#")
        client.declare("a/b")
        broker.publish("q", b"x")
        while not broker.stats("a/b")["ready"]:
            app.run(url=broker.flight_url, burst=True)
        assert [one.body for one in client.peek("a/b")] == [b"answer!"]


def test_what_goes_over_the_wire_stays_as_it_is(broker: Broker) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "nobody", b"x")  # confirmed, as ever
    assert broker.publish("nobody", b"x") == ""
