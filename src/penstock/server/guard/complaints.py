"""Lines in the log about strangers: bounded, because strangers decide how many there would be.

    the same word about the same host    once in `TOLD_S`
    words about strangers in all         `MOST` in that time, and then how many more there were

Everything is counted; what is not written line by line is told as a number.  For the loop's thread.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

logger = logging.getLogger("penstock.server.doors")

TOLD_S = 10.0
MOST = 20
"""Lines in `TOLD_S`."""


class Complaints:
    """Of one server."""

    def __init__(self, now: Callable[[], float], later: Callable[[float, Callable[[], None]], object]) -> None:
        """now: seconds that never go back.  later: runs something after so many of them."""
        self.counts = Counter[str]()  # by door, also of what was not written
        self._now = now
        self._later = later
        self._told = set[tuple[str, str, str]]()  # since the present span began
        self._more = Counter[str]()  # by door, not written in the present span
        self._open = False

    def tell(self, door: str, host: str, why: str) -> None:
        """`why` goes on after "was sent away: "; it must not hold text that a stranger chose without a bound."""
        self.counts[door] += 1
        if not self._open:
            self._open = True
            self._later(TOLD_S, self._over)
        if (door, host, why) in self._told or len(self._told) >= MOST:
            self._more[door] += 1
            return
        self._told.add((door, host, why))
        logger.warning("%s: %s was sent away: %s", door, host, why)

    def _over(self) -> None:
        """The span has ended: what was not written is told as a number."""
        self._open = False
        self._told.clear()
        more, self._more = self._more, Counter[str]()
        for door, count in more.items():
            logger.warning("%s: %d more were sent away in %g s, for the same or other reasons", door, count, TOLD_S)
