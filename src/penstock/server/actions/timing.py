"""Actions on a schedule: which is due, and when the next one is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import tzinfo

    from penstock.core.actions.rules import Rule
    from penstock.server.runtime import Runtime


class Timing:
    """The schedules of an engine.  Times are microseconds since the epoch."""

    def __init__(self, runtime: Runtime, due: Callable[[Rule], None]) -> None:
        """due: told of each action whose time has come."""
        self._runtime = runtime
        self._tell = due
        self.zone: tzinfo | None = None  # of times without Z; None: the machine's
        self._due: list[int] = []

    def next(self) -> int | None:
        """When to call `tick` next; None: never."""
        rules = self._runtime.core.rules.schedule
        if not rules:
            return None
        if not self._due:  # the first look starts the timers
            now = self._runtime.clock.wall()
            self._due = [schedule.after(now, self.zone) for _, schedule, _ in rules]
        return min(self._due)

    def tick(self) -> None:
        """Set off what is due.  What was missed meanwhile runs once."""
        upto = self.next()
        now = self._runtime.clock.wall()
        if upto is None or upto > now:
            return
        for place, (_, schedule, rule) in enumerate(self._runtime.core.rules.schedule):
            if self._due[place] <= now:
                then = schedule.after(self._due[place], self.zone)
                self._due[place] = then if then > now else schedule.after(now, self.zone)
                self._tell(rule)
