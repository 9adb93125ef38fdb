"""Messages of one group in a ring: what becomes due stands where the queue has it, whenever its key is told."""

from __future__ import annotations

import pytest

from penstock.core.effects import Verb
from unit.core.world import World, header

BODY = b'{"g": "a"}'


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("levels", [0, 5])
@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_a_message_that_became_due_takes_its_place_in_its_group(
    before: int, after: int, levels: int, known: bool
) -> None:
    """At the head; where there are levels, by its age.  After a start its key is told behind theirs."""
    world = World()
    queue = world.declare("q", ring_size=10, group_key="/g", max_priority=levels)
    lsns = [world.publish("q", BODY).first for _ in range(before)]
    lsns.insert(0, world.publish("q", BODY, properties=header(headers={"x-delay": 3000})).first)
    lsns += [world.publish("q", BODY).first for _ in range(after)]
    if levels:
        lsns.sort()
    if not known:
        world.restart(clean=True)
        world.turn()
        queue = world.core.queue("/", "q")
    world.advance(5)
    queue.check()
    consumer = world.subscribe(queue, max_backlog=1)
    for lsn in lsns:
        assert world.inbox[consumer][-1:] == [lsn]
        world.core.settle(world.now, queue, [range(lsn, lsn + 1)], Verb.ACK, by=consumer)
        world.turn()
        queue.check()
    assert world.inbox[consumer] == lsns
