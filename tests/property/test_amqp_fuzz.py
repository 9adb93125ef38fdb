"""Random and mutated frames: nothing may raise, nothing may be kept beyond the limits.

`PENSTOCK_FUZZ_FRAMES` sets how many frames a run sends (25,000 unless set, in a hunt 100,000), `PENSTOCK_SEED`
where chance begins.
"""

from __future__ import annotations

import os
import random
import tracemalloc

from choices import EFFORT
from penstock.records.properties import Properties, encode
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.events import (
    ChannelClosed,
    ConnectionClosed,
    Event,
    LoginAsked,
    OpenAsked,
)
from penstock.wire.amqp.frames import BODY, HEARTBEAT_FRAME, METHOD, PROTOCOL_HEADER, Limits, frame
from penstock.wire.amqp.machine import ServerConnection
from unit.amqp.peer import LOGIN, ack, header, method, opened, publish, tune_ok

LIMITS = Limits(frame_max=4096, max_message_size=10_000, max_partial_size=30_000, target_cache=64)
FRAMES = int(os.environ.get("PENSTOCK_FUZZ_FRAMES", "25000" if EFFORT == 1 else "100000"))
SEED = int(os.environ.get("PENSTOCK_SEED", "1"))

BOMB = {"a": [{"b": [b"x" * 50, None, True]}] * 5, "n": 2**40}
SAMPLES = [
    publish(1, b"hello", properties=encode(Properties(delivery_mode=2, headers=BOMB))),
    publish(2, b"", "other", exchange="e", properties=encode(Properties(message_id="m", expiration="10"))),
    publish(1, bytes(5000), frame_max=4096),
    method(1, m.BasicPublish(routing_key="k")),
    header(1, 4000),
    frame(BODY, 1, bytes(100)),
    ack(1, 1) + ack(1, 2) + ack(1, 3),
    ack(2, 9, multiple=True),
    HEARTBEAT_FRAME,
    PROTOCOL_HEADER,
    LOGIN,
    tune_ok(LIMITS),
    *(method(channel, made()) for made in m.METHODS.values() for channel in (0, 1)),
    method(1, m.QueueDeclare(queue="q", arguments={"x-max-length": 5, **BOMB})),
    method(3, m.ChannelOpen()),
    method(1, m.ChannelClose()),
    method(1, m.ChannelCloseOk()),
]


def mutated(chance: random.Random) -> bytes:
    """A frame as it should be, or one with damage of some kind."""
    data = bytearray(chance.choice(SAMPLES))
    kind = chance.random()
    if kind < 0.4:
        return bytes(data)
    if kind < 0.75:  # a few bytes changed, the sizes kept
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.choice((0, 1, 0xCE, 0xFF, chance.randrange(256)))
    elif kind < 0.85:  # a payload of nonsense in a sound frame
        payload = chance.randbytes(chance.randint(0, 60))
        if chance.random() < 0.7:
            payload = chance.choice(list(m.METHODS)).to_bytes(4, "big") + payload
        return frame(chance.choice((1, 1, 1, 2, 3, 8, 9)), chance.choice((0, 1, 2, 65535)), payload)
    elif kind < 0.9:
        del data[chance.randrange(len(data)) :]
    elif kind < 0.95:
        return chance.randbytes(chance.randint(1, 40))
    else:
        at = chance.randrange(len(data))
        data[at:at] = chance.randbytes(chance.randint(1, 8))
    return bytes(data)


def answer(connection: ServerConnection, events: list[Event], chance: random.Random) -> None:
    """A shell that answers most things, sometimes wrongly."""
    for event in events:
        if isinstance(event, LoginAsked):
            connection.accept_login() if chance.random() < 0.9 else connection.refuse_login()
        elif isinstance(event, OpenAsked):
            connection.accept_open()
        elif isinstance(event, ChannelClosed):
            connection.send(event.channel, m.ChannelCloseOk())
        elif isinstance(event, ConnectionClosed):
            connection.send(0, m.ConnectionCloseOk())
        elif chance.random() < 0.01:
            connection.fail_channel(1, 404, "no queue", m.QueueDeclare)


def held(connection: ServerConnection) -> int:
    """Bytes and entries that a connection keeps between two reads."""
    assert connection.partial_size <= LIMITS.max_partial_size
    assert len(connection._kept) <= max(LIMITS.frame_max, LIMITS.handshake_bytes)
    assert len(connection._contents) <= len(connection._channels) <= LIMITS.channel_max
    return len(connection._kept) + connection.partial_size


def test_no_bytes_raise_and_nothing_grows() -> None:
    chance = random.Random(SEED)
    sent = 0
    connection = ServerConnection(LIMITS)
    while sent < FRAMES:
        connection = opened(2, LIMITS) if chance.random() < 0.9 else ServerConnection(LIMITS)
        while sent < FRAMES:
            count = chance.choice((1, 1, 2, 5, 20))
            data = b"".join(mutated(chance) for _ in range(count))
            sent += count
            cut = chance.randrange(len(data) + 1)
            for part in (data[:cut], data[cut:]):
                answer(connection, connection.receive(part), chance)
                while connection.unread:
                    answer(connection, connection.receive(b""), chance)
                held(connection)
            connection.take_output()
            if connection.finished:
                break
            if connection.phase.value == "closing" and chance.random() < 0.3:
                break


def test_one_connection_stays_small_under_endless_traffic() -> None:
    """Sound frames of ever new shapes: caches must turn over, not grow."""
    connection = opened(2, LIMITS)
    tracemalloc.start()
    try:
        peak_early = 0
        for step in range(3000):
            data = publish(1, bytes(step % 900), f"key.{step}", properties=encode(Properties(message_id=str(step))))
            connection.receive(data + ack(1, step + 1) + data[: step % 50])
            connection.receive(data[step % 50 :] + HEARTBEAT_FRAME)
            connection.take_output()
            held(connection)
            if step == 1000:
                peak_early = tracemalloc.get_traced_memory()[0]
        assert tracemalloc.get_traced_memory()[0] < peak_early + 1_500_000
    finally:
        tracemalloc.stop()


def test_a_stranger_gets_little_memory_before_login() -> None:
    connection = ServerConnection()
    tracemalloc.start()
    try:
        connection.receive(PROTOCOL_HEADER)
        connection.receive(b"\x01\x00\x00" + (8184).to_bytes(4, "big"))
        for _ in range(100_000):
            connection.receive(b"x")
        assert tracemalloc.get_traced_memory()[1] < 300_000
    finally:
        tracemalloc.stop()
    assert connection.finished


def test_tables_of_nothing_cost_no_more_than_their_frame_allows() -> None:
    connection = opened(1, Limits())
    fields = b"".join(bytes((3,)) + b"%03d" % (i % 1000) + b"V" for i in range(20_000))
    payload = m.QueueDeclare(queue="q").encode()[:-4] + len(fields).to_bytes(4, "big") + fields
    tracemalloc.start()
    try:
        connection.receive(frame(METHOD, 1, payload))
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()
