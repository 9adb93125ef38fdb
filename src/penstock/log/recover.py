"""Opening a data folder: believe nothing, and refuse in one sentence or say what is to be mended.

For each file of `log/`, in LSN order:

* a name that is not ours is left alone, with a warning;
* a segment must start with our schema, carry the name's LSN and the folder's origin, and follow the one before it:
  its `previous` is the last LSN found there, so a missing, shortened or exchanged file shows;
* a last file that is no longer than a header is a roll that a power cut undid: kept aside in `cut/`;
* a last segment that ends with a seal has lost its successor, since the seal is written after the successor;
* in the last segment every batch's CRC is checked; in others when they are read.

A segment that `log.rewrite` wrote anew covers a range: what starts within that was replaced by it and is removed,
and so is a file that was still being written when the process ended.  It must be whole, and where rows were left out of
it a base must stand for them.

The torn tail: a bad batch at LSN x, or zeros, is the end of the log unless a sound batch after it claims that x was
synced (`durable >= x`); then it is damage.  Bytes of a tail are copied to `cut/`, then overwritten by zeros and synced.
A segment whose predecessors are gone needs a complete base that covers them (`log.checkpoints`).

To look and to change are two steps: `open_segments` changes nothing but an empty folder, and leaves in the `Recovery`
what `log.mending` will do.  Between the two `choose_start` decides, so that a refused start has changed nothing.

The fold is given a state to begin with, the newest checkpoint's or the highest base's, whichever knows more, and all
records after it as large tables; with neither it begins at nothing.  A checkpoint older than the base is of no use:
segments between the two may be gone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from operator import attrgetter
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import LogDamaged
from penstock.log import checkpoints
from penstock.log.catalog import Catalog, Segment
from penstock.log.checkpoints import Base, read_base
from penstock.log.frame import FrameReader
from penstock.log.mending import Recovery, Watch, cut, end_roll, nobody, remove, set_aside_file, write_again
from penstock.log.reader import Vias, check, decode
from penstock.log.record_batches import cells_where
from penstock.log.room import RESERVE
from penstock.log.segment import (
    FOLDER,
    HEADER_MOST,
    NotASegment,
    SegmentHeader,
    Shelf,
    first_lsn,
    is_rewrite,
    read_header,
    segment_name,
)
from penstock.log.segment_walk import Walked, behind, claimed, ends_early, gap, sealed, walk
from penstock.log.writer import create_segment
from penstock.ports import Disk, File
from penstock.records.compute import gathered
from penstock.records.kinds import Kind
from penstock.records.schema import COLUMNS, UNCLEAN_GAP


def open_segments(
    disk: Disk,
    catalog: Catalog,
    *,
    origin: int,
    new_first: int,
    repair: bool = True,
    claims: bool = True,
    watch: Watch = nobody,
) -> Recovery:
    """Fill the catalog from the folder, the last segment writable; what must be changed is left for `mend`.

    `origin` and `new_first` are for an empty folder.  With `repair` False nothing will be changed, a torn tail is only
    found, and an empty folder is LogDamaged.  `watch` is told of each segment.
    With `claims` False nobody believes what batches claim to be on the disk: in a copy it may be another's disk.
    Raises LogDamaged, and OSError for a disk that cannot be read or written.
    """
    recovery = Recovery()
    shelf = catalog.shelf = Shelf(disk)
    firsts, unfinished = _listed(disk, recovery)
    files = _headers(disk, shelf, firsts, recovery, repair=repair)
    found = files.found
    if not found:
        return _create(disk, catalog, recovery, files.torn_roll, origin, new_first, repair=repair)
    headers = [header for header, _, _ in found]
    recovery.origin, recovery.neediest = headers[0].origin, max(headers, key=attrgetter("floor"))
    frames = FrameReader()
    for at, (header, start, file) in enumerate(found):
        watch("checking", at, len(found))
        _check_place(header, recovery.origin, catalog.segments[-1] if at else None)
        segment = Segment(segment_name(header.first), header, start, file)
        if following := headers[at + 1 : at + 2]:
            # whole before what it replaced is removed: else that is the last copy of its rows
            scan = _open_closed(segment, frames, recovery, following[0], check=header.first in files.instead)
            if repair and not (scan.sealed or header.generation):
                recovery.mends.append(_end_of_roll(disk, segment, frames, scan, following[0], recovery))
        else:
            _open_last(disk, segment, frames, recovery, files.torn_roll, repair=repair, claims=claims)
        catalog.add(segment)
        recovery.records += segment.rows
    if repair and (useless := [*unfinished, *files.replaced]):
        recovery.mends.append(partial(remove, disk, useless))
    watch("checking", len(found), len(found))
    recovery.segments = len(found)
    last = catalog.segments[-1].last
    recovery.last_lsn = last if recovery.records or headers[0].previous else 0
    recovery.next_lsn = last + (1 if recovery.clean else UNCLEAN_GAP)
    return recovery


class _Files(NamedTuple):
    """Segment files, as their names and headers have them."""

    found: list[tuple[SegmentHeader, int, File]]  # header, its size, the file; in LSN order
    torn_roll: str  # a last file that never became a segment; empty: none
    replaced: list[str]  # files that one of `found` stands for
    instead: set[int]  # first LSNs of those that do


def _listed(disk: Disk, recovery: Recovery) -> tuple[list[int], list[str]]:
    """First LSNs of all segment files, ascending, and names of new ones that were not finished."""
    firsts, unfinished = list[int](), list[str]()
    for name in disk.list(FOLDER):
        first = first_lsn(name)
        if first is not None:
            firsts.append(first)
        elif is_rewrite(name):
            unfinished.append(f"{FOLDER}/{name}")
        elif f"{FOLDER}/{name}" != RESERVE:
            recovery.warnings.append(f"{FOLDER}/{name} is no segment of the log; left alone")
    return firsts, unfinished


def _headers(disk: Disk, shelf: Shelf, firsts: list[int], recovery: Recovery, *, repair: bool) -> _Files:
    """The files by their headers; what a rewritten one replaced is set apart."""
    found, torn_roll, replaced = list[tuple[SegmentHeader, int, File]](), "", list[str]()
    instead = set[int]()
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
    return _Files(found, torn_roll, replaced, instead)


def _check_place(header: SegmentHeader, origin: int, before: Segment | None) -> None:
    """LogDamaged for a segment of another log, and for one that does not follow the one before it."""
    if header.origin != origin:
        name = segment_name(header.first)
        raise LogDamaged(f"{name} belongs to another data folder (origin {header.origin}, not {origin})")
    if before is not None and header.previous != before.last:
        raise gap(before, header)


def newest_base(oldest: Segment, recovery: Recovery) -> Base | None:
    """The complete base with the highest floor, of equal ones the newest.

    LogDamaged when the oldest segment needs one and none covers what came before it.
    """
    base: Base | None = None
    for segment, number in recovery.base_batches:
        data = segment.read(number)
        found = read_base(decode(segment, number, data))
        if found is not None and (base is None or found.floor >= base.floor):
            base = found
    if lack := uncovered(oldest.header, recovery.neediest or oldest.header, 0 if base is None else base.floor):
        raise LogDamaged(lack)
    return base


def uncovered(oldest: SegmentHeader, neediest: SegmentHeader, floor: int) -> str:
    """What a base with this floor (0: none) does not stand for, though it must; empty when all is well.

    neediest: of all segments the one that leaves out rows up to the highest LSN.
    """
    if neediest.floor and floor < neediest.floor:
        return (
            f"rows below LSN {neediest.floor} were left out of compacted segments, and no base stands for them, "
            f"as {segment_name(neediest.first)} needs"
        )
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
        with closing(disk.open(name, readonly=True)) as file:
            header, _ = read_header(file)
    except FileNotFoundError:
        raise
    except (NotASegment, OSError) as error:
        warnings.append(f"{name} is within what {segment_name(by.first)} replaced; left alone: {error}")
        return False
    if header.origin != by.origin or header.first != first or header.generation >= by.generation:
        raise LogDamaged(f"{name} and {segment_name(by.first)} hold the same LSNs, and neither replaced the other")
    return True


def _open_closed(
    segment: Segment, frames: FrameReader, recovery: Recovery, following: SegmentHeader, *, check: bool
) -> Walked:
    """Index a segment that is not the last one.  LogDamaged when it ends before it should."""
    scan = walk(segment, frames, recovery.base_batches, check=check)
    if fault := ends_early(segment, scan, following.previous):
        raise fault
    if segment.header.generation:
        segment.last = segment.header.last
    return scan


def _create(
    disk: Disk, catalog: Catalog, recovery: Recovery, torn: str, origin: int, first: int, *, repair: bool
) -> Recovery:
    if not repair:
        raise LogDamaged(f"{FOLDER}/ holds no segment")
    if disk.list("checkpoints"):
        raise LogDamaged("log/ holds no segment but checkpoints/ is not empty: restore the log, or empty the folder")
    disk.mkdir(FOLDER)
    if torn:
        set_aside_file(disk, torn, recovery)
    origin = origin or int.from_bytes(os.urandom(6), "big") + 1
    catalog.add(create_segment(disk, SegmentHeader(origin, first, 0)))
    recovery.origin, recovery.created, recovery.clean, recovery.next_lsn = origin, True, True, first
    recovery.segments = 1
    return recovery


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
        if last_one and length <= HEADER_MOST:
            return None
        raise LogDamaged(f"{name} is no segment of this log: {error}") from None
    if header.first != first:
        raise LogDamaged(f"{name} is a copy under another name: its schema says that it starts at LSN {header.first}")
    return header, size, file if last_one else shelf.put(name, file)


def _end_of_roll(
    disk: Disk, segment: Segment, frames: FrameReader, scan: Walked, following: SegmentHeader, recovery: Recovery
) -> Callable[[], None]:
    """What ends a roll that was cut short: a closed segment without its seal."""
    _, stray = behind(segment, frames, scan.end, segment.file.size())
    return partial(end_roll, disk, segment, segment_name(following.first), scan.end, stray, recovery)


def _open_last(
    disk: Disk, segment: Segment, frames: FrameReader, recovery: Recovery, torn_roll: str, *, repair: bool, claims: bool
) -> None:
    """Check the last segment batch by batch; its torn tail is to be cut, and the start of a next segment put aside."""
    if torn_roll and repair:
        segment.file.close()
        segment.file = _open(disk, segment.name, writable=True)
    if segment.header.generation and claims:  # a copy may have come so far
        raise LogDamaged(f"{segment.name} is a closed segment, but the next one is missing")
    scan = walk(segment, frames, recovery.base_batches, check=True)
    end, size = scan.end, segment.file.size()
    lost = segment.last + 1
    if scan.sealed and not segment.header.generation:
        raise sealed(segment, scan, torn_roll)
    claim, stray = behind(segment, frames, end, size)
    if claims and max(claim, scan.claimed) >= lost:
        raise claimed(segment, scan, claim)
    recovery.clean = scan.clean and stray == end and not torn_roll
    if repair:
        sure = segment.batch_of(scan.claimed) if claims else -1
        _mend_last(disk, segment, recovery, torn_roll, sure, end, stray)


def _mend_last(
    disk: Disk, segment: Segment, recovery: Recovery, torn_roll: str, sure: int, end: int, stray: int
) -> None:
    """Note what has to be done to the last segment, which is good up to `end` and has bytes up to `stray`."""
    if torn_roll:
        recovery.mends.append(partial(set_aside_file, disk, torn_roll, recovery))
    if stray > end:
        recovery.mends.append(partial(cut, disk, segment, end, stray, recovery))
    recovery.mends.append(partial(write_again, disk, segment, sure, end))


_ROWS = 500_000
_BLOCK = 4 << 20
"""Bytes that are read at once.  Blocks of 16 MiB took a fifth more CPU: the system gave fresh pages for each."""


class Start(NamedTuple):
    """Where replay starts.  A checkpoint holds all records up to `lsn`, a base all records below it."""

    kind: str  # "checkpoint" or "base"
    lsn: int
    state: bytes


def choose_start(disk: Disk, catalog: Catalog, recovery: Recovery, vias: Vias) -> Start | None:
    """Choose, note the choice in `recovery`, and learn the ids that the choice knows.

    LogDamaged when segments are missing that nothing covers, or a checkpoint shows that the log went on.
    """
    base = newest_base(catalog.segments[0], recovery)
    checkpoint = checkpoints.newest(disk, recovery.origin, recovery.warnings)
    last = catalog.segments[-1].last
    if checkpoint is not None and checkpoint.lsn > last:
        raise LogDamaged(
            f"the log ends at LSN {last}, but checkpoints/{checkpoint.lsn:020d}.state shows that it went on: "
            "restore the missing part, or move the checkpoint away to go on without it"
        )
    if base is not None:
        recovery.base = base.floor
        vias.load(base.vias)
    if checkpoint is not None and (base is None or checkpoint.lsn >= base.floor - 1):
        recovery.checkpoint = checkpoint.lsn
        vias.load(checkpoint.vias)
        return Start("checkpoint", checkpoint.lsn, checkpoint.state)
    return None if base is None else Start("base", base.floor, base.state)


def tables(catalog: Catalog, vias: Vias, after: int) -> Iterator[pa.Table]:
    """Rows above `after` in tables of 500,000, or of fewer that are large; their VIA records are learned.

    LogDamaged at the first bad batch.
    """
    for table in gathered(_blocks(catalog, after), _ROWS):
        yield _learned(table, vias)


def replayed_after(start: Start | None) -> int:
    """The LSN after which rows are to be replayed."""
    return 0 if start is None else start.lsn if start.kind == "checkpoint" else start.lsn - 1


def rows_after(catalog: Catalog, after: int) -> int:
    """About how many rows lie above `after`: in the segment that it falls into all batches count as equal."""
    rows = 0
    for segment in catalog.segments:
        if segment.last > after and len(segment.lsns):
            number, n = max(0, segment.batch_of(after + 1)), len(segment.lsns)
            rows += -(-segment.rows * (n - number) // n)
    return rows


def _blocks(catalog: Catalog, after: int) -> Iterator[pa.Table]:
    """A table for each block of adjacent batches: one read, then a CRC a batch, then pyarrow reads all at once."""
    schema = COLUMNS.serialize().to_pybytes()
    for segment in list(catalog.segments):
        if segment.last <= after:
            continue
        number, n = max(0, segment.batch_of(after + 1)), len(segment.lsns)
        while number < n:
            upto, start = number + 1, segment.offsets[number]
            while upto < n and segment.offsets[upto] + segment.lengths[upto] - start <= _BLOCK:
                upto += 1
            end = segment.offsets[upto - 1] + segment.lengths[upto - 1]
            block = segment.file.pread(end - start, start)
            view = memoryview(block)
            for at in range(number, upto):
                begin = segment.offsets[at] - start
                check(segment, at, view[begin : begin + segment.lengths[at]])
            with pa.ipc.open_stream(pa.BufferReader(pa.py_buffer(schema + block))) as reader:
                table = reader.read_all()
            if segment.lsns[number] <= after:
                lsns = cast("npt.NDArray[np.int64]", table.column("lsn").to_numpy())
                table = table.slice(int(np.searchsorted(lsns, after + 1)))
            if table.num_rows:
                yield table
            number = upto


def _learned(table: pa.Table, vias: Vias) -> pa.Table:
    for via, header in zip(*cells_where(table, Kind.VIA, ("via", "properties")), strict=True):
        vias.learn(via, header)
    return table
