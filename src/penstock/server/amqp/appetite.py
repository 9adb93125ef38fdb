"""How much is read from one connection at a time: less where its bytes cost more, so that others have their turn.

A read is one turn of the loop.  256 KiB of publishes to one queue take 2 ms, as acks of one message each 30 ms, and as
declares 200 ms: the size is halved while turns are long, and doubled again while full ones are short.
"""

from __future__ import annotations

MOST = 256 << 10
LEAST = 4 << 10
FIRST = 32 << 10
"""Bytes."""

LONG_US = 8_000
SHORT_US = 3_000
"""Between the two the size stays."""


class Appetite:
    """Of one connection."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = FIRST  # bytes of the next read

    def took(self, size: int, micros: int) -> bool:
        """So many bytes took so long; whether `size` is now another."""
        before = self.size
        if micros > LONG_US:
            self.size = max(LEAST, min(before, size) // 2)
        elif micros < SHORT_US and size >= before:
            self.size = min(MOST, 2 * before)
        return self.size != before
