"""What a start found and is to change before anything is appended, and what lies in `cut/` of a data folder for it.

Nothing of a tail is lost: its bytes are kept in `cut/` before they are overwritten, as are files that a start, or a
copy whose log parted, has set aside.  A file there has the name of its segment, the offset of its first byte in it, and
a number.  Batches are found as a start finds them: their sums cover the place that they had.

Of a copy what lies above an LSN is cut, and a crash in the middle of that is gone on with.  The order is what makes it
safe: checkpoints first, then files from the newest on, then the tail of the one that stays.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from penstock.log import checkpoints
from penstock.log.catalog import Segment
from penstock.log.encode import Encoder
from penstock.log.frame import END_OF_STREAM, SEALED, FrameReader, NotAFrame, Window, sound
from penstock.log.record_batches import cells, rows_of
from penstock.log.segment import (
    FOLDER,
    HEADER_BYTES,
    HEADER_MOST,
    NotASegment,
    SegmentHeader,
    first_lsn,
    read_header,
    segment_name,
)
from penstock.log.segment_walk import walk
from penstock.ports import Disk, File
from penstock.records.dataclass import dataclass
from penstock.records.kinds import PUBLISHES

if TYPE_CHECKING:
    import pyarrow as pa


Watch: TypeAlias = Callable[[str, int, int], object]
"""(stage, done, in all), called between steps.  Stages: "checking" counts segments, "checkpoint" one step, "folding"
records.  What it raises ends the opening."""


def nobody(stage: str, done: int, total: int) -> None:
    """No one looks on."""


CUT = "cut"
_BLOCK = 1 << 20


@dataclass(slots=True)
class Recovery:
    """What was found at start."""

    origin: int = 0
    created: bool = False  # the folder was empty
    clean: bool = False  # the last process closed the log
    records: int = 0  # rows in all segments
    segments: int = 0
    last_lsn: int = 0  # of the last row; 0 when there has been none
    next_lsn: int = 1  # the first LSN that may be given out now
    cut_bytes: int = 0
    cut_files: list[str] = field(default_factory=list[str])
    cut_records: int = 0  # of these files, in a copy whose log parted from another's
    warnings: list[str] = field(default_factory=list[str])
    checkpoint: int = 0  # LSN of the checkpoint in use; 0: none
    base: int = 0  # floor of the highest complete base; 0: none
    neediest: SegmentHeader | None = None  # of the segments that leave rows out: it needs the highest base
    base_batches: list[tuple[Segment, int]] = field(default_factory=list[tuple["Segment", int]], repr=False)
    seconds: float = 0.0
    mends: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]], repr=False)  # for `mend`

    def forget(self, gone: Sequence[Segment]) -> None:
        """Segments that went: their files must not stay open for the sake of bases in them."""
        ids = {id(segment) for segment in gone}
        self.base_batches = [place for place in self.base_batches if id(place[0]) not in ids]


def mend(recovery: Recovery) -> None:
    """Do what `open_segments` found to be done, before anything is appended.  OSError: it may be tried again."""
    while recovery.mends:
        recovery.mends[0]()
        del recovery.mends[0]


def remove(disk: Disk, names: list[str]) -> None:
    """End a rewriting that a crash cut short."""
    for name in names:
        disk.remove(name)
    disk.sync_folder(FOLDER)


def end_roll(disk: Disk, segment: Segment, successor: str, end: int, stray: int, recovery: Recovery) -> None:
    """Close a file whose successor was begun before the process ended: what was written ahead of it goes.

    A file was synced before its successor was begun, and the successor is on the disk before the mark that says that
    there is one.  Other members of a cluster copy a file to its end; who is alone can do without the mark.
    """
    try:
        file = disk.open(segment.name)
    except PermissionError as error:
        recovery.warnings.append(f"{segment.name} has no end, and cannot be written: {error.strerror}")
        return
    try:
        follows = disk.open(successor, readonly=True)
        follows.sync()
        follows.close()
        disk.sync_folder(FOLDER)
        if stray > end:
            _set_aside(disk, segment.name, end, file.pread(stray - end, end), recovery)
        closing = (Encoder().mark(SEALED, segment.last, end) or b"") + END_OF_STREAM
        file.pwrite(closing, end)
        file.truncate(end + len(closing))
        file.sync()
    finally:
        file.close()


def cut(disk: Disk, segment: Segment, end: int, stray: int, recovery: Recovery) -> None:
    """Move a torn tail aside."""
    file = segment.file
    _set_aside(disk, segment.name, end, file.pread(stray - end, end), recovery)
    for at in range(end, stray, _BLOCK):
        file.pwrite(bytes(min(_BLOCK, stray - at)), at)


def write_again(disk: Disk, segment: Segment, number: int, end: int) -> None:
    """Make sure of what no batch claims as synced, from batch `number` on: from now on it counts as durable.

    The last process may have been killed before its sync, or after one that failed.  Then the kernel can hold pages
    that it calls clean although the disk never got them; only writing them anew makes a sync mean something.
    """
    start = segment.offsets[number] if number >= 0 else 0
    for at in range(start, end, _BLOCK):
        segment.file.pwrite(segment.file.pread(min(_BLOCK, end - at), at), at)
    segment.file.sync()
    disk.sync_folder(FOLDER)


def _free_name(disk: Disk, name: str, offset: int) -> str:
    disk.mkdir(CUT)
    stem, taken, number = name.rpartition("/")[2], set(disk.list(CUT)), 0
    while f"{stem}-{offset}-{number}" in taken:
        number += 1
    return f"{CUT}/{stem}-{offset}-{number}"


def _set_aside(disk: Disk, name: str, offset: int, content: bytes, recovery: Recovery) -> None:
    """Keep bytes that the log is about to lose."""
    kept = _free_name(disk, name, offset)
    file = disk.open(kept, create=True)
    try:
        file.pwrite(content, 0)
        file.sync()
    except OSError:
        file.close()
        disk.remove(kept)
        raise
    file.close()
    disk.sync_folder(CUT)
    recovery.warnings.append(f"{name}: {len(content)} bytes of an unfinished write at byte {offset} moved to {kept}")
    recovery.cut_bytes += len(content)
    recovery.cut_files.append(kept)


def set_aside_file(disk: Disk, name: str, recovery: Recovery, why: str = "was never finished") -> None:
    """Move a whole file."""
    kept = _free_name(disk, name, 0)
    disk.rename(name, kept)
    disk.sync_folder(CUT)
    disk.sync_folder(FOLDER)
    recovery.warnings.append(f"{name} {why}; moved to {kept}")
    recovery.cut_files.append(kept)


_NAME = re.compile(r"([0-9]{20})\.arrows-([0-9]+)-[0-9]+")


class CutFile(NamedTuple):
    """One of them; no records: nothing of it was ever whole."""

    file: str
    first: int  # LSN
    last: int
    records: int
    messages: int


class _Moved:
    """A file, with the offsets that its bytes had."""

    def __init__(self, file: File, offset: int) -> None:
        self._file, self._offset = file, offset

    def pread(self, size: int, offset: int) -> bytes:
        return self._file.pread(size, offset - self._offset)


def moved(file: File, offset: int) -> Window:
    """A file of them at the offsets that its bytes had."""
    return Window(_Moved(file, offset), offset + file.size())  # type: ignore[arg-type]  # of a file it only reads


def cut_files(disk: Disk) -> list[CutFile]:
    """All of them, by LSN."""
    found = [_read(disk, name) for name in disk.list(CUT) if _NAME.fullmatch(name) is not None]
    return sorted(found, key=lambda one: (one.first, one.file))


def _read(disk: Disk, name: str) -> CutFile:
    lsns, messages = list[int](), 0
    for rows in cut_rows(disk, name):
        lsns += cells(rows, "lsn")
        messages += sum(kind in PUBLISHES for kind in cells(rows, "kind"))
    return CutFile(name, min(lsns, default=0), max(lsns, default=0), len(lsns), messages)


def begins_a_tail(disk: Disk, name: str, last: int) -> bool:
    """Whether what a file holds does not go on where another one ended, with this LSN."""
    match = _NAME.fullmatch(name)
    if match is None or int(match[2]):
        return True
    with closing(disk.open(f"{CUT}/{name}", readonly=True)) as file:
        try:
            return read_header(file)[0].previous != last
        except NotASegment:
            return True


def cut_rows(disk: Disk, name: str) -> Iterator[pa.RecordBatch]:
    """The records of one of them, up to the first batch that is not whole: what is behind it is not to be trusted."""
    match = _NAME.fullmatch(name)
    if match is None:
        return
    with closing(disk.open(f"{CUT}/{name}", readonly=True)) as file:
        yield from _batches(file, int(match[2]))


def _batches(file: File, offset: int) -> Iterator[pa.RecordBatch]:
    at, compressed = offset, False
    if not offset:
        try:
            header, at = read_header(file)
            compressed = bool(header.codec)
        except NotASegment:
            at = HEADER_BYTES
    window = moved(file, offset)
    with suppress(NotAFrame):
        for frame in FrameReader().each(window, at):
            message = window.read(frame.offset, frame.length)
            if not sound(frame, message):
                return
            if frame.rows:
                yield rows_of(message, compressed=compressed)


CUTTING = "cutting"
"""Holds the LSN above which everything is being cut."""

NOTHING = -1
"""In `CUTTING`: all goes, and nothing is kept aside."""


def begin_cutting(disk: Disk, lsn: int) -> None:
    """Keep the word that all above an LSN goes; `finish_cutting` does it, now or at the next start."""
    file = disk.open(CUTTING, create=True)
    file.pwrite(b"%d\n" % lsn, 0)
    file.sync()
    file.close()
    disk.sync_folder()


def firsts_of(disk: Disk) -> list[int]:
    return sorted(first for name in disk.list(FOLDER) if (first := first_lsn(name)) is not None)


def header_of(disk: Disk, first: int) -> tuple[SegmentHeader, int]:
    with closing(disk.open(segment_name(first), readonly=True)) as file:
        return read_header(file)


def is_torn(disk: Disk, name: str) -> bool:
    """Whether a file never got its header."""
    with closing(disk.open(name, readonly=True)) as file:
        try:
            read_header(file)
        except NotASegment:
            return file.size() <= HEADER_MOST
    return False


def finish_cutting(disk: Disk, recovery: Recovery) -> None:
    """Do what a cut has begun: checkpoints, then files from the newest on, then the tail of the one that stays."""
    if CUTTING not in disk.list():
        return
    file = disk.open(CUTTING, readonly=True)
    said = file.pread(32, 0)
    file.close()
    if said.endswith(b"\n"):  # else the machine died as it was written, and nothing was cut yet
        _cut_above(disk, int(said), recovery)
    disk.remove(CUTTING)
    disk.sync_folder()


def _cut_above(disk: Disk, lsn: int, recovery: Recovery) -> None:
    checkpoints.remove_above(disk, lsn)
    firsts = firsts_of(disk)
    for first in reversed(firsts):
        if first > lsn:
            if lsn != NOTHING and (rows := _indexed(disk, first).rows):
                recovery.cut_records += rows
                set_aside_file(disk, segment_name(first), recovery, f"lies above LSN {lsn}, where the logs part")
            else:
                disk.remove(segment_name(first))
                disk.sync_folder(FOLDER)
    left = [first for first in firsts if first <= lsn]
    if not left:
        return
    segment = _indexed(disk, left[-1])
    number = bisect_right(segment.lsns, lsn)  # of the first batch that goes
    end = segment.offsets[number - 1] + segment.lengths[number - 1] if number else segment.start
    file = disk.open(segment.name)
    if number < len(segment.lsns):
        frames, window = FrameReader(), Window(file, file.size())
        recovery.cut_records += sum(
            frame.rows for at in segment.offsets[number:] if (frame := frames.at(window, at)) is not None
        )
        cut(disk, Segment(segment.name, segment.header, segment.start, file), end, file.size(), recovery)
    file.truncate(end)
    file.sync()
    file.close()


def _indexed(disk: Disk, first: int) -> Segment:
    """A file with the places of its batches; closed already."""
    with closing(disk.open(segment_name(first), readonly=True)) as file:
        try:
            header, start = read_header(file)
            segment = Segment(segment_name(first), header, start, file)
            walk(segment, FrameReader(), [], check=False)
            return segment
        except NotASegment:
            return Segment(segment_name(first), SegmentHeader(0, first, 0), 0, file)
