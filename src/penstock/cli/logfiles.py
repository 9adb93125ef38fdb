"""The log as `penstock log` shows it: segment files read without a server and without a lock, or a server's answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import InvalidArgument
from penstock.log import OsDisk
from penstock.log.catalog import Catalog, SegmentInfo
from penstock.log.reader import Reader, Vias
from penstock.log.recover import open_segments
from penstock.log.segment import FOLDER
from penstock.log.verify import segments
from penstock.records.chunks import LSN_LIMIT

if TYPE_CHECKING:
    from penstock.log.archive.row_groups import Archive

ARCHIVE_FOLDER = "archive"
"""Of a data folder, where its archive is unless a command says another place."""


def open_folder(data: str | Path) -> OsDisk:
    """The disk of an existing data folder.  InvalidArgument when there is none."""
    if not (Path(data) / FOLDER).is_dir():
        raise InvalidArgument(f"{data} is no data folder: it has no folder {FOLDER!r}")
    return OsDisk(data)


def archive_of(data: str, named: str | None = None) -> Archive | None:
    """The archive of a data folder, if there is one.  InvalidArgument for one that was named and is not there."""
    from penstock.log.archive import archive_disk
    from penstock.log.archive.row_groups import Archive

    place = archive_place(data, named)
    return None if place is None else Archive(archive_disk(str(place)))


def archive_place(data: str, named: str | None = None) -> Path | None:
    """Its folder."""
    from penstock.log.archive.manifest import NAME

    place = Path(named) if named is not None else Path(data) / ARCHIVE_FOLDER
    if (place / NAME).is_file():
        return place
    if named is not None:
        raise InvalidArgument(f"{named} is no archive: it has no {NAME}")
    return None


def listing(data: str) -> list[SegmentInfo]:
    """The segments of a data folder."""
    return segments(open_folder(data))


def records(data: str, url: str | None, first: int, last: int | None) -> Iterator[pa.RecordBatch]:
    """Records of the log with LSNs in first..last, from a server if there is a URL, else from the folder."""
    if url is None:
        archive = archive_of(str(data))
        if archive is None:
            yield from rows(open_folder(data), first, LSN_LIMIT if last is None else last)
            return
        from penstock.history.alone import stand_alone

        view = stand_alone(open_folder(data), archive)
        try:
            yield from view.batches(first, LSN_LIMIT if last is None else last + 1)
        finally:
            view.close()
        return
    from penstock.client import connect

    with connect(url) as client:
        yield from client.log_batches(max(first, 1), None if last is None else last + 1)


def rows(disk: OsDisk, first: int, last: int) -> Iterator[pa.RecordBatch]:
    """Rows with LSNs in first..last, control records too, as slices of the batches they were written in.

    Raises LogDamaged where bytes are not what was written.
    """
    catalog = Catalog()
    try:
        open_segments(disk, catalog, origin=0, new_first=1, repair=False)
        yield from Reader(catalog, Vias(), 0).batches(first, last + 1)
    finally:
        for segment in catalog.segments:
            segment.file.close()
