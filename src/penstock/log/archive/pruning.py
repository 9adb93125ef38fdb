"""What of an archive may go: whole days, oldest first.

Times in the log never decrease, so all LSNs of a day lie below those of the next one, and what goes is all that lies
below one LSN.  The newest day stays.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

from penstock.log.archive.manifest import Manifest

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Pruned(NamedTuple):
    """What goes."""

    cut: int  # all below this LSN
    day: str  # the last one that goes
    files: int
    rows: int
    bytes: int

    def plain(self) -> dict[str, object]:
        """For people."""
        return {"below": self.cut, "day": self.day, "files": self.files, "rows": self.rows, "bytes": self.bytes}


def prunable(manifest: Manifest, now: int, age: int | None, size: int | None, floor: int) -> Pruned | None:
    """The most that may go; None: nothing.

    now, age: microseconds; a day goes when all of it is older.  size: bytes that the archive may have.
    floor: somebody may still ask for what has this LSN or a higher one.
    """
    days = sorted({part.day for part in manifest.files})
    oldest = None if age is None else (_EPOCH + timedelta(microseconds=max(0, now - age))).strftime("%Y-%m-%d")
    left, found = manifest.size, None
    files = rows = bytes_ = 0
    for day, following in pairwise(days):
        if not ((oldest is not None and day < oldest) or (size is not None and left > size)):
            break
        mine = [part for part in manifest.files if part.day == day]
        later = [part for part in manifest.files if part.day >= following]
        cut = min(part.first for part in later)
        if cut > floor or any(part.last >= cut for part in mine):
            break  # a reader, or a clock that was set back
        files, rows = files + len(mine), rows + sum(part.rows for part in mine)
        bytes_ += sum(part.bytes for part in mine)
        left -= sum(part.bytes for part in mine)
        found = Pruned(cut, day, files, rows, bytes_)
    return found
