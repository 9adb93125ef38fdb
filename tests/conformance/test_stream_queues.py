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

from conformance.test_management import Managed, Tool
from live_server import LiveServer
from waiting import wait_for

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
    """So many bodies with their offsets, fewer if no more come within a while."""
    arguments: dict[str, Any] = {} if offset is None else {"x-stream-offset": offset}
    channel.basic_qos(prefetch_count=prefetch)
    out: list[tuple[bytes, int]] = []
    for method, properties, body in channel.consume(name, arguments=arguments, inactivity_timeout=30 if count else 0.3):
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
    wait_for(channel, lambda: len(got) >= 4)
    channel.connection.process_data_events(0.2)
    assert got == [1, 2, 3, 4]
    channel.basic_ack(2, multiple=True)
    wait_for(channel, lambda: len(got) >= 6)
    channel.connection.process_data_events(0.2)
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
            wait_for(channel, lambda got=got: bool(got))
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


def publish_valued(channel: BlockingChannel, stream: str, values: list[str | None]) -> None:
    channel.confirm_delivery()
    for i, value in enumerate(values):
        headers: dict[str, Any] = {} if value is None else {"x-stream-filter-value": value}
        channel.basic_publish("", stream, b"%d" % i, pika.BasicProperties(headers=headers))


@pytest.mark.parametrize(
    ("wanted", "unfiltered", "found"),
    [("a", False, [0, 3]), (["a", "it's \\ b"], False, [0, 1, 3]), ("a", True, [0, 2, 3, 5]), ("none", False, [])],
)
def test_a_reader_asks_for_values(
    channel: BlockingChannel, connect: Connect, name: str, wanted: Any, unfiltered: bool, found: list[int]
) -> None:
    channel.queue_declare(name, durable=True, arguments=STREAM)
    publish_valued(channel, name, ["a", "it's \\ b", None, "a", "c", None])
    reader = connect().channel()
    reader.basic_qos(prefetch_count=2)
    got: list[int] = []

    def take(_: object, method: Any, __: object, body: bytes) -> None:
        got.append(int(body))
        reader.basic_ack(method.delivery_tag)

    arguments = {"x-stream-offset": "first", "x-stream-filter": wanted, "x-stream-match-unfiltered": unfiltered}
    reader.basic_consume(name, take, arguments=arguments)
    wait_for(reader, lambda: len(got) == len(found))
    reader.connection.process_data_events(0.1)
    assert got == found


def test_a_reader_that_wants_little_gets_far(channel: BlockingChannel, connect: Connect, name: str) -> None:
    """What it did not ask for fills no credit, and its tags have no gaps."""
    channel.queue_declare(name, durable=True, arguments=STREAM)
    publish_valued(channel, name, ["rare" if i % 25 == 24 else "usual" for i in range(250)])
    reader = connect().channel()
    reader.basic_qos(prefetch_count=4)
    got: list[tuple[int, bytes]] = []
    asked = {"x-stream-offset": "first", "x-stream-filter": "rare"}
    reader.basic_consume(name, lambda _, how, __, body: got.append((how.delivery_tag, body)), arguments=asked)
    wait_for(reader, lambda: len(got) == 4)
    assert got == [(i + 1, b"%d" % (25 * i + 24)) for i in range(4)]
    reader.basic_ack(4, multiple=True)
    wait_for(reader, lambda: len(got) == 8)
    assert got[4:] == [(i + 1, b"%d" % (25 * i + 24)) for i in range(4, 8)]


@pytest.mark.parametrize("wanted", [5, [], ["a", 5], {"a": 1}])
def test_what_is_no_value_is_refused(connect: Connect, stream: str, wanted: Any) -> None:
    channel = connect().channel()
    channel.basic_qos(prefetch_count=5)
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.basic_consume(stream, lambda *_: None, arguments={"x-stream-filter": wanted})
    assert (refused.value.reply_code, "x-stream-filter" in refused.value.reply_text) == (406, True)


def test_what_is_sent_while_a_time_is_looked_up_comes_after_it(connect: Connect, stream: str) -> None:
    """Behind the answer to basic.consume, in its order."""
    connection = connect()
    channel, other = connection.channel(), connection.channel()
    channel.basic_qos(prefetch_count=20)
    got: list[bytes] = []
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    for _ in range(5):
        tag = channel.basic_consume(
            stream, lambda _, __, ___, body: got.append(body), arguments={"x-stream-offset": past}
        )
        other.queue_declare(stream, passive=True)
        channel.basic_cancel(tag)
    fill(connect().channel(), stream, range(10, 12))
    channel.basic_consume(stream, lambda _, __, ___, body: got.append(body), arguments={"x-stream-offset": past})
    got.clear()
    wait_for(channel, lambda: got[-1:] == [b"11"])


def test_a_super_stream_is_streams_behind_an_exchange(tmp_path: Path) -> None:
    with Managed(tmp_path) as server:
        tool = Tool(server)
        path, aged = "stream/super-streams/%2F/invoices", {"arguments": {"x-max-age": "1D"}}
        parts = [{"name": f"invoices-{part}", "routing_key": str(part)} for part in range(3)]
        told = {"name": "invoices", "vhost": "/", "type": "direct", "partitions": parts}
        assert tool.ask("PUT", path, {"partitions": 3, **aged}) == (201, told)
        assert tool.ask("PUT", path, {"partitions": 3, **aged}) == (200, told)
        assert tool.get("exchanges/%2F/invoices")["arguments"] == {"x-super-stream": True}
        channel = server.connect().channel()
        channel.confirm_delivery()
        for i in range(9):
            channel.basic_publish("invoices", str(i % 3), b"%d" % i, mandatory=True)
        for part in range(3):
            assert bodies(read(server.connect().channel(), f"invoices-{part}", count=3)) == [part, part + 3, part + 6]
            assert tool.get(f"queues/%2F/invoices-{part}")["type"] == "stream"
        bound = [one["arguments"] for one in tool.get("exchanges/%2F/invoices/bindings/source")]
        assert bound == [{"x-stream-partition-order": i} for i in range(3)]

        assert tool.ask("PUT", "stream/super-streams/%2F/areas", {"binding-keys": "amer, emea"})[0] == 201
        assert {one["destination"] for one in tool.get("exchanges/%2F/areas/bindings/source")} == {
            "areas-amer", "areas-emea",
        }  # fmt: skip
        hashed = {"partitions": 4, "type": "x-super-stream"}
        assert tool.ask("PUT", "stream/super-streams/%2F/hashed", hashed)[0] == 201
        for i in range(40):
            channel.basic_publish("hashed", f"customer {i}", b"", mandatory=True)
        assert all(tool.get(f"queues/%2F/hashed-{part}")["messages"] for part in range(4))
        for wrong in ({}, {"partitions": 0}, {"partitions": 2, "binding-keys": "a"}, {"binding-keys": "a,a"},
                      {"partitions": 2, "type": "fanout"}, {"partitons": 2}):  # fmt: skip
            assert tool.ask("PUT", "stream/super-streams/%2F/wrong", wrong)[0] == 400
        exported = tool.get("definitions")
        assert sum(one["name"].startswith("invoices-") for one in exported["queues"]) == 3
