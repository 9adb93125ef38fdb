"""`penstock log verify` and `log ls` of a folder: every batch of every segment, without the lock and without a change.

A server may append, roll, delete and compact meanwhile, and what is told is still exact:

* The list of files is believed when it is the same before and after their headers were read: names never come back.
* A closed segment never changes.  It is read through one descriptor, so that no other file can take its name meanwhile;
  one that is gone, or another one, when it is opened means that the folder has moved: then it is listed again.  What
  was checked stays checked, by first LSN and generation.
* The seal of a segment is written after the next file is whole: who finds one in the last file lists again.
* A batch that claims LSN x as synced is written after x is on the disk: who finds such a claim behind what ends the log
  reads that place again, and only what is no batch then either is damage.  Without a claim the log ends there for now.

It reads what `recover` would believe and more: the sums of all batches, not only of the last segment's.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import field
from operator import attrgetter

from penstock.errors import LogDamaged
from penstock.log.catalog import Segment, SegmentInfo, describe
from penstock.log.checkpoints import read_base
from penstock.log.frame import FrameReader
from penstock.log.reader import decode
from penstock.log.recover import is_older, uncovered
from penstock.log.room import RESERVE
from penstock.log.segment import (
    FOLDER,
    HEADER_MOST,
    NotASegment,
    SegmentHeader,
    first_lsn,
    is_rewrite,
    read_header,
    segment_name,
)
from penstock.log.segment_walk import Walked, behind, claimed, ends_early, gap, sealed, walk
from penstock.ports import Disk, File
from penstock.records.dataclass import dataclass


@dataclass(slots=True)
class Report:
    """What was read, and all that is wrong with it."""

    origin: int = 0
    batches: int = 0
    rows: int = 0
    bytes: int = 0
    last_lsn: int = 0
    clean: bool = False  # the last process closed the log
    segments: list[SegmentInfo] = field(default_factory=list[SegmentInfo])
    damage: list[str] = field(default_factory=list[str])  # one sentence each
    warnings: list[str] = field(default_factory=list[str])

    @property
    def good(self) -> bool:
        """Whether all is as it was written."""
        return not self.damage


def verify(disk: Disk) -> Report:
    """Check all of a data folder, up to where its log ends now.  OSError when it cannot be read; damage is told."""
    return _Look(disk, sums=True).run()


def segments(disk: Disk) -> list[SegmentInfo]:
    """The lines of `penstock log ls`, from the files themselves; LogDamaged when they cannot be read in order."""
    if not any(first_lsn(name) is not None for name in disk.list(FOLDER)):
        return []
    report = _Look(disk, sums=False).run()
    if report.damage:
        raise LogDamaged(report.damage[0])
    return report.segments


class _Moved(Exception):
    """A file that was listed is gone, or another one.  Never leaves this module."""


@dataclass(slots=True)
class _Listed:
    """The files of one moment, oldest first."""

    headers: list[SegmentHeader] = field(default_factory=list[SegmentHeader])
    torn: str = ""  # a last file that has no header yet, or never got one
    damage: list[str] = field(default_factory=list[str])
    warnings: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class _Seen:
    """What was found in one file."""

    segment: Segment  # its file is closed again
    walked: Walked
    end: LogDamaged | None = None  # of the last file: why it cannot be the end of the log
    stray: bool = False  # of the last file: bytes behind its end
    batches: int = 0
    rows: int = 0
    bytes: int = 0
    base: int = 0  # the highest floor of a complete base
    damage: list[str] = field(default_factory=list[str])

    def is_followed(self, previous: int) -> None:
        """The next file says after which LSN it begins."""
        self.end = ends_early(self.segment, self.walked, previous)
        if self.segment.header.generation:
            self.segment.last = self.segment.header.last

    def tell(self, report: Report, *, closed: bool) -> None:
        """Add it to what is told of all."""
        report.damage += self.damage if self.end is None else [*self.damage, str(self.end)]
        report.segments.append(describe(self.segment, closed))
        report.batches += self.batches
        report.rows += self.rows
        report.bytes += self.bytes


class _Look:
    """One look at a folder."""

    def __init__(self, disk: Disk, *, sums: bool) -> None:
        self._disk = disk
        self._sums = sums
        self._frames = FrameReader()
        self._closed = dict[tuple[int, int], _Seen]()  # by first LSN and generation

    def run(self) -> Report:
        before = ""  # the last file, when it was found closed
        while True:
            listed = self._list()
            try:
                seen = [self._closed_one(header) for header in listed.headers[:-1]]
                seen += [self._last_one(header, listed.torn) for header in listed.headers[-1:]]
            except _Moved:
                continue
            last = f"{seen[-1].segment.name} {listed.torn}" if seen and seen[-1].walked.sealed else ""
            if not last or last == before:
                return _judged(listed, seen)
            before = last

    # -- which files there are

    def _list(self) -> _Listed:
        """The files of one moment, and what their headers say."""
        names = self._names()
        while True:
            try:
                listed = self._headers(names)
            except _Moved:
                listed = None
            again = self._names()
            if listed is not None and again == names:
                return listed
            names = again

    def _names(self) -> list[str]:
        return [name for name in self._disk.list(FOLDER) if first_lsn(name) is not None]

    def _headers(self, names: list[str]) -> _Listed:
        out = _Listed()
        for name in self._disk.list(FOLDER):
            if first_lsn(name) is None and not is_rewrite(name) and f"{FOLDER}/{name}" != RESERVE:
                out.warnings.append(f"{FOLDER}/{name} is no segment of the log; left alone")
        if not names:
            out.damage.append(f"{FOLDER}/ holds no segment")
        for first in (int(name[:20]) for name in names):
            try:
                header = self._header(out, first, f"{first:020d}.arrows" == names[-1])
            except FileNotFoundError:
                raise _Moved from None
            except PermissionError as error:
                out.damage.append(f"{segment_name(first)} cannot be opened for reading: {error.strerror}")
            except LogDamaged as error:
                out.damage.append(str(error))
            else:
                out.headers += [] if header is None else [header]
        return out

    def _header(self, out: _Listed, first: int, newest: bool) -> SegmentHeader | None:
        """Of one file; None: another stands for it, or it has none yet.  LogDamaged: it is no segment of this log."""
        last, name = out.headers[-1] if out.headers else None, segment_name(first)
        if last is not None and first <= last.last:
            is_older(self._disk, first, last, out.warnings)
            return None
        with closing(self._disk.open(name, readonly=True)) as file:
            try:
                header, _ = read_header(file)
            except NotASegment as error:
                if newest and file.size() <= HEADER_MOST:
                    out.torn = name
                    return None
                raise LogDamaged(f"{name} is no segment of this log: {error}") from error
        if header.first != first:
            told = f"its schema says that it starts at LSN {header.first}"
            raise LogDamaged(f"{name} is a copy under another name: {told}")
        return header

    # -- what is in one

    def _closed_one(self, header: SegmentHeader) -> _Seen:
        key = (header.first, header.generation)
        known = self._closed.get(key)
        if known is None:
            file, segment = self._open(header)
            try:
                bases = list[tuple[Segment, int]]()
                known = _Seen(segment, walk(segment, self._frames, bases, check=False))
                self._check(known, bases)
            finally:
                file.close()
            self._closed[key] = known
        return known

    def _last_one(self, header: SegmentHeader, torn: str) -> _Seen:
        stopped = -1  # where the log ended at the last look
        while True:
            file, segment = self._open(header)
            try:
                bases = list[tuple[Segment, int]]()
                seen = _Seen(segment, walk(segment, self._frames, bases, check=True))
                claim, stray = behind(segment, self._frames, seen.walked.end, file.size())
                if seen.walked.sealed:
                    seen.end = sealed(segment, seen.walked, torn)
                elif max(claim, seen.walked.claimed) > segment.last:
                    if seen.walked.end != stopped:
                        stopped = seen.walked.end
                        continue  # it was not there when this was read: now it must be
                    seen.end = claimed(segment, seen.walked, claim)
                elif header.generation:
                    seen.end = LogDamaged(f"{segment.name} is a closed segment, but the next one is missing")
                seen.stray = stray > seen.walked.end
                self._check(seen, bases)
                return seen
            finally:
                file.close()

    def _open(self, header: SegmentHeader) -> tuple[File, Segment]:
        """The file with this header.  _Moved when it is gone or has another one."""
        name = segment_name(header.first)
        try:
            file = self._disk.open(name, readonly=True)
        except FileNotFoundError:
            raise _Moved from None
        try:
            found, start = read_header(file)
        except NotASegment:
            file.close()
            raise _Moved from None
        if found != header:
            file.close()
            raise _Moved
        return file, Segment(name, header, start, file)

    def _check(self, seen: _Seen, bases: list[tuple[Segment, int]]) -> None:
        """Sums and bases of a file."""
        segment = seen.segment
        starts = {number for _, number in bases}
        for number in range(len(segment.lsns)) if self._sums else sorted(starts):
            data = segment.read(number)
            seen.batches += 1
            seen.bytes += len(data)
            segment.checked[number] = 0
            try:
                batch = decode(segment, number, data)
            except LogDamaged as error:
                seen.damage.append(str(error))
                continue
            seen.rows += batch.num_rows
            base = read_base(batch) if number in starts else None
            seen.base = max(seen.base, base.floor if base is not None else 0)


def _misplaced(before: _Seen | None, one: _Seen, origin: int, *, missing: bool) -> list[str]:
    """Whether a segment does not belong behind the one before it; missing: a gap was told already."""
    segment, header = one.segment, one.segment.header
    if header.origin != origin:
        return [f"{segment.name} belongs to another data folder (origin {header.origin}, not {origin})"]
    if before is None or missing or before.end is not None or header.previous == before.segment.last:
        return []
    return [str(gap(before.segment, header))]


def _judged(listed: _Listed, seen: list[_Seen]) -> Report:
    """What all files together say."""
    report = Report(damage=listed.damage, warnings=listed.warnings)
    if not seen:
        if listed.torn:
            report.warnings.append(f"{listed.torn} has no header yet, and there is no other segment")
        return report
    missing = bool(listed.damage)  # then a gap is where a file is that was told already
    report.origin = seen[0].segment.header.origin
    for before, one, after in zip([None, *seen], seen, [*seen[1:], None], strict=False):
        report.damage += _misplaced(before, one, report.origin, missing=missing)
        if after is not None:
            one.is_followed(after.segment.header.previous)
        one.tell(report, closed=after is not None)
    headers = [one.segment.header for one in seen]
    lack = uncovered(headers[0], max(headers, key=attrgetter("floor")), max(one.base for one in seen))
    if lack and not report.damage:
        report.damage.append(lack)
    last = seen[-1]
    written = any(one.segment.rows for one in seen) or seen[0].segment.header.previous
    report.last_lsn = last.segment.last if written else 0
    report.clean = last.walked.clean and not last.stray and not listed.torn
    return report
