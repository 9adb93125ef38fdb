"""Where each batch of the log is: three growing arrays a segment, 24 bytes a commit, and nothing about single rows.

The catalog is changed by one thread (the loop's) and read by any: a batch's LSN is appended last, so whoever finds it
finds its offset and length too.  It knows files by name; it reads none.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator

from penstock.log.segment import SegmentHeader
from penstock.ports import File


class Segment:
    """One segment file and the places of its batches.  `last` is the LSN of its last row (`first - 1` when empty)."""

    __slots__ = ("checked", "end", "file", "header", "last", "lengths", "lsns", "name", "offsets", "rows", "start")

    def __init__(self, name: str, header: SegmentHeader, start: int, file: File) -> None:
        self.name = name
        self.header = header
        self.start = start  # of the first batch: the size of the schema message
        self.end = start  # of the last batch or mark
        self.file = file
        self.last = max(header.previous, header.first - 1)
        self.rows = 0
        self.lsns = array("q")  # of the first row of each batch
        self.offsets = array("q")
        self.lengths = array("q")
        self.checked = bytearray()  # 1: the CRC of the batch was found right by this process

    def add(self, lsn: int, last: int, offset: int, length: int, rows: int, checked: bool) -> None:
        """A batch with rows, after all others."""
        self.offsets.append(offset)
        self.lengths.append(length)
        self.checked.append(checked)
        self.rows += rows
        self.end = offset + length
        self.last = last
        self.lsns.append(lsn)

    def batch_of(self, lsn: int) -> int:
        """Number of the last batch that starts at or before `lsn`; -1: before the first."""
        return bisect_right(self.lsns, lsn) - 1


class Catalog:
    """The segments in order."""

    def __init__(self) -> None:
        self.segments = list[Segment]()
        self._firsts = array("q")

    def add(self, segment: Segment) -> None:
        """A segment after all others."""
        self.segments.append(segment)
        self._firsts.append(segment.header.first)

    def drop_front(self) -> Segment:
        """Forget the oldest segment.  Lists are replaced, not changed, for the sake of readers in other threads."""
        gone = self.segments[0]
        self._firsts, self.segments = self._firsts[1:], self.segments[1:]
        return gone

    def find(self, lsn: int) -> tuple[Segment, int] | None:
        """The batch that would hold `lsn`; None when it is before the first one kept."""
        segments = self.segments
        at = bisect_right([segment.header.first for segment in segments], lsn) - 1
        while at >= 0:
            segment = segments[at]
            if (batch := segment.batch_of(lsn)) >= 0:
                return segment, batch
            at -= 1  # the segment has not got its first batch
        return None

    def batches(self, a: int, b: int) -> Iterator[tuple[Segment, int]]:
        """Every batch that may have rows in [a, b), in order."""
        for segment in self.segments:
            if segment.last < a or segment.header.first >= b:
                continue
            lsns = segment.lsns
            at, n = max(0, segment.batch_of(a)), len(lsns)
            while at < n and lsns[at] < b:
                yield segment, at
                at += 1
