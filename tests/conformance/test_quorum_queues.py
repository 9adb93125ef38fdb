"""pika: queues of the type quorum, as RabbitMQ's clients declare and use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from live_server import LiveServer
from waiting import eventually

pytestmark = pytest.mark.conformance

Connect = Callable[..., pika.BlockingConnection]

QUORUM = {"x-queue-type": "quorum"}
TRANSIENT = pika.BasicProperties(delivery_mode=1)


@pytest.fixture
def quorum(channel: BlockingChannel, name: str) -> str:
    """A quorum queue of that name."""
    channel.queue_declare(name, durable=True, arguments=QUORUM)
    return name


def taken(channel: BlockingChannel, queue: str) -> tuple[int, dict[str, Any]]:
    """The tag and the headers of the next message."""
    method, properties, _ = channel.basic_get(queue)
    assert method is not None
    return method.delivery_tag, dict(properties.headers or {})


@pytest.mark.parametrize(
    ("said", "arguments", "text"),
    [
        ({"durable": False}, {}, "invalid property 'non-durable' for {}"),
        ({"exclusive": True}, {}, "invalid property 'exclusive-owner' for {}"),
        ({"auto_delete": True}, {}, "invalid property 'auto-delete' for {}"),
        ({}, {"x-max-priority": 5}, "invalid arg 'x-max-priority' for {} of queue type rabbit_quorum_queue"),
        ({}, {"x-queue-mode": "lazy"}, "invalid arg 'x-queue-mode' for {} of queue type rabbit_quorum_queue"),
        ({}, {"x-queue-version": 2}, "invalid arg 'x-queue-version' for {} of queue type rabbit_quorum_queue"),
        ({}, {"x-dead-letter-strategy": "never"}, "invalid arg 'x-dead-letter-strategy' for {}: "),
        ({}, {"x-quorum-initial-group-size": "3"}, "invalid arg 'x-quorum-initial-group-size' for {}: "),
        ({}, {"x-queue-type": "square"}, "invalid arg 'x-queue-type' for {}: "),
        ({}, {"x-queue-type": 3}, "invalid arg 'x-queue-type' for {}: "),
    ],
)  # fmt: skip
def test_what_a_quorum_queue_cannot_be_is_refused(
    channel: BlockingChannel, name: str, said: Mapping[str, bool], arguments: Mapping[str, object], text: str
) -> None:
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.queue_declare(name, **{"durable": True, **said}, arguments={**QUORUM, **arguments})
    assert refused.value.reply_code == 406
    assert refused.value.reply_text.startswith("PRECONDITION_FAILED - " + text.format(f"queue '{name}' in vhost '/'"))


def test_the_server_names_none(channel: BlockingChannel) -> None:
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.queue_declare("", durable=True, arguments=QUORUM)
    assert refused.value.reply_text.endswith("Cannot declare a server-named queue for type rabbit_quorum_queue")


def test_arguments_of_a_cluster_are_taken_and_an_equal_declare_finds_it(channel: BlockingChannel, name: str) -> None:
    arguments = {
        **QUORUM, "x-quorum-initial-group-size": 3, "x-dead-letter-strategy": "at-least-once",
        "x-max-in-memory-length": 10, "x-queue-leader-locator": "balanced", "x-overflow": "reject-publish",
    }  # fmt: skip
    for _ in range(2):
        assert channel.queue_declare(name, durable=True, arguments=arguments).method.queue == name
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.queue_declare(name, durable=True)
    assert refused.value.reply_code == 406
    assert "inequivalent arg" in refused.value.reply_text


def test_what_its_clients_cannot_ask_for(connect: Connect, channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, durable=True, arguments={**QUORUM, "x-single-active-consumer": True})
    for flag in ("if_unused", "if_empty"):
        with pytest.raises(ConnectionClosedByBroker) as refused:
            connect().channel().queue_delete(name, **{flag: True})
        assert refused.value.reply_code == 540
        assert f"{flag.replace('_', '-')} flag set are not supported by quorum queues" in refused.value.reply_text
    shared = connect().channel()
    shared.basic_qos(prefetch_count=5, global_qos=True)
    with pytest.raises(ConnectionClosedByBroker) as refused:
        shared.basic_consume(name, lambda *_: None)
    assert (refused.value.reply_code, "does not support global qos" in refused.value.reply_text) == (540, True)
    with pytest.raises(ChannelClosedByBroker) as closed:
        channel.basic_get(name)
    assert (closed.value.reply_code, "single active consumer" in closed.value.reply_text) == (405, True)
    assert connect().channel().queue_delete(name).method.message_count == 0


def test_each_return_is_counted_in_the_header(connect: Connect, channel: BlockingChannel, quorum: str) -> None:
    plain = f"{quorum}-plain"
    channel.queue_declare(plain, durable=True)
    for queue in (quorum, plain):
        channel.basic_publish("", queue, b"x", pika.BasicProperties(headers={"k": "v"}))
    for queue, counts in ((quorum, [None, 1, 2]), (plain, [None, None, None])):
        for count in counts:
            tag, headers = taken(channel, queue)
            assert headers == {"k": "v"} | ({} if count is None else {"x-delivery-count": count})
            channel.basic_nack(tag, requeue=True)
    method, properties, _ = next(connect().channel().consume(quorum, inactivity_timeout=30))
    assert method is not None
    assert (properties.headers or {})["x-delivery-count"] == 3


def test_after_twenty_returns_a_message_dies_where_nobody_says_otherwise(channel: BlockingChannel, name: str) -> None:
    dead = f"{name}-dead"
    channel.queue_declare(dead, durable=True, arguments=QUORUM)
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    for limit, deliveries in ((None, 21), (2, 3)):
        queue = f"{name}-{limit}"
        held = {} if limit is None else {"x-delivery-limit": limit}
        channel.queue_declare(queue, durable=True, arguments={**QUORUM, **letters, **held})
        channel.basic_publish("", queue, b"x")
        for _ in range(deliveries):
            channel.basic_nack(taken(channel, queue)[0], requeue=True)
        assert channel.basic_get(queue)[0] is None
        method, properties, _ = next(channel.consume(dead, auto_ack=True, inactivity_timeout=30))
        assert method is not None
        headers = properties.headers or {}
        channel.cancel()
        assert headers["x-death"][0]["reason"] == "delivery_limit"


def test_what_is_in_it_outlives_the_server_whatever_its_delivery_mode(tmp_path: Path) -> None:
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "quorum"}
    with LiveServer(tmp_path) as server:
        channel = server.connect().channel()
        channel.confirm_delivery()
        channel.queue_declare("quorum", durable=True, arguments=QUORUM)
        channel.queue_declare("plain", durable=True)
        channel.queue_declare("dying", durable=True, arguments={**letters, "x-max-length": 0})
        for queue in ("quorum", "plain"):
            channel.queue_bind(queue, "amq.fanout")
        channel.basic_publish("", "quorum", b"alone", TRANSIENT)
        channel.basic_publish("", "plain", b"gone", TRANSIENT)
        channel.basic_publish("amq.fanout", "", b"both", TRANSIENT)
        channel.basic_publish("", "plain", b"stays", pika.BasicProperties(delivery_mode=2))
        channel.basic_publish("", "quorum", b"asks", pika.BasicProperties(delivery_mode=1, headers={"CC": ["plain"]}))
        channel.basic_publish("", "dying", b"letter", TRANSIENT)
        waiting = lambda: channel.queue_declare("quorum", passive=True).method.message_count  # noqa: E731 - one line
        eventually(lambda: waiting() == 4, "the dead letter comes a moment after its message was confirmed")
        channel.queue_declare("later", durable=True)  # its answer says that all before is on disk
        server.kill()
        server.start()
        channel = server.connect().channel()

        def bodies(queue: str) -> list[bytes]:
            count = channel.queue_declare(queue, passive=True).method.message_count
            return [channel.basic_get(queue, auto_ack=True)[2] for _ in range(count)]

        assert bodies("quorum") == [b"alone", b"both", b"asks", b"letter"]
        assert bodies("plain") == [b"both", b"stays", b"asks"]
