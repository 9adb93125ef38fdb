"""Naps of the event loop: a loop that never sleeps starves every other thread of the interpreter.

The log's writer gets it when its commit has waited for long enough, and Flight's threads while calls are made.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.log import Log
    from penstock.ports import Clock

STARVED_US = 500
"""A commit that has waited this long for the interpreter gets it: the loop sleeps for a moment."""

GUEST_STAYS_US = 1_000_000
"""A Flight call was made so recently: its thread, or the next one's, may be waiting for the interpreter."""

GUEST_US = 100
"""A Flight call takes the interpreter some eight times: with a guest in the house the loop naps this often."""

NAP_S = 20e-6
"""How long a nap is; any real sleep hands the interpreter over."""


def nap() -> None:
    """Hand the interpreter over: work of a thread that is long and all Python does it now and then.

    Without, whoever else needs the interpreter waits five milliseconds for it, and the loop does each time that a call
    of the system has let it go: several times a turn.
    """
    time.sleep(NAP_S)


class Nap:
    """When the loop sleeps for a moment."""

    __slots__ = ("_clock", "_guest_at", "_log", "_napped")

    def __init__(self, clock: Clock, log: Log) -> None:
        self._clock = clock
        self._log = log
        self._guest_at = -GUEST_STAYS_US  # mono when another thread last had business
        self._napped = 0

    def announce_guest(self) -> None:
        """A thread of another door has business and will need the interpreter.  Any thread."""
        self._guest_at = self._clock.mono()

    def let_others_in(self) -> None:
        """At the end of a turn: sleep a moment when another thread has waited long enough."""
        now = self._clock.mono()
        awake = now - self._napped
        if awake < GUEST_US:
            return
        waiting = self._log.waiting_since
        if (waiting and awake > STARVED_US < now - waiting) or now - self._guest_at < GUEST_STAYS_US:
            nap()
            self._napped = self._clock.mono()
