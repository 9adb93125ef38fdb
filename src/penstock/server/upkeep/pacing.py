"""Publishers are slowed a little while upkeep of the log is behind, so that no load outgrows the retention for ever.

    what came since the log was last tended, beyond two segments -> lag -> the way in is shut so long after each batch

While the lag is zero nothing is shut and no timer runs.  It knows neither segments nor who publishes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.server.runtime import Runtime

LAG_US, LAG_US_MOST = 5_000, 50_000


def lag_us(behind: int, scale: int) -> int:
    """Microseconds of delay a batch: zero when nothing is behind, 5 ms for each `scale` bytes that are, 50 at most."""
    return min(max(behind, 0) * LAG_US // scale, LAG_US_MOST)


class Pace:
    """The delay of an engine's publishers.  For the loop's thread."""

    def __init__(self, runtime: Runtime, later: Callable[[float, Callable[[], None]], object]) -> None:
        """later: run something after so many seconds."""
        self.lag_us = 0
        self.slowed_us = 0  # since the start
        self._runtime = runtime
        self._later = later
        self._running = False

    def set(self, lag_us: int) -> None:
        """From now on a batch waits so long; with zero nobody waits any more."""
        self.lag_us = lag_us
        if not lag_us:
            self._let_in()
        elif not self._running:
            self._running = True
            self._shut()

    def _shut(self) -> None:
        """Whoever published waits; he is let in for one batch when it is over."""
        if self.lag_us:
            self._runtime.slowed = True
            self.slowed_us += self.lag_us
            self._later(self.lag_us / 1e6, self._open)
        else:
            self._running = False

    def _open(self) -> None:
        self._let_in()
        self._later(0, self._shut)  # after what they send now was read

    def _let_in(self) -> None:
        if self._runtime.slowed:
            self._runtime.slowed = False
            self._runtime.look_for_room()
