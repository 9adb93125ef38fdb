"""What is moved out of a queue has left it: nobody waits for it there any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from penstock.core.effects import Verb
from penstock.core.queue.queue import Queue
from penstock.core.state.durable import canonical
from penstock.records.entries import Publishes
from unit.core.world import World

BODY = b'{"k": 1, "kind": "plain"}'


def move(world: World, source: Queue, target: Queue, lsns: list[int]) -> int:
    rows = world.read(lsns)
    topic = world.core.topic("/", "", target.name)
    out = world.core.move_messages(
        world.now, source, target, lsns, Publishes([topic] * len(lsns), rows.properties, rows.bodies), "moved"
    )
    world.turn()
    return out


@pytest.mark.parametrize("some", [slice(1), slice(1, 2), slice(None)], ids=["first", "second", "all"])
@pytest.mark.parametrize(
    "options",
    [
        {}, {"group_key": "/k"}, {"fairness_key": "/k"}, {"group_key": "/k", "fairness_key": "/k"},
        {"last_value_key": "/n"}, {"priority_expression": "/k"}, {"group_key": "/k", "max_priority": 3},
        {"barrier_expression": "/kind = 'barrier'"}, {"dedup_key": "/k", "unique": True},
        {"fairness_key": "/k", "max_leased": (0, 1)}, {"max_length": 3, "overflow": "reject-publish"},
    ],
    ids=lambda options: ",".join(options) or "none",
)  # fmt: skip
def test_others_of_its_key_are_not_held_up(options: Mapping[str, Any], some: slice) -> None:
    """Behind a moved message, as behind one that is done, the next ones come; there is room for new ones."""
    world = World()
    queue, target = world.declare("q", **options), world.declare("elsewhere")
    there = [lsn for lsn in world.publish("q", BODY, BODY, BODY).positions if queue.lives(lsn, "ready")]
    moved = there[some]
    assert move(world, queue, target, moved) == len(moved)
    queue.check()
    assert world.contents(target) == [BODY] * len(moved)
    later = world.publish("q", BODY, b'{"k": 2}').positions
    left = sorted({*there, *later} - set(moved))
    consumer, got = world.subscribe(queue, max_backlog=1), list[int]()
    while len(got) < len(world.inbox[consumer]):
        got = list(world.inbox[consumer])
        world.advance(1)
        world.core.settle(world.now, queue, [range(got[-1], got[-1] + 1)], Verb.ACK, by=consumer)
        world.turn()
        queue.check()
    assert sorted(got) == left
    assert canonical(world.folded()) == canonical(world.core.durable_state())
