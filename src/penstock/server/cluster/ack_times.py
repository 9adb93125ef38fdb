"""How long followers take to say that what was sent is on their disks: a histogram over all of a leader's time."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import accumulate

BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds; what took longer is counted behind the last."""


class AckTimes:
    """Of all followers."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._total = 0.0

    def took(self, seconds: float) -> None:
        """One piece of the log was acked."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._total += seconds

    def plain(self) -> dict[str, object]:
        """For programs: of each bound, and of no bound, how many took no longer."""
        return {"counts": list(accumulate(self._counts)), "sum": round(self._total, 6)}


class Unacked:
    """What was sent to one follower, and when."""

    def __init__(self, times: AckTimes) -> None:
        self._times = times
        self._sent = deque[tuple[int, float]]()

    def sent(self, upto: int, now: float) -> None:
        """Bytes of the stream, all up to here; seconds on any clock."""
        self._sent.append((upto, now))

    def acked(self, upto: int, now: float) -> None:
        """All up to here is on the follower's disk."""
        sent = self._sent
        while sent and sent[0][0] <= upto:
            self._times.took(now - sent.popleft()[1])
