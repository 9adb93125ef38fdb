"""What a client is told that does wrong: code, text and scope."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika import spec
from pika.exceptions import (
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from live_server import LiveServer
from penstock.version import __version__
from rawlink import RawLink, header, raw_frame

pytestmark = pytest.mark.conformance

Connect = Callable[..., pika.BlockingConnection]
Channel = pika.adapters.blocking_connection.BlockingChannel


UNEQUAL_TYPE = "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'kind' in vhost '/'"


def _consume_as(channel: Channel, tag: str) -> None:
    """Without pika's own look at the tag."""
    channel._impl._send_method(spec.Basic.Consume(queue="q", consumer_tag=tag))


@pytest.mark.parametrize(
    ("act", "code", "text"),
    [
        (lambda c: c.queue_declare("none", passive=True), 404, "NOT_FOUND - no queue 'none' in vhost '/'"),
        (lambda c: c.queue_bind("none", "amq.direct"), 404, "NOT_FOUND - no queue 'none' in vhost '/'"),
        (lambda c: c.basic_consume("none", lambda *_: None), 404, "NOT_FOUND - no queue 'none' in vhost '/'"),
        (lambda c: c.basic_get("none"), 404, "NOT_FOUND - no queue 'none' in vhost '/'"),
        (lambda c: c.queue_purge("none"), 404, "NOT_FOUND - no queue 'none' in vhost '/'"),
        (lambda c: c.exchange_declare("none", passive=True), 404, "NOT_FOUND - no exchange 'none' in vhost '/'"),
        (
            lambda c: (c.queue_declare("q"), c.queue_bind("q", "none")),
            404,
            "NOT_FOUND - no exchange 'none' in vhost '/'",
        ),
        (
            lambda c: (c.confirm_delivery(), c.basic_publish("none", "k", b"x")),
            404,
            "NOT_FOUND - no exchange 'none' in vhost '/'",
        ),
        (lambda c: c.queue_purge(""), 404, "NOT_FOUND - no previously declared queue"),
        (
            lambda c: c.queue_declare("amq.foo"),
            403,
            "ACCESS_REFUSED - queue name 'amq.foo' contains reserved prefix 'amq.*'",
        ),
        (
            lambda c: c.exchange_declare("amq.foo", "direct"),
            403,
            "ACCESS_REFUSED - exchange name 'amq.foo' contains reserved prefix 'amq.*'",
        ),
        (
            lambda c: c.exchange_delete("amq.direct"),
            403,
            "ACCESS_REFUSED - deletion of system exchange 'amq.direct' in vhost '/' not allowed",
        ),
        (
            lambda c: c.exchange_declare("", "direct"),
            403,
            "ACCESS_REFUSED - operation not permitted on the default exchange",
        ),
        (
            lambda c: (c.queue_declare("q"), c.queue_bind("q", "", "k")),
            403,
            "ACCESS_REFUSED - operation not permitted on the default exchange",
        ),
        (
            lambda c: (c.queue_declare("q"), c.queue_unbind("q", "", "q")),
            403,
            "ACCESS_REFUSED - operation not permitted on the default exchange",
        ),
        (
            lambda c: c.exchange_delete(""),
            403,
            "ACCESS_REFUSED - operation not permitted on the default exchange",
        ),
        (
            lambda c: (
                c.exchange_declare("in", "direct", internal=True),
                c.basic_publish("in", "k", b""),
                c.basic_qos(),
            ),
            403,
            "ACCESS_REFUSED - cannot publish to internal exchange 'in' in vhost '/'",
        ),
        (
            lambda c: (c.exchange_declare("kind", "direct"), c.exchange_declare("kind", "fanout")),
            406,
            f"{UNEQUAL_TYPE}: received 'fanout' but current is 'direct'",
        ),
    ],
)
def test_the_channel_closes(connect: Connect, act: Callable[[Channel], object], code: int, text: str) -> None:
    connection = connect()
    channel = connection.channel()
    with pytest.raises(ChannelClosedByBroker) as refused:  # noqa: PT012
        act(channel)
        channel.basic_qos()
    assert (refused.value.reply_code, refused.value.reply_text) == (code, text)
    connection.channel().queue_declare("", exclusive=True)  # the connection lives


@pytest.mark.parametrize(
    ("act", "code", "text"),
    [
        (
            lambda c: (c.queue_declare("q"), *[_consume_as(c, "t") for _ in range(2)]),
            530,
            "NOT_ALLOWED - attempt to reuse consumer tag 't'",
        ),
        (lambda c: c.basic_qos(prefetch_size=10), 540, "NOT_IMPLEMENTED - prefetch_size!=0 (10)"),
        (lambda c: c.basic_recover(requeue=False), 540, "NOT_IMPLEMENTED - requeue=false"),
        (lambda c: c.flow(False), 540, "NOT_IMPLEMENTED - active=false"),
        (
            lambda c: c._impl._send_method(spec.Basic.Publish(immediate=True), (spec.BasicProperties(), b"x")),
            540,
            "NOT_IMPLEMENTED - immediate=true",
        ),
    ],
)  # fmt: skip
def test_the_connection_closes(connect: Connect, act: Callable[[Channel], object], code: int, text: str) -> None:
    connection = connect()
    channel = connection.channel()
    with pytest.raises(ConnectionClosedByBroker) as refused:  # noqa: PT012
        act(channel)
        channel.queue_declare("", exclusive=True)
    assert (refused.value.reply_code, refused.value.reply_text) == (code, text)


def test_an_unknown_exchange_type(connect: Connect) -> None:
    with pytest.raises((ChannelClosedByBroker, ConnectionClosedByBroker)) as refused:
        connect().channel().exchange_declare("x", "none-such")
    assert refused.value.reply_code in (503, 406)
    assert "exchange type 'none-such'" in refused.value.reply_text


def test_a_wrong_password(server: LiveServer) -> None:
    with pytest.raises(ProbableAuthenticationError) as refused:
        server.connect(credentials=pika.PlainCredentials("guest", "wrong"))
    assert "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN" in str(refused.value)


def test_a_client_that_takes_no_close_for_a_refused_login(server: LiveServer) -> None:
    with RawLink(server.port) as link:
        link.greet()
        link.log_in("wrong", capabilities={})
        link.closed()


def test_a_missing_vhost(server: LiveServer) -> None:
    with pytest.raises(ProbableAccessDeniedError) as refused:
        server.connect(virtual_host="nope")
    assert "(530) 'NOT_ALLOWED - vhost nope not found'" in str(refused.value)


def test_what_the_server_says_of_itself(server: LiveServer) -> None:
    with RawLink(server.port) as link:
        start = link.greet()
        assert (start.version_major, start.version_minor) == (0, 9)
        assert b"PLAIN" in _bytes(start.mechanisms).split()
        assert b"en_US" in _bytes(start.locales).split()
        capabilities = start.server_properties["capabilities"]
        for name in (
            "publisher_confirms", "exchange_exchange_bindings", "basic.nack", "consumer_cancel_notify",
            "authentication_failure_close", "per_consumer_qos",
        ):  # fmt: skip
            assert capabilities[name] is True, name
        assert start.server_properties["product"] == "Penstock"
        assert start.server_properties["version"] == __version__
        link.log_in()
        tune = link.expect(spec.Connection.Tune)
        assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (2047, 131_072, 60)


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


@pytest.mark.parametrize("greeting", [b"HTTP/1.1", b"AMQP\x00\x01\x00\x00", b"GET / HT"])
def test_another_protocol_gets_our_header(server: LiveServer, greeting: bytes) -> None:
    with RawLink(server.port) as link:
        link.send(greeting)
        data = b""
        while more := link.socket.recv(100):
            data += more
        assert data == b"AMQP\x00\x00\x09\x01"


@pytest.mark.parametrize(
    ("tune", "code"), [((10, 131_072 * 2, 0), 530), ((10, 2048, 0), 530), ((4000, 131_072, 0), 530)]
)
def test_tuning_beyond_the_offer(server: LiveServer, tune: tuple[int, int, int], code: int) -> None:
    with RawLink(server.port) as link:
        link.open(tune=tune)
        assert link.expect(spec.Connection.Close).reply_code == code


PUBLISH = spec.Basic.Publish(exchange="", routing_key="nowhere")


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("second channel.open", 504),
        ("method on an unopened channel", 504),
        ("more channels than channel_max", 530),
        ("content method on channel 0", 504),
        ("second connection.open", 504),
        ("frame too large", 501),
        ("wrong end octet", 501),
        ("unknown frame type", 501),
        ("undecodable arguments", 501),
        ("unknown method", 503),
        ("heartbeat on a channel", 505),
        ("body without header", 505),
        ("header of another class", 505),
        ("method instead of header", 505),
        ("more body than promised", 501),
        ("bad utf-8", 502),
    ],
)
def test_broken_frames_close_the_connection(server: LiveServer, what: str, code: int) -> None:
    with RawLink(server.port) as link:
        link.ready()
        match what:
            case "second channel.open":
                link.method(spec.Channel.Open())
            case "method on an unopened channel":
                link.method(spec.Basic.Qos(), 5)
            case "more channels than channel_max":
                for number in range(2, 11):
                    link.open_channel(number)
                link.method(spec.Channel.Open(), 11)
            case "content method on channel 0":
                link.method(PUBLISH, 0)
            case "second connection.open":
                link.method(spec.Connection.Open("/"), 0)
            case "frame too large":
                link.send(raw_frame(3, 1, bytes(131_072)))
            case "wrong end octet":
                link.send(raw_frame(1, 1, b"\0\x3c\0\x0a\0\0\0\0\0\0\0", b"\0"))
            case "unknown frame type":
                link.send(raw_frame(7, 1, b"x"))
            case "undecodable arguments":
                link.send(raw_frame(1, 1, b"\0\x32\0\x0a\0\0\xff"))
            case "unknown method":
                link.send(raw_frame(1, 1, b"\0\x3c\0\xfa"))
            case "heartbeat on a channel":
                link.send(raw_frame(8, 1, b""))
            case "body without header":
                link.method(PUBLISH)
                link.send(raw_frame(3, 1, b"x"))
            case "header of another class":
                link.method(PUBLISH)
                link.send(raw_frame(2, 1, header(1, 50)))
            case "method instead of header":
                link.method(PUBLISH)
                link.method(spec.Basic.Qos())
            case "more body than promised":
                link.method(PUBLISH)
                link.send(raw_frame(2, 1, header(1)) + raw_frame(3, 1, b"xy"))
            case _:
                link.send(raw_frame(1, 1, b"\0\x32\0\x0a\0\0\x02\xff\xfe\0\0\0\0\0"))
        assert link.expect(spec.Connection.Close).reply_code == code
        with contextlib.suppress(ConnectionError):  # after a framing error the server does not wait for it
            link.method(spec.Connection.CloseOk(), 0)
        link.closed()


def test_after_a_channel_error_its_frames_are_passed_over(server: LiveServer) -> None:
    with RawLink(server.port) as link:
        link.ready()
        link.method(spec.Basic.Publish(exchange="none", routing_key="x"))
        link.send(raw_frame(2, 1, header(3)) + raw_frame(3, 1, b"abc"))
        for _ in range(10):
            link.method(spec.Basic.Publish(exchange="none", routing_key="x"))
            link.send(raw_frame(2, 1, header(3)) + raw_frame(3, 1, b"abc"))
        close = link.expect(spec.Channel.Close)
        assert (close.reply_code, close.class_id, close.method_id) == (404, 60, 40)
        link.method(spec.Channel.CloseOk())
        link.open_channel()
        link.method(spec.Basic.Qos())
        link.expect(spec.Basic.QosOk)


def test_a_body_beyond_the_limit_closes_the_channel(server: LiveServer) -> None:
    with RawLink(server.port) as link:
        link.ready()
        link.method(PUBLISH)
        link.send(raw_frame(2, 1, header(2**40)))
        close = link.expect(spec.Channel.Close)
        assert close.reply_code == 406
        assert str(2**40) in close.reply_text
