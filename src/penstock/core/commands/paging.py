"""Keeping large state out of the heap: queues and topics that ask for it, and the arenas they ask for.

What moves is a matter of memory alone: no record, no effect and no answer depends on it.  The shell says when, and
brings the arenas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from penstock.core.arena import Arena, Move
from penstock.core.commands.parts import Parts
from penstock.core.queue.paging import page
from penstock.core.sow.holding import Sow

Arenas: TypeAlias = Callable[[str], Arena]
"""The arena of a file that a queue names; "" is the one that all others share."""


class PagingCommands(Parts):
    """What a server does once a second."""

    def page(self, arenas: Arenas, most: int) -> bool:
        """Move state that was there at the last look already: so many arrays at most.

        Whether there was more to do than that: then the next call goes on.
        """
        paging = self._paging
        if not paging.wanted:
            return False
        if paging.version != self._topology.version:
            paging.begin(self._topology.version, self._admin.by_id.values(), self._keyed.sows)
        for at in range(paging.at, len(paging.asking)):
            one = paging.asking[at]
            named = "" if isinstance(one, Sow) else one.settings.file_backed_metadata
            move = Move(arenas(named if isinstance(named, str) else ""), paging.before, most)
            if isinstance(one, Sow):
                one.index.page(move)
            else:
                page(one, move)
            most = move.room
            if not most:
                paging.at = at
                return True
        paging.at, paging.before = 0, self._out.next_lsn
        return False
