"""A data folder from a backup.  It gets an origin of its own, so that it and the original are never taken for one log;
but for a follower of a cluster, which goes on with the same one.

Bookmarks carry the origin: those of the original are refused by the restored server, and the other way round.  LSNs,
queues, streams and sinks are what they were.  The log ends without the mark of a clean stop, so that the first start
gives out LSNs far beyond any that the original may have given out since.

Everything is written beside its place and moved there at the end, `log` last.  Until then the folder has
`restore.part`, and a server refuses to start in it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from crc32c import crc32c

from penstock.errors import DiskFull, InvalidArgument, LogDamaged, told_as
from penstock.log import checkpoints
from penstock.log.archive.manifest import NAME as ARCHIVED
from penstock.log.archive.manifest import make_folder
from penstock.log.archive.manifest import read as read_archive
from penstock.log.disk import EnclosedDisk, OsDisk, OsFile
from penstock.log.encode import Encoder
from penstock.log.room import out_of_space
from penstock.log.segment import FOLDER, NotASegment, read_header
from penstock.server.bulk import RESTORE_PART as PART
from penstock.server.bulk.backup import ARCHIVE, NAME, Kept, Manifest, blocks, read

Progress = Callable[[int, int], object]


def restore(
    backup: str | Path, data: str | Path, progress: Progress, *, origin: int = 0, follower: bool = False
) -> dict[str, object]:
    """Make `data` from a backup.

    follower: of a cluster, with the origin that its log has; nobody may serve from it before it has joined.

    Result: `origin`, `old_origin`, `last` (LSN), `rows`, `files`, `bytes`.  Errors: InvalidArgument for a folder that
    is not empty or a backup that is not complete, LogDamaged when a file is not what was backed up, DiskFull.
    """
    if not Path(backup).is_dir():
        raise InvalidArgument(f"{backup} is no folder")
    if not (Path(backup) / NAME).is_file():
        raise InvalidArgument(f"{backup} holds no complete backup: {NAME} is written last, and it is not there")
    source = EnclosedDisk(backup)
    manifest = read(source)
    place = Path(data)
    _refuse_used(place)
    origin = manifest.origin if follower else origin or int.from_bytes(os.urandom(6), "big") + 1
    part = place / PART
    try:
        part.mkdir(parents=True)
        _fill(source, OsDisk(part), manifest, origin, progress)
        for child in sorted(part.iterdir(), key=lambda path: path.name == FOLDER):  # the log last
            child.rename(place / child.name)
        part.rmdir()
        OsDisk(place).sync_folder()
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        if out_of_space(error):
            raise DiskFull(f"the backup does not fit into {data}: {error.strerror}") from error
        raise InvalidArgument(f"{data} cannot be written: {error.strerror or error}") from error
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return {
        "origin": origin,
        "old_origin": manifest.origin,
        "last": manifest.last,
        "rows": manifest.rows,
        "files": len(manifest.files),
        "bytes": sum(one.bytes for one in manifest.files),
    }


def _refuse_used(place: Path) -> None:
    try:
        there = sorted(os.listdir(place)) if place.exists() else []
    except OSError as error:
        raise InvalidArgument(f"{place} cannot be a data folder: {error.strerror}") from error
    if PART in there:
        raise InvalidArgument(f"{place} holds an unfinished restore; empty the folder and restore again")
    if there:
        raise InvalidArgument(f"{place} is not empty: it holds {there[0]!r}; restore into a new folder")


def _fill(source: OsDisk, target: OsDisk, manifest: Manifest, origin: int, progress: Progress) -> None:
    total = sum(one.bytes for one in manifest.files)
    done = 0

    def step(size: int) -> None:
        nonlocal done
        done += size
        progress(done, total)

    segments = [one for one in manifest.files if one.name.startswith(f"{FOLDER}/")]
    if not segments:
        raise LogDamaged("the backup holds no segment of the log")
    folders = sorted({one.name.rpartition("/")[0] for one in manifest.files} - {""})
    for folder in folders:
        make_folder(target, folder)
    for one in manifest.files:
        if one.name.startswith(f"{checkpoints.FOLDER}/"):
            _summed(source, one, None, step)
            continue
        if one.name == f"{ARCHIVE}/{ARCHIVED}":
            _summed(source, one, None, step)
            _claim_archive(source, target, origin)
            continue
        mark = manifest.last if one is segments[-1] else None
        _copy(source, target, one, (manifest.origin, origin) if one in segments else None, mark, step)
    checkpoint = checkpoints.newest(source, manifest.origin, [])
    if checkpoint is not None:
        checkpoints.write(target, origin, checkpoint.lsn, checkpoint.state, checkpoint.vias)
    for folder in folders:
        target.sync_folder(folder)
    target.sync_folder()


def _claim_archive(source: OsDisk, target: OsDisk, origin: int) -> None:
    """Its manifest, with the new origin; its files keep the old one in their feet."""
    found = read_archive(EnclosedDisk(source.folder / ARCHIVE))
    assert found is not None, "it is in the list"
    with closing(target.open(f"{ARCHIVE}/{ARCHIVED}", create=True)) as file:
        file.pwrite(found._replace(origin=origin).encode(), 0)
        file.sync()


def _copy(
    source: OsDisk,
    target: OsDisk,
    one: Kept,
    origins: tuple[int, int] | None,
    mark: int | None,
    step: Callable[[int], object],
) -> None:
    """A file of the backup; of a segment, with its new origin, and with a mark behind the last batch of all."""
    with closing(target.open(one.name, create=True)) as file:
        _summed(source, one, file.pwrite, step)
        if origins is not None:
            with told_as(LogDamaged, f"{one.name} of the backup is no segment: ", instead=NotASegment):
                header, size = read_header(file)
            if header.origin != origins[0]:
                raise LogDamaged(f"{one.name} of the backup has origin {header.origin}, and the backup {origins[0]}")
            fresh = replace(header, origin=origins[1]).encode()
            assert len(fresh) == size, "numbers in a header have a fixed width"
            file.pwrite(fresh, 0)
        if mark is not None and (claim := Encoder().mark(mark + 1, mark, one.bytes)) is not None:
            file.pwrite(claim, one.bytes)  # rot in the last batch is damage from now on, and no torn tail
        file.sync()


def _summed(
    source: OsDisk, one: Kept, write: Callable[[bytes, int], object] | None, step: Callable[[int], object]
) -> None:
    """Read a file of the backup to its end, hand its blocks on, and compare size and sum."""
    at = crc = 0
    with closing(_opened(source, one.name)) as file:
        if (size := file.size()) != one.bytes:
            raise LogDamaged(f"{one.name} of the backup has {size} bytes, and {one.bytes} were written")
        for block in blocks(file, size):
            crc = crc32c(block, crc)
            if write is not None:
                write(block, at)
            at += len(block)
            step(len(block))
    if (at, crc) != (one.bytes, one.crc32c):
        raise LogDamaged(f"{one.name} of the backup is not what was written: its sum or size is another")


def _opened(source: OsDisk, name: str) -> OsFile:
    """A file of the backup.  LogDamaged where it cannot be had: what is told of other errors is of the target."""
    try:
        return source.open(name, readonly=True)
    except FileNotFoundError:
        raise LogDamaged(f"{name} of the backup is missing") from None
    except OSError as error:
        raise LogDamaged(f"{name} of the backup cannot be read: {error.strerror}") from None
