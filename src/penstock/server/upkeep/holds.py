"""Holds that readers ask for by name: nothing from an LSN on goes, by deletion or compaction, while the hold lasts.

A batch read plans first and reads later, perhaps elsewhere, perhaps part by part.  So it asks for a hold, and asks
again with each part; HOLD_US after the last time it is over.  Holds die with the process: whoever reads asks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import Unavailable

if TYPE_CHECKING:
    from penstock.ports import Clock

HOLD_US = 600_000_000
HOLDS_MAX = 10_000


class Holds:
    """All holds of one server.  Belongs to the loop's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_name = dict[str, tuple[int, int]]()  # name -> (LSN, mono microseconds when it ends)

    def put(self, name: str, lsn: int) -> bool:
        """Hold everything from `lsn` on; of several LSNs under one name the lowest counts.

        Whether there was a hold of this name, that is, nothing has gone since.  Unavailable: there are too many.
        """
        before = self._living().get(name)
        if before is None and len(self._by_name) >= HOLDS_MAX:
            raise Unavailable(f"{HOLDS_MAX} reads hold the log already; try again later")
        self._by_name[name] = (lsn if before is None else min(lsn, before[0]), self._clock.mono() + HOLD_US)
        return before is not None and before[0] <= lsn

    def drop(self, name: str) -> None:
        """The read is over."""
        self._by_name.pop(name, None)

    def floor(self) -> int | None:
        """The lowest LSN held; None: no hold."""
        return min((lsn for lsn, _ in self._living().values()), default=None)

    def _living(self) -> dict[str, tuple[int, int]]:
        now = self._clock.mono()
        if any(until <= now for _, until in self._by_name.values()):
            self._by_name = {name: one for name, one in self._by_name.items() if one[1] > now}
        return self._by_name
