"""What a data folder remembers of its archive, so that another folder is never taken for it.

    archive.json    beside the log: {"token", "number"}: the number of a manifest that counts, and of an archive that
                    members of a cluster share its token

An archive lies where it was put: on a disk that may not be mounted, or in a folder that was put back from a copy.  One
that is empty, or whose manifest is older, would leave history out of every read, and retention would take from the log
what is archived in the wrong place.
"""

from __future__ import annotations

from typing import NamedTuple

import orjson

from penstock.errors import InvalidArgument, LogDamaged, told_as
from penstock.log.archive.manifest import AGAIN, Manifest
from penstock.ports import SMALL, Disk, read_whole, replace_whole
from penstock.replication.messages import ARCHIVE
from penstock.wire.fields import Fields, read_json


class Known(NamedTuple):
    """What is known of an archive."""

    token: str  # empty for one that is not shared
    number: int  # of a manifest that was committed: the last one, but for a crash right after it


def known_in(disk: Disk) -> Known | None:
    """What a data folder knows.  LogDamaged, OSError."""
    if ARCHIVE not in disk.list():
        return None
    with told_as(LogDamaged, f"{ARCHIVE} is not as a server writes it: ", instead=InvalidArgument):
        fields = Fields(ARCHIVE, read_json(read_whole(disk, ARCHIVE, SMALL), ARCHIVE))
        return Known(fields.optional_text("token") or "", fields.number("number"))


def remember(disk: Disk, known: Known) -> None:
    """OSError leaves what was known before."""
    replace_whole(disk, ARCHIVE, orjson.dumps(known._asdict()))


def is_older(disk: Disk, found: Manifest | None) -> int:
    """The number of the manifest that has replaced this one, or that was there before there was none; 0: it counts.

    LogDamaged, OSError.
    """
    known = known_in(disk)
    return 0 if known is None or known.number <= (0 if found is None else found.number) else known.number


def refuse_older(disk: Disk, found: Manifest | None) -> None:
    """LogDamaged where another manifest has replaced this one, or was there before there was none; OSError."""
    if not (newer := is_older(disk, found)):
        return
    if found is None:
        raise LogDamaged(
            f"it has no manifest, and number {newer} was committed to it: is its disk mounted, or does it lie "
            "elsewhere? docs/archive.md says how to begin without it"
        )
    raise LogDamaged(f"its manifest is number {found.number}, and number {newer} was committed; {AGAIN}")


def forget(disk: Disk) -> bool:
    """Whether something was known; the next archive begins anew.  OSError."""
    if ARCHIVE not in disk.list():
        return False
    disk.remove(ARCHIVE)
    disk.sync_folder()
    return True
