"""A queue behind a headers exchange, replayed and followed live by its name: each message's own headers say."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

import penstock
from penstock.testing import Broker

pytestmark = pytest.mark.conformance

SENT = ({"kind": "order", "urgent": True}, {"kind": "order"}, {"other": 1}, None)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker({"queue": [{"name": "mine"}, {"name": "rest"}]}) as broker:
        yield broker


@pytest.fixture
def channel(broker: Broker) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = connection.channel()
    channel.exchange_declare("h", "headers")
    channel.exchange_declare("outer", "topic")
    channel.exchange_bind("h", "outer", "a.*")
    channel.queue_bind("mine", "h", arguments={"x-match": "all", "kind": "order", "urgent": True})
    channel.queue_bind("rest", "h", arguments={"x-match": "any", "kind": "order", "other": 1})
    yield channel
    connection.close()


def send(channel: BlockingChannel, exchange: str, key: str, body: str, headers: dict[str, object] | None) -> None:
    channel.basic_publish(exchange, key, body.encode(), pika.BasicProperties(headers=headers, delivery_mode=2))


def test_the_past_and_what_comes(broker: Broker, channel: BlockingChannel) -> None:
    for exchange, key in (("h", "k"), ("outer", "a.b"), ("outer", "b.a")):
        for number, headers in enumerate(SENT):
            send(channel, exchange, key, f"{exchange} {key} {number}", headers)
    channel.queue_declare("mine", passive=True)  # all that came before is there
    wanted = [b"h k 0", b"outer a.b 0"]
    with penstock.connect(broker.flight_url) as client:
        assert [one.body for one in client.replay("mine", "EPOCH")] == wanted
        assert [one.body for one in client.replay("mine", "EPOCH", filter="TOPIC_NAME() LIKE 'k$'")] == wanted[:1]
        assert len(list(client.replay("rest", "EPOCH"))) == 6
    got: list[bytes] = []
    channel.basic_consume("mine", lambda c, m, p, body: got.append(body), arguments={"x-bookmark": "EPOCH"})
    for body, headers in (("live", SENT[1]), ("live and mine", SENT[0])):
        send(channel, "h", "k", body, headers)
    until = time.monotonic() + 20
    while len(got) < 3:
        assert time.monotonic() < until, got
        channel.connection.process_data_events(0.05)
    assert got == [*wanted, b"live and mine"]
