"""Work that may be long goes by turns: so much of it in one turn of the loop, and everybody else between.

Whoever has used up what there is for a turn waits in one line for all, and goes on where it stopped when it is its time
again.  What is at the head of the line always gets something done, so the line moves however little time there is.
What the work is, is not known here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.ports import Clock


TURN_US = 5_000
"""How long such work goes on in one turn, all of it together; one step more may be under way then."""


class Turns:
    """The turns of one loop, and who waits for the next.  Belongs to the loop's thread."""

    __slots__ = ("_fresh", "_line", "_mono", "_of", "_run", "_serving", "_soon", "_until", "number")

    def __init__(
        self, clock: Clock, soon: Callable[[Callable[[], None]], object], run: Callable[[Callable[[], None]], None]
    ) -> None:
        """run: does it; what fails ends who asked."""
        self.number = 0  # of the present turn; the engine counts
        self._mono = clock.mono
        self._soon = soon
        self._run = run
        self._of = -1  # the turn in which somebody has begun
        self._until = 0  # when what there is for all in that is used up
        self._line = deque[Callable[[], None]]()
        self._serving = False  # those in the line go on
        self._fresh = False  # the one that goes on has done nothing yet

    def mine(self) -> int:
        """When somebody's own time in this turn, which begins now, is over."""
        return self._mono() + TURN_US

    def over(self, until: int) -> bool:
        """Whether somebody's own time is over."""
        return self._mono() >= until

    @property
    def used_up(self) -> bool:
        """Whether others come first: they wait already, or what there is for all is used up."""
        if self._fresh:
            self._fresh = False
            return False
        if self._line and not self._serving:
            return True
        now = self._mono()
        if self._of != self.number:
            self._of, self._until = self.number, now + TURN_US
        return now >= self._until

    def wait(self, go_on: Callable[[], None]) -> None:
        """Go on when it is time, behind all that wait."""
        if not self._line and not self._serving:
            self._soon(self._next)
        self._line.append(go_on)

    def _next(self) -> None:
        self._of, self._serving = -1, True
        for _ in range(len(self._line)):
            if self.used_up:
                break
            self._fresh = True
            self._run(self._line.popleft())
            self._fresh = False
        self._serving = False
        if self._line:
            self._soon(self._next)
