"""How many actions stand before a message: an action that sets itself off is stopped after some rounds.

Kept for messages that actions published, as spans of LSNs; the oldest are forgotten beyond a bound, and all of them
with the process.
"""

from __future__ import annotations

from bisect import bisect_right

HOPS_MOST = 8
"""Rounds after which a message sets off nothing more."""

SPANS_MOST = 65_536


class Hops:
    """Published LSN -> actions on the way to it."""

    __slots__ = ("_ends", "_hops", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._hops: list[int] = []

    def of(self, lsn: int) -> int:
        """0 for what a client published."""
        if not self._starts or lsn < self._starts[0]:
            return 0
        at = bisect_right(self._starts, lsn) - 1
        return self._hops[at] if lsn < self._ends[at] else 0

    def any(self, first: int, end: int) -> bool:
        """Whether some message of [first, end) was published by an action."""
        if not self._starts or end <= self._starts[0]:
            return False
        at = bisect_right(self._starts, end - 1) - 1
        return self._ends[at] > first

    def add(self, first: int, end: int, hops: int) -> None:
        """The messages in [first, end), newer than all before."""
        if self._ends and self._ends[-1] == first and self._hops[-1] == hops:
            self._ends[-1] = end
            return
        self._starts.append(first)
        self._ends.append(end)
        self._hops.append(hops)
        if len(self._starts) > SPANS_MOST:
            for column in (self._starts, self._ends, self._hops):
                del column[: SPANS_MOST // 2]
