"""About when an LSN was given out, so that the age of a message costs no read: finely of late, coarsely long ago."""

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
        """Keep the moment if it is far enough from the last one; whether it was."""
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

    __slots__ = ("_begun", "_due", "_levels", "_next")

    def __init__(self) -> None:
        self._levels = [_Level(GRAIN_US * STEP**level) for level in range(LEVELS)]
        self._begun = 0  # the first moment
        self._next = 0
        self._due = 0  # before this the finest level has nothing to note

    def note(self, last: int, time: int) -> None:
        """Records up to this LSN, since the last call, have this time; called once a turn."""
        first, self._next = self._next, last + 1
        if time < self._due:
            return
        self._due = time + GRAIN_US
        for level in self._levels:
            if not level.note(first, time):
                return
        self._begun = self._begun or time

    def of(self, lsn: int, now: int) -> int:
        """The earliest time at which this LSN can have been given out; never before the first note's."""
        for level in self._levels:
            if level.lsns and lsn >= level.lsns[0]:
                return min(level.times[bisect_right(level.lsns, lsn) - 1], now)
        return self._begun or now

    def after(self, time: int, now: int, upto: int) -> int:
        """The first LSN up to `upto` that was given out later than that."""
        return bisect_right(range(upto), time, key=lambda lsn: self.of(lsn, now))
