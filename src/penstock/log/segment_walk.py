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

_BLOCK = 1 << 20


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
        scan.stop = _unsound(segment, window, frame, at, check=check)
        if scan.stop:
            return scan
        if frame.rows:
            if frame.rows <= 4096 and not frame.compressed and _is_base(window, frame):
                bases.append((segment, len(segment.lsns)))
            segment.add(frame.lsn, _last_lsn(window, frame), at, frame.length, frame.rows, check)
        at += frame.length
        scan.end = segment.end = at
        scan.clean = not frame.rows and frame.lsn == STOPPED
        scan.sealed = not frame.rows and frame.lsn == SEALED
        scan.claimed = max(scan.claimed, frame.durable)


def _unsound(segment: Segment, window: Window, frame: Frame, at: int, *, check: bool) -> str:
    """Why a frame cannot stand here; empty: it can."""
    if frame.rows and (frame.lsn <= segment.last or frame.lsn < segment.header.first):
        return f"does not follow LSN {segment.last}"
    message = window.read(at, frame.length) if check or not frame.rows else b""
    if message and not sound(frame, message):
        return "is not what was written"
    if frame.rows and _last_lsn(window, frame) - frame.lsn < frame.rows - 1:
        return "has rows out of order"
    return ""


def _last_lsn(window: Window, frame: Frame) -> int:
    """The last value of the first column."""
    if frame.last >= 0:
        return frame.last
    at = frame.offset + frame.header + frame.buffers[2] + 8 * (frame.rows - 1)
    return int.from_bytes(window.read(at, 8), "little", signed=True)


def _is_base(window: Window, frame: Frame) -> bool:
    """Whether the first row is a part of a base: the first byte of the second column."""
    return window.read(frame.offset + frame.header + frame.buffers[6], 1) == b"\5"


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
