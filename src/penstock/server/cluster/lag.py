"""How far followers are behind: how long they take to say that what was sent is on their disks, and what of its log a
leader keeps for those that are behind, or away for a while.

One that needs more than is kept copies everything anew.  So a follower that was away for the time of a restart goes on
where it stood, and one that never comes back costs the leader no more than a bound.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.log.catalog import SegmentInfo

BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds; what took longer is counted behind the last."""


class AckTimes:
    """Of all followers: a histogram over all of a leader's time."""

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


class Hold:
    """Of one leader."""

    def __init__(self, most: int, age: int) -> None:
        """most: bytes that are kept for one.  age: microseconds for which one that is away is waited for."""
        self._most, self._age = most, age
        self._seen: Mapping[str, tuple[int, int]] = {}  # member -> LSN that it acked, and when it was last here

    def learn(self, followers: Mapping[str, Mapping[str, Any]], members: Collection[str], now: int) -> None:
        """Who is here, and how far.  members: who may come back, also those that this leader has not seen yet."""
        here = {key: (one["acked_lsn"], now) for key, one in followers.items()}
        away = dict.fromkeys(members, (0, now))
        self._seen = {key: seen for key, seen in {**away, **self._seen, **here}.items() if key in members}

    def lets_go(self, segment: SegmentInfo, segments: Sequence[SegmentInfo], now: int) -> bool:
        """Whether no follower is waited for that needs this one.  segments: all of the log.  Any thread."""
        behind = [acked for acked, at in self._seen.values() if acked < segment.last and now - at <= self._age]
        if not behind:
            return True
        return all(sum(one.bytes for one in segments if one.last > acked) > self._most for acked in set(behind))
