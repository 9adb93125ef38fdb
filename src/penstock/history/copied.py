"""The log of a cluster's follower as another process than its member's sees it: as far as everybody has it.

The member writes the files, and says up to which LSN they are committed and on this disk.  Every batch up to there is
whole, so headers alone are walked, from where the last walk ended, and what is behind it is never looked at.  A file is
remembered by its inode, for as long as it is listed: one that was written anew is another file, and may get the inode
of one that has gone.

By which exchange a row came is in a checkpoint that was copied too, and in the records behind it.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, cast

import numpy as np

from penstock.errors import LogDamaged, Unavailable, told_as
from penstock.history.view import OPEN_MAX, Listing, View
from penstock.log import checkpoints
from penstock.log.catalog import Segment
from penstock.log.disk import OsDisk
from penstock.log.frame import FrameReader, NotAFrame, Window
from penstock.log.name_index import Indexes
from penstock.log.reader import Vias
from penstock.log.record_batches import column
from penstock.log.segment import FOLDER, NotASegment, SegmentHeader, first_lsn, read_header, segment_name
from penstock.records.kinds import Kind

TRIES = 10
"""Files may be replaced while they are listed; not so often."""


class Copy(NamedTuple):
    """What a member says of its copy."""

    upto: int  # LSN of a record: all up to there are committed, and on this disk
    state: tuple[object, ...] = ()  # another one: what was read before may have been cut off
    terms: Sequence[Sequence[int | None]] = ()  # term, its first LSN, the last that the log went on from, if it is over

    def ends_before(self, lsn: int) -> bool:
        """Whether the term with this LSN ended before it here: who asks knows of another log than this one."""
        last = next((one[2] for one in reversed(self.terms) if (one[1] or 0) <= lsn), None)
        return last is not None and last < lsn


class _File(NamedTuple):
    first: int
    inode: int


class _Seen(NamedTuple):
    """What a file was like when it was listed; one that still grows is another each time."""

    changed: int  # ns
    size: int


class Copied:
    """The copy in a data folder.  Thread-safe."""

    def __init__(self, disk: OsDisk) -> None:
        self._disk = disk
        self._indexes = Indexes(disk)
        self._lock = threading.Lock()
        self._begin(())

    def _begin(self, state: tuple[object, ...]) -> None:
        self._state = state
        self._seen = dict[_File, _Seen]()
        self._headers = dict[_File, SegmentHeader]()
        self._walked = OrderedDict[_File, Segment]()
        self._vias, self._learned = Vias(), -1

    def view(self, start: int, copy: Copy) -> View:
        """Rows with LSNs in [start, copy.upto].

        Raises Unavailable where the copy does not have all that was written of them, or cannot be read now.
        """
        with self._lock:
            if copy.state != self._state:
                self._begin(copy.state)
            try:
                return self._view(start, copy.upto)
            except (LogDamaged, NotASegment, NotAFrame, OSError) as error:
                self._begin(copy.state)
                raise Unavailable(f"this copy of the log cannot be read now: {error}") from error

    def begins(self, copy: Copy) -> int:
        """The LSN from which on no row was left out.  Raises Unavailable."""
        cannot = "this copy of the log cannot be read now: "
        with self._lock, told_as(Unavailable, cannot, instead=(NotASegment, OSError)):
            headers = [self._header(one) for one in self._files(copy.upto)]
        if not headers:
            raise Unavailable("this copy of the log is empty")
        return next((one.last + 1 for one in reversed(headers) if one.floor), headers[0].first)

    def _view(self, start: int, upto: int) -> View:
        for _ in range(TRIES):
            files = self._files(upto)
            if not files:
                break
            if self._learned < 0:
                self._learned = self._first_vias(self._header(files[0]))
            segments = self._segments(files, min(start, self._learned + 1), upto)
            if files == self._files(upto):
                return self._of(segments, start, upto)
        raise LogDamaged("its files are being replaced")

    def _files(self, upto: int) -> list[_File]:
        """Those that have rows up to there, in order; what one stands for that was written anew is left out."""
        found = dict[_File, _Seen]()
        with os.scandir(self._disk.folder / FOLDER) as entries:
            for entry in entries:
                if (first := first_lsn(entry.name)) is not None and first <= upto:
                    with suppress(FileNotFoundError):  # replaced meanwhile: the next listing has what is there
                        about = entry.stat()
                        found[_File(first, about.st_ino)] = _Seen(about.st_mtime_ns, about.st_size)
        self._headers = {one: header for one, header in self._headers.items() if self._seen.get(one) == found.get(one)}
        self._walked = OrderedDict((one, segment) for one, segment in self._walked.items() if one in found)
        self._seen = found
        kept = list[_File]()
        for one in sorted(found):
            if not kept or one.first > self._header(kept[-1]).last:
                kept.append(one)
        return kept

    def _header(self, one: _File) -> SegmentHeader:
        header = self._headers.get(one)
        return self._opened(one).header if header is None else header

    def _opened(self, one: _File) -> Segment:
        file = self._disk.open(segment_name(one.first), readonly=True)
        header, size = read_header(file)
        self._headers[one] = header
        return Segment(segment_name(one.first), header, size, file)

    def _segments(self, files: list[_File], start: int, upto: int) -> list[Segment]:
        """The files of a range, walked.  LogDamaged where they end before it does."""
        at = max((place for place, one in enumerate(files) if one.first <= start), default=0)
        found = list[Segment]()
        for one in files[at:]:
            segment = self._walked.pop(one, None)
            if segment is None or segment.header != self._header(one):
                segment = self._opened(one)
            self._walk(segment, upto)
            self._walked[one] = segment
            found.append(segment)
        while len(self._walked) > max(OPEN_MAX, len(found)):
            self._walked.popitem(last=False)  # a reader that still has it keeps it open
        if max(found[-1].last, found[-1].header.last) < upto:
            raise LogDamaged(f"{found[-1].name} ends at LSN {found[-1].last}, before {upto}")
        return found

    def _walk(self, segment: Segment, upto: int) -> None:
        if segment.last >= upto:
            return
        window, frames = Window(segment.file, segment.file.size()), FrameReader()
        for frame in frames.each(window, segment.end):
            if frame.rows:
                last = frame.last if frame.last >= 0 else frame.lsn + frame.rows - 1
                segment.add(frame.lsn, last, frame.offset, frame.length, frame.rows, False)
            segment.end = frame.offset + frame.length
            if len(segment.lsns) and segment.last >= upto:
                return

    def _first_vias(self, oldest: SegmentHeader) -> int:
        """What the newest checkpoint knows, and up to which LSN that is.  LogDamaged where there must be one."""
        checkpoint = checkpoints.newest(self._disk, oldest.origin, [])
        if checkpoint is not None:
            self._vias.load(checkpoint.vias)
            return checkpoint.lsn
        if oldest.previous or oldest.floor:
            raise LogDamaged("its beginning is gone, and no checkpoint was copied yet")
        return 0

    def _of(self, segments: list[Segment], start: int, upto: int) -> View:
        if self._learned < upto:
            whole = self._made(segments, upto)
            for batch in whole.batches(self._learned + 1, upto + 1):
                for row in np.flatnonzero(column(batch, "kind", "<i1") == int(Kind.VIA)).tolist():
                    via, header = (cast("Any", batch.column(name))[row].as_py() for name in ("via", "properties"))
                    self._vias.learn(via, header)
            self._learned = upto
        at = max((place for place, one in enumerate(segments) if one.first <= start), default=0)
        return self._made(segments[at:], upto)

    def _made(self, segments: list[Segment], upto: int) -> View:
        listed = Listing(segments[0].header.origin, upto, self._vias.table(), [])
        return View(listed, segments, self._indexes)
