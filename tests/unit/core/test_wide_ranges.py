"""LSNs leap by 2^32 over a crash: a range of them that names messages costs what is there, not what is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.core.effects import Verb
from penstock.core.queue.queue import Queue
from penstock.core.queue.stages import marked
from penstock.records.queue_settings import Retry
from unit.core.world import World, header

WIDE = range(1, 1 << 50)
"""8 PiB as an array."""

KINDS: dict[str, dict[str, object]] = {
    "plain": {}, "levels": {"max_priority": 5}, "ranked": {"priority_expression": "/n"},
    "grouped": {"group_key": "/g"}, "tenants": {"fairness_key": "/g"}, "shallow": {"target_queue_depth": 2},
    "barrier": {"barrier_expression": "/n = 3"}, "mortal": {"message_ttl": 90_000_000}, "limited": {"max_length": 90},
    "newest": {"last_value_key": "/n"}, "unique": {"dedup_key": "/n", "unique": True}, "retried": {"retry": Retry()},
    "weighed": {"max_length_bytes": 1 << 20},
}  # fmt: skip
COUNT = 200


def full(settings: dict[str, object]) -> tuple[World, Queue]:
    """Messages in as many places as there are: ready, back, leased, delayed, scheduled, behind a barrier."""
    world = World()
    queue = world.declare("q", **settings)
    bodies = [b'{"n": %d, "g": %d}' % (n, n % 3) for n in range(COUNT // 2)]
    world.publish("q", *bodies)
    consumer = world.subscribe(queue, max_backlog=80)
    held = sorted(lsn for chunk in [range(1, 1 << 20)] for lsn in consumer.leases.holding(chunk))
    for verb, some in ((Verb.RELEASE, held[::3]), (Verb.CANCEL, held[1::3])):
        world.core.settle(world.now, queue, [range(lsn, lsn + 1) for lsn in some], verb, by=consumer, delay=None)
    later = [b'{"n": %d, "g": 1}' % (COUNT + n) for n in range(COUNT // 2)]
    world.publish("q", *later, properties=header(headers={"x-delay": 9000}))
    queue.check()
    return world, queue


def _left_behind(world: World, queue: Queue) -> int:
    return queue.leave_behind(world.now, WIDE.stop, world.core._out)


def _forgotten(world: World, queue: Queue) -> int:
    """As of a log that broke."""
    world.core.unsubscribe(world.now, queue.consumers[0], requeue=True)
    return sum(len(run.chunk) for run in queue.forget(WIDE))


def _extracted(world: World, queue: Queue) -> int:
    """As of what is found to be another site's."""
    gone = sum(len(run.chunk) for run in queue.extract_ours(WIDE))
    return gone + sum(len(run.chunk) for run in queue.forget(WIDE)) + leased(world, queue)


def _settled_elsewhere(world: World, queue: Queue) -> int:
    return queue.settled_elsewhere(world.now, WIDE, "b", world.core._out)


def _acked(world: World, queue: Queue) -> int:
    return world.core.settle(world.now, queue, [WIDE], Verb.ACK)


def _moved(world: World, queue: Queue) -> int:
    """What waits for its time waits for another."""
    scheduled = queue.delays.scheduled
    assert len(scheduled.move(WIDE, scheduled.next_after(0) + 1)) == scheduled.count > 0
    queue.check()
    return _acked(world, queue)


def leased(world: World, queue: Queue) -> int:
    """Those that somebody holds, who has done with them."""
    return sum(world.core.settle(world.now, queue, [WIDE], Verb.ACK, by=one) for one in queue.consumers)


@pytest.mark.parametrize("act", [_left_behind, _forgotten, _extracted, _settled_elsewhere, _acked, _moved])
@pytest.mark.parametrize("kind", KINDS)
def test_a_range_over_a_leap_costs_what_is_there(kind: str, act: Callable[[World, Queue], int]) -> None:
    world, queue = full(KINDS[kind])
    there = len(world.contents(queue))
    assert there > COUNT // 4
    theirs = marked(queue) if act is _settled_elsewhere else ()  # a barrier goes when all before it has
    assert act(world, queue) == there - len(theirs)
    assert not world.contents(queue)
