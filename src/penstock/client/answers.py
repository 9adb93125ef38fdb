"""What the server says of one consumer beside its messages, and who waits for that.

One thread hears it, others wait: for the terms, for the answer to other terms, for settles to be durable.  Each wait is
bounded, and ends with the stream.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.errors import LogBroken, PenstockError, Unavailable
from penstock.wire.flight.failures import error_from

WAIT_S = 30.0
"""How long the server may take to answer."""

GATHERED = 1000
"""Settles that are sent together at the latest, where the backlog has no limit."""


class End:
    """The stream has ended; `error` None: as it should."""

    def __init__(self, error: PenstockError | None) -> None:
        self.error = error


class Answers:
    def __init__(self, backlog: int) -> None:
        """backlog: what was asked for; 0 is no limit."""
        self.stale = 0  # settles that had no effect
        self.half = max(1, backlog // 2) if backlog else GATHERED  # settles that are sent together at the latest
        self.failures: deque[PenstockError] = deque()  # settles that will never be durable
        self.ended: End | None = None
        self._changed = threading.Condition()
        self._terms: dict[str, Any] | None = None  # as the server told them
        self._replies: dict[int, dict[str, Any]] = {}  # to replacements, by number
        self._heard = 0  # number of the last question about settles that was answered

    # -- the thread that reads

    def hear(self, said: dict[str, Any]) -> None:
        number = said.get("answer")
        with self._changed:
            if "subscribed" in said:
                self._set_terms(said["subscribed"])
            elif number is None:
                return
            elif "replaced" in said or "refused" in said:
                self._replies[number] = said
            else:
                self._heard = number
                self.stale += said.get("stale", 0)
                if "broken" in said:
                    self.failures.append(LogBroken(f"the log is broken: {said['broken']}"))
            self._changed.notify_all()

    def end(self, end: End) -> None:
        with self._changed:
            self.ended = end
            self._changed.notify_all()

    def _set_terms(self, terms: dict[str, Any]) -> None:
        self._terms = terms
        limit = terms["effective_backlog"]
        self.half = GATHERED if limit is None else max(1, limit // 2)

    # -- those that wait

    def _wait(self, done: Callable[[], bool], seconds: float, late: str) -> None:
        """Until it is so, or the stream has ended; holding `_changed`.  Unavailable, as `late` says, when it is not."""
        deadline = time.monotonic() + seconds
        while not done() and self.ended is None:
            if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                raise Unavailable(late)

    def _gone(self, why: str) -> PenstockError:
        return (self.ended.error if self.ended is not None else None) or Unavailable(why)

    def terms(self) -> dict[str, Any]:
        """Those in force; waits for them."""
        late = f"the server did not answer within {WAIT_S:g} s"
        with self._changed:
            self._wait(lambda: self._terms is not None, WAIT_S, late)
            if self._terms is None:
                raise self._gone("the stream ended")
            return self._terms

    def replaced(self, number: int, seconds: float) -> None:
        """The terms that were asked for with this number are in force; raises what the server refuses them for."""
        with self._changed:
            late = f"the server did not answer within {seconds:g} s"
            self._wait(lambda: number in self._replies, seconds, late)
            said = self._replies.pop(number, None)
            if said is None:
                raise self._gone("the stream ended")
            if "refused" in said:
                raise error_from(said["refused"])
            self._set_terms(said["replaced"])

    def durable(self, number: int, seconds: float) -> None:
        """All settles up to the question of this number are durable."""
        with self._changed:
            late = f"the server did not say within {seconds:g} s that the settles are durable"
            self._wait(lambda: self._heard >= number, seconds, late)
            if self._heard < number:
                raise self._gone("the stream ended before the settles were durable")
