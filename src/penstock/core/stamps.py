"""When a record was given out, about: LSNs with the time they were reached, so that the age of a message costs no read.

Levels of moments, each eight times as far apart as those before and as many: a recent age is right within 10 ms, an old
one within a half of a hundredth.  It begins with the process: what is older than that has the age of the process.
"""

from __future__ import annotations

from bisect import bisect_right

GRAIN_US = 10_000
STEP = 8
MOMENTS = 2048
"""Moments of one level at least."""
LEVELS = 7


class _Level:
    """Moments at least so far apart, the newest."""

    __slots__ = ("grain", "lsns", "times")

    def __init__(self, grain: int) -> None:
        self.grain = grain
        self.lsns: list[int] = []
        self.times: list[int] = []

    def note(self, first: int, time: int) -> bool:
        """Whether it was far enough from the last one."""
        times = self.times
        if times and time - times[-1] < self.grain:
            return False
        self.lsns.append(first)
        times.append(time)
        if len(times) > 2 * MOMENTS:
            del self.lsns[:MOMENTS]
            del times[:MOMENTS]
        return True


class Stamps:
    """LSN -> microseconds since the epoch."""

    __slots__ = ("_begun", "_levels", "_next")

    def __init__(self) -> None:
        self._levels = [_Level(GRAIN_US * STEP**level) for level in range(LEVELS)]
        self._begun = 0  # the first moment
        self._next = 0

    def note(self, last: int, time: int) -> None:
        """What came since the last note, up to this LSN, came at this time; called once a turn."""
        first, self._next = self._next, last + 1
        for level in self._levels:
            if not level.note(first, time):
                return
        self._begun = self._begun or time

    def of(self, lsn: int, now: int) -> int:
        """When this LSN was given out, at the earliest; what is older than the first note has its time."""
        for level in self._levels:
            if level.lsns and lsn >= level.lsns[0]:
                return min(level.times[bisect_right(level.lsns, lsn) - 1], now)
        return self._begun or now
