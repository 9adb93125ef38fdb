"""The firehose: what is published and delivered in a traced vhost comes to `amq.rabbitmq.trace`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pyarrow as pa
import pytest
from pika.adapters.blocking_connection import BlockingChannel

import penstock
from http_lab import Http
from penstock.records.field_tables import NESTING_LIMIT
from scenario import amqp
from waiting import eventually


@pytest.fixture
def channel(http: Http) -> Iterator[BlockingChannel]:
    """A channel whose queue `seen` gets all traces."""
    with amqp(http.broker) as channel:
        channel.queue_declare("seen", durable=True)
        channel.queue_bind("seen", "amq.rabbitmq.trace", "#")
        channel.queue_declare("jobs", durable=True)
        yield channel


def trace(http: Http, on: bool = True) -> None:
    http.do("PUT", "vhosts/%2F", {"tracing": on}, 204)
    assert http.get("vhosts/%2F")["tracing"] is on


def next_of(channel: BlockingChannel, queue: str = "seen") -> tuple[str, dict[str, Any], bytes]:
    """Key, headers and body of the next trace."""

    found: list[tuple[str, dict[str, Any], bytes]] = []

    def got() -> bool:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is not None:
            found.append((method.routing_key, dict(properties.headers), body))
        return bool(found)

    eventually(got)
    return found[0]


def test_a_publish_and_its_delivery_are_told_with_what_they_say(http: Http, channel: BlockingChannel) -> None:
    trace(http)
    said = pika.BasicProperties(delivery_mode=2, headers={"n": 7}, message_id="m1", priority=3)
    channel.basic_publish("", "jobs", b"work", said, mandatory=True)
    key, headers, body = next_of(channel)
    assert (key, body) == ("publish.", b"work")
    assert headers["exchange_name"] == ""
    assert headers["routing_keys"] == ["jobs"]
    assert headers["routed_queues"] == ["jobs"]
    assert headers["properties"] == {"delivery_mode": 2, "headers": {"n": 7}, "message_id": "m1", "priority": 3}
    assert (headers["vhost"], headers["user"], headers["channel"]) == ("/", "guest", channel.channel_number)
    [called] = [one["name"] for one in http.get("connections")]
    assert (headers["node"], headers["connection"]) == (http.get("overview")["node"], called), "as lists call it"
    for redelivered in (0, 1):
        method, _, _ = channel.basic_get("jobs")
        channel.basic_nack(method.delivery_tag, requeue=True)
        key, headers, body = next_of(channel)
        assert (key, body, headers["redelivered"]) == ("deliver.jobs", b"work", redelivered)
        assert (headers["user"], headers["channel"], headers["routing_keys"], headers["connection"]) == (
            "guest", channel.channel_number, ["jobs"], called
        )  # fmt: skip
    http.take("jobs")
    key, headers, _ = next_of(channel)
    assert (key, headers["user"]) == ("deliver.jobs", "guest")


def test_who_binds_a_key_gets_that_exchange_alone(http: Http, channel: BlockingChannel) -> None:
    trace(http)
    channel.queue_declare("one", durable=True)
    channel.queue_bind("one", "amq.rabbitmq.trace", "publish.amq.topic")
    channel.queue_bind("jobs", "amq.topic", "a.*")
    channel.basic_publish("", "jobs", b"not this")
    channel.basic_publish("amq.topic", "a.b", b"this")
    key, headers, body = next_of(channel, "one")
    assert (key, headers["exchange_name"], headers["routing_keys"], body) == (
        "publish.amq.topic", "amq.topic", ["a.b"], b"this"
    )  # fmt: skip


def test_messages_of_other_doors_and_many_at_once_are_told(http: Http, channel: BlockingChannel) -> None:
    trace(http)
    for n in range(5):
        http.broker.publish("jobs", b'{"n":%d}' % n)
    assert [next_of(channel)[2] for _ in range(5)] == [b'{"n":%d}' % n for n in range(5)]
    inbox: list[bytes] = []
    channel.basic_consume("jobs", lambda _c, _m, _p, body: inbox.append(body), auto_ack=True)
    for _ in range(100):
        if len(inbox) == 5:
            break
        channel.connection.process_data_events(0.1)
    assert [(key, body) for key, _, body in (next_of(channel) for _ in range(5))] == [
        ("deliver.jobs", body) for body in inbox
    ]


def test_who_published_is_told_by_whatever_door_it_came(http: Http, channel: BlockingChannel) -> None:
    trace(http)
    told: list[tuple[str, str, int, bytes]] = []
    with penstock.connect(http.broker.flight_url) as client:
        http.publish("jobs", "http")
        client.publish("jobs", b"flight")
        with client.transaction() as transaction:
            transaction.publish("jobs", b"both")
            transaction.publish("jobs", b"in one")
        made = client.stage("query", 0, 0, 0, [pa.record_batch({"body": pa.array([b"staged"])})], topic="jobs")
        assert made is not None
        client.action("sink_commit", query="query", batch=0, stages=[made[0]])
    for _ in range(5):
        _, headers, body = next_of(channel)
        told.append((headers["user"], headers["connection"], headers["channel"], body))
    assert told == [("guest", "", 0, body) for body in (b"http", b"flight", b"both", b"in one", b"staged")]


def test_a_name_as_long_as_any_is_told_as_far_as_a_key_can_say_it(http: Http, channel: BlockingChannel) -> None:
    trace(http)
    name = "q" * 255
    channel.queue_declare(name, durable=True)
    channel.basic_publish("", name, b"x", mandatory=True)
    assert next_of(channel)[2] == b"x"
    channel.basic_get(name, auto_ack=True)
    key, headers, body = next_of(channel)
    assert (key, headers["routing_keys"], body) == (f"deliver.{name}"[:255], [name], b"x")


def test_headers_that_nest_as_deep_as_any_may_are_not_told(http: Http, channel: BlockingChannel) -> None:
    trace(http)
    deep: dict[str, Any] = {}
    for _ in range(NESTING_LIMIT - 1):
        deep = {"in": deep}
    channel.basic_publish("", "jobs", b"x", pika.BasicProperties(headers=deep, message_id="m"), mandatory=True)
    _, headers, body = next_of(channel)
    assert (headers["properties"], body) == ({"message_id": "m"}, b"x")
    channel.basic_get("jobs", auto_ack=True)
    assert next_of(channel)[0] == "deliver.jobs"


def test_a_timestamp_beyond_the_numbers_of_a_table_is_told_as_text(http: Http, channel: BlockingChannel) -> None:
    trace(http)
    for timestamp, told in ((2**63 - 1, 2**63 - 1), (2**63, str(2**63)), (2**64 - 1, str(2**64 - 1))):
        channel.basic_publish("", "jobs", b"x", pika.BasicProperties(timestamp=timestamp), mandatory=True)
        key, headers, body = next_of(channel)
        assert (key, headers["properties"], body) == ("publish.", {"timestamp": told}, b"x")


def test_nothing_is_told_before_it_is_on_nor_after_it_is_off_nor_traces(http: Http, channel: BlockingChannel) -> None:
    channel.basic_publish("", "jobs", b"before", mandatory=True)
    trace(http)
    channel.basic_publish("", "jobs", b"told", mandatory=True)
    assert next_of(channel)[2] == b"told"
    trace(http, on=False)
    channel.basic_publish("", "jobs", b"after", mandatory=True)
    assert channel.basic_get("seen", auto_ack=True)[0] is None, "and that the trace was fetched is no news"


def test_events_are_in_no_trace_for_they_are_an_administrators(http: Http, channel: BlockingChannel) -> None:
    trace(http)
    channel.queue_declare("events", durable=True)
    channel.queue_bind("events", "amq.rabbitmq.event", "user.#")
    http.do("PUT", "users/ann", {"password": "secret", "tags": "administrator"}, 201)
    assert next_of(channel, "events")[0] == "user.created"
    assert next_of(channel, "events")[0] == "user.tags.set"
    channel.basic_publish("", "jobs", b"work", mandatory=True)
    assert next_of(channel)[::2] == ("publish.", b"work")


@pytest.mark.parametrize("source", ["amq.rabbitmq.trace", "amq.rabbitmq.event"])
@pytest.mark.parametrize("ends", ["at once", "when they are refused"])
def test_dead_letters_of_traces_and_events_are_not_told(
    http: Http, channel: BlockingChannel, source: str, ends: str
) -> None:
    """One publish went round for ever: its trace died, of its dead letter a trace was made, which died."""
    dying = {"x-message-ttl": 0} if ends == "at once" else {}
    channel.exchange_declare("dead", "fanout")
    channel.queue_declare("grave")
    channel.queue_bind("grave", "dead", "")
    channel.queue_declare("round", arguments={"x-dead-letter-exchange": "dead", **dying})
    channel.queue_bind("round", source, "#")
    channel.basic_get("seen", auto_ack=True)
    trace(http)
    said = {"x-first-death-exchange": source, "x-death": [{"exchange": source}]}
    channel.basic_publish("", "jobs", b"work", pika.BasicProperties(headers=said), mandatory=True)
    assert next_of(channel)[::2] == ("publish.", b"work"), "whoever says that it is a dead letter of these"
    if source.endswith("event"):
        http.do("PUT", "users/ann", {"password": "secret", "tags": ""}, 201)
    if ends == "when they are refused":
        channel.basic_reject(fetched(channel, "round"), requeue=False)
    channel.basic_ack(fetched(channel, "grave"))
    channel.basic_publish("amq.fanout", "", b"nobody's")
    channel.basic_publish("", "jobs", b"last", mandatory=True)
    assert next_of(channel)[::2] == ("publish.", b"last")


def fetched(channel: BlockingChannel, queue: str) -> int:
    """The delivery tag of the next message."""
    found: list[int] = []

    def got() -> bool:
        method, _, _ = channel.basic_get(queue)
        found.extend([] if method is None else [method.delivery_tag])
        return bool(found)

    eventually(got)
    return found[0]
