"""The clocks of this machine, the time of the log, and the alarm that tells the engine that time has passed.

It goes off at the next deadline, and never long after it.  Every turn may bring an earlier deadline than the one that
is slept for, so each is followed by a look.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.server.base.faults import Chore, Faults

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


CATCHING_UP = 9, 10
"""How fast time goes for the log while the machine's clock is behind it: an hour is caught up in ten."""


class LogClock:
    """The time of the log: the machine's, but it never goes back, nor stands still where that did.

    Deadlines count from the times of records, which never decrease.  Where the machine's clock is set back, or is
    behind the last record as a server starts or takes over, time goes on from there a little slower, until both are
    the same.
    """

    __slots__ = ("_behind", "_clock", "_told", "mono")

    def __init__(self, clock: Clock, last: int) -> None:
        """last: the time of the log's last record, 0 without one."""
        self._clock = clock
        self.mono = clock.mono
        self._told = last
        self._behind: tuple[int, int] | None = None  # the time, and on the monotonic clock, since when it is behind

    def wall(self) -> int:
        """Microseconds since the Unix epoch.  Any thread."""
        wall = self._clock.wall()
        if wall >= self._told:
            self._behind, self._told = None, wall
            return wall
        mono = self._clock.mono()
        behind = self._behind
        if behind is None:
            self._behind = behind = self._told, mono
        time, since = behind
        speed, whole = CATCHING_UP
        self._told = told = time + (mono - since) * speed // whole
        return told

    def ahead(self) -> int:
        """Microseconds by which the machine's clock is behind."""
        return self.wall() - self._clock.wall()


TICK_LAG_S = 0.005
"""Deadlines are looked at this soon after a turn, so that a thousand turns a second cost one look."""

LONGEST_SLEEP_S = 1.0
"""The wall clock may be set, so nobody sleeps longer for it."""


class Handle(Protocol):
    """A timer of the loop."""

    def cancel(self) -> None:
        """Do not call it."""


Dues = Callable[[], tuple[int | None, int | None]]
"""When something is due, on the wall and on the monotonic clock, in microseconds; 0 is at once, None is never."""


class Timed:
    """One thing that has its times.  What fails puts itself off, and nothing beside it."""

    def __init__(self, dues: Dues, tick: Callable[[], object], faults: Faults, clock: Clock) -> None:
        """tick: does what is due."""
        self._dues, self._tick, self._clock = dues, tick, clock
        self._chore = Chore(faults, clock, self._do)
        self._wait: int | None = None

    def look(self) -> int | None:
        """Do what is due; in how many microseconds to look again, 0 or less once that is done, None: never."""
        if not self._chore.rests:
            self._wait = None
            self._chore.run()
        return self._chore.rest or self._wait

    def _do(self) -> None:
        wall, mono = self._dues()
        waits = [
            deadline - clock
            for deadline, clock in ((wall, self._clock.wall()), (mono, self._clock.mono()))
            if deadline is not None
        ]
        if not waits:
            return
        self._wait = min(waits)
        if self._wait <= 0:
            self._tick()


class Alarm:
    """Looks at what is timed when it is due.  Belongs to the loop's thread."""

    __slots__ = ("_all", "_call_later", "_soon", "_timer")

    def __init__(self, all_: Sequence[Timed], call_later: Callable[[float, Callable[[], None]], Handle]) -> None:
        """all_: each is looked at, whatever becomes of the others."""
        self._all = all_
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
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer, self._soon = None, False
        waits = [wait for one in self._all if (wait := one.look()) is not None]
        if not waits:
            return
        seconds = min(waits) / 1e6
        if seconds <= 0:
            self.look_soon()
        elif not self._soon:  # a turn has ended meanwhile, and is looked at soon
            self._timer = self._call_later(min(max(seconds, TICK_LAG_S), LONGEST_SLEEP_S), self._look)
