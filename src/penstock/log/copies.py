"""Whether folders hold copies of one log: byte by byte up to what is committed, and what each has beyond it.

The copy that the newest term wrote is what the others are held against.  Files that were copied are the same bytes;
where one was rewritten since, the rows that both have are compared.  Where a copy goes on otherwise, what lies there is
of a leader that was followed by another one, and was never confirmed: unless that leader claims that it was committed.
A batch claims what every disk that counts had when it was written.  Where a confirm waits for the leader's disk alone,
what it claims below its own first record is what it found, and says nothing of other disks.

Nothing is changed and nothing locked.  Servers may run: what they write meanwhile is not seen.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import field
from typing import NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from penstock.errors import InvalidArgument
from penstock.log.catalog import Catalog, Segment
from penstock.log.frame import SEALED, FrameReader, NotAFrame, Window
from penstock.log.mending import CUT, moved
from penstock.log.reader import Reader, Vias, decode
from penstock.log.record_batches import cells, column
from penstock.log.segment import FOLDER, NotASegment, first_lsn, read_header, segment_name
from penstock.ports import Disk
from penstock.records.dataclass import dataclass
from penstock.records.kinds import Kind
from penstock.records.schema import COLUMNS

_BLOCK = 1 << 20


class Reign(NamedTuple):
    """One leader's time, as its boot record tells."""

    term: int
    member: str
    first: int  # LSN of that record
    before: int  # the last LSN that it found


class Kept(NamedTuple):
    """A file of `cut/`: what a copy gave up.  Zeros where nothing of it can be read."""

    name: str
    first: int
    last: int
    rows: int


@dataclass(slots=True)
class Copy:
    """What one folder has."""

    folder: str
    origin: int
    first: int  # LSN
    last: int
    term: int = 0  # the newest that wrote here; 0: no cluster
    committed: int = 0  # the highest LSN of which it says so
    lacks: int = 0  # records of the newest copy that it has not got yet
    parts_at: int = 0  # the first LSN that it has otherwise than the newest copy; 0: none
    unconfirmed: int = 0  # records from there on
    kept: list[Kept] = field(default_factory=list[Kept])


@dataclass(slots=True)
class Compared:
    """What came of it.  `wrong`: sentences with the LSNs that they are about; none is good."""

    copies: list[Copy]
    terms: list[Reign]  # of the newest copy
    bytes: int = 0
    records: int = 0  # that were compared one by one, in files that were rewritten
    wrong: list[tuple[str, list[int]]] = field(default_factory=list[tuple[str, list[int]]])


class _Log:
    """The files of one folder."""

    def __init__(self, name: str, disk: Disk) -> None:
        self.catalog = Catalog()
        self.reigns = list[Reign]()
        self._frames = FrameReader()
        self._batches = list[tuple[int, int]]()  # first LSN of each, and how many rows it has
        committed = 0
        firsts = sorted(first for one in disk.list(FOLDER) if (first := first_lsn(one)) is not None)
        for first in firsts:
            before = self.segments[-1] if self.segments else None
            if before is not None and before.header.generation and first <= before.header.last:
                continue  # that one stands for it
            file = disk.open(segment_name(first), readonly=True)
            try:
                header, start = read_header(file)
            except NotASegment:
                file.close()
                continue  # begun, and its first bytes are not there yet
            segment = Segment(segment_name(first), header, start, file)
            committed = max(committed, self._walk(segment))
            self.segments.append(segment)
        if not self.segments:
            raise InvalidArgument(f"{name} holds no log")
        self.copy = Copy(
            name, self.segments[0].header.origin, self.segments[0].first, self.segments[-1].last, committed=committed,
            term=self.reigns[-1].term if self.reigns else 0, kept=_kept(disk, self._frames),
        )  # fmt: skip

    @property
    def segments(self) -> list[Segment]:
        return self.catalog.segments

    def _walk(self, segment: Segment) -> int:
        """Index a file up to its last batch; the highest LSN that it says is committed."""
        window, committed = Window(segment.file, segment.file.size()), 0
        with suppress(NotAFrame):
            for frame in self._frames.each(window, segment.start):
                if frame.rows:
                    if frame.lsn <= segment.last:
                        break
                    segment.add(frame.lsn, frame.last_lsn(window), frame.offset, frame.length, frame.rows, False)
                    self._batches.append((frame.lsn, frame.rows))
                    if frame.begins_with(Kind.BOOT, window):
                        self._boot(segment)
                segment.end = frame.offset + frame.length
                if not frame.rows and frame.lsn == SEALED:
                    continue  # that all of the file is on the disk of who closed it
                if not self.reigns or frame.durable >= self.reigns[-1].first:
                    committed = max(committed, frame.durable)
        return committed

    def _boot(self, segment: Segment) -> None:
        number = len(segment.lsns) - 1
        data = segment.read(number)
        told = orjson.loads(cells(decode(segment, number, data).slice(0, 1), "properties")[0])
        if "term" in told:
            self.reigns.append(Reign(told["term"], told["member"], segment.lsns[number], told["before"]))

    @property
    def reader(self) -> Reader:
        return Reader(self.catalog, Vias(), 0)

    def rows_from(self, lsn: int) -> int:
        """How many records it has in the batches from an LSN on."""
        return sum(rows for _, rows in self._batches[bisect_left(self._batches, (lsn, 0)) :])

    def stands_for(self, segment: Segment) -> bool:
        """Whether a rewritten file of this log has what another's file held."""
        return any(one.header.generation and one.first <= segment.first <= one.header.last for one in self.segments)

    def close(self) -> None:
        for one in self.segments:
            one.file.close()


def _kept(disk: Disk, frames: FrameReader) -> list[Kept]:
    """The files of `cut/`, with what can be read of them."""
    return [_kept_file(disk, name, frames) for name in disk.list(CUT)]


def _kept_file(disk: Disk, name: str, frames: FrameReader) -> Kept:
    first = last = rows = 0
    with closing(disk.open(f"{CUT}/{name}", readonly=True)) as file, suppress(IndexError, ValueError):
        # up to a torn batch or zeros; nothing of somebody else's file
        offset = int(name.split("-")[1])
        at, window = offset or read_header(file)[1], moved(file, offset)
        for frame in frames.each(window, at):
            if frame.rows:
                first, last, rows = first or frame.lsn, frame.last_lsn(window), rows + frame.rows
    return Kept(f"{CUT}/{name}", first, last, rows)


def compare(folders: Sequence[tuple[str, Disk]]) -> Compared:
    """All of them.  InvalidArgument for a folder without a log, LogDamaged for a batch that is not what was written."""
    logs = list[_Log]()
    try:
        for name, disk in folders:
            logs.append(_Log(name, disk))
        newest = max(logs, key=lambda one: (one.copy.term, one.copy.last))
        out = Compared([one.copy for one in logs], newest.reigns)
        for one in logs:
            if one is newest:
                continue
            if one.copy.origin != newest.copy.origin:
                origins = f"of origin {one.copy.origin}, and {newest.copy.folder} of {newest.copy.origin}"
                out.wrong.append((f"{one.copy.folder} holds another log: it is {origins}", []))
            else:
                _hold_against(newest, one, out)
        return out
    finally:
        for one in logs:
            one.close()


def _parting(newest: _Log, one: _Log, out: Compared) -> int:
    """The LSN from which on a copy has something else than the newest has; 0: there is none."""
    by_first = {segment.first: segment for segment in newest.segments}
    for at, segment in enumerate(one.segments):
        same = by_first.get(segment.first)
        if same is not None and not same.header.generation and not segment.header.generation:
            parts_at = _bytes_apart(same, segment, out)
            if not parts_at and segment.end < same.end:  # what follows is otherwise: it begins another file
                parts_at = next((later.lsns[0] for later in one.segments[at + 1 :] if later.rows), 0)
        else:
            parts_at = _otherwise(newest, one, segment, out)
        if parts_at:
            return parts_at
    return 0


def _otherwise(newest: _Log, one: _Log, segment: Segment, out: Compared) -> int:
    """The same where a segment of the copy is not the same file: from where on it has what the newest has not."""
    if segment.header.generation or newest.stands_for(segment):
        _rows_apart(newest, one, segment, out)
    elif segment.rows and segment.last >= newest.segments[0].first:
        return segment.lsns[0]
    return 0


def _hold_against(newest: _Log, one: _Log, out: Compared) -> None:
    copy = one.copy
    copy.parts_at = _parting(newest, one, out)
    copy.lacks = newest.rows_from(copy.parts_at or copy.last + 1)
    if copy.parts_at:
        copy.unconfirmed = one.rows_from(copy.parts_at)
        if copy.committed >= copy.parts_at:
            said = f"{copy.folder} says that all up to LSN {copy.committed} was committed, and has from LSN"
            said = f"{said} {copy.parts_at} on something else than {newest.copy.folder}"
            out.wrong.append((said, [copy.parts_at, copy.committed]))


def _bytes_apart(ours: Segment, theirs: Segment, out: Compared) -> int:
    """The LSN of the first batch of theirs that is not in ours; 0: there is none."""
    size = min(ours.end, theirs.end)
    at = size
    for begin in range(0, size, _BLOCK):
        want = min(_BLOCK, size - begin)
        one, other = ours.file.pread(want, begin), theirs.file.pread(want, begin)
        if one != other:
            apart = np.frombuffer(one, np.uint8) != np.frombuffer(other, np.uint8)
            at = begin + int(np.argmax(apart))
            break
    out.bytes += at
    number = bisect_right(theirs.offsets, at) - 1
    if number < 0 or at >= theirs.offsets[number] + theirs.lengths[number]:
        number = bisect_left(theirs.offsets, at)  # in a mark, or behind all
    return theirs.lsns[number] if number < len(theirs.lsns) else 0


def _rows_apart(newest: _Log, one: _Log, segment: Segment, out: Compared) -> None:
    """Rows that both have must be the same; either may have left some out."""
    ours = newest.reader
    for batch in one.reader.batches(segment.first, max(segment.last, segment.header.last) + 1):
        theirs = column(batch, "lsn", "<i8")
        found = list(ours.batches(int(theirs[0]), int(theirs[-1]) + 1))
        if not found:
            continue
        lsns = np.concatenate([column(part, "lsn", "<i8") for part in found])
        both, here, there = np.intersect1d(theirs, lsns, assume_unique=True, return_indices=True)
        out.records += len(both)
        left = pa.Table.from_batches([batch]).take(here).combine_chunks()
        right = pa.Table.from_batches(found).take(there).combine_chunks()
        names = [name for name in COLUMNS.names if not left.column(name).equals(right.column(name))]
        if names:
            said = f"{one.copy.folder} and {newest.copy.folder} have other values in {', '.join(names)}"
            out.wrong.append((f"{said}, of records from LSN {both[0]} to {both[-1]}", [int(both[0]), int(both[-1])]))
