"""Consumers that end or go on together: what each takes does not grow with how many do, stay, or share credit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from choices import EFFORT
from penstock.log.simdisk import SimDisk
from penstock.server.amqp import connection, session
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.frames import METHOD
from planting import Plant
from sim.serverkit import Client, Life, clock, frame

FEW, MANY = 20, 80 if EFFORT == 1 else 160
ALIKE = 1.25
"""How much more one of many may take than one of few."""

WAYS: dict[str, Callable[[Life, Client], None]] = {
    "lost": lambda _, client: client.lose(),
    "channel closed": lambda _, client: client.method(m.ChannelClose(200, "", 0, 0)),
    "evicted": lambda life, client: life.engine.faults.evict(client.session),
}


def of_one_queue(life: Life, client: Client, count: int) -> None:
    for n in range(count):
        client.consume("q", f"c{n}")


def of_many_queues(life: Life, client: Client, count: int) -> None:
    life.declare(*(f"q{n}" for n in range(count)))
    for n in range(count):
        client.consume(f"q{n}", f"c{n}")


def of_one_queue_that_is_for_one_alone(life: Life, client: Client, count: int) -> None:
    life.declare("s", **{"x-single-active-consumer": True})
    for n in range(count):
        client.consume("s", f"c{n}")


def with_one_credit(life: Life, client: Client, count: int) -> None:
    client.method(m.BasicQos(prefetch_count=count, global_qos=True))
    of_one_queue(life, client, count)


def with_one_credit_for_many_queues(life: Life, client: Client, count: int) -> None:
    client.method(m.BasicQos(prefetch_count=count, global_qos=True))
    of_many_queues(life, client, count)


def in_patterns(life: Life, client: Client, count: int) -> None:
    for n in range(count):
        client.consume("^q", f"c{n}")


KINDS = (
    of_one_queue, of_many_queues, of_one_queue_that_is_for_one_alone, with_one_credit, with_one_credit_for_many_queues,
    in_patterns,
)  # fmt: skip


def work(count: int, take: Callable[[Life, Client, int], None], way: str, *, full: bool) -> int:
    """Calls until so many consumers are gone that hold a message each.

    As many stay, and are given these, or are full.
    """
    life = Life(SimDisk(), clock(), apart=False, budget=16 << 20)
    life.declare("q")
    leaver, stayer, other = life.client(), life.client(prefetch=int(full)), life.client()
    take(life, leaver, count)
    life.run()
    names = [queue.name for queue in life.core.queues() if queue.consumers]
    names *= count // len(names)
    for name in names:
        other.publish(name, b"x")
    life.run()
    assert sum(queue.leased for queue in life.core.queues()) == count
    leaver.session.pause_writing()
    for n, name in enumerate(names):
        stayer.consume(name, f"c{n}")
        if full:
            other.publish(name, b"x")
    life.run()
    plant = Plant(-1, "penstock")
    with plant.there():
        WAYS[way](life, leaver)
        life.run()
    assert all(one.holder is stayer.session.channels[1] for queue in life.core.queues() for one in queue.consumers)
    assert sum(queue.leased + queue.ready for queue in life.core.queues()) == count << full
    return plant.calls


CASES = [(way, False) for way in WAYS] + [("lost", True)]


@pytest.mark.parametrize(("way", "full"), CASES, ids=[f"{way}{', others full' * full}" for way, full in CASES])
@pytest.mark.parametrize("take", KINDS)
def test_each_of_many_takes_what_each_of_few_does(
    take: Callable[[Life, Client, int], None], way: str, full: bool
) -> None:
    few, many = (work(count, take, way, full=full) / count for count in (FEW, MANY))
    assert many < ALIKE * few


def once_more(count: int, take: Callable[[Life, Client, int], None], *, anew: bool) -> int:
    """Calls until so many consumers have got a message each, whose connection takes bytes again.

    anew: they share a credit, and that is another one then.
    """
    life = Life(SimDisk(), clock(), apart=False, budget=16 << 20)
    life.declare("q")
    client, other = life.client(), life.client()
    take(life, client, count)
    life.run()
    names = [queue.name for queue in life.core.queues() if queue.consumers]
    client.session.pause_writing()
    for name in names * (count // len(names)):
        other.publish(name, b"x")
    life.run()
    plant = Plant(-1, "penstock")
    with plant.there():
        client.session.resume_writing()
        if anew:
            client.method(m.BasicQos(prefetch_count=count + 1, global_qos=True))
        life.run()
    assert sum(queue.leased for queue in life.core.queues()) == count
    return plant.calls


@pytest.mark.parametrize("take", KINDS)
def test_the_same_holds_where_they_go_on_together(take: Callable[[Life, Client, int], None]) -> None:
    few, many = (once_more(count, take, anew="credit" in take.__name__) / count for count in (FEW, MANY))
    assert many < ALIKE * few


@pytest.mark.parametrize("few", [0, connection.FEW], ids=["much", "little"])
def test_who_vanishes_is_given_nothing_for_what_he_has_acknowledged(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(session, "PORTION", 1)
    monkeypatch.setattr(connection, "FEW", few)
    life = Life(SimDisk(), clock())
    life.declare("q", "r")
    client, other = life.client(prefetch=4), life.client()
    for queue in "q", "r":
        other.publish(queue, *(b"%d" % n for n in range(8)))
        client.consume(queue, queue)
    life.run()
    client.send(frame(METHOD, 1, m.BasicAck(0, True).encode()))
    client.lose()  # of much the first portion is settled, that of `q`
    life.run()
    other.consume("r")
    life.run()
    other.take(m.BasicConsumeOk)
    assert [(one.body, one.redelivered) for one in other.messages()] == [(b"%d" % n, False) for n in range(4, 8)]
