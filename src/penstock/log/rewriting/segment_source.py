"""The batches of a segment file from its first byte to its last, each checked before it is believed.

It asks nothing of a catalog: a child process or a command reads a file by its name alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from penstock.errors import LogDamaged
from penstock.log.frame import Frame, FrameReader, NotAFrame, Window, sound
from penstock.log.reader import damaged
from penstock.log.record_batches import rows_of
from penstock.log.segment import NotASegment, SegmentHeader, read_header
from penstock.ports import Disk, File
from penstock.records.kinds import Kind

_BLOCK = 256 << 10
"""Bytes that are read at once: of more, two would lie in memory while the next comes."""

_I64 = struct.Struct("<q")


class RawBatch(NamedTuple):
    """A batch with rows, as it lies in the file; its sum is right."""

    frame: Frame
    message: bytes

    @property
    def last(self) -> int:
        """LSN of the last row: what the header says, or the last value of the first column."""
        frame = self.frame
        if frame.last >= 0:
            return frame.last
        return int(_I64.unpack_from(self.message, frame.header + frame.buffers[2] + 8 * (frame.rows - 1))[0])

    @property
    def base(self) -> bool:
        """Whether it holds a base, which is alone in its batch: the first value of the second column says so."""
        frame = self.frame
        return not frame.compressed and self.message[frame.header + frame.buffers[6]] == Kind.BASE

    def decode(self) -> pa.RecordBatch:
        """Its rows."""
        return rows_of(self.message, compressed=self.frame.compressed)


class Source:
    """One segment file, read once from front to back."""

    def __init__(self, disk: Disk, name: str) -> None:
        """LogDamaged when the file does not begin as a segment; OSError when it cannot be opened."""
        self.name = name
        self.file: File = disk.open(name, readonly=True)
        self.rows = 0
        self.read = 0  # batches
        try:
            self.header, self._start = _header(self.file, name)
        except BaseException:
            self.file.close()
            raise

    def batches(self) -> Iterator[RawBatch]:
        """The batches with rows, in order.  LogDamaged at the first that is not what was written, and at a cut."""
        window = Window(self.file, self.file.size(), _BLOCK)
        frames, at = FrameReader(), self._start
        while True:
            try:
                frame = frames.at(window, at)
            except NotAFrame as error:
                raise damaged(self.name, self.read, at, 0, f"cannot be read: {error}") from None
            if frame is None:
                break
            message = window.read(at, frame.length)
            if not sound(frame, message):
                raise damaged(self.name, self.read, at, frame.lsn, "is not what was written")
            if frame.rows:
                self.rows += frame.rows
                self.read += 1
                yield RawBatch(frame, message)
            at += frame.length
        if self.header.generation and self.rows != self.header.rows:
            raise LogDamaged(f"{self.name} has {self.rows} of its {self.header.rows} rows")

    def close(self) -> None:
        """Let the file go, and what the system keeps of it in memory."""
        self.file.give_back()
        self.file.close()


def _header(file: File, name: str) -> tuple[SegmentHeader, int]:
    try:
        return read_header(file)
    except NotASegment as error:
        raise LogDamaged(f"{name} is no segment of this log: {error}") from None
