"""Cutting a copy of a log: what lies above an LSN goes, and a crash in the middle of it is gone on with.

The order is what makes that safe: checkpoints first, then files from the newest on, then the tail of the one that
stays.  Rows are kept aside in `cut/` before they go.
"""

from __future__ import annotations

from bisect import bisect_right

from penstock.log import checkpoints
from penstock.log.catalog import Segment
from penstock.log.frame import FrameReader, Window
from penstock.log.mending import Recovery, cut, set_aside_file
from penstock.log.segment import (
    FOLDER,
    HEADER_MOST,
    NotASegment,
    SegmentHeader,
    first_lsn,
    read_header,
    segment_name,
)
from penstock.log.segment_walk import walk
from penstock.ports import Disk

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
    file = disk.open(segment_name(first), readonly=True)
    try:
        return read_header(file)
    finally:
        file.close()


def is_torn(disk: Disk, name: str) -> bool:
    """Whether a file never got its header."""
    file = disk.open(name, readonly=True)
    try:
        read_header(file)
    except NotASegment:
        return file.size() <= HEADER_MOST
    finally:
        file.close()
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
    file = disk.open(segment_name(first), readonly=True)
    try:
        header, start = read_header(file)
        segment = Segment(segment_name(first), header, start, file)
        walk(segment, FrameReader(), [], check=False)
        return segment
    except NotASegment:
        return Segment(segment_name(first), SegmentHeader(0, first, 0), 0, file)
    finally:
        file.close()
