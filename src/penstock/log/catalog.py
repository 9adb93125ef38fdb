"""Where each batch of the log is: three growing arrays a segment, 21 bytes a batch, and nothing about single rows.

The catalog is changed by one thread (the loop's) and read by any: a batch's LSN is appended last, so whoever finds it
finds its offset and length too.  Lists of segments are replaced, never shortened: a reader takes one list and stays
with it, so that it sees either the files before a rewriting or the file after it, never a part of both.
It knows files by name; it reads none.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from penstock.log.segment import SegmentHeader, Shelf, ShelvedFile
from penstock.ports import File


class Segment:
    """One segment file and the places of its batches.

    `last` is the LSN of its last row (`first - 1` when empty); in a file that replaced others, the last LSN of those.
    """

    __slots__ = (
        "checked", "end", "file", "first", "given_back", "gone", "header", "last", "left", "lengths", "lsns", "name",
        "offsets", "rows", "start",
    )  # fmt: skip

    def __init__(self, name: str, header: SegmentHeader, start: int, file: File) -> None:
        self.name = name
        self.header = header
        self.first = header.first
        self.start = start  # of the first batch: the size of the schema message
        self.end = start  # of the last batch or mark
        self.file = file
        self.last = max(header.previous, header.first - 1)
        self.rows = 0
        self.lsns = array("q")  # of the first row of each batch
        self.offsets = array("q")
        self.lengths = array("I")  # "q" once one does not fit
        self.checked = bytearray()  # 1: the CRC of the batch was found right by this process
        self.given_back = False  # its pages need not stay in the page cache
        self.gone = False  # in no list any more: who still reads it does so for the last time
        self.left: Sequence[str] = ()  # older files that it stands for and that are still there: they go before it

    def add(self, lsn: int, last: int, offset: int, length: int, rows: int, checked: bool) -> None:
        """A batch with rows, after all others."""
        self.offsets.append(offset)
        try:
            self.lengths.append(length)
        except OverflowError:
            self.lengths = array("q", self.lengths)
            self.lengths.append(length)
        self.checked.append(checked)
        self.rows += rows
        self.end = offset + length
        self.last = last
        self.lsns.append(lsn)

    def read(self, number: int) -> bytes:
        """The bytes of a batch, as far as the file has them.  OSError when the disk fails."""
        return self.file.pread(self.lengths[number], self.offsets[number])

    @property
    def index_bytes(self) -> int:
        """Bytes of memory that the places of its batches take."""
        arrays = (self.lsns, self.offsets, self.lengths)
        return sum(one.itemsize * len(one) for one in arrays) + len(self.checked)

    def batch_of(self, lsn: int) -> int:
        """Number of the last batch that starts at or before `lsn`; -1: before the first."""
        return bisect_right(self.lsns, lsn) - 1


def _first(segment: Segment) -> int:
    return segment.first


Chosen: TypeAlias = Callable[[Segment], "Sequence[int] | None"]
"""Ascending numbers of the batches of a segment that are worth reading; None: all."""


class Catalog:
    """The segments in order."""

    def __init__(self) -> None:
        self.segments = list[Segment]()
        self.shelf: Shelf | None = None  # of the files of closed segments

    def add(self, segment: Segment) -> None:
        """A segment after all others.  The one before it is closed: its file goes onto the shelf."""
        if self.segments and self.shelf is not None and not isinstance(self.segments[-1].file, ShelvedFile):
            closed = self.segments[-1]
            closed.file = self.shelf.put(closed.name, closed.file)
        self.segments.append(segment)

    def drop_front(self) -> Segment:
        """Forget the oldest segment, which is the answer."""
        gone = self.segments[0]
        self.segments = self.segments[1:]
        return gone

    def replace(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Have others in the place of adjacent segments.  ValueError when those are not all there, side by side."""
        at = bisect_left(self.segments, old[0].first, key=_first)
        if self.segments[at : at + len(old)] != list(old):
            raise ValueError(f"{old[0].name} and the {len(old) - 1} after it are not what the catalog lists")
        self.segments = [*self.segments[:at], *new, *self.segments[at + len(old) :]]

    def find(self, lsn: int, segments: Sequence[Segment] | None = None) -> tuple[Segment, int] | None:
        """The batch that would hold `lsn`; None when it is before the first one kept.

        `segments`: the list to look in, for who needs several answers that fit together.
        """
        found = self.segments if segments is None else segments
        at = bisect_right(found, lsn, key=_first) - 1
        while at >= 0:
            segment = found[at]
            if (batch := segment.batch_of(lsn)) >= 0:
                return segment, batch
            at -= 1  # the segment has not got its first batch, or has lost it
        return None

    def batches(self, a: int, b: int, chosen: Chosen | None = None) -> Iterator[tuple[Segment, int]]:
        """Every batch that may have rows in [a, b), in order; `chosen` may leave some out."""
        segments = self.segments
        for at in range(max(0, bisect_right(segments, a, key=_first) - 1), len(segments)):
            segment = segments[at]
            if segment.first >= b:
                return
            if segment.last < a:
                continue
            lsns = segment.lsns
            number, n = max(0, segment.batch_of(a)), len(lsns)
            some = None if chosen is None else chosen(segment)
            if some is not None:
                for worth in some[bisect_left(some, number) :]:
                    if lsns[worth] >= b:
                        return
                    yield segment, worth
                continue
            while number < n and lsns[number] < b:
                yield segment, number
                number += 1


def after(segments: Sequence[Segment], segment: Segment, number: int) -> int:
    """An LSN that all rows of this batch are below, and all later batches of the list at or above."""
    if number + 1 < len(segment.lsns):
        return segment.lsns[number + 1]
    for at in range(bisect_right(segments, segment.first, key=_first), len(segments)):
        if len(segments[at].lsns):
            return segments[at].lsns[0]
    return 1 << 62


def whole_from(segments: Sequence[Segment]) -> int:
    """From this LSN on adjacent segments have every row that was written; below, some may be left out."""
    for segment in reversed(segments):
        if segment.header.floor:
            return segment.last + 1
    return segments[0].header.first


def has_every(segments: Sequence[Segment], a: int, b: int) -> bool:
    """Whether adjacent segments have every row that was written with an LSN in [a, b)."""
    left_out = any(one.header.floor and one.header.first < b and a <= one.last for one in segments)
    return a >= segments[0].header.first and not left_out


class SegmentInfo(NamedTuple):
    """One line of `penstock log ls`."""

    name: str
    first: int
    last: int
    rows: int
    batches: int
    bytes: int
    closed: bool
    generation: int = 0  # how often it was rewritten
    compressed: bool = False
    span: int = 0  # LSNs that the file answers for: so many rows could lie in it


def describe(segment: Segment, closed: bool) -> SegmentInfo:
    """The line of one segment.  What lies behind its last batch, marks, is not counted: they come and go."""
    end = segment.offsets[-1] + segment.lengths[-1] if len(segment.lsns) else segment.start
    return SegmentInfo(
        segment.name, segment.header.first, segment.last, segment.rows, len(segment.lsns), end, closed,
        segment.header.generation, bool(segment.header.codec), segment.last - segment.header.first + 1,
    )  # fmt: skip


LEAST_BYTES = 32
"""Bytes of a segment that a row has at least: a batch with fewer for its LSNs has gaps between them."""

PIECE_ROWS = 100_000
"""Rows of one span at most."""


class Span(NamedTuple):
    """Rows with LSNs in [first, end), about so many, evenly."""

    first: int
    end: int
    rows: int


def span(first: int, end: int, low: int, high: int, size: int) -> Span:
    """The part in [low, high) of a batch of a segment: `size` bytes in [first, end), behind which may be a gap."""
    end = min(end, first + max(1, size // LEAST_BYTES))
    low, high = max(first, low), min(end, high)
    return Span(low, max(low, high), max(0, high - low))


def pieces_of(first: int, end: int, rows: int) -> list[Span]:
    """Many rows as spans of few."""
    n = max(1, -(-rows // PIECE_ROWS))
    edges = [first + (end - first) * i // n for i in range(n + 1)]
    return [Span(a, b, rows * (i + 1) // n - rows * i // n) for i, (a, b) in enumerate(pairwise(edges))]


def cuts(spans: Sequence[Span], parts: int) -> list[int]:
    """LSNs at which parts of about the same number of rows begin, but for the first; ascending, each once.

    spans: by their first LSN; they may overlap.
    """
    total = sum(one.rows for one in spans)
    parts = min(parts, total)
    out = list[int]()
    before, turn = 0, 1
    for one in spans:
        while turn < parts and total * turn < (before + one.rows) * parts:
            inside = (total * turn - before * parts) // parts
            out.append(one.first + (one.end - one.first) * inside // one.rows)
            turn += 1
        before += one.rows
    low = spans[0].first if spans else 0
    return sorted({one for one in out if one > low})
