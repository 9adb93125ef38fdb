"""Rows with a key that somebody shows and others follow: those of a view, or of a conflated topic.

What is told in its own time, conflated rows for instance, has an alarm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from penstock.server.runtime import Runtime


class Told(NamedTuple):
    """What became of a row."""

    key: str
    body: bytes | None  # None: it is gone
    before: bytes | None  # None: it is new
    reason: str = ""  # why it is gone: deleted, expired, match


class Shown(Protocol):
    """Whoever shows rows.  All methods belong to the loop's thread."""

    told: list[Callable[[Sequence[Told]], None]]  # who follows

    @property
    def name(self) -> str:
        """As people ask for it."""
        ...

    @property
    def vhost(self) -> str:
        """Its vhost."""
        ...

    @property
    def sources(self) -> Sequence[str]:
        """The names that its rows come from."""
        ...

    def rows(self) -> dict[str, bytes]:
        """The rows by key."""
        ...

    def when_current(self, then: Callable[[], None]) -> None:
        """Call back once the rows have all that was decided so far; perhaps before this returns."""
        ...


class Alarm(Protocol):
    """Something with a time of its own, monotonic."""

    def next_due(self) -> int | None:
        """When; None is never."""
        ...

    def tick(self, now: int) -> None:
        """Do what is due."""
        ...


class Alarms:
    """Those that are set.  All methods belong to the loop's thread."""

    def __init__(self, runtime: Runtime) -> None:
        self.clock = runtime.clock
        self.changed = runtime.arm  # an alarm is due at another time: see that it is looked at
        self._alarms: list[Alarm] = []

    def __len__(self) -> int:
        return len(self._alarms)

    def add(self, alarm: Alarm) -> None:
        """One more."""
        self._alarms.append(alarm)

    def remove(self, alarm: Alarm) -> None:
        """It is set no more.  Twice does no harm."""
        if alarm in self._alarms:
            self._alarms.remove(alarm)

    def next_deadline(self) -> int | None:
        """When to `tick` next, monotonic; None is never."""
        return min((due for due in (one.next_due() for one in self._alarms) if due is not None), default=None)

    def tick(self) -> None:
        """Do what is due."""
        now = self.clock.mono()
        for one in list(self._alarms):
            one.tick(now)
