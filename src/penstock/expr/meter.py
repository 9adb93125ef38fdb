"""How much work one message may cause: a count of array elements looked at, not a clock, so the answer never depends on
the machine.

A filter of a thousand comparisons and a body with a hundred thousand elements are each harmless; together they would
hold the loop for half a minute.  A message that needs more than its allowance is NULL as a whole: no filter matches it.
Expressions of a few predicates are not metered.
"""

from __future__ import annotations

import threading

VISITS_PER_BYTE = 8
VISITS_FREE = 4096
UNLIMITED = 1 << 62


class TooMuchWork(Exception):
    """The allowance of this message is used up.  Never leaves the compiled function."""


class Meter(threading.local):
    """What is left for the message at hand, of each thread for itself."""

    left: int = UNLIMITED

    def start(self, size: int) -> None:
        """The allowance of a message of so many bytes: some eight passes over whatever array it holds."""
        self.left = VISITS_PER_BYTE * size + VISITS_FREE

    def spend(self, visits: int) -> None:
        """Count elements about to be looked at.  Raises TooMuchWork."""
        self.left -= visits
        if self.left < 0:
            raise TooMuchWork

    def stop(self) -> None:
        """No message is at hand."""
        self.left = UNLIMITED


meter = Meter()
