"""Nothing is left of a queue that is gone, however long its clients stay: many declare one for each thing they ask.

What they have on their channels is counted by objects of our classes, and by what these hold in dicts, lists and sets.
"""

from __future__ import annotations

import gc
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pytest

from garbage import collector_as_before
from penstock.log.simdisk import SimDisk
from penstock.records.properties import Properties, encode
from penstock.wire.amqp import methods as m
from sim.serverkit import Client, Life, clock

OURS = ("penstock.server", "penstock.core", "penstock.wire.amqp.deliver")
HOLDERS = (dict, list, set, deque)
BOUNDED = (
    "Happened", "Feed._ring", "Sizes", "Core._topics", "Hosted.targets", "Contents.heads", "Interning._vias",
    "Interning._named", "HeaderRules._rules",
)  # fmt: skip
"""Of which there are so many at the most, or as many as the log has messages or exchanges that had some."""


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> Iterator[None]:
    """What other tests have left is not looked through again for each of these."""
    with collector_as_before():
        gc.collect()
        gc.freeze()
        yield


@cache
def counted(kind: type[object]) -> Sequence[str] | None:
    """The slots of a class that is counted."""
    if not str(kind.__module__).startswith(OURS) or kind.__name__ in BOUNDED:
        return None
    slots = (slot for base in kind.__mro__ for slot in getattr(base, "__slots__", ()))
    return [slot for slot in slots if not slot.startswith("__") and f"{kind.__name__}.{slot}" not in BOUNDED]


def held() -> Counter[str]:
    """How many objects there are of each of our classes, and how much is in what they hold."""
    gc.collect()
    out, seen = Counter[str](), set[int]()
    for one in gc.get_objects():
        kind = type(one)
        if (slots := counted(kind)) is None:
            continue
        out[kind.__name__] += 1
        for slot in (
            *slots,
            *(name for name in getattr(one, "__dict__", ()) if f"{kind.__name__}.{name}" not in BOUNDED),
        ):
            value = getattr(one, slot, None)
            if type(value) in HOLDERS and id(value) not in seen:
                seen.add(id(value))
                out[f"{kind.__name__}.{slot}"] += len(value)
    return out


# -- what is done with a queue before it is deleted


def declare(client: Client, queue: str, **arguments: Any) -> None:
    client.method(m.QueueDeclare(queue=queue, durable=True, arguments=arguments))


def publish(client: Client, queue: str) -> None:
    client.publish(queue, b"1", b"2")


def get(client: Client, queue: str) -> None:
    client.publish(queue, b"1", b"2")
    client.life.run()
    for _ in range(3):
        client.method(m.BasicGet(queue=queue))
    client.life.run()
    client.method(m.BasicAck(0, multiple=True))


def get_without_ack(client: Client, queue: str) -> None:
    client.publish(queue, b"1", b"2")
    client.life.run()
    client.method(m.BasicGet(queue=queue, no_ack=True))


def consume(client: Client, queue: str) -> None:
    client.publish(queue, *(b'{"id":%d}' % number for number in range(4)))
    client.consume(queue, queue, **{"x-filter": "/id > 0", "x-info": True, "x-priority": 3})
    client.life.run()
    client.method(m.BasicAck(0, multiple=True))


def consume_and_cancel(client: Client, queue: str) -> None:
    consume(client, queue)
    client.publish(queue, b'{"id":9}')
    client.life.run()
    client.method(m.BasicCancel(queue))


def replace(client: Client, queue: str) -> None:
    client.consume(queue, queue, **{"x-info": True})
    client.consume(queue, queue, **{"x-replace": True, "x-filter": "/id = 1"})
    client.publish(queue, b'{"id":1}')


def share(client: Client, queue: str) -> None:
    client.method(m.ChannelOpen(), 2)
    client.method(m.BasicQos(prefetch_count=2, global_qos=True), 2)
    for tag in ("a", "b"):
        client.consume(queue, tag, 2)
    client.publish(queue, b"1", b"2", b"3")
    client.life.run()
    client.method(m.ChannelClose(200, "", 0, 0), 2)


def transact(client: Client, queue: str) -> None:
    client.method(m.ChannelOpen(), 2)
    client.method(m.TxSelect(), 2)
    client.publish(queue, b"1", channel=2)
    client.method(m.TxCommit(), 2)
    client.publish(queue, b"2", channel=2)
    client.method(m.ChannelClose(200, "", 0, 0), 2)


def bind(client: Client, queue: str) -> None:
    client.method(m.ExchangeDeclare(exchange=queue, type="topic", durable=True))
    client.method(m.QueueBind(queue=queue, exchange=queue, routing_key="a.*"))
    client.method(m.QueueBind(queue=queue, exchange="amq.headers", arguments={"x": 1}))
    client.publish("a.b", b"1", exchange=queue)
    client.publish("", b"2", exchange="amq.headers", properties=encode(Properties(headers={"x": 1}, delivery_mode=2)))
    client.life.run()
    client.method(m.ExchangeDelete(exchange=queue))


def let_wait(client: Client, queue: str) -> None:
    delayed = encode(Properties(headers={"x-delay": 3_600_000}, delivery_mode=2))
    dying = encode(Properties(expiration="3600000", delivery_mode=2))
    for properties in (delayed, dying):
        client.publish(queue, b"1", properties=properties)


def take_in_turns(client: Client, queue: str) -> None:
    client.publish(queue, *(b'{"id":%d,"g":"%d"}' % (number, number % 3) for number in range(9)))
    client.life.run()
    for _ in range(2):
        client.method(m.BasicGet(queue=queue))


USES: Mapping[str, tuple[Callable[[Client, str], None], dict[str, Any]]] = {
    "publish": (publish, {}), "get": (get, {}), "get without ack": (get_without_ack, {}), "consume": (consume, {}),
    "cancel": (consume_and_cancel, {}), "replace": (replace, {}), "share": (share, {}), "transact": (transact, {}),
    "bind": (bind, {}), "wait": (let_wait, {}), "ranks": (take_in_turns, {"x-priority-expression": "/id"}),
    "groups": (take_in_turns, {"x-group-key": "/g"}), "tenants": (take_in_turns, {"x-fairness-key": "/g"}),
    "last values": (take_in_turns, {"x-last-value-key": "/g"}),
    "unique": (take_in_turns, {"x-dedup-key": "/id", "x-unique": True}),
    "barriers": (take_in_turns, {"x-barrier-expression": "/id = 4"}), "levels": (take_in_turns, {"x-max-priority": 5}),
    "ring": (take_in_turns, {"x-max-length": 4}), "leases": (take_in_turns, {"x-lease-period": 60_000}),
    "quorum": (take_in_turns, {"x-queue-type": "quorum"}),
    "stream": (publish, {"x-queue-type": "stream"}),
}  # fmt: skip


@pytest.mark.parametrize("apart", [False, True], ids=["here", "at a door"])
def test_nothing_is_left_of_a_queue_that_has_gone(apart: bool) -> None:
    life = Life(SimDisk(), clock(), apart=apart)
    life.declare("stays")
    client = life.client()
    numbers = iter(range(1000))

    def visit(use: str) -> None:
        work, arguments = USES[use]
        queue = f"q{next(numbers)}"
        declare(client, queue, **arguments)
        work(client, queue)
        life.run()
        client.method(m.QueueDelete(queue=queue))
        client.method(m.BasicAck(0, multiple=True))  # late, not wrong
        client.publish("stays", b"x")  # what is routed after that is so under another topology
        client.method(m.BasicGet(queue="stays", no_ack=True))
        life.run()
        life.engine.bodies.sweep()  # as it happens once in a while
        kinds = client.names()
        assert "QueueDeleteOk" in kinds
        assert not {"ChannelClose", "ConnectionClose"}.intersection(kinds), kinds

    left = dict[str, Mapping[str, int]]()
    for use in USES:
        visit(use)  # caches that are there once
        visit(use)
        before = held()
        visit(use)
        visit(use)
        if more := held() - before:
            left[use] = more
    assert left == {}
