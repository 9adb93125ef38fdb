"""Actions on a schedule: which is due, and when the next one is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import tzinfo

    from penstock.server.actions.acts import Acts


class Timing:
    """The schedules of an engine.  Times are microseconds since the epoch."""

    def __init__(self, acts: Acts) -> None:
        self._acts = acts
        self.zone: tzinfo | None = None  # of times without Z; None: the machine's
        self._due: list[int] = []

    @property
    def _schedules(self) -> int:
        return len(self._acts.engine.core.rules.schedule)

    def next(self) -> int | None:
        """When to call `tick` next; None: never."""
        rules = self._acts.engine.core.rules.schedule
        if not rules:
            return None
        if not self._due:  # the first look starts the timers
            now = self._acts.engine.clock.wall()
            self._due = [schedule.after(now, self.zone) for _, schedule, _ in rules]
        return min(self._due)

    def tick(self) -> None:
        """Set off what is due.  What was missed meanwhile runs once."""
        upto = self.next()
        now = self._acts.engine.clock.wall()
        if upto is None or upto > now:
            return
        for place, (_, schedule, rule) in enumerate(self._acts.engine.core.rules.schedule):
            if self._due[place] <= now:
                then = schedule.after(self._due[place], self.zone)
                self._due[place] = then if then > now else schedule.after(now, self.zone)
                self._acts.due(rule)
