"""A follower's copy of the leader's log: its bytes, written at the same places of the same files as they come.

Nothing is encoded here.  Each batch is checked as a start would check it, and its CRC covers the place that it has in
its file, so bytes at a wrong place are found.  What has come of a batch that is not whole yet is written too: until its
end has come it is a torn tail, as after a crash.  The mark that closes a file is held back until the next one is there,
so that a crash at any moment leaves what a start can open.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from typing import NamedTuple

from crc32c import crc32c

from penstock.errors import ProtocolError
from penstock.log import checkpoints
from penstock.log.catalog import Catalog, Segment
from penstock.log.frame import END_OF_STREAM, SEALED, Frame, FrameReader, NotAFrame, message_size, sum_of
from penstock.log.mending import Recovery, cut, mend, set_aside_file
from penstock.log.recover import open_segments
from penstock.log.segment import (
    FOLDER,
    HEADER_BYTES,
    NotASegment,
    SegmentHeader,
    first_lsn,
    header_in,
    read_header,
    segment_name,
)
from penstock.log.segment_walk import walk
from penstock.log.writer import create_segment
from penstock.ports import Disk
from penstock.records.schema import GROUP_BYTES_MAX

CUTTING = "cutting"
"""Holds the LSN above which everything is being cut: a crash in the middle of it is gone on with."""

_NOTHING = -1
"""In `CUTTING`: all goes, and nothing is kept aside."""

_HEADER_MOST = 1 << 16
_BATCH_MOST = GROUP_BYTES_MAX + (64 << 20)


class _Coming(NamedTuple):
    """A batch of which a part has come."""

    frame: Frame
    crc: int  # of what has come
    has: int  # bytes


class Replica:
    """The log of one follower.  One thread; after an OSError never again."""

    def __init__(self, disk: Disk, origin: int) -> None:
        """Open the folder, locked already, and cut its tail.  `origin` 0: whatever the log that is there has.

        Raises LogDamaged for what no crash leaves, and OSError for a disk that does not work.
        """
        self.disk = disk
        self.origin: int = origin
        self.recovery = Recovery()
        self._frames = FrameReader()
        self._segment: Segment | None = None  # the last file
        self._last = 0  # LSN of the last whole batch
        self._synced = 0
        self._head = bytearray()  # of a file or of a batch that has not come whole
        self._coming: _Coming | None = None
        self._seal = b""  # what has come of the mark that closes the file, and of the end behind it
        self._sealed: Frame | None = None  # that mark
        self._next: int | None = None  # first LSN of the file whose header is coming
        disk.mkdir(FOLDER)
        _finish_cutting(disk, self.recovery)
        self._open()

    def _open(self) -> None:
        firsts = _firsts(self.disk)
        if len(firsts) == 1 and _is_torn(self.disk, segment_name(firsts[0])):
            set_aside_file(self.disk, segment_name(firsts.pop()), self.recovery)
        if not firsts:
            return
        catalog = Catalog()
        found = open_segments(self.disk, catalog, origin=0, new_first=1, claims=False)
        if self.origin and found.origin != self.origin:
            raise ProtocolError(f"the folder holds the log of origin {found.origin}, not of {self.origin}")
        mend(found)
        self.origin, self.recovery = found.origin, found
        segment = self._segment = catalog.segments[-1]
        if segment.header.generation:  # the mark that closes it comes again
            segment.end = segment.offsets[-1] + segment.lengths[-1] if len(segment.lsns) else segment.start
        self._last = self._synced = segment.last

    # where it stands

    @property
    def place(self) -> tuple[int, int]:
        """The file (its first LSN) and the offset from which bytes are to come; (0, 0) in an empty folder: of any."""
        return (0, 0) if self._segment is None else (self._segment.first, self._segment.end)

    @property
    def identity(self) -> int:
        """Of the file in which it stands."""
        return 0 if self._segment is None else self._segment.header.identity

    @property
    def last(self) -> int:
        """LSN of the last record that is here whole."""
        return self._last

    @property
    def synced(self) -> int:
        """The same, of what survives a power cut."""
        return self._synced

    # bytes

    def write(self, segment: int, offset: int, data: bytes) -> None:
        """The leader's bytes, behind those before them.  ProtocolError for any others: nothing of them counts.

        After an error go on from `place`.
        """
        self._expect(segment, offset)
        view = memoryview(data)
        try:
            if self._next is not None:
                view = self._header(view)
            while view:
                view = self._piece(view)
        except (ProtocolError, NotAFrame, NotASegment) as error:
            self.drop_part()
            where = f"byte {offset} of {segment_name(segment)}"
            raise ProtocolError(f"what was sent for {where} cannot stand there: {error}") from None

    def drop_part(self) -> None:
        """Forget what has not come whole: the stream it came by has ended."""
        self._head.clear()
        self._coming = self._sealed = self._next = None
        self._seal = b""

    def sync(self) -> int:
        """Make what has come survive; `synced`."""
        if self._segment is not None and self._synced < self._last:
            self._segment.file.sync()
            self._synced = self._last
        return self._synced

    def _expect(self, segment: int, offset: int) -> None:
        now = self._segment
        if self._next is not None:
            at, expected = len(self._head), self._next
        elif now is not None and (segment == now.first or self._sealed is None):
            at, expected = now.end + self._gathered, now.first
        else:
            at, expected = 0, segment
            self._next = segment
        if (segment, offset) != (expected, at):
            self.drop_part()
            raise ProtocolError(f"byte {offset} of {segment_name(segment)} came, and {at} of {expected} was next")

    @property
    def _gathered(self) -> int:
        return len(self._seal) + len(self._head) + (self._coming.has if self._coming is not None else 0)

    # a file

    def _header(self, view: memoryview) -> memoryview:
        """The first bytes of a file; once they are whole, the file is made and the one before it closed."""
        had = len(self._head)
        self._head += view[: _HEADER_MOST - had]
        found = header_in(self._head)
        if found is None:
            if len(self._head) == _HEADER_MOST:
                raise NotASegment("its header does not end")
            return view[len(view) :]
        header, size = found
        self._check_header(header)
        start = bytes(self._head[:size])
        self._head.clear()
        self._next = None
        self.sync()
        old = self._segment
        if old is not None and old.header.generation:
            self._close(old)  # nothing ever follows in it, and with another one behind it it must be whole
        new = create_segment(self.disk, header, start)
        if old is not None and not old.header.generation:
            self._close(old)
        self._segment, self._seal, self._sealed = new, b"", None
        self.origin, self._last = header.origin, new.last
        self._synced = max(self._synced, new.last)
        return view[size - had :]

    def _close(self, old: Segment) -> None:
        old.file.pwrite(self._seal, old.end)
        old.file.truncate(old.end + len(self._seal))
        old.file.sync()
        old.file.close()

    def _check_header(self, header: SegmentHeader) -> None:
        if header.first != self._next:
            raise NotASegment(f"it starts at LSN {header.first}")
        if self.origin and header.origin != self.origin:
            raise NotASegment(f"it is of origin {header.origin}, not {self.origin}")
        if self._segment is not None and header.previous != (here := _end_of(self._segment)):
            raise NotASegment(f"it follows LSN {header.previous}, and the log ends at {here}")

    # a batch

    def _piece(self, view: memoryview) -> memoryview:
        """One batch, or as much of it as has come; what follows it."""
        if self._sealed is not None:
            return self._closing(self._sealed, view)
        if self._coming is not None:
            return self._body(self._coming, view)
        had = len(self._head)
        self._head += view[: max(0, 8 - had)]
        size = message_size(self._head) if len(self._head) >= 8 else 8
        self._head += view[len(self._head) - had : max(0, size - had)]
        if len(self._head) < size:
            return view[len(view) :]
        head = bytes(self._head)
        frame = self._frames.header(head, self._at.end)
        self._check_frame(frame)
        self._head.clear()
        rest = view[size - had :]
        if not frame.rows and frame.lsn == SEALED:
            self._seal, self._sealed = head, frame
            return self._closing(frame, rest)
        self._at.file.pwrite(head, frame.offset)
        self._coming = _Coming(frame, sum_of(head, frame.crc_at, frame.offset), len(head))
        return self._body(self._coming, rest)

    @property
    def _at(self) -> Segment:
        if self._segment is None:
            raise NotAFrame("no file has begun")
        return self._segment

    def _check_frame(self, frame: Frame) -> None:
        segment = self._at
        if frame.length > _BATCH_MOST:
            raise NotAFrame(f"a batch of {frame.length} bytes; at most {_BATCH_MOST} are written")
        if frame.rows and (frame.lsn <= segment.last or frame.lsn < segment.header.first):
            raise NotAFrame(f"LSN {frame.lsn} does not follow LSN {segment.last}")

    def _body(self, coming: _Coming, view: memoryview) -> memoryview:
        frame, part = coming.frame, view[: coming.frame.length - coming.has]
        if part:
            self._at.file.pwrite(part, frame.offset + coming.has)
        coming = coming._replace(crc=crc32c(part, coming.crc), has=coming.has + len(part))
        self._coming = coming if coming.has < frame.length else None
        if self._coming is None:
            self._whole(frame, coming.crc)
        return view[len(part) :]

    def _whole(self, frame: Frame, crc: int) -> None:
        if crc != frame.crc:
            raise NotAFrame(f"the batch of LSN {frame.lsn} is not what was written")
        segment = self._at
        if not frame.rows:
            segment.end += frame.length
            return
        last = frame.last
        if last < 0:
            place = frame.offset + frame.header + frame.buffers[2] + 8 * (frame.rows - 1)
            last = int.from_bytes(segment.file.pread(8, place), "little", signed=True)
        if last - frame.lsn < frame.rows - 1:
            raise NotAFrame("it has rows out of order")
        segment.add(frame.lsn, last, frame.offset, frame.length, frame.rows, True)
        self._last = last

    def _closing(self, mark: Frame, view: memoryview) -> memoryview:
        """The mark that closes a file, and the end of the stream behind it."""
        wanted = mark.length + len(END_OF_STREAM)
        part = view[: wanted - len(self._seal)]
        self._seal += part
        if len(self._seal) < wanted:
            return view[len(part) :]
        message = self._seal[: mark.length]
        if sum_of(message, mark.crc_at, mark.offset) != mark.crc:
            raise NotAFrame("the mark of a closed file is not what was written")
        if self._seal[len(message) :] != END_OF_STREAM or len(view) > len(part):
            raise NotAFrame("something follows the mark of a closed file")
        return view[len(part) :]

    # cutting

    def cut(self, lsn: int) -> None:
        """Leave nothing behind the batch that ends with this LSN, or the last one below; rows are kept in `cut/`.

        For a log that goes on otherwise than this copy: what lies above was never confirmed.  Marks behind the last
        batch go too, for another leader need not have written them.
        """
        self.drop_part()
        segment = self._segment
        if segment is None:
            return
        if self._last <= lsn and len(segment.lsns):
            end = segment.offsets[-1] + segment.lengths[-1]
            segment.file.truncate(end)
            segment.end = end
        elif self._last > lsn or self.disk.list(FOLDER)[0] != segment_name(segment.first).partition("/")[2]:
            self._leave(min(lsn, self._last))

    def empty(self) -> None:
        """Leave nothing at all, and keep nothing aside: another's log is to be copied from its beginning."""
        self.drop_part()
        if self._segment is not None:
            self._leave(_NOTHING)

    def _leave(self, lsn: int) -> None:
        file = self.disk.open(CUTTING, create=True)
        file.pwrite(b"%d\n" % lsn, 0)
        file.sync()
        file.close()
        self.disk.sync_folder()
        assert self._segment is not None
        self._segment.file.close()
        self._segment = None
        _finish_cutting(self.disk, self.recovery)
        self._last = self._synced = 0
        self._open()

    def retire(self, floor: int) -> int:
        """Remove closed files whose rows all lie below; how many.  A base that is synced here stands for them."""
        firsts = _firsts(self.disk)
        count = 0
        for first, following in itertools.pairwise(firsts):
            if _header_of(self.disk, following)[0].previous >= floor:
                break
            self.disk.remove(segment_name(first))
            self.disk.sync_folder(FOLDER)
            count += 1
        return count

    def close(self) -> None:
        """Let the file go; nothing is synced."""
        self.drop_part()
        if self._segment is not None:
            self._segment.file.close()
            self._segment = None


def _end_of(segment: Segment) -> int:
    """The last LSN that a file answers for: in one that was rewritten that row may have gone."""
    return segment.header.last if segment.header.generation else segment.last


def _firsts(disk: Disk) -> list[int]:
    return sorted(first for name in disk.list(FOLDER) if (first := first_lsn(name)) is not None)


def _header_of(disk: Disk, first: int) -> tuple[SegmentHeader, int]:
    file = disk.open(segment_name(first), readonly=True)
    try:
        return read_header(file)
    finally:
        file.close()


def _is_torn(disk: Disk, name: str) -> bool:
    """Whether a file never got its header."""
    file = disk.open(name, readonly=True)
    try:
        read_header(file)
    except NotASegment:
        return file.size() <= HEADER_BYTES
    finally:
        file.close()
    return False


def _finish_cutting(disk: Disk, recovery: Recovery) -> None:
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
    firsts = _firsts(disk)
    for first in reversed(firsts):
        if first > lsn:
            if lsn != _NOTHING and _indexed(disk, first).rows:
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
