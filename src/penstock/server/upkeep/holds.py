"""Holds that readers ask for by name: nothing from an LSN on goes, by deletion or compaction, while the hold lasts.

A batch read plans first and reads later, perhaps elsewhere, perhaps part by part.  So it asks for a hold, and asks
again with each part; HOLD_US after the last time it is over.  Holds die with the process: whoever reads asks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.ports import Clock
    from penstock.server.access import Who
    from penstock.server.shares import Share

HOLD_US = 600_000_000

_Name = tuple[str, str]
"""The user, and what he calls the read."""


class Holds:
    """All holds of one server.  Belongs to the loop's thread."""

    def __init__(self, clock: Clock, share: Share) -> None:
        """share: how many a user may have."""
        self._clock = clock
        self._share = share
        self._by_name = dict[_Name, tuple[int, int]]()  # (LSN, mono microseconds when it ends)

    def put(self, who: Who, read: str, lsn: int) -> bool:
        """Hold everything from `lsn` on; of several LSNs under one user's name for it the lowest counts.

        Whether there was a hold of this name, that is, nothing has gone since.  Unavailable: there are too many.
        """
        name = who.user, read
        before = self._living().get(name)
        if before is None:
            self._share.take(who)
        self._by_name[name] = (lsn if before is None else min(lsn, before[0]), self._clock.mono() + HOLD_US)
        return before is not None and before[0] <= lsn

    def drop(self, user: str, read: str) -> None:
        """The read is over."""
        if self._by_name.pop((user, read), None) is not None:
            self._share.give(user)

    def floor(self) -> int | None:
        """The lowest LSN held; None: no hold."""
        return min((lsn for lsn, _ in self._living().values()), default=None)

    def _living(self) -> dict[_Name, tuple[int, int]]:
        now = self._clock.mono()
        for name in [name for name, (_, until) in self._by_name.items() if until <= now]:
            self.drop(*name)
        return self._by_name
