"""How far a segment is sound: batch after batch, until something is no batch, is out of order or has a bad sum.

It reads and judges; what follows from it, at a start or in `penstock log verify`, is decided by those.
"""

from __future__ import annotations

from penstock.errors import LogDamaged
from penstock.log.catalog import Segment
from penstock.log.frame import SEALED, STOPPED, Frame, FrameReader, NotAFrame, Window, candidates, sound
from penstock.log.reader import damaged
from penstock.log.segment import SegmentHeader, segment_name
from penstock.records.dataclass import dataclass
from penstock.records.kinds import Kind

_BLOCK = 1 << 20
_ZEROS = bytes(_BLOCK + 8)


@dataclass(slots=True)
class Walked:
    """How far a segment is sound."""

    end: int  # offset behind the last sound batch or mark
    stop: str = ""  # why it ends there; empty: zeros, end-of-stream mark or end of file
    clean: bool = False  # the last thing is the mark of a clean stop
    sealed: bool = False  # the last thing is the mark of a closed segment
    claimed: int = 0  # the highest durable LSN that a batch claims


def walk(segment: Segment, frames: FrameReader, bases: list[tuple[Segment, int]], *, check: bool) -> Walked:
    """Index a segment up to the first thing that is no batch in order; with `check`, up to the first bad CRC too.

    bases: gets the batches in which a base begins, each with its number.
    """
    window, scan = Window(segment.file, segment.file.size()), Walked(segment.start)
    try:
        for frame in frames.each(window, segment.start):
            scan.stop = _unsound(segment, window, frame, check=check)
            if scan.stop:
                break
            if frame.rows:
                if frame.rows <= 4096 and frame.begins_with(Kind.BASE, window):
                    bases.append((segment, len(segment.lsns)))
                last = frame.last_lsn(window)
                segment.add(frame.lsn, last, frame.offset, frame.length, frame.rows, check)
            scan.end = segment.end = frame.offset + frame.length
            scan.clean = not frame.rows and frame.lsn == STOPPED
            scan.sealed = not frame.rows and frame.lsn == SEALED
            scan.claimed = max(scan.claimed, frame.durable)
    except NotAFrame as error:
        scan.stop = f"cannot be read: {error}"
    return scan


def _unsound(segment: Segment, window: Window, frame: Frame, *, check: bool) -> str:
    """Why a frame cannot stand here; empty: it can."""
    if frame.rows and (frame.lsn <= segment.last or frame.lsn < segment.header.first):
        return f"does not follow LSN {segment.last}"
    message = window.read(frame.offset, frame.length) if check or not frame.rows else b""
    if message and not sound(frame, message):
        return "is not what was written"
    if frame.rows and frame.last_lsn(window) - frame.lsn < frame.rows - 1:
        return "has rows out of order"
    return ""


def behind(segment: Segment, frames: FrameReader, end: int, size: int) -> tuple[int, int]:
    """What lies behind the end: the highest durable LSN a sound batch claims there, and where the last byte is."""
    claim, last_byte, window = 0, end, Window(segment.file, size)
    at = end
    while at < size:
        block = segment.file.pread(_BLOCK + 8, at)
        # What lies ahead is zeros nearly always: to compare them takes a thirtieth of a look for the last that is none.
        if not _ZEROS.startswith(block) and (used := len(block[:_BLOCK].rstrip(b"\0"))):
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


# what stands against believing it


def ends_early(segment: Segment, scan: Walked, previous: int) -> LogDamaged | None:
    """What is wrong with the end of a closed segment; `previous` is what the next one says of it."""
    header, stop = segment.header, scan.stop
    if header.generation:
        if not stop and (segment.rows != header.rows or segment.last > header.last):
            stop = f"is not the end: {segment.rows} of {header.rows} rows are there"
    elif segment.last == previous:
        return None
    return damaged(segment.name, len(segment.lsns), scan.end, segment.last + 1, stop) if stop else None


def gap(before: Segment, header: SegmentHeader) -> LogDamaged:
    """That a segment does not follow the one before it."""
    name = segment_name(header.first)
    if header.previous > before.last:
        return damaged(
            before.name, len(before.lsns), before.end, before.last + 1,
            f"is missing, or a segment before {name} is: that one follows LSN {header.previous}",
        )  # fmt: skip
    return LogDamaged(f"{name} follows LSN {header.previous}, but {before.name} goes up to LSN {before.last}")


def sealed(segment: Segment, scan: Walked, torn_roll: str) -> LogDamaged:
    """That a closed segment is the last one."""
    what = f"{torn_roll} is empty" if torn_roll else "the next one is missing"
    what = f"is the end of a closed segment, but {what}"
    return damaged(segment.name, len(segment.lsns), scan.end, segment.last + 1, what)


def claimed(segment: Segment, scan: Walked, claim: int) -> LogDamaged:
    """That what stopped a walk was on the disk once."""
    what = f"{scan.stop or 'is zeros'}, but a batch after it claims that LSN {claim} was on the disk"
    return damaged(segment.name, len(segment.lsns), scan.end, segment.last + 1, what)
