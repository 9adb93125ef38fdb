"""How much work one message may cause: a count of array elements looked at, not a clock, so the answer never depends on
the machine.

A filter of a thousand comparisons and a body with a hundred thousand elements are each harmless; together they would
hold the loop for half a minute.  A message that needs more than its allowance is NULL as a whole: no filter matches it.
Expressions of a few predicates are not metered.

Who may not be held up, the loop, also says how much work a whole batch may cause (`bounded`).  Beyond that the
evaluation is given up with `HandOver` and belongs somewhere else: there it gives the answer that it would have given.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

VISITS_PER_BYTE = 8
VISITS_FREE = 4096
UNLIMITED = 1 << 62

LOOP_VISITS = 20_000
"""Elements that the evaluations of one batch may look at on the loop: 20 ms of the dearest comparisons (1 us each)."""

LOOP_BODY = 256 * 1024
"""Bytes of a body beyond which nothing parses it on the loop."""

LOOP_BYTES = 4 * 2**20
"""Bytes of bodies that are parsed for one batch on the loop: 10 ms."""


class TooMuchWork(Exception):
    """The allowance of this message is used up.  Never leaves the compiled function."""


class HandOver(Exception):
    """The evaluation takes more than the loop has time for.  Nothing is known of its answers."""


class Meter(threading.local):
    """What is left for the message at hand, and for all that a caller may do at once; of each thread for itself."""

    left: int = UNLIMITED
    batch: int = UNLIMITED

    def start(self, size: int) -> None:
        """The allowance of a message of so many bytes: some eight passes over whatever array it holds."""
        self.left = VISITS_PER_BYTE * size + VISITS_FREE

    def spend(self, visits: int) -> None:
        """Count elements about to be looked at.  Raises TooMuchWork, and HandOver inside `bounded`."""
        self.left -= visits
        if self.left < 0:
            raise TooMuchWork
        self.take_time(visits)

    def take_time(self, visits: int) -> None:
        """Count work that no message is refused for.  Raises HandOver inside `bounded`, before it is done."""
        self.batch -= visits
        if self.batch < 0:
            raise HandOver

    def stop(self) -> None:
        """No message is at hand."""
        self.left = UNLIMITED

    @contextmanager
    def bounded(self, visits: int = LOOP_VISITS) -> Generator[None]:
        """So much work and no more inside; beyond it HandOver is raised."""
        self.batch = visits
        try:
            yield
        finally:
            self.batch = UNLIMITED


meter = Meter()
