"""The log's files without a server: its folder opened, segments and records listed, audited, compacted.

An audit works without a lock and changes no byte, so also beside a running server: the whole log is read once, by the
audit and by the fold, which must agree.  A log whose oldest segments are gone is audited from its newest base on.
Compaction asks a running server, or works on a data folder that nobody holds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.cli.output import Progress, bar
from penstock.errors import DataFolderInUse, InvalidArgument
from penstock.history.alone import stand_alone
from penstock.log import OsDisk
from penstock.log.catalog import Catalog, SegmentInfo
from penstock.log.reader import Reader, Vias
from penstock.log.recover import open_segments
from penstock.log.segment import FOLDER
from penstock.log.verify import segments
from penstock.records.chunks import LSN_LIMIT
from penstock.units import parse_duration, parse_size

if TYPE_CHECKING:
    from penstock.core.audit.verdict import Report
    from penstock.history.view import View
    from penstock.log.archive.row_groups import Archive
    from penstock.log.rewriting.plan import Task
    from penstock.log.rewriting.rewrite import Made

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


def evidence(data: str, archive: str | None = None) -> View:
    """A data folder's log, and its archive where both together go back to the beginning."""
    disk, found = open_folder(data), archive_of(data, archive)
    view = stand_alone(disk, found)
    if found is None or view.complete:
        return view
    view.close()
    return stand_alone(disk)


def audit(data: str | os.PathLike[str], progress: Progress | None = None, archive: str | None = None) -> Report:
    """Counts and findings of a data folder's log.

    InvalidArgument for a folder that is none, LogDamaged where bytes are not what was written.  Without `progress` a
    bar is drawn when a person looks on.
    """
    from penstock.server.bulk.checks import audit_view

    view = evidence(data if isinstance(data, str) else os.fspath(data), archive)
    try:
        with bar("records", progress) as show:
            return audit_view(view, show)
    finally:
        view.close()


def of_server(url: str, dry_run: bool) -> dict[str, Any]:
    """What the server answers when it is done."""
    from penstock.client import connect

    connect(url).close()  # says within seconds if nobody answers; a compaction may take long
    with connect(url, timeout=None) as client:
        return client.action("compact", with_vhost=False, dry_run=dry_run)


def of_folder(data: str, age: str | None, size: str | None, compress: bool, dry_run: bool) -> dict[str, Any]:
    """The same for a folder.  DataFolderInUse when a server has it; a dry run needs no lock."""
    from penstock.log.rewriting.plan import Aims
    from penstock.server.clock import SystemClock
    from penstock.server.upkeep import offline

    try:
        limits = offline.Limits(
            parse_duration(age) if age is not None else None, parse_size(size) if size is not None else None
        )
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    archive = archive_of(data)
    if archive is not None:
        limits = limits._replace(archive=archive.manifest)
    disk, clock, aims = open_folder(data), SystemClock(), Aims(compress=compress, cold=0)
    planned = offline.look(disk, clock, limits, aims)
    out: dict[str, Any] = {
        "planned": [task.plain() for task in planned], "deleted": 0, "done": 0, "freed": 0, "dropped": 0,
    }  # fmt: skip
    if dry_run:
        return out
    sizes = {one.name: (one.bytes, one.rows) for one in listing(data)}
    total = sum(task.bytes_before for task in planned)
    with bar("bytes") as show:
        done = 0

        def told(task: Task, made: Made) -> None:
            nonlocal done
            done += task.bytes_before
            show(done, total)
            out["done"] += len(task.segments)
            out["freed"] += task.bytes_before - made.end
            out["dropped"] += made.rows_before - made.rows

        try:
            gone = [sizes.get(name, (0, 0)) for name in offline.compact(disk, clock, limits, aims, told)]
        except DataFolderInUse as error:
            raise DataFolderInUse(f"{error}; leave --data away to have the running server do it") from None
        out["deleted"] = len(gone)
        out["freed"] += sum(size for size, _ in gone)
        out["dropped"] += sum(rows for _, rows in gone)
    return out
