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


@pytest.mark.parametrize("priorities", [(0,), (-1, 0, 7)])
def test_those_who_come_and_go_in_any_order_leave_the_others_where_they_were(
    priorities: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nobody else is looked at: of 4,000 that went with their connection each was looked through by all others."""
    dice, roster, here = Random(9), Roster(), list[Consumer]()
    monkeypatch.delattr(Roster, "_sort")  # nobody has left and come back
    for one in consumers(200, priorities, dice):
        roster.add(one)
        here.append(one)
        for _ in range(dice.randrange(3)):
            gone = here.pop(dice.randrange(len(here))) if here else None
            if gone is not None:
                roster.rank(gone, silent=dice.random() < 0.5)
                roster.remove(gone)
        assert roster.all == roster.plain == here
        assert roster.levels == sorted_levels(roster)
        assert roster.silent == sum(one.silent for one in here)
