"""pika: queues of the type stream, as RabbitMQ's clients declare and read them."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from live_server import LiveServer

pytestmark = pytest.mark.conformance

Connect = Callable[..., pika.BlockingConnection]

STREAM = {"x-queue-type": "stream"}


@pytest.fixture
def stream(channel: BlockingChannel, name: str) -> str:
    """A stream of that name with the bodies 0 to 9."""
    channel.queue_declare(name, durable=True, arguments={**STREAM, "x-max-age": "1D"})
    fill(channel, name, range(10))
    return name


def fill(channel: BlockingChannel, name: str, numbers: range) -> None:
    channel.confirm_delivery()
    for i in numbers:
        channel.basic_publish("", name, b"%d" % i, pika.BasicProperties(headers={"i": i}), mandatory=True)


def read(
    channel: BlockingChannel, name: str, offset: object = "first", count: int = 10, prefetch: int = 3,
    settle: Callable[[BlockingChannel, int], None] = lambda channel, tag: channel.basic_ack(tag),
) -> list[tuple[bytes, int]]:  # fmt: skip
    """So many bodies with their offsets, fewer if no more come within a moment."""
    arguments: dict[str, Any] = {} if offset is None else {"x-stream-offset": offset}
    channel.basic_qos(prefetch_count=prefetch)
    out: list[tuple[bytes, int]] = []
    for method, properties, body in channel.consume(name, arguments=arguments, inactivity_timeout=5 if count else 0.3):
        if method is None:
            break
        assert not method.redelivered
        out.append((body, properties.headers["x-stream-offset"]))
        settle(channel, method.delivery_tag)
        if len(out) >= count:
            break
    channel.cancel()
    return out


def bodies(found: list[tuple[bytes, int]]) -> list[int]:
    return [int(body) for body, _ in found]


@pytest.mark.parametrize(
    ("said", "arguments", "text"),
    [
        ({"durable": False}, {}, "invalid property 'non-durable' for {}"),
        ({"exclusive": True}, {}, "invalid property 'exclusive-owner' for {}"),
        ({"auto_delete": True}, {}, "invalid property 'auto-delete' for {}"),
        *[({}, {argument: value}, f"invalid arg '{argument}' for {{}} of queue type rabbit_stream_queue")
          for argument, value in (("x-max-priority", 5), ("x-message-ttl", 5), ("x-expires", 5), ("x-max-length", 5),
                                  ("x-overflow", "drop-head"), ("x-dead-letter-exchange", ""), ("x-delivery-limit", 3),
                                  ("x-single-active-consumer", True), ("x-queue-mode", "lazy"))],
        *[({}, {"x-max-age": age}, "invalid arg 'x-max-age' for {}: invalid_max_age") for age in ("7d", "D", "-1h", 3)],
    ],
)  # fmt: skip
def test_what_a_stream_cannot_be_is_refused(
    channel: BlockingChannel, name: str, said: Mapping[str, bool], arguments: Mapping[str, object], text: str
) -> None:
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.queue_declare(name, **{"durable": True, **said}, arguments={**STREAM, **arguments})
    assert refused.value.reply_code == 406
    assert refused.value.reply_text.startswith("PRECONDITION_FAILED - " + text.format(f"queue '{name}' in vhost '/'"))


def test_what_its_clients_cannot_ask_for(connect: Connect, stream: str) -> None:
    def refused(ask: Callable[[BlockingChannel], object]) -> tuple[int, str]:
        with pytest.raises((ChannelClosedByBroker, ConnectionClosedByBroker)) as told:
            ask(connect().channel())
        return told.value.reply_code, told.value.reply_text

    where = f"queue '{stream}' in vhost '/'"
    assert refused(lambda channel: channel.basic_get(stream)) == (
        540, f"NOT_IMPLEMENTED - basic.get not supported by stream queues {where}",
    )  # fmt: skip
    assert refused(lambda channel: channel.queue_purge(stream))[0] == 540
    assert refused(lambda channel: channel.basic_consume(stream, lambda *_: None)) == (
        406, f"PRECONDITION_FAILED - consumer prefetch count is not set for '{where}'",
    )  # fmt: skip

    def without_acks(channel: BlockingChannel) -> None:
        channel.basic_qos(prefetch_count=5)
        channel.basic_consume(stream, lambda *_: None, auto_ack=True)

    assert refused(without_acks) == (
        540, f"NOT_IMPLEMENTED - automatic acknowledgement not supported by stream queues {where}",
    )  # fmt: skip
    for offset in ("soon", True, [1], None):

        def astray(channel: BlockingChannel, offset: object = offset) -> None:
            channel.basic_qos(prefetch_count=5)
            channel.basic_consume(stream, lambda *_: None, arguments={"x-stream-offset": offset})

        code, text = refused(astray)
        assert (code, "x-stream-offset" in text) == (406, True)


def test_reading_takes_nothing_and_each_reader_reads_all(connect: Connect, stream: str) -> None:
    first = read(connect().channel(), stream)
    assert bodies(first) == list(range(10))
    assert read(connect().channel(), stream) == first
    refuse = lambda channel, tag: channel.basic_nack(tag, requeue=True)  # noqa: E731 - one line for each verb
    assert read(connect().channel(), stream, settle=refuse) == first
    assert connect().channel().queue_declare(stream, passive=True).method.message_count == 10


def test_prefetch_is_the_credit_of_a_reader(connect: Connect, stream: str) -> None:
    channel = connect().channel()
    channel.basic_qos(prefetch_count=4)
    got: list[int] = []
    channel.basic_consume(
        stream, lambda _, method, __, body: got.append(method.delivery_tag), arguments={"x-stream-offset": "first"}
    )
    channel.connection.process_data_events(0.5)
    assert got == [1, 2, 3, 4]
    channel.basic_ack(2, multiple=True)
    channel.connection.process_data_events(0.5)
    assert got == [1, 2, 3, 4, 5, 6]


def test_where_a_reader_begins(connect: Connect, stream: str) -> None:
    def begins(offset: object, count: int) -> list[int]:
        return bodies(read(connect().channel(), stream, offset, count))

    offsets = [offset for _, offset in read(connect().channel(), stream)]
    assert offsets == sorted(set(offsets))
    assert begins("last", 1) == [9]
    assert begins(offsets[7], 3) == [7, 8, 9]
    assert begins(offsets[7] + 1, 2) == [8, 9]
    assert begins(0, 10) == begins("1h", 10) == list(range(10))
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    assert begins(past, 10) == list(range(10))
    for later in (offsets[9] + 1, past + datetime.timedelta(hours=2), None, "next"):
        channel = connect().channel()
        channel.basic_qos(prefetch_count=3)
        got: list[bytes] = []
        arguments: dict[str, Any] = {} if later is None else {"x-stream-offset": later}
        channel.basic_consume(stream, lambda _, __, ___, body, got=got: got.append(body), arguments=arguments)
        channel.connection.process_data_events(0.1)
        assert got == []
        if later in {None, "next"}:
            fill(connect().channel(), stream, range(10, 12))
            channel.connection.process_data_events(2)
            assert got[:1] == [b"10"]


def test_what_a_stream_keeps_is_bound_limited_and_outlives_the_server(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as server:
        channel = server.connect().channel()
        channel.confirm_delivery()
        channel.queue_declare("feed", durable=True, arguments={**STREAM, "x-max-length-bytes": 300})
        channel.queue_bind("feed", "amq.topic", "order.#")
        for i in range(5):
            transient = pika.BasicProperties(delivery_mode=1, headers={}, expiration="1")
            channel.basic_publish("amq.topic", f"order.{i}", b"%d" % i + b" " * 99, transient)
        before = read(server.connect().channel(), "feed", count=3)
        assert bodies(before) == [2, 3, 4]
        server.kill()
        server.start()
        assert read(server.connect().channel(), "feed", count=3) == before
        assert bodies(read(server.connect().channel(), "feed", before[1][1], count=2)) == [3, 4]
