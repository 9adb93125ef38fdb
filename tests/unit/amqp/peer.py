"""A client made of bytes, and a connection that is past its handshake: what the tests of the AMQP machine share."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from penstock.records.properties import EMPTY
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.events import AckRun, Event, HeartbeatReceived, LoginAsked, OpenAsked, PublishRun
from penstock.wire.amqp.frames import BODY, HEADER, METHOD, PROTOCOL_HEADER, Limits, frame
from penstock.wire.amqp.machine import ServerConnection


def method(channel: int, value: m.Method) -> bytes:
    """A method frame."""
    return frame(METHOD, channel, value.encode())


def header(channel: int, size: int, properties: bytes = EMPTY, class_id: int = 60) -> bytes:
    """A content header frame."""
    return frame(HEADER, channel, struct.pack(">HHQ", class_id, 0, size) + properties)


def publish(
    channel: int,
    body: bytes,
    key: str = "key",
    *,
    exchange: str = "",
    properties: bytes = EMPTY,
    mandatory: bool = False,
    frame_max: int = 131_072,
) -> bytes:
    """A whole message."""
    out = method(channel, m.BasicPublish(0, exchange, key, mandatory)) + header(channel, len(body), properties)
    most = frame_max - 8
    return out + b"".join(frame(BODY, channel, body[at : at + most]) for at in range(0, len(body), most))


def ack(channel: int, tag: int, *, multiple: bool = False) -> bytes:
    """A basic.ack frame."""
    return method(channel, m.BasicAck(tag, multiple))


LOGIN = PROTOCOL_HEADER + method(0, m.ConnectionStartOk(response=b"\0guest\0secret"))


def tune_ok(limits: Limits, **changes: int) -> bytes:
    """The answer to tune, as offered but for `changes`."""
    values = {"channel_max": limits.channel_max, "frame_max": limits.frame_max, "heartbeat": 0} | changes
    return method(0, m.ConnectionTuneOk(**values))


def opened(channels: int = 1, limits: Limits | None = None) -> ServerConnection:
    """A connection in the running phase with channels 1..`channels` open and nothing left to write."""
    limits = limits or Limits()
    connection = ServerConnection(limits, version="1")
    assert [type(e) for e in connection.receive(LOGIN)] == [LoginAsked]
    connection.accept_login()
    assert connection.receive(tune_ok(limits) + method(0, m.ConnectionOpen("/"))) == [OpenAsked("/")]
    connection.accept_open()
    for channel in range(1, channels + 1):
        connection.receive(method(channel, m.ChannelOpen()))
    connection.take_output()
    return connection


def sent(connection: ServerConnection) -> list[tuple[int, m.Method]]:
    """The methods that a connection has written, with their channels; content frames are left out."""
    return list(methods_in(connection.take_output()))


def methods_in(data: bytes) -> Iterator[tuple[int, m.Method]]:
    """The methods in frames."""
    for kind, channel, payload in frames_in(data):
        if kind == METHOD:
            yield channel, m.decode_method(payload)


def frames_in(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Whole frames, their end marks checked."""
    pos = 0
    while pos < len(data):
        kind, channel, size = struct.unpack_from(">BHI", data, pos)
        assert data[pos + 7 + size] == 0xCE
        yield kind, channel, data[pos + 7 : pos + 7 + size]
        pos += 8 + size


def flat(events: list[Event]) -> list[object]:
    """Events with runs taken apart and spans merged, so that the same bytes compare equal however they were cut."""
    out: list[object] = []
    for event in events:
        if isinstance(event, PublishRun):
            for row, body in enumerate(event.bodies):
                target = event.target_of(row)
                place = (target.exchange, target.key, target.mandatory)
                out.append(("publish", event.channel, place, event.properties_of(row), body))
        elif isinstance(event, AckRun):
            for low, high in event.spans:
                before = out[-1] if out else None
                if isinstance(before, list) and low and before[1] == event.channel and before[3] + 1 == low:
                    before[3] = high
                elif low:
                    out.append(["ack", event.channel, low, high])
                else:
                    out.append(("ack to", event.channel, high))
        elif not isinstance(event, HeartbeatReceived):
            out.append(event)
    return out
