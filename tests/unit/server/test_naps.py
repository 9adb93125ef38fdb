"""When the loop sleeps for a moment, so that other threads of the interpreter run."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.log.log import Log
from penstock.server.base import rounds
from penstock.server.base.rounds import GUEST_STAYS_US, GUEST_US, STARVED_US, Nap
from penstock.server.services import Pools


class Clock:
    """Of whom the test says what time it is."""

    def __init__(self) -> None:
        self.now = 10 * GUEST_STAYS_US

    def wall(self) -> int:
        return self.now

    def mono(self) -> int:
        return self.now


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """When it napped."""
    taken: list[int] = []
    monkeypatch.setattr(rounds, "nap", lambda: taken.append(1))
    return taken


class House:
    def __init__(self) -> None:
        self.clock = Clock()
        self.log = SimpleNamespace(thread_since=0)
        self.nap = Nap(self.clock, cast("Log", self.log))

    def turns(self, count: int, micros: int) -> None:
        """So many turns, each so long."""
        for _ in range(count):
            self.clock.now += micros
            self.nap.let_others_in()


def test_a_loop_with_nobody_beside_it_never_naps(naps: list[int]) -> None:
    house = House()
    house.turns(100, 2 * STARVED_US)
    assert naps == []


def test_it_naps_for_a_commit_of_the_thread_that_has_waited(naps: list[int]) -> None:
    house = House()
    house.turns(1, STARVED_US + 1)
    house.log.thread_since = house.clock.now
    house.turns(1, STARVED_US)
    assert naps == []
    house.turns(1, 1)
    assert len(naps) == 1
    house.turns(9, STARVED_US // 10)
    assert len(naps) == 1
    house.log.thread_since = 0
    house.turns(9, STARVED_US)
    assert len(naps) == 1


def test_it_naps_while_threads_of_pools_have_work(naps: list[int]) -> None:
    house = House()
    at_work = 1
    house.nap.at_work = lambda: at_work
    house.turns(10, STARVED_US + 1)
    assert len(naps) == 10
    at_work = 0
    house.turns(10, STARVED_US + 1)
    assert len(naps) == 10


def test_it_naps_often_while_flight_is_called(naps: list[int]) -> None:
    house = House()
    house.nap.announce_guest()
    house.turns(10, GUEST_US)
    assert len(naps) == 10
    house.turns(1, GUEST_STAYS_US)
    assert len(naps) == 10


async def test_what_a_pool_has_to_do_is_counted_until_it_is_done() -> None:
    house, goes_on, done = Pools(), threading.Event(), asyncio.Event()
    results: list[Any] = []

    def tell(result: object) -> None:
        results.append(result)
        if len(results) == 2:
            done.set()

    for pool in (house.reading, house.querying):
        house.hand_over(pool, goes_on.wait, tell)
    assert house.at_work() == 1, "queries wait for others, and are not counted"
    goes_on.set()
    await asyncio.wait_for(done.wait(), 20)
    assert (results, house.at_work()) == ([True, True], 0)
    house.abandon()
