"""Messages of one group in a ring: what becomes due stands where the queue has it, whenever its key is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.core.effects import Verb
from penstock.core.queue.shares import Shares
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


@pytest.mark.parametrize("verb", [Verb.RELEASE, Verb.CANCEL])
@pytest.mark.parametrize("levels", [0, 5])
def test_one_that_was_out_as_its_group_came_about_gives_way_to_an_older_one(levels: int, verb: Verb) -> None:
    """It stands for its key when it is given back; what is due and older then goes first, though told later."""
    world = World()
    queue = world.declare("q", ring_size=10, max_priority=levels)
    older = world.publish("q", BODY, properties=header(headers={"x-delay": 3000})).first
    newer = world.publish("q", BODY).first
    consumer = world.subscribe(queue, max_backlog=1)
    assert world.inbox[consumer] == [newer]
    world.core.alter_queue(world.now, queue, replace(queue.settings, group_key="/g"))
    world.turn()
    world.core.unsubscribe(world.now, consumer, requeue=False)
    world.core.settle(world.now, queue, [range(newer, newer + 1)], verb, by=consumer)
    world.turn()
    world.advance(5)
    queue.check()
    consumer = world.subscribe(queue, max_backlog=1)
    assert world.inbox[consumer] == [older]


@pytest.mark.parametrize("levels", [0, 5])
def test_a_start_lets_many_in_without_looking_for_who_stands_for_each(
    levels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each comes behind those before it; to take one from among thousands for each of thousands would take minutes."""
    world = World()
    world.declare("q", ring_size=100, group_key="/g", max_priority=levels)
    for _ in range(10):
        world.publish("q", *[b'{"g": %d}' % key for key in range(5)])
    taken = list[int]()
    take = Shares._take_offered

    def counted(shares: Shares, queue: object, lsn: int) -> object:
        taken.append(lsn)
        return take(shares, queue, lsn)  # type: ignore[arg-type]

    monkeypatch.setattr(Shares, "_take_offered", counted)
    world.restart(clean=True)
    world.turn()
    queue = world.core.queue("/", "q")
    queue.check()
    assert (queue.ready, queue.offered, taken) == (50, 5, [])
