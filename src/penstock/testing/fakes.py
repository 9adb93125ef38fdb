"""A clock that stands still until it is moved, and a place for paged state that is no file."""

from __future__ import annotations

import errno
import time
from bisect import bisect_right
from mmap import mmap

BOOTED_US = 1_000_000_000
"""What the monotonic clock shows when the machine has just started: its zero means nothing, so it is not zero."""


class FakeClock:
    """Wall and monotonic time in microseconds, moved together by `advance`."""

    def __init__(self, wall: int | None = None) -> None:
        """wall: microseconds since the epoch to begin with.

        Without it, the next whole second of the real time, so that times which real clients name make sense here.
        """
        self._wall = -(-time.time_ns() // 1_000_000_000) * 1_000_000 if wall is None else wall
        self._mono = BOOTED_US

    def wall(self) -> int:
        """Microseconds since the Unix epoch."""
        return self._wall

    def mono(self) -> int:
        """Microseconds on a clock that never goes back, except in `reboot`."""
        return self._mono

    def advance(self, micros: int) -> None:
        """Let time pass.  ValueError for a negative amount."""
        if micros < 0:
            raise ValueError(f"time does not go back by {-micros} us")
        self._wall += micros
        self._mono += micros

    def reboot(self) -> None:
        """The machine has started anew: the monotonic clock begins again, as it does for a server after a crash."""
        self._mono = BOOTED_US


class NoFile:
    """`ports.Backing` in memory.  Beyond `capacity` bytes its disk is full."""

    def __init__(self, capacity: int = 1 << 62) -> None:
        self.capacity = capacity
        self.size = 0
        self.given_back = 0
        self.closed = False
        self._starts: list[int] = []
        self._mappings: list[mmap] = []

    def extend(self, size: int) -> mmap:
        if self.size + size > self.capacity:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._starts.append(self.size)
        self._mappings.append(mmap(-1, size))
        self.size += size
        return self._mappings[-1]

    def write(self, data: memoryview, offset: int) -> None:
        at = bisect_right(self._starts, offset) - 1
        place = offset - self._starts[at]
        self._mappings[at][place : place + len(data)] = data

    def give_back(self) -> None:
        self.given_back += 1

    def close(self) -> None:
        self.closed = True
