"""Alarms and setbacks: what is told in its own time, conflated rows for instance; what a fault stops of views, and when
that begins again.

A view that failed may be half changed, and so it alone is emptied and gathers its source anew, after a pause that grows
while it fails again.  Its rows stay meanwhile as they were told: who follows it hears of what differs when it is level
again, so that nothing comes twice and nothing is missed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from penstock.errors import Unavailable
from penstock.server.base.faults import REST_MOST_US, TOLD, Chore

if TYPE_CHECKING:
    from penstock.server.base.runtime import Runtime


class Alarm(Protocol):
    """Something with a time of its own, monotonic."""

    def next_due(self) -> int | None:
        """When to `tick` next, monotonic microseconds; None: never."""
        ...

    def tick(self, now: int) -> None: ...


class Alarms:
    """Those that are set: one that fails is put off alone.  All methods belong to the loop's thread."""

    def __init__(self, runtime: Runtime) -> None:
        self.clock, self.turns = runtime.clock, runtime.turns
        self.changed = runtime.arm  # an alarm is due at another time: see that it is looked at
        self.all: dict[Alarm, Chore] = {}
        self.faults = runtime.faults

    def add(self, alarm: Alarm) -> None:
        """It is set.  Twice does no harm."""
        if alarm not in self.all:
            self.all[alarm] = Chore(self.faults, self.clock, lambda: alarm.tick(self.clock.mono()))

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
                self.faults.contain(error, chore)
        return self.clock.mono() + chore.rest

    def tick(self) -> None:
        """All that is due does what it has to."""
        for chore in list(self.all.values()):
            chore.run()


class Setback(Chore):
    """Of a view, or of what publishes its rows.  All methods belong to the loop's thread."""

    kind = "view"

    def __init__(
        self, runtime: Runtime, alarms: Alarms, begin: Callable[[], object], stop: Callable[[], object] = bool
    ) -> None:
        """stop: lets go of all it has.  begin: begins anew; `over` is called once it is level."""
        super().__init__(runtime.faults, runtime.clock, begin)
        self.lasts = False  # it failed, and is not level again
        self.stopped = False  # it failed, and has not begun anew
        self._alarms, self._stop = alarms, stop

    @property
    def error(self) -> str | None:
        """Why it is not level, for people."""
        return f"it begins anew after {TOLD}" if self.lasts else None

    def end_by_fault(self) -> None:
        """It stops, and begins anew in a while."""
        if self.stopped:
            return
        if not self.lasts and self._clock.mono() - self._until > REST_MOST_US:
            self.failures = 0  # the last one is long ago
        super().end_by_fault()
        self.lasts = self.stopped = self.busy = True
        self._stop()
        self._alarms.add(self)
        self._alarms.changed()

    def over(self) -> None:
        """It is level again; a fault soon after this counts as one more."""
        self.lasts = False

    def end(self) -> None:
        """It does not begin anew."""
        self._alarms.remove(self)

    # -- an alarm

    def next_due(self) -> int | None:
        """When it begins anew, monotonic."""
        return self._until

    def tick(self, now: int) -> None:
        """Begin anew, if it is time."""
        if self._until <= now:
            self.end()
            self.stopped = False
            self.run()


def not_level(name: str) -> Unavailable:
    """What a query of a view is refused with that begins anew."""
    return Unavailable(f"view '{name}' gathers its source anew after {TOLD}; ask again in a minute")
