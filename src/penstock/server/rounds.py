"""The selector of a loop whose rounds have an end, where what all readable sockets brought is decided and logged.

It tells a clock of pauses when it is asked and when it answers.

A round is what the loop runs between two looks at its sockets.  Behind the sockets that are ready the selector names
one more that is none: its callback runs last in the same round, so nothing is waited for and no look is spent on it.
What is asked for outside of such a round is done in the next one, which then begins at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from selectors import EVENT_READ, DefaultSelector, SelectorKey
from typing import Protocol


class Clock(Protocol):
    """Who measures the turns of the loop."""

    def rest(self, now: float) -> None:
        """The loop looks at its sockets.  now: monotonic seconds."""
        ...

    def wake(self, looked: float, now: float, timeout: float | None, found: bool) -> None:
        """It goes on, after it looked for so long at most."""
        ...


class Rounds(DefaultSelector):
    """Those of one loop.  Belongs to the loop's thread."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.loop: asyncio.AbstractEventLoop | None = None  # whose rounds these are
        self._end: tuple[SelectorKey, int] | None = None
        self._waiting: list[Callable[[], None]] = []

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop that asks this selector."""
        self.loop = loop
        handle = asyncio.Handle(self._over, (), loop)
        self._end = SelectorKey(-1, -1, EVENT_READ, (handle, None)), EVENT_READ

    def at_end(self, callback: Callable[[], None]) -> None:
        """Run something once, when everything that was ready in this round has been heard."""
        self._waiting.append(callback)

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """What is ready, and the round's end behind it."""
        looked = time.monotonic()
        self._clock.rest(looked)
        if self._waiting:
            timeout = 0
        ready = super().select(timeout)
        self._clock.wake(looked, time.monotonic(), timeout, bool(ready))
        if (ready or self._waiting) and self._end is not None:
            ready.append(self._end)
        return ready

    def _over(self) -> None:
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()
