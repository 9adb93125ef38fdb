"""What a message costs in the AMQP wire machine alone: bytes to events, and deliveries to bytes.  No socket, no broker.

    python benchmarks/bench_wire.py [--quick]

`walk` is every message read in Python; `strides` lets runs of like messages be taken at once, as the server does.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable

from harness import emit, parse, parser

from penstock.records.entries import Topic
from penstock.records.properties import EMPTY, Properties, encode, peek
from penstock.wire.amqp import methods as m
from penstock.wire.amqp import publishes
from penstock.wire.amqp.deliver import DeliveryEncoder
from penstock.wire.amqp.events import AckRun, PublishRun
from penstock.wire.amqp.frames import BODY, HEADER, METHOD, PROTOCOL_HEADER, frame
from penstock.wire.amqp.machine import ServerConnection

PERSISTENT = encode(Properties(delivery_mode=2))
READ = 131_072
"""Bytes handed to the machine at once, as a busy socket would."""


def method(channel: int, value: m.Method) -> bytes:
    """A method frame."""
    return frame(METHOD, channel, value.encode())


def publish(body: bytes, key: str = "key", properties: bytes = PERSISTENT) -> bytes:
    """A message of one body frame on channel 1."""
    head = frame(HEADER, 1, struct.pack(">HHQ", 60, 0, len(body)) + properties)
    start = method(1, m.BasicPublish(exchange="amq.topic", routing_key=key))
    return start + head + (frame(BODY, 1, body) if body else b"")


def opened() -> ServerConnection:
    """A connection with channel 1 open."""
    connection = ServerConnection()
    limits = connection.limits
    connection.receive(PROTOCOL_HEADER + method(0, m.ConnectionStartOk(response=b"\0a\0b")))
    connection.accept_login()
    tune = m.ConnectionTuneOk(limits.channel_max, limits.frame_max, 0)
    connection.receive(method(0, tune) + method(0, m.ConnectionOpen()))
    connection.accept_open()
    connection.receive(method(1, m.ChannelOpen()))
    return connection


def receive(data: bytes) -> int:
    """Feed a connection in reads; how many messages or acks came out."""
    connection = opened()
    seen = 0
    for at in range(0, len(data), READ):
        for event in connection.receive(data[at : at + READ]):
            if isinstance(event, PublishRun):
                seen += len(event.bodies)
            elif isinstance(event, AckRun):
                seen += sum(high - low + 1 for low, high in event.spans)
    return seen


def costs(run: Callable[[], object], count: int, rounds: int) -> list[float]:
    """Microseconds a message of each round."""
    found: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        found.append((time.perf_counter() - start) / count * 1e6)
    return found


def main() -> None:
    """Run every case."""
    given = parse(parser(__doc__ or "", messages=20_000, repeat=7, quick=500))
    count, rounds = max(given.messages, 100), given.repeat
    chance = random.Random(1)
    alike = [bytes(100)] * count
    varied = [bytes(chance.randint(50, 150)) for _ in range(count)]
    ids = [encode(Properties(delivery_mode=2, message_id=f"{i:032x}")) for i in range(count)]
    order = list(range(1, count + 1))
    backwards = order[::-1]

    def show(case: str, run: Callable[[], object], number: int, budget: float | None) -> None:
        settings = {"messages": number, "read": READ, "strides": publishes.enabled}
        emit(f"wire: {case}", costs(run, number, rounds), "us/message", budget=budget, settings=settings)

    inputs: list[tuple[str, bytes, float | None]] = [
        ("publish 100 B", b"".join(publish(b) for b in alike), 0.45),
        ("publish 50-150 B", b"".join(publish(b) for b in varied), 0.45),
        ("publish 50-150 B, 50 topics", b"".join(publish(b, f"key.{i % 50}") for i, b in enumerate(varied)), None),
        ("publish, a message id each", b"".join(map(publish, varied, ["k"] * count, ids)), None),
        ("publish, a new topic each", b"".join(publish(b, f"key.{i}") for i, b in enumerate(varied)), None),
        ("publish 10 kB", b"".join(publish(bytes(10_000)) for _ in range(max(count // 20, 10))), None),
        ("ack each, in order", b"".join(method(1, m.BasicAck(tag)) for tag in order), 0.25),
        ("ack each, backwards", b"".join(method(1, m.BasicAck(tag)) for tag in backwards), 0.25),
    ]
    for strides in (False, True):
        publishes.enabled = strides
        for case, data, budget in inputs:
            name = f"{case} ({'strides' if strides else 'walk'})"
            show(name, lambda data=data: receive(data), receive(data), budget)  # type: ignore[misc]

    topic = Topic("/", "amq.topic", "key")
    some = [Topic("/", "amq.topic", f"key.{i}") for i in range(50)]
    topics = [some[i % 50] for i in range(count)]
    encoder = DeliveryEncoder(1, "ctag1.0123456789abcdef", 131_072)
    step = 250
    outputs: list[tuple[str, Topic | list[Topic], bytes | list[bytes], list[bytes], float | None]] = [
        ("deliver 100 B", topic, PERSISTENT, alike, 0.2),
        ("deliver 50-150 B", topic, PERSISTENT, varied, 0.2),
        ("deliver 50-150 B, 50 topics", topics, PERSISTENT, varied, None),
        ("deliver, a message id each", topic, ids, varied, None),
    ]
    for case, places, properties, bodies, budget in outputs:

        def deliver(
            places: Topic | list[Topic] = places,
            properties: bytes | list[bytes] = properties,
            bodies: list[bytes] = bodies,
        ) -> None:
            for at in range(0, count, step):
                end = at + step
                encoder.encode(
                    at + 1,
                    False,
                    places[at:end] if isinstance(places, list) else places,
                    properties[at:end] if isinstance(properties, list) else properties,
                    bodies[at:end],
                )

        show(case, deliver, count, budget)

    header = encode(Properties(content_type="application/json", delivery_mode=2))
    show("peek of two properties", lambda: [peek(header) for _ in range(count)], count, 0.5)
    show("peek of none", lambda: [peek(EMPTY) for _ in range(count)], count, 0.5)


if __name__ == "__main__":
    main()
