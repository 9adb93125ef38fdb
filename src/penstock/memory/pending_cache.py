"""PendingCache: bodies that lists want, but not yet: above their high-water marks.

Keyed by position and shared by all lists of a queue: whichever list comes to a position first moves the body to its
direct ones.  When room is needed the body that is needed latest goes first: the one with the most before it.  It knows
no list and reads nothing.
"""

from __future__ import annotations

from penstock.memory.shelf import Shelves


class PendingCache(Shelves):
    """Bodies by position for each queue."""

    def latest(self) -> tuple[int, int]:
        """(queue, bytes of bodies before and with it) of the body that is needed latest; only when there is one."""
        queue = self.longest()
        return queue, self.held(queue)
