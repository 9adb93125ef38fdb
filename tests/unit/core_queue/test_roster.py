"""Consumers by level and order of subscription, as some turn silent and speak again."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.dispatching.roster import LAST, Roster
from penstock.core.queue.queue import Queue
from penstock.records.queue_settings import QueueSettings


def consumers(count: int, priorities: tuple[int, ...], dice: Random) -> list[Consumer]:
    queue: Any = Queue(1, "/", "q", QueueSettings())
    return [
        Consumer(queue, serial, tag=f"{serial}", holder=None, priority=dice.choice(priorities))
        for serial in range(1, count + 1)
    ]


def sorted_levels(roster: Roster) -> list[list[Consumer]]:
    ranks = sorted({one.priority - LAST * one.silent for one in roster.all}, reverse=True)
    return [[one for one in roster.all if one.priority - LAST * one.silent == rank] for rank in ranks]


@pytest.mark.parametrize("priorities", [(0,), (-1, 0, 7)])
@pytest.mark.parametrize("came_back", [False, True])
def test_levels_are_those_of_sorting_anew(priorities: tuple[int, ...], came_back: bool) -> None:
    dice, roster = Random(7), Roster()
    some = consumers(9, priorities, dice)
    for one in some:
        roster.add(one)
    if came_back:  # the order is no longer that of the serials
        roster.remove(some[0])
        roster.add(some[0])
    for _ in range(300):
        roster.rank(dice.choice(some), silent=dice.random() < 0.5)
        assert roster.levels == sorted_levels(roster)
        assert roster.silent == sum(one.silent for one in some)
