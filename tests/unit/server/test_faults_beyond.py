"""What a queue that a fault has stopped is asked next: whether it has a key, or room, or anything that may give way.

Its memory does not know: what was undone is still there, what was settled may be gone from it alone.  So nothing is
confirmed, and nothing gives way, because of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from penstock.core.broker import Core
from penstock.core.commands.transactions import Transaction
from penstock.core.publishing.arrivals import Arrivals
from penstock.core.publishing.published import Published
from penstock.core.queue.queue import Queue
from penstock.errors import QueueFull, Unavailable
from penstock.log.simdisk import SimDisk
from penstock.records.chunks import as_chunk
from penstock.records.entries import Publishes
from penstock.records.properties import Properties, encode
from penstock.records.queue_settings import QueueSettings
from penstock.server.base.faults import Told
from penstock.wire.amqp import methods as m
from planting import Planted
from sim.auditing import audit
from sim.serverkit import PERSISTENT, Life, clock

LETTERS = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
CONFIG = {
    "queue": [
        {"name": "plain"},
        {"name": "dead"},
        {"name": "head", "max_length": 3},
        {"name": "bytes", "max_length_bytes": "45B"},
        {"name": "ring", "ring_size": 3},
        {"name": "refuses", "max_length": 3, "overflow": "reject-publish"},
        {"name": "buries", "max_length": 3, "overflow": "reject-publish-dlx", **LETTERS},
        {"name": "newest", "max_length": 3, "overflow": "drop-newest"},
        {"name": "blocks", "max_length": 3, "overflow": "block"},
        {"name": "once", "unique": True, "dedup_key": "/id"},
        {"name": "window", "dedup_window": "1h", "dedup_key": "/id"},
        {"name": "last", "last_value_key": "/id"},
    ]
}
ASKS = [str(one["name"]) for one in CONFIG["queue"] if one["name"] not in ("plain", "dead")]


@pytest.fixture
def life() -> Iterator[Life]:
    life = Life(SimDisk(), clock(), config=CONFIG, apart=False)
    yield life
    life.kill()


def body(number: int) -> bytes:
    return b'{"id": %d, "of": "a"}' % number


def publish(core: Core, now: Any, name: str, *bodies: bytes, **how: Any) -> Published:
    header = encode(Properties(delivery_mode=2, **how)) if how else PERSISTENT
    return core.publish(now, Publishes(core.topic("/", "", name), header, list(bodies)))


def fails_late(life: Life, name: str, *bodies: bytes) -> None:
    """A publish that fails when all of it has arrived."""
    before: Callable[..., Any] = Arrivals.arrive_in

    def planted(arrivals: Arrivals, queue: Queue, *more: Any, **named: Any) -> None:
        before(arrivals, queue, *more, **named)
        raise Planted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Arrivals, "arrive_in", planted)
        patch.setattr("penstock.core.publishing.arrivals.straight", lambda *_: False)
        work = partial(publish, life.core, life.engine.now(), name, *bodies)
        life.engine.faults.run(work, Told("test"))
    assert name in [one.name for one in life.core.stopped]


@pytest.mark.parametrize("name", ASKS)
def test_what_a_stopped_queue_would_compare_with_others_is_refused_and_nothing_gives_way(name: str, life: Life) -> None:
    core, now = life.core, life.engine.now()
    publish(core, now, name, body(1), body(2))
    fails_late(life, name, body(3), body(4))
    confirmed = [body(1), body(2)]
    for number in (3, 4, 5, 6):
        told = publish(core, life.engine.now(), name, body(number))
        life.run()
        if told.stored:
            confirmed.append(body(number))
        else:
            assert [row for row, _ in told.refused] == [0], f"{number} is confirmed, and not there"
    life.run()
    life.kill()
    assert audit(life.disk, life.clock) == []
    again = Life(life.disk, life.clock, config=CONFIG)
    assert again.contents(name) == confirmed
    again.kill()


def test_nothing_gives_way_to_what_was_undone_when_it_comes_back(life: Life) -> None:
    client = life.client(prefetch=9)
    for name in ("last", "ring"):
        publish(life.core, life.engine.now(), name, body(1))
        client.consume(name, name)
    life.run()
    client.take_all()
    client.method(m.BasicCancel("last"))
    client.method(m.BasicCancel("ring"))
    life.run()
    fails_late(life, "last", b'{"id": 1, "of": "newer"}')
    fails_late(life, "ring", body(2), body(3), body(4))
    client.lose()
    life.run()
    life.kill()
    assert audit(life.disk, life.clock) == []
    again = Life(life.disk, life.clock, config=CONFIG)
    assert [again.contents(name) for name in ("last", "ring")] == [[body(1)], [body(1)]]
    again.kill()


@pytest.mark.parametrize("name", ["refuses", "once"])
def test_what_memory_alone_has_lost_makes_no_room(name: str, life: Life) -> None:
    core = life.core
    publish(core, life.engine.now(), name, body(1), body(2), body(3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.core.outbox.Outbox.record", lambda *_, **__: 1 // 0)
        life.engine.faults.run(partial(core.purge_queue, life.engine.now(), core.queue("/", name)), Told("test"))
    assert [one.name for one in core.stopped] == [name]
    told = publish(core, life.engine.now(), name, body(1), body(2))
    assert [row for row, _ in told.refused] == [0, 1]
    late = publish(core, life.engine.now(), name, body(1), headers={"x-delay": 5000})
    assert [row for row, _ in late.refused] == [0]
    full = Transaction(Publishes(core.topic("/", "", name), PERSISTENT, [body(1)]), ())
    with pytest.raises(QueueFull, match="internal error"):
        core.transact(life.engine.now(), full)
    with pytest.raises(Unavailable):
        core.move_messages(
            life.engine.now(), core.queue("/", "plain"), core.queue("/", name), [1],
            Publishes(core.topic("/", "", name), PERSISTENT, [body(1)]), "moved",
        )  # fmt: skip
    core.alter_queue(life.engine.now(), core.queue("/", name), replace(core.queue("/", name).settings, max_backlog=1))
    assert publish(core, life.engine.now(), name, body(1)).refused
    life.run()
    life.kill()
    again = Life(life.disk, life.clock, config=CONFIG)
    assert again.contents(name) == [body(1), body(2), body(3)]
    again.kill()


def test_a_fault_between_two_steps_of_taking_the_state_ends_the_taking(life: Life) -> None:
    core = life.core
    for number in range(40):
        core.declare_queue(life.engine.now(), "/", f"q{number}", QueueSettings())
    publish(core, life.engine.now(), "plain", body(1))
    life.run()
    snapshot = core.snapshot()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.core.commands.life.CAPTURE_MOST", 1)
        steps = core.capture(snapshot)
        next(steps)
        fails_late(life, "plain", body(2))
        with pytest.raises(Unavailable, match="'plain'"):
            list(steps)
    with pytest.raises(Unavailable, match="'plain'"):
        core.snapshot()


def test_what_was_undone_comes_back_from_nobody_and_is_not_there_to_be_taken_away(life: Life) -> None:
    core = life.core
    publish(core, life.engine.now(), "plain", body(1))
    client = life.client(prefetch=2)
    client.consume("plain")
    life.run()
    client.take(m.BasicConsumeOk)
    assert client.bodies() == [body(1)]
    fails_late(life, "plain", body(2), body(3))
    queue = core.queue("/", "plain")
    lsns = as_chunk(sorted(lsn for chunk in queue.snapshot()[0] for lsn in chunk))
    with pytest.raises(Unavailable):
        core.purge_queue(life.engine.now(), queue)
    with pytest.raises(Unavailable):
        core.cancel_messages(life.engine.now(), [core.queue("/", "dead"), queue], lsns)
    with pytest.raises(Unavailable):
        core.reschedule_messages(life.engine.now(), [queue], lsns, life.clock.wall() + 1_000_000)
    client.lose()
    life.run()
    life.kill()
    assert audit(life.disk, life.clock) == []
    again = Life(life.disk, life.clock, config=CONFIG, apart=False)
    assert again.contents("plain") == [body(1)]
    again.kill()
