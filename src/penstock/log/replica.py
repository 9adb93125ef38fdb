"""A follower's copy of the leader's log: its bytes, written at the same places of the same files as they come.

Nothing is encoded here.  Each batch is checked as a start would check it, and its CRC covers the place that it has in
its file, so bytes at a wrong place are found.  What has come of a batch that is not whole yet is written too: until its
end has come it is a torn tail, as after a crash.  The mark that closes a file is held back until the next one is there,
so that a crash at any moment leaves what a start can open.
"""

from __future__ import annotations

import itertools
from array import array
from typing import NamedTuple, Protocol

import numpy as np
from crc32c import crc32c

from penstock.errors import ProtocolError
from penstock.log.catalog import Catalog, Segment
from penstock.log.frame import END_OF_STREAM, SEALED, Frame, FrameReader, NotAFrame, message_size, sum_of
from penstock.log.mending import (
    NOTHING,
    Recovery,
    begin_cutting,
    finish_cutting,
    firsts_of,
    header_of,
    is_torn,
    mend,
    set_aside_file,
)
from penstock.log.recover import open_segments
from penstock.log.room import Room
from penstock.log.segment import FOLDER, NotASegment, SegmentHeader, header_in, segment_name
from penstock.log.writer import KEPT, create_segment
from penstock.ports import Disk, File
from penstock.records.chunks import LSN_LIMIT
from penstock.records.compute import distinct_numbers
from penstock.records.schema import GROUP_BYTES_MAX

AHEAD = 4 << 20
"""Bytes of zeros that are kept ahead of a copy: less than ahead of the log that is copied."""

STRETCH_BITS = 32
"""LSNs are told by stretches of so many: those of one term, where terms are made in lanes."""

SHORT = 64 << 10
"""Bytes that are synced at once, for that takes no longer than having it done beside."""

PART = 4 << 20
"""Bytes that are synced though their batch has not come whole: not all of a long one is left for its end."""

_HEADER_MOST = 1 << 16
_BATCH_MOST = GROUP_BYTES_MAX + (64 << 20)


class Syncer(Protocol):
    """Syncs one file at a time while its caller goes on: `committers.KernelSync`."""

    def begin(self, file: File) -> None:
        """OSError: it was not begun."""

    def end(self) -> None:
        """Wait for it.  OSError as `File.sync` has it."""


class Beside(NamedTuple):
    """What is done beside a copy's own thread."""

    syncer: Syncer | None = None  # of what is long
    ahead: int = 0  # bytes of zeros to write ahead, so that a sync has less to do
    thread: bool = False  # which writes these
    short: int = SHORT  # bytes that need no syncer


ALONE = Beside()


class _Coming(NamedTuple):
    """A batch of which a part has come."""

    frame: Frame
    crc: int  # of what has come
    has: int  # bytes


class Replica:
    """The log of one follower.  One thread; after an OSError never again."""

    def __init__(self, disk: Disk, origin: int, beside: Beside = ALONE) -> None:
        """Open the folder, locked already, and cut its tail.  `origin` 0: whatever the log that is there has.

        Raises LogDamaged for what no crash leaves, and OSError for a disk that does not work.
        """
        self.disk = disk
        self.origin: int = origin
        self.recovery = Recovery()
        self._frames = FrameReader()
        self._segment: Segment | None = None  # the last file
        self.last = 0  # LSN of the last record that is here whole
        self.synced = 0  # the same, of what survives a power cut
        self._head = bytearray()  # of a file or of a batch that has not come whole
        self._coming: _Coming | None = None
        self._seal = b""  # what has come of the mark that closes the file, and of the end behind it
        self._sealed: Frame | None = None  # that mark
        self._next: int | None = None  # first LSN of the file whose header is coming
        self._checked = list[bytes | memoryview]()  # of the bytes that came last, what is to be written
        self._checked_at = 0
        self._beside = beside
        self.stretches = list[int]()  # in which it has records, ascending
        self._syncing: int | None = None  # LSN up to which the file is being synced
        self._unsynced = 0  # bytes
        self._end = 0  # of what was written to that file
        self._room: Room
        disk.mkdir(FOLDER)
        finish_cutting(disk, self.recovery)
        self._open()

    def _open(self) -> None:
        self._room = Room(self.disk, ahead=self._beside.ahead, reserve=0, low_space=0)
        if self._beside.thread:
            self._room.start_thread()
        firsts = firsts_of(self.disk)
        if len(firsts) == 1 and is_torn(self.disk, segment_name(firsts[0])):
            set_aside_file(self.disk, segment_name(firsts.pop()), self.recovery)
        if not firsts:
            return
        catalog = Catalog()
        found = open_segments(self.disk, catalog, origin=0, new_first=1, claims=False)
        if self.origin and found.origin != self.origin:
            raise ProtocolError(f"the folder holds the log of origin {found.origin}, not of {self.origin}")
        mend(found)
        before, self.recovery = self.recovery, found
        found.cut_files[:0], found.warnings[:0] = before.cut_files, before.warnings
        found.cut_records, self.origin = before.cut_records, found.origin
        segment = self._segment = catalog.segments[-1]
        if segment.header.generation:  # the mark that closes it comes again
            segment.end = segment.offsets[-1] + segment.lengths[-1] if len(segment.lsns) else segment.start
        self.last = self.synced = segment.last
        lsns = array("q")
        for one in catalog.segments:
            lsns.extend(one.lsns)
            lsns.extend([one.last] if len(one.lsns) else [])
        self.stretches = distinct_numbers(np.array(lsns, np.int64) >> STRETCH_BITS).tolist()
        self._attach(segment)

    def _attach(self, segment: Segment) -> None:
        """Write ahead in this file, unless it is one to which nothing is added."""
        self._end = segment.end
        if segment.header.generation:
            self._room.detach()
        else:
            self._room.attach(segment.file, segment.end)

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
    def full(self) -> bool:
        """Whether a leader with this disk would refuse publishes, or soon would: as `Room.lacking` of an open log."""
        return self.disk.free() < 2 * KEPT.low_space + KEPT.reserve

    @property
    def worth_a_sync(self) -> bool:
        """Whether what came since the last one is: no row counts before the end of its batch is synced."""
        begun = self.synced if self._syncing is None else self._syncing
        return self.last > begun or not self._gathered or self._unsynced >= PART

    # bytes

    def write(self, segment: int, offset: int, data: bytes | memoryview) -> None:
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
            self._put()
        except (ProtocolError, NotAFrame, NotASegment) as error:
            self._put()  # what is whole of it counts
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
        self._settle()
        if self._segment is not None and self.synced < self.last:
            self._room.advance(self._end)
            self._segment.file.sync()
            self.synced, self._unsynced = self.last, 0
        return self.synced

    def end(self) -> int:
        """Have nothing behind the last whole batch, and all before it synced: who tells of this end may be believed.

        A part of a batch may lack nothing but zeros, which are there already: who opens the log would find it whole.
        """
        self.drop_part()
        self._settle()
        segment = self._segment
        if segment is not None and not segment.header.generation:
            self._room.detach()
            segment.file.truncate(segment.end)
            segment.file.sync()
            self.synced, self._unsynced = self.last, 0
            self._attach(segment)
        return self.sync()

    def begin_sync(self) -> bool:
        """Have what has come synced while more comes: `end_sync` is to follow.  False: it is not worth it."""
        syncer, segment = self._beside.syncer, self._segment
        if syncer is None or segment is None or self._unsynced < self._beside.short or self._syncing is not None:
            return False
        try:
            syncer.begin(segment.file)
        except OSError:  # the kernel takes no more of such requests now
            return False
        self._room.advance(self._end)
        self._syncing, self._unsynced = self.last, 0
        return True

    @property
    def syncing(self) -> bool:
        """Whether a sync was begun and has not ended."""
        return self._syncing is not None

    def end_sync(self) -> int:
        """The sync that was begun has ended, or is waited for; `synced`."""
        self._settle()
        return self.synced

    def _settle(self) -> None:
        lsn, self._syncing = self._syncing, None
        if lsn is not None and self._beside.syncer is not None:
            self._beside.syncer.end()
            self.synced = max(self.synced, lsn)

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
        self._attach(new)
        if old is not None and not old.header.generation:
            self._close(old)
        self._segment, self._seal, self._sealed = new, b"", None
        self.origin, self.last = header.origin, new.last
        self.synced = max(self.synced, new.last)
        return view[size - had :]

    def _close(self, old: Segment) -> None:
        """Whoever wrote ahead in it may still sync it: it is closed when nobody has it any more."""
        old.file.pwrite(self._seal, old.end)
        old.file.truncate(old.end + len(self._seal))
        old.file.sync()

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
        self._check_bytes(head, frame.offset)
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

    def _check_bytes(self, data: bytes | memoryview, offset: int) -> None:
        if not self._checked:
            self._checked_at = offset
        self._checked.append(data)

    def _put(self) -> None:
        """Write what was taken of the bytes that came, as one."""
        pieces, self._checked = self._checked, []
        if not pieces:
            return
        if self._room.failure is not None:
            raise self._room.failure
        end = self._checked_at + sum(map(len, pieces))
        self._room.claim(end)
        self._at.file.pwritev(pieces, self._checked_at)
        self._unsynced += end - self._checked_at
        self._end = end
        if self._room.full:
            self._room.recheck()

    def _body(self, coming: _Coming, view: memoryview) -> memoryview:
        frame, part = coming.frame, view[: coming.frame.length - coming.has]
        if part:
            self._check_bytes(part, frame.offset + coming.has)
        coming = coming._replace(crc=crc32c(part, coming.crc), has=coming.has + len(part))
        self._coming = coming if coming.has < frame.length else None
        if self._coming is None:
            self._whole(frame, coming.crc, part)
        return view[len(part) :]

    def _whole(self, frame: Frame, crc: int, part: memoryview) -> None:
        """part: its last bytes, which are not written yet."""
        if crc != frame.crc:
            raise NotAFrame(f"the batch of LSN {frame.lsn} is not what was written")
        segment = self._at
        if not frame.rows:
            segment.end += frame.length
            return
        last = frame.last
        if last < 0:
            last = int.from_bytes(self._read(frame, frame.last_at, part), "little", signed=True)
        if not frame.rows - 1 <= last - frame.lsn < LSN_LIMIT - frame.lsn:
            raise NotAFrame(f"it has rows out of order: LSN {frame.lsn}, {frame.rows} rows, LSN {last}")
        segment.add(frame.lsn, last, frame.offset, frame.length, frame.rows, True)
        self.last = last
        if (stretch := last >> STRETCH_BITS) not in self.stretches[-1:]:
            self.stretches.append(stretch)

    def _read(self, frame: Frame, place: int, part: memoryview) -> bytes | memoryview:
        """Eight bytes of a batch, of which the last part has just come."""
        at = place - (frame.length - len(part))
        if at >= 0:
            return part[at : at + 8]
        self._put()
        return self._at.file.pread(8, frame.offset + place)

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
        if self.last <= lsn and len(segment.lsns):
            end = segment.offsets[-1] + segment.lengths[-1]
            segment.file.truncate(end)
            segment.end = end
            self._attach(segment)
        elif self.last > lsn or self.disk.list(FOLDER)[0] != segment_name(segment.first).partition("/")[2]:
            self._leave(min(lsn, self.last))

    def empty(self) -> None:
        """Leave nothing at all, and keep nothing aside: another's log is to be copied from its beginning."""
        self.drop_part()
        if self._segment is not None:
            self._leave(NOTHING)

    def _leave(self, lsn: int) -> None:
        self._settle()
        self._room.stop()
        begin_cutting(self.disk, lsn)
        assert self._segment is not None
        self._segment.file.close()
        self._segment = None
        finish_cutting(self.disk, self.recovery)
        self.last = self.synced = self._unsynced = 0
        self.stretches = []
        self._open()

    def retire(self, floor: int) -> int:
        """Remove closed files whose rows all lie below; how many.  A base that is synced here stands for them."""
        firsts = firsts_of(self.disk)
        count = 0
        for first, following in itertools.pairwise(firsts):
            if header_of(self.disk, following)[0].previous >= floor:
                break
            self.disk.remove(segment_name(first))
            self.disk.sync_folder(FOLDER)
            count += 1
        return count

    def close(self) -> None:
        """Let the file go; nothing is synced."""
        self.drop_part()
        self._settle()
        self._room.stop()
        if self._segment is not None:
            self._segment.file.close()
            self._segment = None


def _end_of(segment: Segment) -> int:
    """The last LSN that a file answers for: in one that was rewritten that row may have gone."""
    return segment.header.last if segment.header.generation else segment.last
