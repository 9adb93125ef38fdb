"""Bodies that no queue needs any more leave memory, however they came to be unneeded, and not when memory is short."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.log.simdisk import SimDisk
from penstock.records.properties import Properties, encode
from penstock.wire.amqp import methods as m
from sim.serverkit import Client, Life, clock, message

BODY = 1000
MESSAGES = 1000
SLACK = 16 << 10


def life_of(**arguments: Any) -> Life:
    life = Life(SimDisk(), clock(), budget=64 << 20)
    life.declare("q", **arguments)
    return life


def published(life: Life, *, key: str = "q", read: int = 50, count: int = MESSAGES, **how: Any) -> Client:
    """So many messages, `read` of them in each read of the socket."""
    client = life.client()
    for start in range(0, count, read):
        client.send(b"".join(message(b"%d:" % i + b"x" * BODY, key, **how) for i in range(start, start + read)))
        life.run()
    return client


def assert_few(life: Life, living: int) -> None:
    """What memory has is about what so many messages need."""
    life.run()
    assert life.engine.bodies.used <= 3 * living * (BODY + 600) + SLACK
    assert life.engine.bodies.used == life.engine.bodies.budget.used - life.log.pending.bytes - life.log.decoded.bytes


LIMITED = {
    "drop-head": {"x-max-length": 10},
    "bytes": {"x-max-length-bytes": 10 * (BODY + 10)},
    "ring": {"x-ring-size": 10},
    "priorities": {"x-max-length": 10, "x-max-priority": 3},
}


@pytest.mark.parametrize("read", [1, 7, 250])
@pytest.mark.parametrize("how", ["drop-head", "bytes", "ring", "priorities"])
def test_a_limited_queue_has_bodies_of_what_it_holds(how: str, read: int) -> None:
    life = life_of(**LIMITED[how])
    published(life, read=read, count=min(MESSAGES, 100 * read))
    assert life.ready("q") <= 10
    assert_few(life, 10)
    reads = life.log.decoded.bytes
    client = life.client()
    client.consume("q")
    life.run()
    client.take(m.BasicConsumeOk)
    assert len(client.bodies()) == life.core.queue("/", "q").leased > 0
    assert life.log.decoded.bytes == reads  # nothing was read back
    assert life.engine.bodies.used == 0


def test_two_limited_queues_of_one_exchange_need_what_either_holds() -> None:
    life = life_of(**{"x-max-length": 10})
    life.declare("other", **{"x-max-length": 30})
    client = life.client()
    for name in ("q", "other"):
        client.method(m.QueueBind(queue=name, exchange="amq.fanout", routing_key=""))
    published(life, exchange="amq.fanout", key="", read=200)
    assert (life.ready("q"), life.ready("other")) == (10, 30)
    assert_few(life, 30)


def test_dead_letters_of_a_limited_queue_are_all_that_is_kept() -> None:
    life = life_of(**{"x-max-length": 10, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    life.declare("dead", **{"x-max-length": 20})
    published(life, read=100)
    assert (life.ready("q"), life.ready("dead")) == (10, 20)
    assert_few(life, 30)


def test_purged_messages_leave_memory() -> None:
    life = life_of()
    life.declare("other")
    client = published(life, read=100, count=500)
    client.send(b"".join(message(b"x" * BODY, "q" if i % 20 else "other") for i in range(1000)))
    life.run()
    client.method(m.QueuePurge(queue="q"))
    life.run()
    assert (life.ready("q"), life.ready("other")) == (0, 50)
    assert_few(life, 50)


def test_expired_messages_leave_memory() -> None:
    life = life_of()
    lasting, brief = encode(Properties(delivery_mode=2)), encode(Properties(delivery_mode=2, expiration="1000"))
    client = life.client()
    client.send(b"".join(message(b"x" * BODY, properties=brief if i % 10 else lasting) for i in range(1000)))
    life.run()
    life.advance(2_000_000)
    assert life.ready("q") == 100
    assert_few(life, 100)


def test_bodies_of_a_deleted_queue_leave_memory() -> None:
    life = life_of()
    life.declare("other")
    client = life.client()
    client.send(b"".join(message(b"x" * BODY, "q" if i % 10 else "other") for i in range(1000)))
    client.method(m.QueueDelete(queue="q"))
    life.run()
    life.engine.tending.beat()
    assert_few(life, 100)


def test_what_waits_long_after_the_rest_of_its_batch_was_taken_is_all_that_is_kept() -> None:
    life = life_of()
    client = life.client()
    client.send(b"".join(message(b'{"x": %d, "y": "%s"}' % (i % 20, b"x" * BODY)) for i in range(1000)))
    life.run()
    client.consume("q", **{"x-filter": "/x > 0"})
    life.run()
    assert life.ready("q") == 50
    for one in reversed(client.take_all()[1:]):
        client.ack(one.tag)  # type: ignore[union-attr]
    life.run()
    life.engine.tending.beat()
    assert_few(life, 50)


DEEP = 1100
"""Messages that wait in a queue: more than are looked at one by one for those of a batch."""

DEEPLY: dict[str, dict[str, Any]] = {
    "keys": {"x-group-key": "/g"},
    "keys in a ring": {"x-group-key": "/g", "x-ring-size": DEEP},
    "tenants": {"x-fairness-key": "/g"},
    "tenants by priority": {"x-fairness-key": "/g", "x-max-priority": 3},
}


@pytest.mark.parametrize("how", DEEPLY)
def test_a_deep_queue_with_a_limit_has_bodies_of_what_it_holds(how: str) -> None:
    """Of each batch something goes to a queue that drops nothing, so none of them leaves memory as a whole."""
    life = life_of(**{"x-max-length": DEEP, **DEEPLY[how]})
    life.declare("rare")
    client = life.client()
    for start in range(0, 3 * DEEP, 200):
        bodies = [b'{"g": %d, "x": "%s"}' % (i % 7, b"x" * BODY) for i in range(start, start + 200)]
        client.send(b"".join(message(body, "q" if i % 40 else "rare") for i, body in enumerate(bodies)))
        life.run()
    assert life.ready("q") == DEEP
    assert_few(life, DEEP + life.ready("rare"))
