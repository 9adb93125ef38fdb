"""What a weak user does over AMQP: words of connections that are logged in, for `attacks`."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from pika import frame, spec

from hostile.attacks import Attack, Mob, Piece, Target, Words, broken
from hostile.strangers import AMQP, HEARTBEAT
from rawlink import raw_frame

QUEUES = 40
"""Names that it makes queues of, over and over."""

CHANNELS = 2047


def marshalled(method: Any, channel: int = 1) -> bytes:
    return bytes(frame.Method(channel, method).marshal())


def login(user: str, password: str, *, channels: int = CHANNELS, frame_max: int = 131_072, heart: int = 0) -> bytes:
    """The whole handshake in one piece, and channel 1."""
    said = [
        AMQP,
        marshalled(
            spec.Connection.StartOk(
                client_properties={}, mechanism="PLAIN", response=f"\0{user}\0{password}", locale="en_US"
            ),
            0,
        ),
        marshalled(spec.Connection.TuneOk(channels, frame_max, heart), 0),
        marshalled(spec.Connection.Open("/"), 0),
        marshalled(spec.Channel.Open(), 1),
    ]
    return b"".join(said)


def published(key: str, body: bytes, *, exchange: str = "", channel: int = 1, mandatory: bool = False) -> bytes:
    """The frames of a message."""
    method = marshalled(spec.Basic.Publish(exchange=exchange, routing_key=key, mandatory=mandatory), channel)
    head = raw_frame(2, channel, struct.pack(">HHQHB", 60, 0, len(body), 0x1000, 2))
    return (
        method + head + b"".join(raw_frame(3, channel, body[at : at + 131_064]) for at in range(0, len(body), 131_064))
    )


def queue(chance: Random) -> str:
    return f"weak-{chance.randrange(QUEUES)}"


def opened(words: Callable[[Random], Iterator[Piece]], **tuned: int) -> Words:
    """The same behind a login."""

    def whole(at: Target, chance: Random) -> Iterator[Piece]:
        yield login(at.user, at.password, **tuned)
        yield from words(chance)

    return whole


def _declared(chance: Random, name: str) -> bytes:
    arguments: Any = chance.choice((
        {}, {"x-max-length": 5}, {"x-message-ttl": 1}, {"x-max-priority": 200}, {"x-queue-type": "stream"},
        {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name}, {"x-single-active-consumer": True},
        {"x-expires": 100}, {"x-overflow": "reject-publish", "x-max-length-bytes": 10}, {"x-no-such": [1, {"a": b"b"}]},
    ))  # fmt: skip
    return marshalled(
        spec.Queue.Declare(
            queue=name, durable=chance.random() < 0.7, exclusive=chance.random() < 0.1,
            auto_delete=chance.random() < 0.2, arguments=arguments,
        )
    )  # fmt: skip


def call(chance: Random) -> bytes:
    """One method of those that clients use, with what comes to mind."""
    name, tag = queue(chance), chance.choice((0, 1, 2, 3, 1000, (1 << 63) - 1))
    exchange = f"weak-x{chance.randrange(5)}"
    made: Sequence[Callable[[], bytes]] = (
        lambda: _declared(chance, name),
        lambda: _declared(chance, chance.choice(("", "amq.weak", "é" * 120, "a\0b", "work"))),
        lambda: marshalled(spec.Queue.Bind(queue=name, exchange=exchange, routing_key=chance.choice(("#", "a.*", "")))),
        lambda: marshalled(spec.Queue.Delete(queue=name, if_empty=chance.random() < 0.2)),
        lambda: marshalled(spec.Queue.Purge(queue=name)),
        lambda: marshalled(
            spec.Exchange.Declare(exchange=exchange, type=chance.choice(("direct", "topic", "headers", "no")))
        ),
        lambda: marshalled(spec.Exchange.Delete(exchange=exchange)),
        lambda: marshalled(spec.Basic.Qos(prefetch_count=chance.choice((0, 1, 65_535)), global_qos=tag == 1)),
        lambda: marshalled(spec.Basic.Consume(queue=name, no_ack=chance.random() < 0.3)),
        lambda: marshalled(spec.Basic.Get(queue=name)),
        lambda: marshalled(spec.Basic.Ack(tag, multiple=chance.random() < 0.5)),
        lambda: marshalled(spec.Basic.Nack(tag, multiple=chance.random() < 0.5, requeue=chance.random() < 0.5)),
        lambda: marshalled(spec.Basic.Recover(requeue=True)),
        lambda: marshalled(chance.choice((spec.Tx.Select, spec.Tx.Commit, spec.Tx.Rollback, spec.Confirm.Select))()),
        lambda: marshalled(spec.Channel.Flow(active=chance.random() < 0.5)),
        lambda: published(name, bytes(chance.choice((0, 1, 100, 5000)))),
        lambda: published("a.b", b"x", exchange=exchange, mandatory=True),
    )  # fmt: skip
    return chance.choice(made)()


def calls(chance: Random) -> Iterator[Piece]:
    """Methods in any order; a fault costs the channel, which is opened again."""
    for _ in range(500):
        yield call(chance)
        if chance.random() < 0.3:
            yield marshalled(spec.Channel.CloseOk()) + marshalled(spec.Channel.Open())


def broken_calls(chance: Random) -> Iterator[Piece]:
    for _ in range(20):
        yield call(chance)
    yield broken(chance, b"".join(call(chance) for _ in range(3)))
    yield 0.02


def _table(chance: Random) -> bytes:
    """A table as its bytes: deep, wide, or one that lies."""

    def key(kind: bytes, value: bytes) -> bytes:
        return b"\x01k" + kind + value

    match chance.randrange(5):
        case 0:
            table = b""
            for _ in range(chance.choice((10, 100, 1000, 9000))):
                table = key(b"F", struct.pack(">I", len(table)) + table)
            return struct.pack(">I", len(table)) + table
        case 1:
            array = b""
            for _ in range(chance.choice((10, 1000, 20_000))):
                array = b"A" + struct.pack(">I", len(array)) + array
            table = key(b"A", struct.pack(">I", len(array)) + array)
            return struct.pack(">I", len(table)) + table
        case 2:
            table = b"".join(b"\x05%05d" % n + b"t\x01" for n in range(12_000))
            return struct.pack(">I", len(table)) + table
        case 3:
            return struct.pack(">I", chance.choice((1, 1 << 31, (1 << 32) - 1))) + key(b"S", b"\xff\xff\xff\xff")
        case _:
            table = key(chance.choice((b"Z", b"D", b"T", b"x", b"V")), chance.randbytes(9))
            return struct.pack(">I", len(table)) + table


def tables(chance: Random) -> Iterator[Piece]:
    """Arguments and headers that are hard to read."""
    for _ in range(10):
        table = _table(chance)
        if chance.random() < 0.5:
            named = struct.pack(">HHH", 50, 10, 0) + b"\x06weak-0" + b"\x02"
            yield raw_frame(1, 1, named + table)
        else:
            size = chance.choice((0, 5, 1 << 62))
            method = marshalled(spec.Basic.Publish(exchange="", routing_key=queue(chance)))
            yield method + raw_frame(2, 1, struct.pack(">HHQH", 60, 0, size, 0x2000) + table)
            yield raw_frame(3, 1, b"12345")
        yield marshalled(spec.Channel.CloseOk()) + marshalled(spec.Channel.Open())


def half_bodies(chance: Random) -> Iterator[Piece]:
    """As many channels as there may be, each in the middle of a large message."""
    size = chance.choice((1 << 20, 15 << 20, 1 << 40))
    for channel in range(2, CHANNELS):
        head = raw_frame(2, channel, struct.pack(">HHQH", 60, 0, size, 0))
        publish = marshalled(spec.Basic.Publish(exchange="", routing_key="weak-0"), channel)
        yield marshalled(spec.Channel.Open(), channel) + publish + head + raw_frame(3, channel, bytes(60_000))
    yield 1.0


def channels(chance: Random) -> Iterator[Piece]:
    """Opened and closed, thousands of times."""
    numbers = range(2, CHANNELS)
    for _ in range(3):
        yield b"".join(marshalled(spec.Channel.Open(), number) for number in numbers)
        if chance.random() < 0.5:
            yield b"".join(
                marshalled(spec.Basic.Consume(queue="weak-0", consumer_tag=""), one) for one in numbers[:500]
            )
        yield b"".join(marshalled(spec.Channel.Close(200, "", 0, 0), number) for number in numbers)


def unread(chance: Random) -> Iterator[Piece]:
    """Much is to come, and nothing of it is read."""
    name = queue(chance)
    yield marshalled(spec.Queue.Declare(queue=name, durable=True))
    yield published(name, bytes(4000)) * 300
    ask = chance.choice((
        marshalled(spec.Basic.Consume(queue=name, no_ack=True)),
        marshalled(spec.Basic.Consume(queue=name)),
        marshalled(spec.Basic.Get(queue=name)) * 2000,
        published("weak-nobody", bytes(3000), mandatory=True) * 500,
        marshalled(spec.Queue.Declare(queue=name, passive=True)) * 5000,
    ))  # fmt: skip
    for _ in range(50):
        yield ask
    yield 1.0


def transactions(chance: Random) -> Iterator[Piece]:
    """Much is gathered, and seldom committed."""
    yield marshalled(spec.Tx.Select()) + _declared(chance, queue(chance))
    for _ in range(20):
        yield published(queue(chance), bytes(2000)) * 50
        if chance.random() < 0.2:
            yield marshalled(chance.choice((spec.Tx.Commit, spec.Tx.Rollback))())


def round_and_round(chance: Random) -> Iterator[Piece]:
    """What is delivered is given back at once."""
    name = queue(chance)
    yield marshalled(spec.Queue.Declare(queue=name, durable=True)) + published(name, b"again") * 20
    yield marshalled(spec.Basic.Consume(queue=name))
    for tag in range(1, 3000):
        verb = chance.choice((spec.Basic.Nack(tag, requeue=True), spec.Basic.Reject(tag, requeue=True)))
        yield marshalled(verb)
        if tag % 20 == 0:
            yield 0.01


def replays(chance: Random) -> Iterator[Piece]:
    """The log from its beginning, with patterns that take long, again and again."""
    name = queue(chance)
    yield marshalled(spec.Queue.Declare(queue=name, durable=True))
    for number in range(50):
        arguments: Any = {"x-bookmark": chance.choice(("EPOCH", "NOW", "0|1|", "x"))}
        if chance.random() < 0.6:
            arguments["x-filter"] = chance.choice((
                "/a LIKE '(a+)+$'", "/a > 1 AND " * 200 + "/b = 1", "(" * 400 + "/a > 1" + ")" * 400,
                "/a LIKE '" + "(x+x+)+" * 50 + "y'", "/a IN (" + ",".join(map(str, range(5000))) + ")",
            ))  # fmt: skip
        yield marshalled(spec.Basic.Consume(queue=name, consumer_tag=f"c{number}", arguments=arguments))
        yield marshalled(spec.Channel.CloseOk()) + marshalled(spec.Channel.Open())


def hearts(chance: Random) -> Iterator[Piece]:
    """Heartbeats without an end, or none where they are due."""
    if chance.random() < 0.5:
        yield 2.5
        return
    for _ in range(200):
        yield HEARTBEAT * 8000


def logins(at: Target, chance: Random) -> Iterator[Piece]:
    """Passwords, tried."""
    user = chance.choice((at.user, "guest", "nobody", "x" * 200, "é\0x"))
    yield login(user, chance.choice(("", "wrong", at.password, "x" * 250)))
    yield 0.05


ROWS = (
    Attack("logins", "amqp", Mob(logins, 20)),
    Attack("calls", "amqp", Mob(opened(calls), 4), login=True),
    Attack("broken calls", "amqp", Mob(opened(broken_calls), 6), login=True),
    Attack("tables", "amqp", Mob(opened(tables), 4), login=True),
    Attack("half bodies", "amqp", Mob(opened(half_bodies), 4), login=True),
    Attack("channels", "amqp", Mob(opened(channels), 4), login=True),
    Attack("small frames", "amqp", Mob(opened(calls, frame_max=4096, channels=1), 4), login=True),
    Attack("unread", "amqp", Mob(opened(unread), 20, deaf=True), login=True),
    Attack("transactions", "amqp", Mob(opened(transactions), 6), login=True),
    Attack("round and round", "amqp", Mob(opened(round_and_round), 4), login=True),
    Attack("replays", "amqp", Mob(opened(replays), 4), login=True),
    Attack("hearts", "amqp", Mob(opened(hearts, heart=1), 20), login=True),
)
