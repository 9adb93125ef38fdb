"""Every reply code that the machine decides by itself, the scope it closes, and what is ignored afterwards."""

from __future__ import annotations

import struct

import pytest

from penstock.wire.amqp import methods as m
from penstock.wire.amqp.events import (
    AckRun,
    ChannelClosed,
    ChannelFailed,
    ChannelOpened,
    ConnectionClosed,
    ConnectionFailed,
    HeartbeatReceived,
    MethodReceived,
    PublishRun,
)
from penstock.wire.amqp.frames import BODY, HEADER, HEARTBEAT, HEARTBEAT_FRAME, METHOD, Limits, frame
from unit.amqp.peer import ack, flat, header, method, opened, publish, sent

PUBLISH = method(1, m.BasicPublish(routing_key="k"))
HEADER_60 = "expected content header for class 60, got"


@pytest.mark.parametrize(
    ("data", "code", "text", "offender"),
    [
        (method(2, m.QueueDeclare()), 504, "expected 'channel.open'", (50, 10)),
        (header(2, 1), 504, "expected 'channel.open'", (0, 0)),
        (method(1, m.ChannelOpen()), 504, "second 'channel.open' seen", (20, 10)),
        (method(1, m.ChannelCloseOk()), 504, "unexpected 'channel.close-ok'", (20, 41)),
        (method(0, m.QueueDeclare()), 504, "unexpected method in connection state running", (50, 10)),
        (method(0, m.ConnectionOpen()), 504, "unexpected method in connection state running", (10, 40)),
        (header(0, 1), 504, "unexpected method in connection state running", (0, 0)),
        (frame(HEARTBEAT, 1, b""), 505, "heartbeat on channel 1", (0, 0)),
        (frame(BODY, 1, b"x"), 505, "expected method frame, got non method frame instead", (0, 0)),
        (header(1, 1), 505, "expected method frame, got non method frame instead", (0, 0)),
        (PUBLISH + frame(BODY, 1, b"x"), 505, f"{HEADER_60} non content header frame instead", (60, 40)),
        (PUBLISH + PUBLISH, 505, f"{HEADER_60} non content header frame instead", (60, 40)),
        (PUBLISH + method(1, m.QueueDeclare()), 505, f"{HEADER_60} non content header frame instead", (50, 10)),
        (PUBLISH + header(1, 1, class_id=50), 505, f"{HEADER_60} one for class 50 instead", (60, 40)),
        (PUBLISH + header(1, 5) + PUBLISH, 505, "expected content body, got non content body frame instead", (60, 40)),
        (
            PUBLISH + header(1, 0) + frame(BODY, 1, b""),
            505,
            "expected method frame, got non method frame instead",
            None,
        ),
        (PUBLISH + header(1, 1, b"\x01\x00\x01\xff"), 502, "a property is not UTF-8", (60, 40)),
        (method(1, m.BasicPublish(immediate=True)), 540, "immediate=true", (60, 40)),
        (method(1, m.BasicQos(10, 1)), 540, "prefetch_size!=0 (10)", (60, 10)),
        (method(1, m.BasicRecover(False)), 540, "requeue=false", (60, 110)),
        (method(1, m.BasicRecoverAsync(False)), 540, "requeue=false", (60, 100)),
        (method(1, m.ChannelFlow(False)), 540, "active=false", (20, 20)),
        (method(1, m.QueueDeclareOk("q")), 503, "queue.declare-ok is not a server's to receive here", (50, 11)),
        (method(1, m.ConnectionOpen()), 503, "connection.open is not a server's to receive here", (10, 40)),
        (frame(METHOD, 1, b"\x00\x3c\x03\xe7"), 503, "unknown method (60, 999)", (60, 999)),
        (
            frame(METHOD, 1, b"\x00\x32\x00\x0a\x00\x00\x01\xff\x00\x00\x00\x00\x00"),
            502,
            "a text of queue.declare",
            None,
        ),
    ],
)
def test_connection_errors(data: bytes, code: int, text: str, offender: tuple[int, int] | None) -> None:
    connection = opened()
    before = publish(1, b"before")
    failed = [e for e in connection.receive(before + data) if isinstance(e, ConnectionFailed)]
    [event] = failed
    assert event.code == code
    assert text in event.text
    assert not event.drop
    close = sent(connection)[-1][1]
    assert isinstance(close, m.ConnectionClose)
    assert (close.reply_code, close.reply_text) == (code, event.text)
    if offender is not None:
        assert (close.class_id, close.method_id) == offender
    # from now on all is ignored but close and close-ok
    assert connection.receive(method(1, m.ChannelOpen()) + publish(1, b"x") + HEARTBEAT_FRAME) == [HeartbeatReceived()]
    assert connection.take_output() == b""
    assert connection.receive(method(0, m.ConnectionCloseOk())) == [ConnectionClosed(0, "")]
    assert connection.finished


@pytest.mark.parametrize(
    "data",
    [
        b"\x01\x00\x01" + (131_065).to_bytes(4, "big"),
        method(1, m.QueueDeclare())[:-1] + b"\x00",
        PUBLISH + header(1, 1) + frame(BODY, 1, b"x")[:-1] + b"\x00",
        PUBLISH + header(1, 1)[:-1] + b"\x00" + frame(BODY, 1, b"x"),
        ack(1, 1)[:-1] + b"\x00",
        frame(7, 1, b""),
        frame(HEARTBEAT, 0, b"x"),
        frame(METHOD, 1, b"\x00\x32"),
        frame(METHOD, 1, m.QueueDeclare().encode() + b"\x00"),
        frame(METHOD, 1, m.QueueDeclare().encode()[:-3]),
        frame(METHOD, 1, m.BasicPublish().encode() + b"\x00"),
        PUBLISH + frame(HEADER, 1, b"\x00\x3c"),
        PUBLISH + header(1, 1, b"\x80\x00\x09abc") + frame(BODY, 1, b"x"),
        PUBLISH + header(1, 1, b"\x00\x01") + frame(BODY, 1, b"x"),
        PUBLISH + header(1, 2) + frame(BODY, 1, b"xyz"),
    ],
)
def test_frame_errors_cost_the_socket(data: bytes) -> None:
    connection = opened()
    *rows, event = connection.receive(publish(1, b"before") + data)
    assert [type(row) for row in rows] == [PublishRun]
    assert rows[0].bodies == [b"before"]
    assert isinstance(event, ConnectionFailed)
    assert (event.code, event.drop) == (501, True)
    [(_, close)] = sent(connection)
    assert isinstance(close, m.ConnectionClose)
    assert close.reply_code == 501
    assert connection.finished
    assert connection.receive(HEARTBEAT_FRAME) == []


def test_deep_tables_are_refused() -> None:
    nested = b"\x00\x00\x00\x00"
    for _ in range(40):
        inner = b"\x01aF" + nested
        nested = struct.pack(">I", len(inner)) + inner
    connection = opened()
    payload = m.QueueDeclare(queue="q").encode()[:-4] + nested
    [event] = connection.receive(frame(METHOD, 1, payload))
    assert event == ConnectionFailed(502, "SYNTAX_ERROR - tables and arrays nest deeper than 32")


def test_number_of_channels() -> None:
    connection = opened(limits=Limits(channel_max=10), channels=10)
    connection.receive(method(3, m.ChannelClose()))
    connection.send(3, m.ChannelCloseOk())
    assert connection.receive(method(3, m.ChannelOpen())) == [ChannelOpened(3)]
    [event] = connection.receive(method(11, m.ChannelOpen()))
    text = "NOT_ALLOWED - number of channels opened (10) has reached the negotiated channel_max (10)"
    assert event == ConnectionFailed(530, text)


def test_the_limit_is_one_of_how_many_channels_whatever_their_numbers() -> None:
    """As RabbitMQ has it, and as suites of clients ask: aiormq's opens channel 65535 of 2047."""
    connection = opened(limits=Limits(channel_max=2), channels=1)
    assert connection.receive(method(65_535, m.ChannelOpen())) == [ChannelOpened(65_535)]
    [event] = connection.receive(method(2, m.ChannelOpen()))
    assert isinstance(event, ConnectionFailed)
    assert event.code == 530


def test_a_body_over_the_maximum_closes_its_channel_only() -> None:
    connection = opened(2, Limits(max_message_size=1000))
    data = publish(1, b"x" * 1000) + publish(1, b"x" * 1001) + publish(1, b"late") + publish(2, b"fine")
    first, failed, fine = connection.receive(data)
    assert isinstance(first, PublishRun)
    text = "PRECONDITION_FAILED - message size 1001 is larger than configured max size 1000"
    assert failed == ChannelFailed(1, 406, text)
    assert isinstance(fine, PublishRun)
    assert fine.channel == 2
    assert sent(connection) == [(1, m.ChannelClose(406, text, 60, 40))]
    assert connection.partial_size == 0
    assert not connection.is_open(1)


def test_unfinished_bodies_have_a_budget() -> None:
    connection = opened(3, Limits(max_message_size=1000, max_partial_size=1500))
    assert connection.receive(PUBLISH + header(1, 1000)) == []
    assert connection.partial_size == 1000
    [event] = connection.receive(method(2, m.BasicPublish()) + header(2, 501))
    assert isinstance(event, ConnectionFailed)
    assert event.code == 506


def test_one_body_is_let_in_whatever_others_may_have_together() -> None:
    """Its own limit, which an operator sets, may be above what a connection may have begun."""
    connection = opened(3, Limits(max_message_size=2000, max_partial_size=1500))
    [run] = connection.receive(publish(1, b"x" * 2000))
    assert isinstance(run, PublishRun)
    assert connection.receive(PUBLISH + header(1, 2000)) == []
    [event] = connection.receive(method(2, m.BasicPublish()) + header(2, 1))
    assert isinstance(event, ConnectionFailed)
    assert event.code == 506


def test_ack_of_tag_nought() -> None:
    connection = opened()
    events = connection.receive(ack(1, 1) + ack(1, 0) + ack(1, 2))
    assert flat(events) == [
        ["ack", 1, 1, 1],
        ChannelFailed(1, 406, "PRECONDITION_FAILED - unknown delivery tag 0"),
    ]
    assert sent(connection) == [(1, m.ChannelClose(406, "PRECONDITION_FAILED - unknown delivery tag 0", 60, 80))]


def test_failed_channel_is_deaf_until_close_ok() -> None:
    connection = opened(2)
    connection.fail_channel(1, 404, "no exchange 'x' in vhost '/'", m.BasicPublish)
    connection.fail_channel(1, 404, "again", m.BasicPublish)
    assert sent(connection) == [(1, m.ChannelClose(404, "NOT_FOUND - no exchange 'x' in vhost '/'", 60, 40))]
    connection.send(1, m.QueuePurgeOk())
    connection.confirm(1, 5)
    connection.send_pieces(1, [b"delivery"])
    assert connection.take_output() == b""
    assert connection.receive(publish(1, b"x") + ack(1, 3) + header(1, 9) + method(1, m.QueueDeclare())) == []
    assert connection.receive(method(1, m.ChannelClose())) == []
    assert sent(connection) == [(1, m.ChannelCloseOk())]
    assert connection.receive(method(1, m.ChannelCloseOk()) + method(1, m.ChannelOpen())) == [ChannelOpened(1)]
    assert [type(e) for e in connection.receive(publish(1, b"x"))] == [PublishRun]


def test_failing_in_the_middle_of_a_message_forgets_it() -> None:
    connection = opened()
    connection.receive(PUBLISH + header(1, 100) + frame(BODY, 1, b"x" * 60))
    assert connection.partial_size == 100
    connection.fail_channel(1, 405, "locked")
    assert connection.partial_size == 0
    assert connection.receive(frame(BODY, 1, b"x" * 40)) == []


def test_client_closes_a_channel() -> None:
    connection = opened()
    events = connection.receive(publish(1, b"x") + method(1, m.ChannelClose(200, "done")) + publish(1, b"y"))
    assert [type(e) for e in events] == [PublishRun, ChannelClosed]
    connection.confirm(1, 1)
    connection.send(1, m.ChannelCloseOk())
    connection.send(1, m.ChannelCloseOk())
    assert sent(connection) == [(1, m.BasicAck(1)), (1, m.ChannelCloseOk())]
    assert connection.receive(method(1, m.ChannelOpen())) == [ChannelOpened(1)]


def test_closes_that_cross() -> None:
    connection = opened()
    connection.receive(method(1, m.ChannelClose()))
    connection.fail_channel(1, 404, "too late")
    assert [type(x) for _, x in sent(connection)] == [m.ChannelClose, m.ChannelCloseOk]
    connection.receive(method(1, m.ChannelCloseOk()))
    assert connection.receive(method(1, m.ChannelOpen())) == [ChannelOpened(1)]
    connection.fail_connection(320, "maintenance")
    assert connection.receive(method(0, m.ConnectionClose())) == [ConnectionClosed(0, "")]
    assert [type(x) for _, x in sent(connection)] == [m.ChannelOpenOk, m.ConnectionClose, m.ConnectionCloseOk]
    connection = opened()
    assert connection.receive(method(0, m.ConnectionClose())) == [ConnectionClosed(200, "")]
    connection.fail_connection(320, "maintenance")
    assert sent(connection) == [(0, m.ConnectionCloseOk())]
    assert connection.finished


def test_small_talk() -> None:
    connection = opened()
    events = connection.receive(
        method(1, m.ChannelFlow(True))
        + method(1, m.BasicCancelOk("t"))
        + HEARTBEAT_FRAME
        + method(0, m.ConnectionUpdateSecret(b"s", "r"))
    )
    assert events == [
        MethodReceived(1, m.ChannelFlow(True)),
        HeartbeatReceived(),
        MethodReceived(0, m.ConnectionUpdateSecret(b"s", "r")),
    ]
    connection.send(0, m.ConnectionUpdateSecretOk())
    connection.send(0, m.ConnectionBlocked("low on disk"))
    connection.refuse(1, 7, multiple=True)
    connection.send_heartbeat()
    assert sent(connection) == [
        (0, m.ConnectionUpdateSecretOk()),
        (0, m.ConnectionBlocked("low on disk")),
        (1, m.BasicNack(7, True, False)),
    ]


def test_long_reply_texts_are_cut_between_characters() -> None:
    connection = opened()
    connection.fail_channel(1, 404, "é" * 200)
    [(_, close)] = sent(connection)
    assert isinstance(close, m.ChannelClose)
    assert len(close.reply_text.encode()) <= 255
    assert close.reply_text.endswith("é")


def test_acks_of_another_channel_start_a_run() -> None:
    connection = opened(2)
    first, second = connection.receive(ack(1, 1) + ack(1, 2) + ack(2, 1))
    assert isinstance(first, AckRun)
    assert isinstance(second, AckRun)
    assert (first.spans, second.channel) == ([(1, 2)], 2)
