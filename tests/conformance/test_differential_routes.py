"""The same random topologies on RabbitMQ and here: where each message goes, and what its header says then.

Exchanges of all types bound to each other and to themselves, alternates, several keys (CC, BCC), short queues whose
dead letters go on through the same exchanges.  What queues have in the end is compared, headers with their types, and
which messages came back to who sent them.  `test_differential` has what clients do otherwise.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.compat import long
from pika.exceptions import UnroutableError

from choices import EFFORT, SEED
from live_server import LiveServer
from rabbitmq_server import BESIDE, RabbitMQ
from waiting import eventually

pytestmark = [pytest.mark.conformance, BESIDE]

GROUPS, TOPOLOGIES, MESSAGES = 4, 15, 25
QUEUES, EXCHANGES = ("q0", "q1", "q2", "q3"), ("x0", "x1", "x2", "x3", "x4")
VALUES = (1, 2, "1", "x", True, None, b"z", long(1), 1 << 40, Decimal("1.20"), {"a": long(3)}, [long(2), "q"])

Table = Mapping[str, Any]


class Message(NamedTuple):
    exchange: str
    key: str
    headers: Table
    body: bytes


class Topology(NamedTuple):
    """exchanges: type and arguments by name; bindings: kind of the destination, its name, source, key, arguments."""

    exchanges: Mapping[str, tuple[str, Table]]
    queues: Mapping[str, Table]
    bindings: list[tuple[str, str, str, str, Table]]
    messages: list[Message]


def drawn(chance: random.Random) -> Topology:
    """A topology, and what is published to it."""
    pick = chance.choice

    def often(odds: float) -> bool:
        return chance.random() < odds

    def words(some: tuple[str, ...]) -> str:
        return ".".join(pick(some) for _ in range(chance.randint(0, 3)))

    def key() -> str:
        return pick((words(("a", "b", "c", "")), *QUEUES))

    def table() -> dict[str, Any]:
        return {pick(("n", "t", "m", "x-h")): pick(VALUES) for _ in range(chance.randint(0, 3))}

    def exchange() -> tuple[str, Table]:
        alternate = {"alternate-exchange": pick(EXCHANGES)} if often(0.4) else {}
        return pick(("direct", "fanout", "topic", "headers")), alternate

    def queue() -> Table:
        own: dict[str, Any] = {}
        if often(0.3):
            own["x-max-length"] = chance.randint(0, 3)
        if often(0.5):
            own["x-dead-letter-exchange"] = pick(("", *EXCHANGES))
            if often(0.4):
                own["x-dead-letter-routing-key"] = pick((*QUEUES, "a.b"))
        return own

    def binding() -> tuple[str, str, str, str, Table]:
        match = {"x-match": pick(("all", "any", "all-with-x", "any-with-x"))} if often(0.5) else {}
        where = ("queue", pick(QUEUES)) if often(0.6) else ("exchange", pick(EXCHANGES))
        pattern = pick((words(("a", "b", "c", "*", "#", "")), key()))
        return *where, pick(EXCHANGES), pattern, {**table(), **match} if often(0.6) else {}

    def message(number: int) -> Message:
        headers = table() if often(0.5) else {}
        for name in ("CC", "BCC"):
            if often(0.2):
                headers[name] = [key() for _ in range(chance.randint(0, 2))]
        return Message(pick(("", *EXCHANGES)), key(), headers, b"m%d" % number)

    return Topology(
        {name: exchange() for name in EXCHANGES}, {name: queue() for name in QUEUES},
        [binding() for _ in range(chance.randint(3, 14))], [message(number) for number in range(MESSAGES)],
    )  # fmt: skip


def set_up(channel: BlockingChannel, topology: Topology) -> None:
    for name in QUEUES:
        channel.queue_delete(name)
    for name in EXCHANGES:
        channel.exchange_delete(name)
    for name, (kind, arguments) in topology.exchanges.items():
        channel.exchange_declare(name, kind, arguments=dict(arguments))
    for name, arguments in topology.queues.items():
        channel.queue_declare(name, arguments=dict(arguments))
    for kind, destination, source, key, arguments in topology.bindings:
        bind = channel.queue_bind if kind == "queue" else channel.exchange_bind
        bind(destination, source, key, arguments=dict(arguments))


def comes_back(channel: BlockingChannel, one: Message) -> bool:
    """Whether it does when it is published."""
    try:
        channel.basic_publish(
            one.exchange, one.key, one.body, pika.BasicProperties(headers=dict(one.headers)), mandatory=True
        )
    except UnroutableError:
        return True
    return False


def counts(channel: BlockingChannel) -> list[int]:
    return [channel.queue_declare(name, passive=True).method.message_count for name in QUEUES]


def drained(channel: BlockingChannel, queue: str) -> Iterator[object]:
    while True:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return
        headers = dict(properties.headers or {})
        headers = {name: value for name, value in headers.items() if not name.startswith("x-last-death-")}
        for death in headers.get("x-death", ()):
            death.pop("time", None)
        yield body, method.exchange, method.routing_key, typed(headers)


def typed(value: Any) -> object:
    """A value with its types, in one order: a number of 64 bits is none of 32."""
    if isinstance(value, dict):
        return sorted((name, typed(one)) for name, one in value.items())
    return [typed(one) for one in value] if isinstance(value, list) else repr(value)


@contextlib.contextmanager
def confirming(connect: Callable[[], pika.BlockingConnection]) -> Iterator[BlockingChannel]:
    with connect() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


@pytest.mark.parametrize("number", range(GROUPS * EFFORT))
def test_messages_go_where_rabbitmq_sends_them(server: LiveServer, rabbitmq: RabbitMQ, number: int) -> None:
    with confirming(rabbitmq.connect) as theirs, confirming(server.connect) as ours:
        for place in range(TOPOLOGIES):
            seed = (SEED * 1000 + number) * 100 + place
            topology = drawn(random.Random(seed))
            said = f"seed {seed}: {topology}"
            for side in (ours, theirs):
                set_up(side, topology)
            for one in topology.messages:
                assert comes_back(ours, one) == comes_back(theirs, one), f"{one} of {said}"
                # Letters, and theirs, are on their way behind the confirm; the next message may overtake them.
                eventually(lambda: counts(ours) == counts(theirs), said)
            for queue in QUEUES:  # those of several queues come in any order
                assert sorted(drained(ours, queue), key=repr) == sorted(drained(theirs, queue), key=repr), said
