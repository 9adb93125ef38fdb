"""What a leader keeps of its log for followers that are behind, or away for a while.

One that needs more than is kept copies everything anew.  So a follower that was away for the time of a restart goes on
where it stood, and one that never comes back costs the leader no more than a bound.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.log.catalog import SegmentInfo


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
