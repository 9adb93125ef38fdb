"""Readers that go on by turns of the server, in the order in which they had reason to.

What is committed, or read from the log, may concern a thousand readers at once, and to give one a page takes as long as
the page is large.  So who follows is given as much as one turn has time for; the others go on in the next turns, and
whoever publishes meanwhile, or asks for anything else, is heard between.

A walk knows readers and turns, not what they read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.server.base.rounds import Turns


class Steps(Protocol):
    """Who reads, as a walk knows it."""

    def step(self) -> None:
        """There may be something for it."""


class Walk:
    """Belongs to the loop's thread."""

    def __init__(self, turns: Turns, run: Callable[[Callable[[], object]], object], done: Callable[[], None]) -> None:
        """run: does it; what fails ends its reader.  done: called at the end of a turn's part, but for the first."""
        self._turns, self._run, self._done = turns, run, done
        self._line = deque[Steps]()
        self._there = set[Steps]()  # in the line
        self._until = 0  # when what there is in this turn is used up
        self._going = self._waiting = False

    def begin(self) -> None:
        """Something came: from here on there is time for readers."""
        self._until = self._turns.mine()

    @property
    def over(self) -> bool:
        """Whether that time is over."""
        return self._turns.over(self._until)

    @property
    def empty(self) -> bool:
        """Whether nobody has still to go on."""
        return not self._line

    def add(self, readers: Iterable[Steps]) -> None:
        """Have these go on, at once as far as there is time."""
        for reader in readers:
            if reader not in self._there:
                self._there.add(reader)
                self._line.append(reader)
        if self._line and not self._going and not self._waiting:
            self._go(lambda: self.over)

    def _go(self, is_over: Callable[[], bool]) -> None:
        """The first one in any case, so that the line moves."""
        line, self._going = self._line, True
        try:
            while line:
                reader = line.popleft()
                self._there.discard(reader)
                self._run(reader.step)
                if line and is_over():
                    break
        finally:
            self._going = False
        if line:
            self._waiting = True
            self._turns.wait(self._again)

    def _again(self) -> None:
        self._waiting = False
        self._go(lambda: self._turns.used_up)
        self._done()
