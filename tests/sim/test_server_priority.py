"""Queues with priorities on the whole server: order over restarts with and without checkpoints, and off the loop."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from choices import spread
from penstock.core.queue.order import ranking
from penstock.log.simdisk import SimDisk
from penstock.wire.amqp import methods as m
from sim.serverkit import Client, Life, clock, message

EXPRESSION = "/p"


def body(number: int, priority: object, pad: int = 0) -> bytes:
    told = f'"{priority}"' if isinstance(priority, str) else "null" if priority is None else str(priority)
    return f'{{"n":{number},"p":{told},"pad":"{"x" * pad}"}}'.encode()


def sorted_bodies(sent: list[tuple[int, int]], pad: int = 0) -> list[bytes]:
    """In the order of delivery: (number, priority) of all that was sent."""
    return [body(number, priority, pad) for number, priority in sorted(sent, key=lambda one: (-one[1], one[0]))]


def drained(life: Life, prefetch: int = 5, **arguments: Any) -> list[bytes]:
    """Everything, a few at a time, each acknowledged."""
    client = life.client(prefetch=prefetch)
    client.consume("q", **arguments)
    life.run()
    client.take(m.BasicConsumeOk)
    out = list[bytes]()
    while got := client.messages():
        out += [one.body for one in got]
        client.ack(got[-1].tag, multiple=True)
        life.run()
    client.lose()
    life.run()
    return out


def published(
    life: Life, client: Client, sent: list[tuple[int, int]], count: int, chance: random.Random, pad: int
) -> None:
    new = [(len(sent) + at, chance.randrange(6)) for at in range(count)]
    client.publish("q", *(body(number, priority, pad) for number, priority in new))
    life.run()
    sent += new


class Aside:
    """Somewhere off the loop: work waits until the test lets it be done."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.waiting: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        life.engine.judges.off = life.engine.scans.off = life.engine.backfills.off = self.start

    def start(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.waiting.append((work, done))

    def work(self) -> None:
        work, done = self.waiting.popleft()
        done(work())
        self.life.run()


@pytest.mark.parametrize("budget", [1 << 20, 1 << 14, 0])
def test_order_of_what_memory_has_and_what_it_has_not(budget: int) -> None:
    life = Life(SimDisk(), clock(), budget=budget)
    life.declare("q", **{"x-priority-expression": EXPRESSION})
    sent: list[tuple[int, int]] = []
    client = life.client()
    for _ in range(10):
        published(life, client, sent, 30, random.Random(budget), 200)
    assert drained(life) == sorted_bodies(sent, 200)


@pytest.mark.parametrize("checkpoint", ["none", "all", "some"])
@pytest.mark.parametrize("end", ["stop", "kill", "crash"])
def test_order_after_a_restart(checkpoint: str, end: str) -> None:
    disk, time = SimDisk(), clock()
    life = Life(disk, time)
    life.declare("q", **{"x-priority-expression": EXPRESSION})
    chance = random.Random(3)
    sent: list[tuple[int, int]] = []
    published(life, life.client(confirm=True), sent, 50, chance, 0)
    if checkpoint == "some":
        life.log.write_checkpoint(life.core.durable_state().encode(), life.core.last_lsn)
    published(life, life.client(confirm=True), sent, 50, chance, 0)
    holder = life.client(prefetch=3)
    holder.consume("q")
    life.run()
    life.log.flush()
    if checkpoint == "all":
        life.log.write_checkpoint(life.core.durable_state().encode(), life.core.last_lsn)
    getattr(life, end)()
    life = Life(disk, time)
    life.run()
    assert life.core.queue("/", "q").ranking is None
    assert drained(life) == sorted_bodies(sent)


def test_nothing_is_delivered_before_the_last_priority_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "STEP", 7)
    disk, time = SimDisk(), clock()
    life = Life(disk, time)
    life.declare("q", **{"x-priority-expression": EXPRESSION})
    sent: list[tuple[int, int]] = []
    published(life, life.client(confirm=True), sent, 20, random.Random(1), 0)
    life.kill()
    life = Life(disk, time)
    aside = Aside(life)
    client = life.client(prefetch=2)
    client.consume("q")
    life.run()
    client.take(m.BasicConsumeOk)
    published(life, life.client(), sent, 1, random.Random(1), 0)  # it does not go ahead of those that wait
    while aside.waiting:
        assert not client.messages()
        aside.work()
    assert client.bodies() == sorted_bodies(sent)[:2]


def test_an_other_expression_orders_what_waits_anew() -> None:
    life = Life(SimDisk(), clock())
    life.declare("q", **{"x-priority-expression": EXPRESSION})
    sent: list[tuple[int, int]] = []
    published(life, life.client(), sent, 40, random.Random(5), 0)
    queue = life.core.queue("/", "q")
    from dataclasses import replace

    life.core.alter_queue(life.engine.now(), queue, replace(queue.settings, priority_expression="/n"))
    life.run()
    assert drained(life, **{"x-filter": "/n < 30"}) == [body(n, p) for n, p in reversed(sent) if n < 30]
    life.core.alter_queue(life.engine.now(), queue, replace(queue.settings, priority_expression=None))
    life.run()
    assert drained(life) == [body(n, p) for n, p in sent if n >= 30]


def test_large_bodies_are_judged_off_the_loop() -> None:
    life = Life(SimDisk(), clock(), budget=64 << 20)
    life.declare("q", **{"x-priority-expression": EXPRESSION})
    aside = Aside(life)
    client = life.client(confirm=True)
    client.send(message(body(0, 1, 300_000)))
    life.run()
    assert len(aside.waiting) == 1
    assert life.ready("q") == 0
    aside.work()
    client.send(message(body(1, 2, 10)))
    life.run()
    assert life.ready("q") == 2
    assert drained(life) == [body(1, 2, 10), body(0, 1, 300_000)]


def test_lives() -> None:
    """Publishes, deliveries, returns, restarts, checkpoints in any order: what is delivered is the highest there is."""
    for seed in spread(range(12), 6):
        chance = random.Random(seed)
        disk, time = SimDisk(), clock()
        life = Life(disk, time, budget=chance.choice([1 << 20, 1 << 13]))
        life.declare("q", **{"x-priority-expression": EXPRESSION})
        living: dict[int, int] = {}
        number = 0
        for _ in range(30):
            step = chance.choice(["publish", "publish", "take", "return", "checkpoint", "restart"])
            if step == "publish":
                new = {number + at: chance.choice([0, 1, 1, 2, 1000, chance.randrange(10_000)]) for at in range(10)}
                number += 10
                client = life.client(confirm=True)
                client.publish("q", *(body(n, p) for n, p in new.items()))
                life.run()
                life.log.flush()
                living |= new
                client.lose()
            elif step in ("take", "return"):
                count = chance.randrange(1, 6)
                client = life.client(prefetch=count)
                client.consume("q")
                life.run()
                client.take(m.BasicConsumeOk)
                got = client.messages()
                expected = sorted(living.items(), key=lambda one: (-one[1], one[0]))[:count]
                assert [one.body for one in got] == [body(n, p) for n, p in expected]
                if step == "take" and got:
                    client.ack(got[-1].tag, multiple=True)
                    life.run()
                    for n, _ in expected:
                        del living[n]
                client.lose()
                life.run()
                life.log.flush()
            elif step == "checkpoint":
                life.log.flush()
                life.log.write_checkpoint(life.core.durable_state().encode(), life.core.last_lsn)
            else:
                life.run()
                life.log.flush()
                life.kill()
                life = Life(disk, time, budget=chance.choice([1 << 20, 1 << 13]))
                life.run()
        life.core.queue("/", "q").check()
        assert sorted(drained(life)) == sorted(body(n, p) for n, p in living.items())
