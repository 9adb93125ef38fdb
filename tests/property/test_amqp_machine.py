"""The machine under any cut of its input, and its stride path against its walk."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.records.properties import EMPTY, Properties, encode
from penstock.wire.amqp import methods as m
from penstock.wire.amqp import publishes as reader_of_publishes
from penstock.wire.amqp.events import ConnectionFailed, Event
from penstock.wire.amqp.frames import BODY, HEARTBEAT_FRAME, METHOD, Limits, frame
from unit.amqp.peer import ack, flat, header, method, opened, publish, sent

LIMITS = Limits(frame_max=4096, max_message_size=9000, max_partial_size=20_000, target_cache=4)

headers = st.sampled_from(
    [
        EMPTY,
        encode(Properties(delivery_mode=2)),
        encode(Properties(message_id="m-1", priority=3)),
        encode(Properties(headers={"a": [1, "two"]})),
    ]
)
channels = st.integers(1, 2)
bodies = st.integers(0, 40).map(bytes) | st.sampled_from([4087, 4088, 4089, 8176, 9000, 9001]).map(bytes)
publishes = st.builds(
    lambda channel, body, key, properties: publish(channel, body, f"k{key}", properties=properties, frame_max=4096),
    channels,
    bodies,
    st.integers(0, 6),
    headers,
)
runs = st.builds(lambda data, n: data * n, publishes, st.integers(2, 12))
acks = st.builds(lambda c, tag, many: ack(c, tag, multiple=many), channels, st.integers(0, 9), st.booleans())
ack_runs = st.builds(
    lambda c, a, n: b"".join(ack(c, t) for t in range(a, a + n)), channels, st.integers(1, 9), st.integers(1, 20)
)
others = st.sampled_from(
    [
        HEARTBEAT_FRAME,
        method(1, m.QueueDeclare(queue="q", arguments={"x": 1})),
        method(2, m.BasicNack(3, True, False)),
        method(1, m.ChannelClose()),
        method(1, m.ChannelOpen()),
        method(3, m.ChannelOpen()),
        method(0, m.ConnectionUpdateSecret(b"s")),
        method(0, m.ConnectionClose()),
        method(1, m.BasicPublish(immediate=True)),
        publish(1, b"bad", properties=b"\x80\x00\x09abc"),
        publish(1, b"bad", properties=b"\x01\x00\x01\xff"),
        publish(1, b"xyz")[:-1] + b"\x00",
        frame(BODY, 1, b"stray"),
        method(1, m.BasicPublish()) + header(1, 3),
        b"\x01\x00\x01\x00\x01\x00\x00",
    ]
)
streams = st.lists(publishes | publishes | runs | acks | ack_runs | others, max_size=8).map(b"".join)


def heard(data: bytes, cuts: list[int]) -> tuple[list[object], list[tuple[int, m.Method]]]:
    """What a connection makes of the data, cut at the places given."""
    connection = opened(2, LIMITS)
    events: list[Event] = []
    at = 0
    for cut in [*sorted(cuts), len(data)]:
        events += connection.receive(data[at:cut])
        at = max(at, cut)
    return flat(events), sent(connection)


@given(streams, st.lists(st.integers(0, 3000), max_size=12))
def test_any_cut_gives_the_same_events(data: bytes, cuts: list[int]) -> None:
    cuts = [cut for cut in cuts if cut < len(data)]
    assert heard(data, cuts) == heard(data, [])


@given(streams.filter(lambda data: len(data) < 2500))
def test_byte_by_byte_gives_the_same_events(data: bytes) -> None:
    assert heard(data, list(range(len(data)))) == heard(data, [])


def damaged(data: bytes, at: int, value: int) -> bytes:
    return data[: at % len(data)] + bytes((value,)) + data[at % len(data) + 1 :] if data else data


@given(
    st.builds(lambda a, b: a + b, runs | ack_runs, streams),
    st.booleans(),
    st.integers(0, 5000),
    st.integers(0, 255),
)
@example(b"".join(ack(1, t) for t in range(1, 50)), True, 21 * 25 + 11 + 8, 1)
def test_strides_equal_the_walk(data: bytes, damage: bool, at: int, value: int) -> None:
    data = damaged(data, at, value) if damage else data
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader_of_publishes, "enabled", False)
        walked = heard(data, [])
    assert heard(data, []) == walked


@given(streams, st.integers(0, 5000), st.integers(0, 255), st.lists(st.integers(0, 3000), max_size=5))
def test_damage_is_judged_the_same_however_cut(data: bytes, at: int, value: int, cuts: list[int]) -> None:
    data = damaged(data, at, value)
    cuts = [cut for cut in cuts if cut < len(data)]
    assert heard(data, cuts) == heard(data, [])


@given(st.lists(st.tuples(st.integers(0, 2), bodies, headers), min_size=1, max_size=10))
def test_what_is_published_comes_out(rows: list[tuple[int, bytes, bytes]]) -> None:
    rows = [(key, body[:9000], properties) for key, body, properties in rows]
    data = b"".join(publish(1, b, f"k{k}", properties=p, frame_max=4096) for k, b, p in rows)
    events, _ = heard(data, [])
    assert events == [("publish", 1, ("", f"k{k}", False), p, b) for k, b, p in rows]


@given(st.integers(0, 2**64 - 1), st.integers(0, 255))
def test_any_ack_frame_is_judged(tag: int, bits: int) -> None:
    data = frame(1, 1, struct.pack(">HHQB", 60, 80, tag, bits))
    events, _ = heard(data * 6, [])
    assert events


@given(st.binary(max_size=40))
@example(b"\x00\x00\x00\x00\x00")
@example(b"\x00\x00\x01\xff\x01\xff\x00")
@example(b"\x00\x00\x05\xff\xff\xff\xff\xff")
def test_publish_frames_are_read_as_the_common_decoder_reads_them(rest: bytes) -> None:
    payload = m.BasicPublish.ID.to_bytes(4, "big") + rest
    events, _ = heard(frame(METHOD, 1, payload) + header(1, 1) + frame(BODY, 1, b"x"), [])
    expected: m.Method | int
    try:
        expected = m.decode_method(payload)
    except ProtocolError as error:
        expected = error.reply_code
    if isinstance(expected, int):
        [failed] = events
        assert isinstance(failed, ConnectionFailed)
        assert failed.code == expected
        return
    assert isinstance(expected, m.BasicPublish)
    if expected.immediate:
        assert isinstance(events[0], ConnectionFailed)
        return
    place = (expected.exchange, expected.routing_key, expected.mandatory)
    assert events == [("publish", 1, place, EMPTY, b"x")]
