"""The archive's large reading and writing, done by the bulk child: it leaves files that count for nothing yet."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.errors import DiskFull
from penstock.log.archive import archive_disk
from penstock.log.archive.manifest import FULL, Part

if TYPE_CHECKING:
    from penstock.ports import Disk
    from penstock.server.bulk.jobs import Request

Progress = Callable[[int, int], object]


def run(
    request: Request, folder: str, start: int, end: int, token: str, compression: str, topics: int, progress: Progress
) -> dict[str, object]:
    """The rows of [start, end) as new files.  DiskFull, LogDamaged."""
    from penstock.log.archive.file_writer import Form, Writing

    view = request.view
    writing = Writing(
        archive_disk(folder), Form(compression, topics), token, view.vias.known, view.origin, (start, end)
    )
    with told_when_full(folder):
        parts = writing.run(view.batches(start, end), lambda lsn: progress(lsn + 1 - start, end - start))
    return {"parts": [list(part) for part in parts]}


def merge(
    disk: Disk, folder: str, parts: Sequence[Sequence[Any]], token: str, compression: str, progress: Progress
) -> dict[str, object]:
    """One file of several.  DiskFull, LogDamaged."""
    from penstock.log.archive.file_writer import Form
    from penstock.log.archive.file_writer import merge as merged

    old = [Part(*one) for one in parts]
    total = sum(part.rows for part in old)
    with told_when_full(folder):
        made = merged(archive_disk(folder), old, Form(compression), token, lambda rows: progress(rows, total))
    return {"part": list(made)}


def check(request: Request, folder: str, progress: Progress) -> dict[str, object]:
    """What `log verify` tells of an archive."""
    from penstock.log.archive.repairing import check as checked

    found = checked(archive_disk(folder), progress)
    return {} if found is None else {**found.told(), "damage": found.damage}


@contextmanager
def told_when_full(folder: str) -> Generator[None]:
    """A disk without room is told as such."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise DiskFull(f"the archive's folder {folder} has no room: {error.strerror}") from error
        raise
