"""A rate that nobody waits for any more costs nothing, and whatever else changes, what was sent counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.queue import Queue
from penstock.records.queue_settings import QueueSettings
from unit.core.world import SECOND, World

RATE = (1, SECOND, 0, 1)
"""One message a second."""


def alter(world: World, queue: Queue, **settings: object) -> None:
    own = QueueSettings(rate_limit=RATE, **settings)  # type: ignore[arg-type]
    world.core.alter_queue(world.now, queue, own, set(settings))


ENDS: dict[str, Callable[[World, Queue, Consumer], object]] = {
    "purged": lambda world, queue, worker: world.core.purge_queue(world.now, queue),
    "nobody consumes": lambda world, queue, worker: world.core.unsubscribe(world.now, worker, requeue=True),
    "nobody has credit": lambda world, queue, worker: queue.choke(worker),
    "halted": lambda world, queue, worker: world.core.pause_queue(world.now, queue),
    "drained": lambda world, queue, worker: world.core.drain(world.now),
    "withdrawn": lambda world, queue, worker: world.core.cancel_messages(world.now, [queue], range(1, 1000)),
    "left behind": lambda world, queue, worker: alter(world, queue, recovery_point="7|999|"),
    "deleted": lambda world, queue, worker: world.core.delete_queue(world.now, queue),
}


@pytest.mark.parametrize("end", ENDS)
def test_nobody_waits_for_a_rate_that_is_not_asked_for(end: str) -> None:
    world = World()
    queue = world.declare("q", rate_limit=RATE)
    worker = world.subscribe(queue, max_backlog=5)
    world.publish("q", *(b'{"n": %d}' % n for n in range(4)))
    assert len(world.inbox[worker]) == 1
    ENDS[end](world, queue, worker)
    world.turn()
    world.advance(10)  # AssertionError where its moment comes again and again
    wall, mono = world.core.next_deadline()
    assert wall is None or wall > world.wall
    assert mono is None or mono > world.mono


@pytest.mark.parametrize("other", [{"group_key": "/n"}, {"max_priority": 5}, {"weights": (("0", 2.0),)}], ids=str)
def test_what_a_tenant_has_sent_counts_whatever_else_is_changed(other: dict[str, object]) -> None:
    """With other keys beside its own each tenant had all tokens of a period again."""
    world = World()
    rate = (0, 1, 2, 10 * SECOND)
    queue = world.declare("q", fairness_key="/t", rate_limit=rate)
    worker = world.subscribe(queue, max_backlog=50)
    world.publish("q", *(b'{"t": "%d", "n": %d}' % (n % 2, n) for n in range(12)))
    assert len(world.inbox[worker]) == 4
    changed = QueueSettings(fairness_key="/t", rate_limit=rate, **other)  # type: ignore[arg-type]
    world.core.alter_queue(world.now, queue, changed, set(other))
    world.turn()
    assert len(world.inbox[worker]) == 4
    world.advance(5)
    queue.check()
    assert len(world.inbox[worker]) == 6
