"""Replays and live subscriptions of users who may not read everything, through AMQP and Flight."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlparse

import orjson
import pika
import pyarrow as pa
import pytest
from pika.exceptions import ChannelClosedByBroker

import penstock
from penstock.errors import AccessRefused, NotFound
from penstock.testing import Broker
from penstock.wire.flight.tickets import command
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
        "queue": [
            {"name": "view", "underlying_topic": "^orders", "default_publish_target": "orders.eu"},
            {"name": "hidden", "underlying_topic": "orders.secret"},
        ],
        "entitlement": [
            {"tag": "administrator", "read": True, "write": True},
            {"user": "ann", "topic": "^orders.eu$", "read": "/n > 1"},
            {"user": "ann", "topic": "^orders.us$", "read": True},
            {"user": "ann", "queue": "view", "read": True},
        ],
        "vhost": [{"name": "elsewhere"}],
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


UNSEEN = ("orders.secret", "hidden", "gone")
"""What Ann may not read, and what is not there: to her they are alike."""


@pytest.mark.parametrize("how", [{}, {"follow": True}, {"rate": "1000"}, {"bookmark": "NOW", "rate": "1X"}])
def test_a_refusal_does_not_tell_what_is_there(broker: Broker, how: dict[str, object]) -> None:
    with penstock.connect(f"penstock://ann:ann@{broker.flight_url.rpartition('@')[2]}") as client:
        for name in UNSEEN:
            told = f"access to topic '{name}' in vhost '/' refused for user 'ann': no right to read"
            with pytest.raises(AccessRefused, match=told):
                list(client.replay(name, **how))  # type: ignore[arg-type]
    with (
        penstock.connect(f"{broker.flight_url}/nowhere") as client,
        pytest.raises(NotFound, match="no vhost 'nowhere'"),
    ):
        list(client.replay(pattern=".*", **how))  # type: ignore[arg-type]


def test_nor_does_one_over_amqp(broker: Broker) -> None:
    address = urlparse(broker.amqp_url)
    login = pika.PlainCredentials("ann", "ann")
    connection = pika.BlockingConnection(pika.ConnectionParameters(address.hostname, address.port, credentials=login))
    for name in UNSEEN:
        with pytest.raises(ChannelClosedByBroker, match=f"topic '{name}' in vhost '/' refused for user 'ann'") as ended:
            connection.channel().basic_consume(name, lambda *_: None, arguments={"x-bookmark": "EPOCH"})
        assert ended.value.reply_code == 403
    connection.close()


def test_the_place_of_a_stream_is_told_to_who_may_read_it(broker: Broker) -> None:
    with penstock.connect(broker.flight_url) as root:
        for stream, read in (
            ("a", {"topic": "orders.secret"}),
            ("b", {"queue": "hidden"}),
            ("c", {"topic": "orders.us"}),
        ):
            root.action("stream_open", stream=stream, **read)
        for stream in ("a", "c"):
            root.action("stream_begin", stream=stream, bookmark="EPOCH")
    with penstock.connect(f"penstock://ann:ann@{broker.flight_url.rpartition('@')[2]}") as ann:
        for stream in ("a", "b", "gone"):
            with pytest.raises(NotFound, match=f"no stream '{stream}'"):
                list(ann.replay("orders.us", "MOST_RECENT", stream=stream))
        assert len(list(ann.replay("orders.us", "MOST_RECENT", stream="c"))) == 2


def test_names_of_replays_are_those_of_their_users(broker: Broker) -> None:
    """One user held up what others call theirs, and was told which names these use."""
    ticket = command("replay", topic="orders.us", bookmark="NOW", follow=True, id="mine")
    with penstock.connect(broker.flight_url) as root:
        reader = root._link.get(ticket)
        assert orjson.loads(reader.read_chunk().app_metadata.to_pybytes())["after"]
        with penstock.connect(f"penstock://ann:ann@{broker.flight_url.rpartition('@')[2]}") as ann:
            with pytest.raises(NotFound, match="no replay with the id 'mine' is open"):
                ann.action("replay_pause", id="mine")
            own = ann._link.get(ticket)
            assert orjson.loads(own.read_chunk().app_metadata.to_pybytes())["after"]
            assert ann.action("replay_pause", id="mine")["paused"]
            own.cancel()
        reader.cancel()


def test_a_name_is_a_replays_own_before_it_is_told_anything(broker: Broker) -> None:
    """Who pauses it as soon as it has answered finds it."""
    ticket = command("replay", topic="orders.us", bookmark="NOW", follow=True, id="mine")
    with penstock.connect(broker.flight_url) as root:
        reader = root._link.get(ticket)
        assert reader.read_chunk().app_metadata is not None
        second = root._link.get(ticket)
        with pytest.raises(pa.ArrowException, match="a replay with the id 'mine' is open already"):
            second.read_chunk()
        reader.cancel()
