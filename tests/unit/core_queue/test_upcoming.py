"""What a list would dispatch next, as memory asks: it agrees with what is dispatched, and asking changes nothing."""

from __future__ import annotations

import pytest

from penstock.core.effects import Verb
from penstock.core.queue.tenants import Tenant
from penstock.core.queue.upcoming import Upcoming
from penstock.log.simdisk import SimDisk
from penstock.wire.amqp import methods as m
from sim.serverkit import Client, Content, Life, clock


@pytest.fixture
def life() -> Life:
    life = Life(SimDisk(), clock())
    life.declare("q", "other")
    return life


def fill(life: Life, count: int, *, mixed: bool = False) -> None:
    client = life.client()
    for number in range(count):
        client.publish("q", b'{"n":%d}' % number)
        if mixed and number % 3 == 0:
            client.publish("other", b"{}")
    life.run()


def whole(life: Life) -> Upcoming:
    return Upcoming(life.core.queue("/", "q"), None)


def granted(life: Life) -> list[int]:
    queue = life.core.queue("/", "q")
    return sorted(lsn for consumer in queue.holders() for run in consumer.leases.held() for lsn in run.chunk)


def consumer(life: Life, prefetch: int, **arguments: object) -> Client:
    client = life.client(prefetch=prefetch)
    client.consume("q", **arguments)
    life.run()
    return client


@pytest.mark.parametrize("mixed", [False, True])
def test_it_names_what_is_dispatched_next(life: Life, mixed: bool) -> None:
    fill(life, 300, mixed=mixed)
    line = whole(life)
    assert not line.alive()
    assert not line.credit()
    expected = list(line.after(0, 50))
    assert line.head() == expected[0]
    assert list(line.after(0, 50)) == expected
    assert list(line.between(expected[10], expected[20])) == expected[10:20]
    assert list(line.after(expected[10], 5)) == expected[11:16]
    consumer(life, 50)
    assert granted(life) == expected
    assert line.alive()
    assert not line.credit()
    assert line.head() == line.after(0, 1)[0] > expected[-1]


def test_what_comes_back_is_named_apart_and_is_the_head(life: Life) -> None:
    fill(life, 20)
    client = consumer(life, 5)
    line = whole(life)
    held = granted(life)
    assert list(line.returned(10)) == []
    queue = life.core.queue("/", "q")
    for one in queue.holders():
        life.core.choke(one)
    life.core.settle(life.engine.now(), queue, [range(held[1], held[1] + 2)], Verb.RELEASE)
    assert list(line.returned(10)) == held[1:3]
    assert list(line.returned(1)) == held[1:2]
    assert line.head() == held[1]
    assert held[1] not in line.after(0, 100)
    assert client.session is not None


def test_a_filters_list_is_what_it_has_found_and_nobody_has_claimed(life: Life) -> None:
    fill(life, 40)
    client = consumer(life, 2, **{"x-filter": "/n % 2 = 0"})
    assert [one.body for one in client.take_all() if isinstance(one, Content)] == [b'{"n":0}', b'{"n":2}']
    queue = life.core.queue("/", "q")
    (targets,) = queue.targets.lists.values()
    line = Upcoming(queue, targets)
    assert line.alive()
    assert not line.credit()
    assert line.queue == queue.id
    everything = list(whole(life).after(0, 100))
    wanted = list(line.after(0, 100))
    assert wanted == [lsn for lsn in everything if lsn in wanted]
    assert len(wanted) == 18
    assert line.head() == wanted[0]
    assert not line.whole.alive()
    plain = life.client(prefetch=8)
    plain.method(m.BasicConsume(queue="q", consumer_tag="p"))
    life.run()
    left = list(line.after(0, 100))
    assert left == [lsn for lsn in wanted if lsn not in granted(life)]
    assert len(left) < len(wanted)
    assert list(line.between(left[1], left[3])) == left[1:3]


def test_an_empty_queue_has_nothing_upcoming(life: Life) -> None:
    line = whole(life)
    assert line.head() is None
    assert len(line.after(0, 10)) == len(line.between(1, 100)) == len(line.returned(5)) == 0
    fill(life, 3)
    assert len(line.after(0, 10)) == 3
    life.core.purge_queue(life.engine.now(), life.core.queue("/", "q"))
    assert line.head() is None


def test_what_a_batch_is_still_needed_for_asks_the_tenants_that_it_has(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by 24,000 tenants: each look at an arrival asked all of them for their oldest, a second for one beat."""
    life.declare("fair", **{"x-fairness-key": "/t"})
    client = life.client()
    for number in range(100):
        client.publish("fair", b'{"t":%d}' % number)
    life.run()
    line = Upcoming(life.core.queue("/", "fair"), None)
    waiting = [lsn for chunk in life.core.queue("/", "fair").snapshot()[0] for lsn in chunk]
    asked = list[str]()
    for name in ("floor", "between"):
        counted = getattr(Tenant, name)
        monkeypatch.setattr(
            Tenant, name, lambda one, *span, name=name, of=counted: (asked.append(name), of(one, *span))[1]
        )
    assert list(line.needed(waiting[40], waiting[43]) or ()) == waiting[40:43]
    assert len(asked) <= 3
    assert len(line.needed(0, 2 * waiting[-1]) or ()) == 100
