"""What lies in `cut/` of a data folder: tails and files that a start, or a copy whose log parted, has set aside.

A file has the name of its segment, the offset of its first byte there, and a number.  Batches are found as a start
finds them: their sums cover the place that they had.
"""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from penstock.log.frame import FrameReader, NotAFrame, Window, sound
from penstock.log.mending import CUT
from penstock.log.record_batches import cells, rows_of
from penstock.log.segment import HEADER_BYTES, NotASegment, read_header
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.ports import Disk, File

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


def cut_files(disk: Disk) -> list[CutFile]:
    """All of them, by LSN."""
    found = list[CutFile]()
    for name in disk.list(CUT):
        if (match := _NAME.fullmatch(name)) is not None:
            with closing(disk.open(f"{CUT}/{name}", readonly=True)) as file:
                found.append(_read(name, file, int(match[2])))
    return sorted(found, key=lambda one: (one.first, one.file))


def _read(name: str, file: File, offset: int) -> CutFile:
    lsns, messages = list[int](), 0
    for batch_lsns, kinds in _batches(file, offset):
        lsns += batch_lsns
        messages += sum(kind in (Kind.PUBLISH, Kind.PUBLISH_TRANSIENT) for kind in kinds)
    return CutFile(name, min(lsns, default=0), max(lsns, default=0), len(lsns), messages)


def _batches(file: File, offset: int) -> Iterator[tuple[list[int], list[int]]]:
    at, end, compressed = offset, offset + file.size(), False
    if not offset:
        try:
            header, at = read_header(file)
            compressed = bool(header.codec)
        except NotASegment:
            at = HEADER_BYTES
    moved, frames = _Moved(file, offset), FrameReader()
    window = Window(moved, end)  # type: ignore[arg-type]  # of a file it only reads
    while at < end:
        try:
            frame = frames.at(window, at)
        except NotAFrame:
            return
        if frame is None:
            return
        message = moved.pread(frame.length, at)
        if not sound(frame, message):
            return
        if frame.rows:
            rows = rows_of(message, compressed=compressed)
            yield cells(rows, "lsn"), cells(rows, "kind")
        at += frame.length
