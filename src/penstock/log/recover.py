"""Opening a data folder: believe nothing, and refuse in one sentence or say what is to be mended.

For each file of `log/`, in LSN order:

* a name that is not ours is left alone, with a warning;
* a segment must start with our schema, carry the name's LSN and the folder's origin, and follow the one before it:
  its `previous` is the last LSN found there, so a missing, shortened or exchanged file shows;
* a last file that is no longer than a header is a roll that a power cut undid: kept aside in `cut/`;
* a last segment that ends with a seal has lost its successor, since the seal is written after the successor;
* in the last segment every batch's CRC is checked; in others when they are read.

A segment that `log.upkeep` wrote anew covers a range: what starts within that was replaced by it and is removed, and so
is a file that was still being written when the process ended.  It must be whole, and where rows were left out of it a
base must stand for them.

The torn tail: a bad batch at LSN x, or zeros, is the end of the log unless a sound batch after it claims that x was
synced (`durable >= x`); then it is damage.  Bytes of a tail are copied to `cut/`, then overwritten by zeros and synced.
A segment whose predecessors are gone needs a complete base that covers them (`log.retention`).

To look and to change are two steps: `open_segments` changes nothing but an empty folder, and leaves in the `Recovery`
what `mend` will do.  Between the two others decide (`log.replay`), so that a start that is refused has changed nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from penstock.errors import LogDamaged
from penstock.log.files import Shelf
from penstock.log.frame import SEALED, STOPPED, Frame, FrameReader, NotAFrame, Window, candidates, sound
from penstock.log.index import Catalog, Segment
from penstock.log.reader import damaged, decode
from penstock.log.retention import Base, read_base
from penstock.log.room import RESERVE
from penstock.log.segment import (
    FOLDER,
    HEADER_BYTES,
    NotASegment,
    SegmentHeader,
    first_lsn,
    is_rewrite,
    read_header,
    segment_name,
)
from penstock.log.watch import Watch, nobody
from penstock.log.writer import create_segment
from penstock.ports import Disk, File

CUT = "cut"
_BLOCK = 1 << 20
_UNCLEAN_GAP = 1 << 32


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
    warnings: list[str] = field(default_factory=list[str])
    checkpoint: int = 0  # LSN of the checkpoint in use; 0: none
    base: int = 0  # floor of the highest complete base; 0: none
    needs: int = 0  # a base with at least this floor must be there, since rows below it were left out of segments
    base_batches: list[tuple[Segment, int]] = field(default_factory=list[tuple["Segment", int]], repr=False)
    seconds: float = 0.0
    mends: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]], repr=False)  # for `mend`

    def forget(self, gone: Sequence[Segment]) -> None:
        """Segments that went: their files must not stay open for the sake of bases in them."""
        ids = {id(segment) for segment in gone}
        self.base_batches = [place for place in self.base_batches if id(place[0]) not in ids]


@dataclass(slots=True)
class Walked:
    """How far a segment is sound."""

    end: int  # offset behind the last sound batch or mark
    stop: str = ""  # why it ends there; empty: zeros, end-of-stream mark or end of file
    clean: bool = False  # the last thing is the mark of a clean stop
    sealed: bool = False  # the last thing is the mark of a closed segment
    claimed: int = 0  # the highest durable LSN that a batch claims


def open_segments(
    disk: Disk, catalog: Catalog, *, origin: int, new_first: int, repair: bool = True, watch: Watch = nobody
) -> Recovery:
    """Fill the catalog from the folder, the last segment writable; what must be changed is left for `mend`.

    `origin` and `new_first` are for an empty folder.  With `repair` False nothing will be changed, a torn tail is only
    found, and an empty folder is LogDamaged.  `watch` is told of each segment.
    Raises LogDamaged, and OSError for a disk that cannot be read or written.
    """
    recovery = Recovery()
    shelf = catalog.shelf = Shelf(disk)
    firsts, unfinished = list[int](), list[str]()
    for name in disk.list(FOLDER):
        first = first_lsn(name)
        if first is not None:
            firsts.append(first)
        elif is_rewrite(name):
            unfinished.append(f"{FOLDER}/{name}")
        elif f"{FOLDER}/{name}" != RESERVE:
            recovery.warnings.append(f"{FOLDER}/{name} is no segment of the log; left alone")
    found, torn_roll, replaced = list[tuple[SegmentHeader, int, File]](), "", list[str]()
    instead = set[int]()  # first LSNs of the segments that stand for them
    for first in firsts:
        if found and first <= found[-1][0].last:
            if is_older(disk, first, found[-1][0], recovery.warnings):
                replaced.append(segment_name(first))
                instead.add(found[-1][0].first)
            continue
        opened = _header(disk, shelf, first, first == firsts[-1], repair)
        if opened is None:
            torn_roll = segment_name(first)
        else:
            found.append(opened)
    if not found:
        if not repair:
            raise LogDamaged(f"{FOLDER}/ holds no segment")
        return _create(disk, catalog, recovery, torn_roll, origin, new_first)
    recovery.origin = found[0][0].origin
    frames = FrameReader()
    for at, (header, start, file) in enumerate(found):
        watch("checking", at, len(found))
        name, last_one = segment_name(header.first), at == len(found) - 1
        if header.origin != recovery.origin:
            raise LogDamaged(f"{name} belongs to another data folder (origin {header.origin}, not {recovery.origin})")
        if at and header.previous != catalog.segments[-1].last:
            raise gap(catalog.segments[-1], header)
        if last_one and torn_roll and repair:
            file.close()
            file = _open(disk, name, writable=True)
        segment = Segment(name, header, start, file)
        recovery.needs = max(recovery.needs, header.floor)
        if last_one:
            if header.generation:
                raise LogDamaged(f"{name} is a closed segment, but the next one is missing")
            _open_last(disk, segment, frames, recovery, torn_roll, repair)
        else:
            # whole before what it replaced is removed: else that is the last copy of its rows
            _open_closed(segment, frames, recovery, found[at + 1][0], check=header.first in instead)
        catalog.add(segment)
        recovery.records += segment.rows
    if repair and (replaced or unfinished):
        recovery.mends.append(partial(_remove, disk, [*unfinished, *replaced]))
    watch("checking", len(found), len(found))
    recovery.segments = len(found)
    last = catalog.segments[-1].last
    recovery.last_lsn = last if recovery.records or found[0][0].previous else 0
    recovery.next_lsn = last + (1 if recovery.clean else _UNCLEAN_GAP)
    return recovery


def mend(recovery: Recovery) -> None:
    """Do what `open_segments` found to be done, before anything is appended.  OSError."""
    mends, recovery.mends = recovery.mends, []
    for one in mends:
        one()


def newest_base(oldest: Segment, recovery: Recovery) -> Base | None:
    """The complete base with the highest floor, of equal ones the newest.

    LogDamaged when the oldest segment needs one and none covers what came before it.
    """
    base: Base | None = None
    for segment, number in recovery.base_batches:
        data = segment.file.pread(segment.lengths[number], segment.offsets[number])
        found = read_base(decode(segment, number, data))
        if found is not None and (base is None or found.floor >= base.floor):
            base = found
    if lack := uncovered(oldest.header, recovery.needs, 0 if base is None else base.floor):
        raise LogDamaged(lack)
    return base


def uncovered(oldest: SegmentHeader, needs: int, floor: int) -> str:
    """What a base with this floor (0: none) does not stand for, though it must; empty when all is well."""
    if needs and floor < needs:
        return f"rows below LSN {needs} were left out of compacted segments, and no base stands for them"
    if oldest.previous and floor <= oldest.previous:
        name = segment_name(oldest.first)
        return f"segments before {name} are missing: it follows LSN {oldest.previous}, and no base covers that"
    return ""


def is_older(disk: Disk, first: int, by: SegmentHeader, warnings: list[str]) -> bool:
    """Whether the file was replaced by the one that covers it, for certain.

    FileNotFoundError when it is gone; LogDamaged when neither replaced the other.
    """
    name = segment_name(first)
    try:
        file = disk.open(name, readonly=True)
        try:
            header, _ = read_header(file)
        finally:
            file.close()
    except FileNotFoundError:
        raise
    except (NotASegment, OSError) as error:
        warnings.append(f"{name} is within what {segment_name(by.first)} replaced; left alone: {error}")
        return False
    if header.origin != by.origin or header.first != first or header.generation >= by.generation:
        raise LogDamaged(f"{name} and {segment_name(by.first)} hold the same LSNs, and neither replaced the other")
    return True


def _remove(disk: Disk, names: list[str]) -> None:
    """End a rewriting that a crash cut short."""
    for name in names:
        disk.remove(name)
    disk.sync_folder(FOLDER)


def _open_closed(
    segment: Segment, frames: FrameReader, recovery: Recovery, following: SegmentHeader, *, check: bool
) -> None:
    """Index a segment that is not the last one.  LogDamaged when it ends before it should."""
    scan = walk(segment, frames, recovery, check=check)
    if fault := ends_early(segment, scan, following.previous):
        raise fault
    if segment.header.generation:
        segment.last = segment.header.last


def ends_early(segment: Segment, scan: Walked, previous: int) -> LogDamaged | None:
    """What is wrong with the end of a closed segment; `previous` is what the next one says of it."""
    header, stop = segment.header, scan.stop
    if header.generation:
        if not stop and (segment.rows != header.rows or segment.last > header.last):
            stop = f"is not the end: {segment.rows} of {header.rows} rows are there"
    elif segment.last == previous:
        return None
    return damaged(segment.name, len(segment.lsns), scan.end, segment.last + 1, stop) if stop else None


def _create(disk: Disk, catalog: Catalog, recovery: Recovery, torn: str, origin: int, first: int) -> Recovery:
    if disk.list("checkpoints"):
        raise LogDamaged("log/ holds no segment but checkpoints/ is not empty: restore the log, or empty the folder")
    disk.mkdir(FOLDER)
    if torn:
        _set_aside_file(disk, torn, recovery)
    origin = origin or int.from_bytes(os.urandom(6), "big") + 1
    catalog.add(create_segment(disk, SegmentHeader(origin, first, 0)))
    recovery.origin, recovery.created, recovery.clean, recovery.next_lsn = origin, True, True, first
    recovery.segments = 1
    return recovery


def gap(before: Segment, header: SegmentHeader) -> LogDamaged:
    """That a segment does not follow the one before it."""
    name = segment_name(header.first)
    if header.previous > before.last:
        return damaged(
            before.name, len(before.lsns), before.end, before.last + 1,
            f"is missing, or a segment before {name} is: that one follows LSN {header.previous}",
        )  # fmt: skip
    return LogDamaged(f"{name} follows LSN {header.previous}, but {before.name} goes up to LSN {before.last}")


def _open(disk: Disk, name: str, *, writable: bool) -> File:
    try:
        return disk.open(name, readonly=not writable)
    except PermissionError as error:
        what = "writing" if writable else "reading"
        raise LogDamaged(f"{name} cannot be opened for {what}: {error.strerror}") from None


def _header(
    disk: Disk, shelf: Shelf, first: int, last_one: bool, repair: bool
) -> tuple[SegmentHeader, int, File] | None:
    """Header, its size and the file; None for a last file that never became a segment."""
    name = segment_name(first)
    file = _open(disk, name, writable=last_one and repair)
    try:
        header, size = read_header(file)
    except NotASegment as error:
        length = file.size()
        file.close()
        if last_one and length <= HEADER_BYTES:
            return None
        raise LogDamaged(f"{name} is no segment of this log: {error}") from None
    if header.first != first:
        raise LogDamaged(f"{name} is a copy under another name: its schema says that it starts at LSN {header.first}")
    return header, size, file if last_one else shelf.put(name, file)


def walk(segment: Segment, frames: FrameReader, recovery: Recovery, *, check: bool) -> Walked:
    """Index a segment up to the first thing that is no batch in order; with `check`, up to the first bad CRC too."""
    file = segment.file
    window = Window(file, file.size())
    scan, at = Walked(segment.start), segment.start
    while True:
        try:
            frame = frames.at(window, at)
        except NotAFrame as error:
            scan.stop = f"cannot be read: {error}"
            return scan
        if frame is None:
            return scan
        if frame.rows and (frame.lsn <= segment.last or frame.lsn < segment.header.first):
            scan.stop = f"does not follow LSN {segment.last}"
            return scan
        message = window.read(at, frame.length) if check or not frame.rows else b""
        if message and not sound(frame, message):
            scan.stop = "is not what was written"
            return scan
        if frame.rows:
            last = frame.last if frame.last >= 0 else _last_lsn(window, frame)
            if last - frame.lsn < frame.rows - 1:
                scan.stop = "has rows out of order"
                return scan
            if frame.rows <= 4096 and not frame.compressed and _is_base(window, frame):
                recovery.base_batches.append((segment, len(segment.lsns)))
            segment.add(frame.lsn, last, at, frame.length, frame.rows, check)
        at += frame.length
        scan.end = segment.end = at
        scan.clean = not frame.rows and frame.lsn == STOPPED
        scan.sealed = not frame.rows and frame.lsn == SEALED
        scan.claimed = max(scan.claimed, frame.durable)


def _last_lsn(window: Window, frame: Frame) -> int:
    """The last value of the first column."""
    at = frame.offset + frame.header + frame.buffers[2] + 8 * (frame.rows - 1)
    return int.from_bytes(window.read(at, 8), "little", signed=True)


def _is_base(window: Window, frame: Frame) -> bool:
    """Whether the first row is a part of a base: the first byte of the second column."""
    return window.read(frame.offset + frame.header + frame.buffers[6], 1) == b"\5"


def _open_last(
    disk: Disk, segment: Segment, frames: FrameReader, recovery: Recovery, torn_roll: str, repair: bool
) -> None:
    """Check the last segment batch by batch; its torn tail is to be cut, and the start of a next segment put aside."""
    scan = walk(segment, frames, recovery, check=True)
    end, size = scan.end, segment.file.size()
    lost = segment.last + 1
    if scan.sealed:
        raise sealed(segment, scan, torn_roll)
    claim, stray = behind(segment, frames, end, size)
    if max(claim, scan.claimed) >= lost:
        raise claimed(segment, scan, claim)
    recovery.clean = scan.clean and stray == end and not torn_roll
    if not repair:
        return
    if torn_roll:
        recovery.mends.append(partial(_set_aside_file, disk, torn_roll, recovery))
    if stray > end:
        recovery.mends.append(partial(_cut, disk, segment, end, stray, recovery))
    recovery.mends.append(partial(_write_again, disk, segment, segment.batch_of(scan.claimed), end))


def sealed(segment: Segment, scan: Walked, torn_roll: str) -> LogDamaged:
    """That a closed segment is the last one."""
    what = f"{torn_roll} is empty" if torn_roll else "the next one is missing"
    what = f"is the end of a closed segment, but {what}"
    return damaged(segment.name, len(segment.lsns), scan.end, segment.last + 1, what)


def claimed(segment: Segment, scan: Walked, claim: int) -> LogDamaged:
    """That what stopped a walk was on the disk once."""
    what = f"{scan.stop or 'is zeros'}, but a batch after it claims that LSN {claim} was on the disk"
    return damaged(segment.name, len(segment.lsns), scan.end, segment.last + 1, what)


def _cut(disk: Disk, segment: Segment, end: int, stray: int, recovery: Recovery) -> None:
    """Move a torn tail aside."""
    file = segment.file
    _set_aside(disk, segment.name, end, file.pread(stray - end, end), recovery)
    for at in range(end, stray, _BLOCK):
        file.pwrite(bytes(min(_BLOCK, stray - at)), at)


def _write_again(disk: Disk, segment: Segment, number: int, end: int) -> None:
    """Make sure of what no batch claims as synced, from batch `number` on: from now on it counts as durable.

    The last process may have been killed before its sync, or after one that failed.  Then the kernel can hold pages
    that it calls clean although the disk never got them; only writing them anew makes a sync mean something.
    """
    start = segment.offsets[number] if number >= 0 else 0
    for at in range(start, end, _BLOCK):
        segment.file.pwrite(segment.file.pread(min(_BLOCK, end - at), at), at)
    segment.file.sync()
    disk.sync_folder(FOLDER)


def behind(segment: Segment, frames: FrameReader, end: int, size: int) -> tuple[int, int]:
    """What lies behind the end: the highest durable LSN a sound batch claims there, and where the last byte is."""
    claim, last_byte, window = 0, end, Window(segment.file, size)
    at = end
    while at < size:
        block = segment.file.pread(_BLOCK + 8, at)
        if used := len(block[:_BLOCK].rstrip(b"\0")):
            last_byte = at + used
            for place in candidates(block, -at & 7):
                if place >= _BLOCK or at + place < end:
                    continue
                try:
                    frame = frames.at(window, at + place)
                except NotAFrame:
                    continue
                if frame is not None and sound(frame, segment.file.pread(frame.length, frame.offset)):
                    claim = max(claim, frame.durable)
        at += _BLOCK
    return claim, last_byte


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
    finally:
        file.close()
    disk.sync_folder(CUT)
    recovery.warnings.append(f"{name}: {len(content)} bytes of an unfinished write at byte {offset} moved to {kept}")
    recovery.cut_bytes += len(content)
    recovery.cut_files.append(kept)


def _set_aside_file(disk: Disk, name: str, recovery: Recovery) -> None:
    """Move a file that never became a segment."""
    kept = _free_name(disk, name, 0)
    disk.rename(name, kept)
    disk.sync_folder(CUT)
    disk.sync_folder(FOLDER)
    recovery.warnings.append(f"{name} was never finished; moved to {kept}")
    recovery.cut_files.append(kept)
