"""A backup: the log up to a durable LSN as files of a folder, checked, and complete when its manifest is there.

    closed segments   hard-linked where source and target are one file system, else copied; they never change
    the open segment  copied up to the last durable batch, so that it ends like a log after a kill
    newest checkpoint only saves time; left out when it knows more than the copied log
    stages            a decided batch may still be copied from them
    archive           hard-linked or copied, wherever it was
    accounts.json     users, vhosts, permissions and limits of run time, passwords as their hashes

Meanwhile nothing may be deleted that is listed; that is the caller's affair (`upkeep`, or the lock of the folder).
Then every batch of the backup is read back and its sum compared, and the manifest is written.  Until then the folder
has `backup.part`, and no server starts in it.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from penstock.errors import DiskFull, InvalidArgument, LogDamaged, told_as
from penstock.history.view import Place, View
from penstock.log import checkpoints
from penstock.log.archive import archive_disk, told
from penstock.log.archive import manifest as archive
from penstock.log.archive.parquet import file_sum
from penstock.log.catalog import Segment
from penstock.log.disk import OsDisk
from penstock.log.reader import decode
from penstock.log.room import out_of_space
from penstock.log.segment import FOLDER, read_header
from penstock.ports import Disk, File, replace_whole
from penstock.server.bulk import BACKUP, BACKUP_PART
from penstock.server.bulk.requests import Request
from penstock.server.people.accounts import FILE as ACCOUNTS
from penstock.units import LATEST
from penstock.version import __version__

NAME = BACKUP
FORMAT = 1
BLOCK = 4 << 20


class Kept(NamedTuple):
    """A file of a backup."""

    name: str
    bytes: int
    crc32c: int


class Manifest(NamedTuple):
    """What a backup says of itself."""

    origin: int
    first: int  # no row has a lower LSN
    last: int  # LSN of the last row
    rows: int
    time: int  # microseconds since the epoch, when it was complete
    server: str
    version: str
    files: list[Kept]

    def encode(self) -> bytes:
        said = {**self._asdict(), "format": FORMAT, "files": [one._asdict() for one in self.files]}
        return told.with_sum(said)


def read(disk: Disk) -> Manifest:
    """The manifest of a backup folder.

    InvalidArgument when there is none, or of a newer format; LogDamaged when it is not what was written.
    """
    try:
        said = told.read(disk, NAME, "format")
    except FileNotFoundError:
        raise InvalidArgument(
            f"{disk!r} holds no complete backup: {NAME} is written last, and it is not there"
        ) from None
    except ValueError as error:
        raise LogDamaged(f"{NAME} {error}") from None
    except OSError as error:
        raise LogDamaged(f"{NAME} cannot be read: {error.strerror}") from None
    if (format_ := said.pop("format")) != FORMAT:
        raise InvalidArgument(f"the backup has format {format_}, and this Penstock reads {FORMAT}")
    with told_as(LogDamaged, f"{NAME} is none of a backup: "):
        return _manifest(told.Told(said))


def _manifest(said: told.Told) -> Manifest:
    """What it says.  ValueError for what none says."""
    found = Manifest(
        said.number("origin", 0, told.NUMBER_MOST), said.number("first"), said.number("last"), said.number("rows"),
        said.number("time", 0, LATEST), said.text("server"), said.text("version"),
        [_kept(one) for one in said.objects("files")],
    )  # fmt: skip
    said.finish()
    return found


def _kept(said: told.Told) -> Kept:
    found = Kept(said.path("name"), said.number("bytes", 0, told.NUMBER_MOST), said.number("crc32c", 0, told.SUM_MOST))
    said.finish()
    return found


def blocks(file: File, size: int) -> Iterator[bytes]:
    """The first `size` bytes, or as many as there are."""
    at = 0
    while at < size and (block := file.pread(min(BLOCK, size - at), at)):
        yield block
        at += len(block)


STAGES = "stage"
ARCHIVE = "archive"
_NO_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES})

Progress = Callable[[int, int], object]


def run(
    request: Request, target: str, copy: bool, server: str, progress: Progress, archive: str = ""
) -> dict[str, object]:
    """Back up what the request lists into a folder that is empty or absent, and the archive in that folder.

    Result: the manifest's numbers, and how many files were linked.  Errors: InvalidArgument for the target, LogDamaged
    when a batch is not what was written, DiskFull.  After an error the target is as it was.
    """
    place = claim(target, request.disk)
    try:
        return _Backup(request, OsDisk(place), copy, server, progress, archive).run()
    except OSError as error:
        clear(place)
        if out_of_space(error):
            raise DiskFull(f"the backup does not fit into {target}: {error.strerror}") from error
        raise InvalidArgument(f"the backup cannot be written to {target}: {error.strerror or error}") from error
    except BaseException:
        clear(place)
        raise


def claim(target: str, source: Disk) -> Path:
    """The empty folder of a backup to be.  InvalidArgument when it cannot be one."""
    place = Path(target)
    if not place.is_absolute():
        raise InvalidArgument(f"the folder of a backup is named by its whole path, and {target!r} is none")
    if isinstance(source, OsDisk) and place.resolve().is_relative_to(source.folder.resolve()):
        raise InvalidArgument(f"{target} is inside the data folder; a backup goes elsewhere")
    try:
        place.mkdir(parents=True, exist_ok=True)
        there = sorted(os.listdir(place))
    except OSError as error:
        raise InvalidArgument(f"{target} cannot be the folder of a backup: {error.strerror}") from error
    if NAME in there:
        raise InvalidArgument(f"{target} already holds a backup; name a new folder for each")
    if BACKUP_PART in there:
        raise InvalidArgument(f"{target} holds an unfinished backup: remove it, or name a new folder")
    if there:
        raise InvalidArgument(f"{target} is not empty: it holds {there[0]!r}; name a new folder for each backup")
    return place


def clear(place: Path) -> None:
    """Take away what an unfinished backup has written; the folder itself stays."""
    for child in place.iterdir():
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child, ignore_errors=True)
        else:
            child.unlink(missing_ok=True)


class _Backup:
    """One backup on its way."""

    def __init__(
        self, request: Request, target: OsDisk, copy: bool, server: str, progress: Progress, archive: str
    ) -> None:
        self._archived = archive
        self._request = request
        self._source = request.disk
        self._target = target
        self._copy = copy
        self._server = server
        self._progress = progress
        self._done = 0
        self._total = 0
        self._linked = 0
        self._files = list[Kept]()

    def run(self) -> dict[str, object]:
        view = self._request.view
        segments = view.catalog.segments
        ends = [
            self._end_of(segment, place, view) for segment, place in zip(segments, view.listed.segments, strict=True)
        ]
        self._total = 2 * sum(ends)
        replace_whole(self._target, BACKUP_PART, b"")
        self._target.mkdir(FOLDER)
        for segment, place, end in zip(segments, view.listed.segments, ends, strict=True):
            self._segment(segment, place, end)
        self._target.sync_folder(FOLDER)
        self._checkpoint(view)
        self._stages()
        self._accounts()
        if self._archived:
            self._archive(archive_disk(self._archived))
        rows = self._check(segments, ends)
        self._target.sync_folder()
        manifest = Manifest(
            view.origin,
            view.first_lsn,
            view.durable,
            rows,
            time.time_ns() // 1000,
            self._server,
            __version__,
            self._files,
        )
        replace_whole(self._target, NAME, manifest.encode())
        self._target.remove(BACKUP_PART)
        return {
            "origin": view.origin,
            "first": manifest.first,
            "last": manifest.last,
            "rows": rows,
            "files": len(self._files),
            "bytes": sum(one.bytes for one in self._files),
            "linked": self._linked,
        }

    @staticmethod
    def _end_of(segment: Segment, place: Place, view: View) -> int:
        """How many bytes of a segment belong to the backup: all of a closed one, else up to the last durable batch."""
        if place.closed:
            return segment.file.size()
        number = segment.batch_of(view.durable)
        return segment.start if number < 0 else segment.offsets[number] + segment.lengths[number]

    def _segment(self, segment: Segment, place: Place, end: int) -> None:
        if place.closed and not self._copy and self._link(segment):
            self._linked += 1
            self._step(end)
            return
        self._write(segment.file, segment.name, end)

    def _link(self, segment: Segment) -> bool:
        if not isinstance(self._source, OsDisk):
            return False
        source, target = self._source.folder / segment.name, self._target.folder / segment.name
        try:
            os.link(source, target)
        except FileNotFoundError:
            return False  # rewritten as a part of another since it was opened: what is open is copied
        except OSError as error:
            if error.errno in _NO_LINK:
                self._copy = True
                return False
            raise
        with closing(self._target.open(segment.name, readonly=True)) as file:
            same = read_header(file)[0] == segment.header
        if not same:  # rewritten under its name
            self._target.remove(segment.name)
        return same

    def _write(self, source: File, name: str, end: int) -> None:
        with closing(self._target.open(name, create=True)) as file:
            at = 0
            for block in blocks(source, end):
                file.pwrite(block, at)
                at += len(block)
                self._step(len(block))
            file.sync()
        if at != end:
            raise LogDamaged(f"{name} has {at} bytes, and {end} were listed")

    def _checkpoint(self, view: View) -> None:
        found = checkpoints.newest(self._source, view.origin, [])
        if found is not None and found.lsn <= view.durable:
            name = checkpoints.write(self._target, view.origin, found.lsn, found.state, found.vias)
            self._kept(name)

    def _stages(self) -> None:
        names = [name for name in self._source.list(STAGES) if name.endswith(".arrows")]
        if names:
            self._target.mkdir(STAGES)
        for name in names:
            try:
                source = self._source.open(f"{STAGES}/{name}", readonly=True)
            except FileNotFoundError:
                continue  # offline it cannot be; of a running server, one that nothing durable names any more
            with closing(source):
                self._write(source, f"{STAGES}/{name}", source.size())
            self._kept(f"{STAGES}/{name}")
        if names:
            self._target.sync_folder(STAGES)

    def _accounts(self) -> None:
        """The file is replaced as a whole, so what was opened is one state of it."""
        if ACCOUNTS not in self._source.list():
            return
        with closing(self._source.open(ACCOUNTS, readonly=True)) as source:
            self._write(source, ACCOUNTS, source.size())
        self._kept(ACCOUNTS)

    def _archive(self, source: OsDisk) -> None:
        """Its files never change, so they are linked where that can be; its manifest comes last."""
        manifest = archive.read(source)
        if manifest is None:
            return
        self._total += manifest.size
        for part in manifest.files:
            name = f"{ARCHIVE}/{part.path}"
            archive.make_folder(self._target, f"{ARCHIVE}/{part.folder}")
            path = part.path if (source.folder / part.path).exists() else part.fresh
            if not self._linked_to(source.folder / path, name):
                with closing(source.open(path, readonly=True)) as file:
                    self._write(file, name, file.size())
                self._target.sync_folder(f"{ARCHIVE}/{part.folder}")
            else:
                self._step(part.bytes)
            self._kept(name)
            if self._files[-1].bytes != part.bytes:
                raise LogDamaged(f"the archive's file {part.path} has not the {part.bytes} bytes that were written")
        self._target.mkdir(ARCHIVE)
        name = f"{ARCHIVE}/{archive.NAME}"
        with closing(self._target.open(name, create=True)) as file:
            file.pwrite(manifest._replace(gone=()).encode(), 0)
            file.sync()
        self._target.sync_folder(ARCHIVE)
        self._kept(name)

    def _linked_to(self, source: Path, name: str) -> bool:
        if self._copy:
            return False
        try:
            os.link(source, self._target.folder / name)
        except OSError as error:
            if error.errno in _NO_LINK:
                return False
            raise
        self._linked += 1
        return True

    def _check(self, segments: list[Segment], ends: list[int]) -> int:
        """Read back every batch of the log's copy; the rows."""
        rows = 0
        for segment, end in zip(segments, ends, strict=True):
            with closing(self._target.open(segment.name, readonly=True)) as file:
                copied = Segment(segment.name, segment.header, segment.start, file)
                for number in range(len(segment.lsns)):
                    offset, length = segment.offsets[number], segment.lengths[number]
                    if offset + length > end:
                        break
                    copied.add(segment.lsns[number], 0, offset, length, 0, False)
                    rows += decode(copied, number, file.pread(length, offset)).num_rows
                    self._step(length)
            self._kept(segment.name)
        return rows

    def _kept(self, name: str) -> None:
        with closing(self._target.open(name, readonly=True)) as file:
            self._files.append(Kept(name, file.size(), file_sum(file)))

    def _step(self, size: int) -> None:
        self._done += size
        self._progress(min(self._done, self._total), self._total)
