"""Entitlements at every door: what is allowed goes through, what is not is refused in the smallest scope."""

from __future__ import annotations

import base64
import contextlib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlparse

import orjson
import pika
import pika.exceptions
import pyarrow as pa
import pytest
from pika.adapters.blocking_connection import BlockingChannel

import penstock
from flight_house import FlightHouse
from penstock.config.vhost_sections import EntitlementSection
from penstock.errors import AccessRefused, NotFound
from penstock.server.bulk.process import Bulk
from penstock.server.bulk.relay import Relay
from penstock.testing import Broker

pytestmark = pytest.mark.conformance

USERS = ("ann", "bob", "root")
TAGS = {"root": "administrator"}
ENTITLEMENTS = [
    {"tag": "administrator", "read": True, "write": True},
    {"user": "ann", "queue": "q", "read": "/n > 1", "write": True},
    {"user": "ann", "topic": "^orders", "read": "/n > 1"},
    {"user": "ann", "queue": "view", "read": True},
    {"user": "bob", "topic": "q", "write": "/n < 5"},
    {"user": "bob", "queue": "view", "write": True},
]


@pytest.fixture
def broker() -> Iterator[Broker]:
    config = {
        "user": [{"name": n, "password": n, "tags": [TAGS.get(n, "management")]} for n in USERS],
        "topic": [{"name": "orders.eu"}, {"name": "secret"}],
        "queue": [{"name": "q"}, {"name": "view", "underlying_topic": "orders"}, {"name": "hidden"}],
        "entitlement": ENTITLEMENTS,
    }
    with Broker(config) as broker:
        yield broker


def link(broker: Broker, user: str) -> pika.BlockingConnection:
    address = urlparse(broker.amqp_url)
    login = pika.PlainCredentials(user, user)
    return pika.BlockingConnection(pika.ConnectionParameters(address.hostname, address.port, credentials=login))


def client(broker: Broker, user: str) -> penstock.Client:
    return penstock.connect(f"penstock://{user}:{user}@{broker.flight_url.rpartition('@')[2]}")


def fill(broker: Broker, topic: str, count: int = 4) -> None:
    for n in range(count):
        broker.publish(topic, f'{{"n": {n}}}')


def closed_with_403(connection: pika.BlockingConnection, act: Callable[[BlockingChannel], object]) -> str:
    """A channel of its own is closed; the connection lives."""
    channel = connection.channel()
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        act(channel)
    assert caught.value.reply_code == 403
    assert connection.is_open
    return str(caught.value.reply_text)


def test_an_amqp_consumer_gets_what_its_user_may_read(broker: Broker) -> None:
    fill(broker, "q")
    connection = link(broker, "ann")
    channel = connection.channel()
    got = []
    for method, _, body in channel.consume("q", arguments={"x-filter": "/n < 3"}, inactivity_timeout=20):
        assert body is not None
        got.append(body)
        channel.basic_ack(method.delivery_tag)
        break
    assert got == [b'{"n": 2}']
    channel.cancel()
    connection.close()
    assert broker.stats("q")["ready"] == 3


def test_a_get_answers_when_the_queue_was_looked_through(broker: Broker) -> None:
    fill(broker, "q")
    connection = link(broker, "ann")
    channel = connection.channel()
    got = [channel.basic_get("q", auto_ack=True)[2] for _ in range(3)]
    assert got == [b'{"n": 2}', b'{"n": 3}', None]
    broker.publish("q", '{"n": 4}')
    assert channel.basic_get("q", auto_ack=True)[2] == b'{"n": 4}'
    connection.close()
    assert broker.stats("q")["ready"] == 2


def test_amqp_refuses_reading_and_changing(broker: Broker) -> None:
    connection = link(broker, "bob")
    for act in (
        lambda channel: channel.basic_get("q"),
        lambda channel: channel.basic_consume("q", print),
        lambda channel: channel.queue_purge("q"),
        lambda channel: channel.queue_delete("q"),
        lambda channel: channel.queue_bind("q", "amq.topic", "#"),
        lambda channel: channel.queue_unbind("q", "amq.topic", "#"),
        lambda channel: channel.queue_declare("mine"),
        lambda channel: channel.exchange_declare("mine"),
        lambda channel: channel.exchange_delete("amq.topic"),
        lambda channel: channel.exchange_bind("amq.topic", "amq.fanout"),
    ):
        assert "ACCESS_REFUSED" in closed_with_403(connection, act)
    connection.close()


def test_amqp_refuses_a_message_that_its_user_may_not_write(broker: Broker) -> None:
    connection = link(broker, "bob")
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("", "q", b'{"n": 1}')
    channel.basic_publish("", "view", b'{"n": 9}')  # through the queue to what it shows
    assert "user 'bob' may write" in closed_with_403(connection, lambda one: one.basic_publish("", "q", b'{"n": 5}'))
    assert "topic 'orders'" in closed_with_403(connection, lambda one: one.basic_publish("", "orders", b"{}"))
    extra = pika.BasicProperties(headers={"CC": ["orders"]})
    refused = closed_with_403(connection, lambda one: one.basic_publish("", "q", b'{"n": 1}', extra))
    assert "topic 'orders'" in refused
    large = b'{"n": 7, "x": "%s"}' % (b"x" * 400_000)  # judged off the loop
    assert "may write" in closed_with_403(connection, lambda one: one.basic_publish("", "q", large))
    channel.basic_publish("", "q", large.replace(b"7", b"4"))
    connection.close()
    assert broker.stats("q")["ready"] == 2
    assert broker.stats("view")["ready"] == 1


def test_what_came_before_a_refused_message_is_stored(broker: Broker) -> None:
    connection = link(broker, "bob")
    channel = connection.channel()
    with contextlib.suppress(pika.exceptions.ChannelClosedByBroker):  # the refusal may be here before the last is sent
        for n in (1, 2, 7, 3):
            channel.basic_publish("", "q", b'{"n": %d}' % n)
        while channel.is_open:
            connection.process_data_events(5)
    connection.close()
    assert broker.stats("q")["ready"] == 2


def test_an_administrator_does_everything(broker: Broker) -> None:
    connection = link(broker, "root")
    channel = connection.channel()
    channel.queue_declare("mine", arguments={"x-underlying-topic": "secret"})
    channel.queue_bind("mine", "amq.topic", "#")
    channel.basic_publish("", "secret", b"x")
    assert channel.basic_get("mine", auto_ack=True)[2] == b"x"
    channel.queue_delete("mine")
    connection.close()


def test_flight_reads_are_narrowed(broker: Broker) -> None:
    for topic in ("q", "orders", "orders.eu", "secret"):
        fill(broker, topic)
    with client(broker, "ann") as ann:
        wanted = [b'{"n": 2}', b'{"n": 3}']
        assert [message.body for message in ann.peek("q", 10)] == wanted
        assert [message.body for message in ann.replay("orders.eu", bookmark="EPOCH")] == wanted
        assert [message.body for message in ann.replay(pattern=".", bookmark="EPOCH")] == wanted * 2
        assert [message.body for message in ann.replay("orders", bookmark="EPOCH", filter="/n < 3")] == wanted[:1]
        assert sorted(queue["queue"] for queue in ann.queues()) == ["q", "view"]
        got = []
        for message in ann.consume("q", backlog=10):
            got.append(message.body)
            message.ack()
            if len(got) == 2:
                break
        assert got == wanted
    assert broker.stats("q")["ready"] == 2


def test_a_pattern_of_queues_means_those_that_the_user_may_read(broker: Broker) -> None:
    for topic in ("q", "orders", "hidden"):
        fill(broker, topic, 3)
    with client(broker, "ann") as ann:
        got = []
        for message in ann.consume("^(q|view|hidden)$", backlog=10):
            got.append((message.queue, message.body))
            if len(got) == 4:
                break
    assert sorted(got) == [("q", b'{"n": 2}'), *(("view", b'{"n": %d}' % n) for n in range(3))]
    with client(broker, "ann") as ann, pytest.raises(AccessRefused):
        next(iter(ann.consume("hidden")))


def test_acks_by_name_and_by_filter_need_the_right_to_read(broker: Broker) -> None:
    fill(broker, "q")
    with client(broker, "ann") as ann, client(broker, "bob") as bob:
        for act in (lambda: bob.ack_filter("q", "1 = 1"), lambda: bob.ack("q", "1|1|"), lambda: ann.ack("q", "1|1|")):
            with pytest.raises(AccessRefused):
                act()
        assert ann.ack_filter("q", "1 = 1") == 2
    assert broker.stats("q")["ready"] == 2


def test_large_reads_are_narrowed_in_the_child(tmp_path: Path) -> None:
    entries = [
        {"user": "guest", "read": True, "write": True},
        {"user": "reader", "topic": "t", "read": "/n < 3"},
        {"user": "reader", "topic": "^u", "read": True},
        {"user": "reader", "queue": "t", "read": "/n > 1996"},
    ]
    sections = [EntitlementSection.model_validate(entry) for entry in entries]
    with FlightHouse(tmp_path, bulk=Bulk(tmp_path), entitlements=sections) as house:
        relay = house.door.reads.relay
        assert relay is not None
        house.door.reads.relay = Relay(relay.bulk, house.log, large=1, large_filtered=1)
        with penstock.connect(house.url) as guest:
            guest.declare("t")
            for topic in ("u", "v"):
                guest.declare(topic)
                guest.publish(topic, topic.encode())
            guest.publish_table("t", pa.table({"body": [b'{"n": %d}' % n for n in range(2000)]}))
        with penstock.connect(house.url.replace("guest:guest", "reader:reader")) as reader:
            few = [b'{"n": 0}', b'{"n": 1}', b'{"n": 2}']
            assert [message.body for message in reader.replay("t", bookmark="EPOCH")] == few
            assert [message.body for message in reader.replay(pattern=".", bookmark="EPOCH")] == [b"u", *few]
            assert [message.body for message in reader.peek("t", 5000)] == [
                b'{"n": %d}' % n for n in (1997, 1998, 1999)
            ]
            with pytest.raises(AccessRefused):
                list(reader.replay("v", bookmark="EPOCH"))
        assert house.door.reads.relay.relayed == 3


def test_flight_refuses_what_nobody_allowed(broker: Broker) -> None:
    fill(broker, "q")
    with client(broker, "bob") as bob:
        for act in (
            lambda: list(bob.peek("q", 1)),
            lambda: list(bob.replay("q", bookmark="EPOCH")),
            lambda: next(iter(bob.consume("q"))),
            lambda: bob.publish("q", b'{"n": 5}'),
            lambda: bob.publish("orders", b"{}"),
            lambda: bob.purge("q"),
            lambda: bob.delete("q"),
            lambda: bob.declare("mine"),
            lambda: bob.alter("view", lease_period="1s"),
            lambda: bob.queue("q"),
            lambda: bob.details("q"),
            lambda: bob.action("stream_open", stream="s", queue="q"),
            lambda: bob.action("segments", with_vhost=False),
            lambda: list(bob.log_batches()),
        ):
            with pytest.raises(AccessRefused):
                act()
        assert bob.publish("q", b'{"n": 1}').outcome == "stored"
        assert bob.publish("view", b"{}").outcome == "stored"
    assert broker.stats("q")["ready"] == 5


def test_a_stream_takes_a_queue_that_its_user_may_read_whole(broker: Broker) -> None:
    fill(broker, "orders", 2)
    fill(broker, "q", 2)
    with client(broker, "ann") as ann, client(broker, "bob") as bob:
        with pytest.raises(AccessRefused, match="a stream needs the right to read all of queue 'q'"):
            ann.action("stream_open", stream="s", queue="q")
        epoch = ann.action("stream_open", stream="s", queue="view")["epoch"]
        assert ann.action("plan", stream="s", epoch=epoch, start=0, with_vhost=False)["rows"] == 2
        for name, fields in (("plan", {"start": 0}), ("settle", {"batch": 1}), ("stream_release", {})):
            with pytest.raises(NotFound, match="no stream 's'"):
                bob.action(name, with_vhost=False, stream="s", **fields)


def ask(broker: Broker, path: str, user: str) -> object:
    login = base64.b64encode(f"{user}:{user}".encode()).decode()
    request = urllib.request.Request(f"{broker.http_url}{path}", headers={"authorization": f"Basic {login}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return orjson.loads(answer.read())


def test_http_shows_queues_to_those_who_read_or_write_them(broker: Broker) -> None:
    assert [queue["name"] for queue in ask(broker, "/api/queues", "bob")] == ["view"]  # type: ignore[attr-defined]
    assert ask(broker, "/api/queues/%2F/view", "bob")["name"] == "view"  # type: ignore[index]
    with pytest.raises(urllib.error.HTTPError, match="404") as told:
        ask(broker, "/api/queues/%2F/q", "bob")
    told.value.close()
    assert len(ask(broker, "/api/queues", "root")) == 3  # type: ignore[arg-type]


def test_nothing_is_limited_without_entitlements() -> None:
    with Broker({"queue": [{"name": "q"}]}) as broker, penstock.connect(broker.flight_url) as guest:
        guest.declare("other", underlying_topic="secret")
        guest.publish("secret", b"x")
        assert [message.body for message in guest.peek("other")] == [b"x"]
        with pytest.raises(NotFound):
            guest.queue("absent")
