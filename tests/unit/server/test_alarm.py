"""The next deadline is slept for, and an earlier one that comes meanwhile is not late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.server.base.clock import LONGEST_SLEEP_S, TICK_LAG_S, Alarm, Timed


class Time:
    """A clock and a loop in one; `deadline` is on the wall."""

    def __init__(self) -> None:
        self.now = 0
        self.deadline: int | None = None
        self.ticks: list[int] = []
        self.timers: list[Timer] = []
        faults: Any = None  # nothing fails
        self.alarm = Alarm([Timed(lambda: (self.deadline, None), self.tick, faults, self)], self.call_later)

    def wall(self) -> int:
        return self.now

    def mono(self) -> int:
        return self.now

    def tick(self) -> None:
        self.ticks.append(self.now)
        self.deadline = None

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.now + round(delay * 1e6), call))
        return self.timers[-1]

    def run(self, until: int) -> None:
        while due := [one for one in self.timers if one.at <= until and not one.over]:
            first = min(due, key=lambda one: one.at)
            first.over, self.now = True, max(self.now, first.at)
            first.call()
        self.now = until

    @property
    def waiting(self) -> int:
        return sum(not one.over for one in self.timers)


class Timer:
    def __init__(self, at: int, call: Callable[[], None]) -> None:
        self.at, self.call, self.over = at, call, False

    def cancel(self) -> None:
        self.over = True


def test_an_earlier_deadline_is_not_late_for_a_later_one() -> None:
    time = Time()
    time.deadline = 3_600_000_000
    time.alarm.look_soon()
    time.run(50_000)
    time.deadline = 350_000  # a publish with a short delay, behind one of an hour
    time.alarm.look_soon()
    time.run(2_000_000)
    assert time.ticks == [350_000]


def test_many_turns_cost_one_look() -> None:
    time = Time()
    for _ in range(1000):
        time.alarm.look_soon()
    assert len(time.timers) == 1
    assert time.timers[0].at == round(TICK_LAG_S * 1e6)
    time.run(10_000)
    assert (time.ticks, time.waiting) == ([], 0)  # nothing is ever due


def test_a_far_deadline_is_looked_at_every_second_as_the_wall_clock_may_be_set() -> None:
    time = Time()
    time.deadline = 10_000_000
    time.alarm.look_soon()
    time.run(1_500_000)
    time.deadline = 1_000_000
    time.run(3_000_000)
    assert time.ticks == [round((TICK_LAG_S + 2 * LONGEST_SLEEP_S) * 1e6)]
    time.alarm.look_soon()
    time.alarm.end()
    assert time.waiting == 0
