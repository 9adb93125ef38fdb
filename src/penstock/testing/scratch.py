"""A place for paged state that is no file: for tests and the in-process broker."""

from __future__ import annotations

import errno
from bisect import bisect_right
from mmap import mmap


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
