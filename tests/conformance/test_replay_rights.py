"""Replays and live subscriptions of users who may not read everything, through AMQP and Flight."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlparse

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

import penstock
from penstock.errors import AccessRefused
from penstock.testing import Broker
from waiting import wait_for

pytestmark = pytest.mark.conformance


@pytest.fixture
def broker() -> Iterator[Broker]:
    config = {
        "user": [
            {"name": "root", "password": "root", "tags": ["administrator"]},
            {"name": "ann", "password": "ann"},
        ],
        "topic": [{"name": "orders.eu"}, {"name": "orders.us"}, {"name": "orders.secret"}],
        "queue": [{"name": "view", "underlying_topic": "^orders", "default_publish_target": "orders.eu"}],
        "entitlement": [
            {"tag": "administrator", "read": True, "write": True},
            {"user": "ann", "topic": "^orders.eu$", "read": "/n > 1"},
            {"user": "ann", "topic": "^orders.us$", "read": True},
            {"user": "ann", "queue": "view", "read": True},
        ],
    }
    with Broker(config) as broker:
        for topic in ("orders.eu", "orders.us", "orders.secret"):
            for number in (1, 2):
                broker.publish(topic, b'{"n": %d, "t": "%s"}' % (number, topic.encode()))
        yield broker


ANN = [b'{"n": 2, "t": "orders.eu"}', b'{"n": 1, "t": "orders.us"}', b'{"n": 2, "t": "orders.us"}']
LIVE = [b'{"n": 3, "t": "orders.eu"}']


def more(broker: Broker) -> None:
    for topic in ("orders.secret", "orders.eu"):
        broker.publish(topic, b'{"n": 3, "t": "%s"}' % topic.encode())


def test_flight(broker: Broker) -> None:
    with penstock.connect(f"penstock://ann:ann@{broker.flight_url.rpartition('@')[2]}") as client:
        for wanted in ({"pattern": "^orders"}, {"topic": "view"}):
            replay = client.replay(bookmark="EPOCH", follow=True, timeout=30, limit=4, **wanted)  # type: ignore[arg-type]
            first = [replay.take() for _ in ANN]
            assert [message.body for message in first if message is not None] == ANN
            if "pattern" in wanted:
                more(broker)
            assert [message.body for message in replay] == LIVE
        one = client.replay("orders.eu", filter="/n < 3", follow=True, limit=1, timeout=30)
        assert [message.body for message in one] == ANN[:1]
        for follow in (False, True):
            with pytest.raises(AccessRefused, match=r"orders\.secret"):
                list(client.replay("orders.secret", follow=follow))


def test_amqp(broker: Broker) -> None:
    address = urlparse(broker.amqp_url)
    login = pika.PlainCredentials("ann", "ann")
    connection = pika.BlockingConnection(pika.ConnectionParameters(address.hostname, address.port, credentials=login))
    got: list[bytes] = []
    channel = connection.channel()
    channel.basic_consume(
        "view", lambda c, m, p, body: got.append(body), auto_ack=True, arguments={"x-bookmark": "EPOCH"}
    )
    wait_for(channel, lambda: len(got) >= len(ANN))
    assert got == ANN
    more(broker)
    wait_for(channel, lambda: len(got) >= len(ANN + LIVE))
    connection.process_data_events(0.2)
    assert got == ANN + LIVE
    with pytest.raises(ChannelClosedByBroker, match="refused for user 'ann'"):
        connection.channel().basic_consume("orders.secret", lambda *_: None, arguments={"x-bookmark": "EPOCH"})
    connection.close()
