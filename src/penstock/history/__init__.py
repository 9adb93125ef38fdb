"""What the files of a log tell: ranges and topics of the past, read without its lock, by the server, its bulk child and
tasks of Spark alike.

Owns which rows those are and as which columns they come.  Knows no loop, no queue and no door.  A
data folder and its archive are found by their paths; what is not there is not made.
"""

from __future__ import annotations

from pathlib import Path

from penstock.errors import InvalidArgument
from penstock.log.archive.manifest import NAME
from penstock.log.disk import OsDisk
from penstock.log.segment import FOLDER

ARCHIVE_FOLDER = "archive"
"""Of a data folder, where its archive is unless a command says another place."""


def open_folder(data: str | Path) -> OsDisk:
    """The disk of an existing data folder.  InvalidArgument when there is none."""
    if not (Path(data) / FOLDER).is_dir():
        raise InvalidArgument(f"{data} is no data folder: it has no folder {FOLDER!r}")
    return OsDisk(data)


def archive_place(data: str | Path, named: str | Path | None) -> Path | None:
    """Of the archive, if there is one.  InvalidArgument for one that was named and is not there."""
    place = Path(named) if named is not None else Path(data) / ARCHIVE_FOLDER
    if (place / NAME).is_file():
        return place
    if named is not None:
        raise InvalidArgument(f"{named} is no archive: it has no {NAME}")
    return None
