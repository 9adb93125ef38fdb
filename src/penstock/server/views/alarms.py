"""Alarms: what is told in its own time, conflated rows for instance, or begins anew then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.server.faults import Chore

if TYPE_CHECKING:
    from penstock.server.runtime import Runtime


class Alarm(Protocol):
    """Something with a time of its own, monotonic."""

    def next_due(self) -> int | None:
        """When to `tick` next, monotonic microseconds; None: never."""
        ...

    def tick(self, now: int) -> None: ...


class Alarms:
    """Those that are set: one that fails is put off alone.  All methods belong to the loop's thread."""

    def __init__(self, runtime: Runtime) -> None:
        self.clock = runtime.clock
        self.changed = runtime.arm  # an alarm is due at another time: see that it is looked at
        self.all: dict[Alarm, Chore] = {}
        self._faults = runtime.faults

    def add(self, alarm: Alarm) -> None:
        """It is set.  Twice does no harm."""
        if alarm not in self.all:
            self.all[alarm] = Chore(self._faults, self.clock, lambda: alarm.tick(self.clock.mono()))

    def remove(self, alarm: Alarm) -> None:
        """It is set no more.  Twice does no harm."""
        self.all.pop(alarm, None)

    def next_deadline(self) -> int | None:
        """When to `tick` next, monotonic; None is never."""
        return min((due for one in list(self.all.items()) if (due := self._due(*one)) is not None), default=None)

    def _due(self, alarm: Alarm, chore: Chore) -> int | None:
        if not chore.rests:
            try:
                return alarm.next_due()
            except Exception as error:  # noqa: BLE001 - the border of each
                self._faults.contain(error, chore)
        return self.clock.mono() + chore.rest

    def tick(self) -> None:
        """All that is due does what it has to."""
        for chore in list(self.all.values()):
            chore.run()
