"""A server that is away: when to try it again, and when to give it up.

    away = Outage(300.0)
    away.failed(error)      # raises it when another try is not worth while, or the time is over
    away.wait(until, ended) # until the next try is due
    away.over()             # it answered

Whoever has something open with a server has one of these: consumers, replays and workers wait alike.  It knows no
connection; how one is made is its owner's to say.
"""

from __future__ import annotations

import random
import threading
import time

from penstock.errors import PenstockError, Unavailable
from penstock.units import Duration, span

PAUSE_S = (0.1, 5.0)
"""Before the next try: about so long at first, doubled each time, and at most."""

PATIENCE: Duration = "5m"
"""How long a server may be away unless somebody says otherwise."""


def patience(given: Duration | None) -> float | None:
    """How many seconds a server may be away; None: for ever."""
    return None if given is None else span(given, "reconnect") / 1e6


class Outage:
    """One time without an answer, or none.  Of one thread, but for the event that ends its waiting."""

    def __init__(self, limit: float | None, *, chance: random.Random | None = None) -> None:
        """limit: seconds from the loss on after which it is given up; 0: at once; None: never."""
        self._limit = limit
        self._chance = chance or random.Random()
        self._since: float | None = None
        self._pause = PAUSE_S[0]
        self._due = 0.0
        self.error: PenstockError | None = None
        """Why the last try failed; None: there is no outage."""

    def failed(self, error: PenstockError) -> None:
        """The connection was lost, or a try to have it again failed.  Raises it when nothing more is to be tried."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if not error.retry or self._limit == 0:
            raise error
        if self._limit is not None and now - self._since >= self._limit:
            raise Unavailable(f"the server was away for {now - self._since:.0f} s and is given up: {error}") from error
        self.error = error
        pause = self._pause * (0.5 + self._chance.random())
        if self._limit is not None:
            pause = min(pause, max(self._limit - (now - self._since), PAUSE_S[0]))
        self._due = now + pause
        self._pause = min(self._pause * 2, PAUSE_S[1])

    @property
    def pause(self) -> float:
        """Seconds until the next try is due."""
        return max(0.0, self._due - time.monotonic())

    def wait(self, until: float | None, ended: threading.Event) -> bool:
        """Until the next try is due; False where `until`, a moment of the monotonic clock, or the end comes first."""
        left = self.pause
        if until is not None and until - time.monotonic() < left:
            ended.wait(max(0.0, until - time.monotonic()))
            return False
        return not ended.wait(left)

    def over(self) -> bool:
        """The server answered; whether it had been away."""
        was_away = self._since is not None
        self._since, self._pause, self._due, self.error = None, PAUSE_S[0], 0.0, None
        return was_away
