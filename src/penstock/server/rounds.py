"""The end of a round of the event loop, where what all readable sockets brought is decided, logged and answered.

A round is what the loop runs between two looks at its sockets.  Behind the sockets that are ready the selector names
one more that is none: its callback runs last in the same round, so nothing is waited for and no look is spent on it.
What is asked for outside of such a round is done in the next one, which then begins at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from selectors import EVENT_READ, SelectorKey


class Rounds:
    """Those of one loop, whose selector asks here.  Belongs to the loop's thread."""

    __slots__ = ("_end", "_waiting", "loop")

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None  # whose rounds these are
        self._end: tuple[SelectorKey, int] | None = None
        self._waiting: list[Callable[[], None]] = []

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop has a selector that asks here."""
        self.loop = loop
        handle = asyncio.Handle(self._over, (), loop)
        self._end = SelectorKey(-1, -1, EVENT_READ, (handle, None)), EVENT_READ

    def at_end(self, callback: Callable[[], None]) -> None:
        """Run something once, when everything that was ready in this round has been heard."""
        self._waiting.append(callback)

    def sleep(self, timeout: float | None) -> float | None:
        """How long the selector may wait for the next round, which is so long without anything that is due."""
        return 0 if self._waiting else timeout

    def close(self, ready: list[tuple[SelectorKey, int]]) -> None:
        """These are ready: the round's end comes behind them."""
        if (ready or self._waiting) and self._end is not None:
            ready.append(self._end)

    def _over(self) -> None:
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()
