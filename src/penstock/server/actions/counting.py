"""What actions did, by name; failures are told in the server's log, of many one a second."""

from __future__ import annotations

import logging
from dataclasses import field
from typing import TYPE_CHECKING

from penstock.records.dataclass import dataclass

if TYPE_CHECKING:
    from penstock.ports import Clock

logger = logging.getLogger("penstock.actions")

QUIET_US = 1_000_000
"""Between two lines about failures of one action."""


@dataclass(slots=True)
class Tally:
    """What one action did since the start."""

    runs: int = 0
    failures: int = 0
    reasons: dict[str, int] = field(default_factory=dict[str, int])  # the same by reason
    told: int = 0  # failures that a line was written about, or that the next one will tell of
    told_at: int | None = None  # monotonic


class Counts:
    """All actions, and the counters that they keep."""

    def __init__(self, clock: Clock) -> None:
        self.by_name: dict[str, Tally] = {}
        self.counters: dict[str, int] = {}
        self._clock = clock

    def of(self, name: str) -> Tally:
        """Of one action."""
        return self.by_name.setdefault(name, Tally())

    def failed(self, name: str, why: str, count: int = 1, reason: str = "publish") -> None:
        """An action did not come to its end.  reason: one of the few words that metrics know."""
        tally, now = self.of(name), self._clock.mono()
        tally.failures += count
        tally.reasons[reason] = tally.reasons.get(reason, 0) + count
        if tally.told_at is not None and now - tally.told_at < QUIET_US:
            return
        more = tally.failures - tally.told - count
        since = f" ({more} more since the last line)" if more else ""
        tally.told, tally.told_at = tally.failures, now
        logger.error("action %r failed: %s%s", name, why, since)
