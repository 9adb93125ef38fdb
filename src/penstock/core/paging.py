"""Keeping large state out of the heap: which queues and topics want that, and how far the look at them is.

What moves is a matter of memory alone: no record, no effect and no answer depends on it.  The shell says when, and
brings the arenas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from penstock.core.arena import Arena, Move
from penstock.core.queue.lasting import page
from penstock.core.queue.view import Queue
from penstock.core.sow.holding import Sow

Arenas: TypeAlias = Callable[[str], Arena]
"""The arena of a file that a queue names; "" is the one that all others share."""


class Paging:
    """Who asks for it, and how old state has to be."""

    __slots__ = ("asking", "at", "before", "version", "wanted")

    def __init__(self) -> None:
        self.wanted = False  # somebody asked for it since the start; until then nobody is looked at
        self.version = -1  # of the topology when `asking` was put together
        self.asking: list[Queue | Sow] = []
        self.at = 0  # where a look that is not over goes on
        self.before = 0  # state of messages below this LSN was there at the last look already

    def begin(self, version: int, queues: Iterable[Queue], sows: Iterable[Sow]) -> None:
        """Begin a look at all that ask for it, as of this version of the topology."""
        self.version, self.at = version, 0
        self.asking = [queue for queue in queues if queue.settings.file_backed_metadata]
        self.asking += (sow for sow in sows if sow.file_backed)

    def look(self, arenas: Arenas, most: int, next_lsn: int) -> bool:
        """Move state that was there at the last look already, so many arrays at most; whether there was more."""
        for at in range(self.at, len(self.asking)):
            one = self.asking[at]
            named = "" if isinstance(one, Sow) else one.settings.file_backed_metadata
            move = Move(arenas(named if isinstance(named, str) else ""), self.before, most)
            if isinstance(one, Sow):
                one.index.page(move)
            else:
                page(one, move)
            most = move.room
            if not most:
                self.at = at
                return True
        self.at, self.before = 0, next_lsn
        return False
