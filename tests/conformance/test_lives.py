"""Connections that vanish in every state, clients that do not read, servers that are started again."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest
from pika import spec
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from live_server import LiveServer, all_durable
from rawlink import RawLink, header, raw_frame
from waiting import eventually

pytestmark = pytest.mark.conformance

Connect = Callable[..., pika.BlockingConnection]
LOADS = True
"""Its memory is judged."""

PERSISTENT = pika.BasicProperties(delivery_mode=2)
TRANSIENT = pika.BasicProperties(delivery_mode=1)


def drain(channel: BlockingChannel, queue: str) -> list[bytes]:
    out: list[bytes] = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        out.append(got[2])
    return out


def ready_count(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def publish_frames(queue: str, body: bytes, promised: int | None = None) -> bytes:
    method = spec.Basic.Publish(exchange="", routing_key=queue)
    return (
        pika.frame.Method(1, method).marshal()
        + raw_frame(2, 1, header(len(body) if promised is None else promised))
        + (raw_frame(3, 1, body) if body else b"")
    )


STATES = [
    "connected", "half a greeting", "greeted", "half a login", "logged in", "tuned", "open", "channel open",
    "mid method", "after the method", "after the header", "mid body", "between publishes", "with unread confirms",
]  # fmt: skip


@pytest.mark.parametrize("reset", [False, True], ids=["close", "reset"])
@pytest.mark.parametrize("state", STATES)
def test_a_client_vanishes_before_or_while_publishing(
    server: LiveServer, channel: BlockingChannel, queue: str, state: str, reset: bool
) -> None:
    link = RawLink(server.port)
    whole = 0
    if state == "half a greeting":
        link.send(b"AMQP\0")
    elif state == "greeted":
        link.greet()
    elif state == "half a login":
        link.greet()
        link.send(b"\x01\0\0\0\0\0\x50half")
    elif state == "logged in":
        link.greet()
        link.log_in()
    elif state == "tuned":
        link.greet()
        link.log_in()
        link.method(spec.Connection.TuneOk(10, 131_072, 0), 0)
    elif state == "open":
        link.open()
    elif state != "connected":
        link.ready()
        frames = publish_frames(queue, b"one message")
        match state:
            case "mid method":
                link.send(frames[:9])
            case "after the method":
                link.send(frames[: frames.index(b"\x02\0\x01")])
            case "after the header":
                link.send(publish_frames(queue, b"", promised=5))
            case "mid body":
                link.send(publish_frames(queue, b"x" * 70_000, promised=200_000) + raw_frame(3, 1, b"y" * 1000)[:500])
            case "between publishes":
                link.send(frames * 3)
                whole = 3
            case "with unread confirms":
                link.method(spec.Confirm.Select())
                link.expect(spec.Confirm.SelectOk)
                link.send(frames * 40)
                whole = 40
    if whole:
        eventually(lambda: ready_count(channel, queue) == whole)  # a reset may overtake what was sent
    if reset:
        link.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    link.socket.close()
    channel.confirm_delivery()
    channel.basic_publish("", queue, b"after")
    assert drain(channel, queue) == [b"one message"] * whole + [b"after"]


@pytest.mark.parametrize("reset", [False, True], ids=["close", "reset"])
@pytest.mark.parametrize("state", ["unread", "unacked", "partly acked", "cancelled", "got"])
def test_a_client_vanishes_with_leases(
    server: LiveServer, channel: BlockingChannel, queue: str, state: str, reset: bool
) -> None:
    channel.confirm_delivery()
    for number in range(6):
        channel.basic_publish("", queue, b"%d" % number, PERSISTENT)
    link = RawLink(server.port).ready()
    left = 6
    if state == "got":
        for _ in range(3):
            link.method(spec.Basic.Get(queue=queue))
            link.expect(spec.Basic.GetOk)
            link.read()
            link.read()
    else:
        link.method(spec.Basic.Consume(queue=queue, consumer_tag="t"))
        eventually(lambda: ready_count(channel, queue) == 0)
        if state != "unread":
            link.expect(spec.Basic.ConsumeOk)
            for _ in range(6):
                link.expect(spec.Basic.Deliver)
                link.read()
                link.read()
        if state == "partly acked":
            link.method(spec.Basic.Ack(2, multiple=True))
            link.method(spec.Basic.Qos())
            link.expect(spec.Basic.QosOk)
            left = 4
        if state == "cancelled":
            link.method(spec.Basic.Cancel("t"))
            link.expect(spec.Basic.CancelOk)
    if reset:
        link.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    link.socket.close()
    eventually(lambda: ready_count(channel, queue) == left)
    got = [channel.basic_get(queue, auto_ack=True) for _ in range(left)]
    assert [body for _, _, body in got] == [b"%d" % number for number in range(6 - left, 6)]
    delivered = 3 if state == "got" else left
    assert [method.redelivered for method, _, _ in got] == [True] * delivered + [False] * (left - delivered)


def test_a_consumer_that_does_not_read_costs_little_memory(
    server: LiveServer, channel: BlockingChannel, queue: str
) -> None:
    channel.confirm_delivery()
    link = RawLink(server.port).ready()
    link.method(spec.Basic.Consume(queue=queue, consumer_tag="t", no_ack=True))
    link.expect(spec.Basic.ConsumeOk)
    before = server.memory()
    body = bytes(1_000_000)
    for _ in range(90):
        channel.basic_publish("", queue, body, PERSISTENT)
    # 90 MB were published; the bodies that wait have a budget of 64 MiB at most, the connection far less
    held = ready_count(channel, queue)
    assert held > 70
    assert server.memory() - before < 160 * 2**20
    other = channel.connection.channel()
    assert other.queue_declare("", exclusive=True).method.queue  # the server is as lively as ever
    count = 0
    while count < 90:
        link.expect(spec.Basic.Deliver)
        size = link.read().body_size
        while size:
            size -= len(link.read().fragment)
        count += 1
    link.socket.close()


def test_a_publisher_that_does_not_read_its_confirms(server: LiveServer, channel: BlockingChannel, queue: str) -> None:
    link = RawLink(server.port).ready()
    link.method(spec.Confirm.Select())
    link.expect(spec.Confirm.SelectOk)
    frames = publish_frames(queue, b"x") * 500
    for _ in range(10):
        link.send(frames)
    eventually(lambda: ready_count(channel, queue) == 5000)
    link.socket.close()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[LiveServer]:
    server = LiveServer(tmp_path / "own")
    server.http = "127.0.0.1:0"
    with server as live:
        yield live


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_restart_keeps_what_is_durable(own_server: LiveServer, how: str) -> None:
    channel = own_server.connect().channel()
    channel.confirm_delivery()
    channel.exchange_declare("kept", "topic", durable=True)
    channel.exchange_declare("gone", "topic")
    channel.queue_declare("kept", durable=True, arguments={"x-dead-letter-exchange": "kept"})
    channel.queue_declare("gone")
    channel.queue_declare("mine", exclusive=True)
    channel.queue_bind("kept", "kept", "a.#")
    for number in range(8):
        channel.basic_publish("kept", "a.b", b"%d" % number, PERSISTENT)
    channel.basic_publish("", "kept", b"transient", TRANSIENT)
    channel.basic_publish("", "gone", b"x", PERSISTENT)
    tags = [channel.basic_get("kept")[0].delivery_tag for _ in range(4)]
    channel.basic_ack(tags[1])
    channel.basic_get("kept")
    eventually(lambda: all_durable(own_server))  # the ack too
    if how == "stop":
        own_server.stop()
    else:
        own_server.kill()
    own_server.start()
    connection = own_server.connect()
    for name in ("gone", "mine"):
        with pytest.raises(ChannelClosedByBroker):
            connection.channel().queue_declare(name, passive=True)
    with pytest.raises(ChannelClosedByBroker):
        connection.channel().exchange_declare("gone", passive=True)
    channel = connection.channel()
    arguments = {"x-dead-letter-exchange": "kept"}
    assert channel.queue_declare("kept", durable=True, arguments=arguments).method.message_count == 7
    channel.confirm_delivery()
    channel.basic_publish("kept", "a", b"new", mandatory=True)
    got: list[tuple[bool, bytes]] = []
    while (found := channel.basic_get("kept", auto_ack=True))[0] is not None:
        got.append((found[0].redelivered, found[2]))
    assert [body for _, body in got] == [b"0", b"2", b"3", b"4", b"5", b"6", b"7", b"new"]
    flags = [again for again, _ in got]
    assert flags[:4] == [True] * 4
    assert flags[4:] == ([True] * 3 if how == "kill" else [False] * 3) + [False]


def test_a_clean_stop_tells_its_clients(own_server: LiveServer) -> None:
    with RawLink(own_server.port).ready() as link:
        own_server.stop()
        close = link.expect(spec.Connection.Close)
    assert (close.reply_code, close.reply_text) == (320, "CONNECTION_FORCED - the server stops")
