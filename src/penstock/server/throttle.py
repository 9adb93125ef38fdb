"""How often something may happen for each of many keys: a bucket that leaks.

Each event fills a key's bucket by one, each second empties it by `rate`; above `burst` the key has to wait.  Of more
than `KEYS_MOST` keys those that were not heard of for longest are forgotten, so nobody makes it grow.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

KEYS_MOST = 10_000


class Throttle:
    """For events of one kind.  Guarded by whoever has it."""

    def __init__(self, burst: float, rate: float, now: Callable[[], float]) -> None:
        """rate: events a second.  now: seconds that never go back."""
        self._burst = burst
        self._rate = rate
        self._now = now
        self._levels = OrderedDict[Hashable, tuple[float, float]]()  # key -> level, and when that was so

    def wait_s(self, key: Hashable) -> float:
        """For how long the key has to wait; 0.0: it has not."""
        return max(0.0, (self._level(key) + 1.0 - self._burst) / self._rate)

    def count(self, key: Hashable) -> None:
        """It happened once more."""
        self._levels[key] = self._level(key) + 1.0, self._now()
        self._levels.move_to_end(key)
        if len(self._levels) > KEYS_MOST:
            self._levels.popitem(last=False)

    def _level(self, key: Hashable) -> float:
        level, at = self._levels.get(key, (0.0, 0.0))
        return max(0.0, level - (self._now() - at) * self._rate)
