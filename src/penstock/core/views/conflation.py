"""Conflation: of the changes of a key within an interval only the last is told.

The first change of a key starts its interval; what comes before its end replaces it; what leaves before its end is not
told at all.  Pure: the instants are handed in, monotonic microseconds.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

LEAST_US = 100_000
DEFAULT_US = 5_000_000
"""The interval of a conflated topic that names none."""


class Conflation(Generic[K, V]):
    """Changes that wait.  All have one interval, so they come due in the order of their first."""

    __slots__ = ("_due", "_interval", "_waiting")

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._waiting: dict[K, tuple[int, V]] = {}  # when it comes due, and the last change
        self._due: deque[tuple[int, K]] = deque()  # those that were dropped among them

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, key: K, value: V, now: int) -> None:
        """A change."""
        held = self._waiting.get(key)
        if held is None:
            due = now + self._interval
            self._waiting[key] = (due, value)
            self._due.append((due, key))
        else:
            self._waiting[key] = (held[0], value)

    def waiting(self, key: K) -> V | None:
        """The change of a key that waits."""
        held = self._waiting.get(key)
        return None if held is None else held[1]

    def drop(self, key: K) -> bool:
        """The key leaves: whether a change of it waited, which is not told now."""
        return self._waiting.pop(key, None) is not None

    def due(self, now: int) -> list[V]:
        """What is to be told by now, in the order of the first changes."""
        out: list[V] = []
        while self._due and self._due[0][0] <= now:
            due, key = self._due.popleft()
            held = self._waiting.get(key)
            if held is not None and held[0] == due:
                del self._waiting[key]
                out.append(held[1])
        return out

    def next_due(self) -> int | None:
        """When something may be due next; None: nothing waits."""
        while self._due:
            due, key = self._due[0]
            held = self._waiting.get(key)
            if held is not None and held[0] == due:
                return due
            self._due.popleft()
        return None
