"""The clocks of this machine, and the alarm that tells the engine that time has passed.

It goes off at the next deadline, and never long after it.  Every turn may bring an earlier deadline than the one that
is slept for, so each is followed by a look.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.ports import Clock


class SystemClock:
    """Wall time from the system, monotonic time from the kernel; both in microseconds."""

    def wall(self) -> int:
        """Microseconds since the Unix epoch."""
        return time.time_ns() // 1000

    def mono(self) -> int:
        """Microseconds on the monotonic clock."""
        return time.monotonic_ns() // 1000


TICK_LAG_S = 0.005
"""Deadlines are looked at this soon after a turn, so that a thousand turns a second cost one look."""

LONGEST_SLEEP_S = 1.0
"""The wall clock may be set, so nobody sleeps longer for it."""


class Handle(Protocol):
    """A timer of the loop."""

    def cancel(self) -> None:
        """Do not call it."""
        ...


class Alarm:
    """Ticks at deadlines.  Belongs to the loop's thread."""

    __slots__ = ("_call_later", "_clock", "_next_deadline", "_soon", "_tick", "_timer")

    def __init__(
        self,
        next_deadline: Callable[[], tuple[int | None, int | None]],
        tick: Callable[[], object],
        clock: Clock,
        call_later: Callable[[float, Callable[[], None]], Handle],
    ) -> None:
        """next_deadline: on the wall and the monotonic clock, in microseconds; None: nothing is due ever."""
        self._next_deadline = next_deadline
        self._tick = tick
        self._clock = clock
        self._call_later = call_later
        self._timer: Handle | None = None
        self._soon = False  # the timer is that of a look after a turn, not of a deadline

    def look_soon(self) -> None:
        """Look at the deadlines soon: a turn has ended, which may have brought an earlier one."""
        if self._soon:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._soon = True
        self._timer = self._call_later(TICK_LAG_S, self._look)

    def end(self) -> None:
        """Stop ticking."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer, self._soon = None, False
        wall, mono = self._next_deadline()
        waits = [
            deadline - clock
            for deadline, clock in ((wall, self._clock.wall()), (mono, self._clock.mono()))
            if deadline is not None
        ]
        if not waits:
            return
        wait = min(waits) / 1e6
        if wait <= 0:
            self._tick()
            self.look_soon()
        else:
            self._timer = self._call_later(min(max(wait, TICK_LAG_S), LONGEST_SLEEP_S), self._look)
