"""Writing commits: entries in, batches on the disk out, in the one open segment.

`Appender` does the work of one commit, in whichever thread it is called: cut into batches, encode, write, roll to a new
segment, sync.  Who calls it for the server is in `log.committers`; when to commit, and what follows, is decided in
`log.group_commit`.  Entries are never parted, so a group lies in one batch; a plain run of messages larger than a
batch is.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from typing import Literal, TypeAlias

import numpy as np

from penstock.log.catalog import Segment
from penstock.log.disk import exhausted
from penstock.log.encode import Encoder
from penstock.log.frame import END_OF_STREAM, SEALED
from penstock.log.room import Room, out_of_space
from penstock.log.segment import FOLDER, SegmentHeader, segment_name
from penstock.ports import Disk
from penstock.records.dataclass import dataclass
from penstock.records.entries import Control, Entry, Group, Moves, Publishes, measured
from penstock.records.kinds import Kind
from penstock.records.message_bodies import lengths
from penstock.records.one_or_each import rows_at

Sync = Literal["commit", "interval", "off"]

CACHE_MOST = 16 << 20
"""Bytes of decoded batches that are worth keeping for reading."""

BATCH_MOST = 16 << 20
"""Bytes after which a commit goes on in another batch."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Defaults promise that a confirmed message is on the disk."""

    sync: Sync = "commit"  # what a confirm waits for: the disk, or the kernel alone
    sync_interval: int = 100_000  # microseconds between syncs under `interval`
    segment: int = 256 << 20  # bytes after which a new file is begun
    ack_sync: int = 100_000  # microseconds that acks may wait for company
    idle_mark: int = 100_000  # microseconds without a commit after which a mark claims what is durable
    ahead: int = 8 << 20  # bytes of zeros written ahead of the log; 0: none
    reserve: int = 16 << 20  # bytes held back for acks on a full disk; 0: none
    low_space: int = 32 << 20  # publishes are refused while less than this is free; 0: never asked
    batch_rows: int = 1 << 16  # rows after which a commit goes on in another batch
    batch_bytes: int = BATCH_MOST  # the same in bytes
    cache: int = CACHE_MOST  # bytes of decoded batches kept for reading
    first_lsn: int = 1  # of a new folder
    origin: int = 0  # of a new folder; 0: a random one


KEPT = LogSettings()
"""What a server keeps free.  So a leader does, and who follows may be the next."""

MEMORY = LogSettings(ahead=0, reserve=0, low_space=0, segment=64 << 20)
"""For disks in memory: nothing is written ahead and nothing held back."""


Placed: TypeAlias = "tuple[Segment, int, int, int, int, int, bytearray | None]"
"""A written batch: segment, first LSN, last LSN, offset, length, rows; and its bytes, where somebody follows."""

TellCopies: TypeAlias = "Callable[[int, int, int], object]"
"""Of how far the open file is written: its first LSN, bytes, and the last LSN."""

SHORT = 256 << 10
"""Bytes of a commit that the loop may write itself, when another does the sync."""

_ROW = 64
"""Bytes that a row takes beyond its body and header: the other columns, and its share of frames."""


@dataclass(slots=True, eq=False)
class Commit:
    """What the writer is to do, and then what it did."""

    entries: list[Entry]
    claim: int  # the LSN up to which its batches may say that all is on the disk
    sync: bool
    mark: int = -1  # write a mark: the next LSN, or STOPPED; -1: none, or there was no room for it
    size: int = 0  # bytes, as gathered
    rows: int = 0
    base: bool = False  # there is a base among the entries
    roll: bool = False  # go on in a new segment first, if there are rows in the present one
    placed: list[Placed] = field(default_factory=list["Placed"])
    end: int = 0  # where the segment ends after a mark
    error: BaseException | None = None
    done: threading.Lock | None = None  # released when the thread has finished


def size_of(entry: Entry) -> int:
    """Bytes that an entry will take in memory and, about, on the disk."""
    if isinstance(entry, Control):
        return len(entry.body) + len(entry.header) + 96
    if isinstance(entry, Publishes):
        return (entry.size or measured(entry.bodies, entry.properties)) + _ROW * len(entry.bodies)
    if isinstance(entry, Moves):
        return sum(map(len, entry.bodies)) + sum(map(len, entry.headers)) + 96 * len(entry.bodies)
    return sum(map(size_of, entry.entries))


def last_of(entry: Entry) -> int:
    """LSN of an entry's last row."""
    if isinstance(entry, Publishes):
        return entry.first + len(entry.bodies) - 1
    if isinstance(entry, Control):
        return entry.lsn
    if isinstance(entry, Moves):
        return entry.first + len(entry.kinds) - 1
    return last_of(entry.entries[-1])


def slice_of(batch: Publishes, a: int, b: int) -> Publishes:
    """Rows a to b of a run of messages."""
    names = ("topics", "properties", "routes", "expires_at", "not_before", "priority", "transient")
    changed = {name: rows_at(getattr(batch, name), slice(a, b)) for name in names}
    bodies = batch.bodies[a:b] if isinstance(batch.bodies, list) else batch.bodies.part(a, b)
    return replace(batch, bodies=bodies, first=batch.first + a, size=0, **changed)  # type: ignore[arg-type]


def _is_base(entry: Entry) -> bool:
    """Whether an entry is a base, or a part of one."""
    if isinstance(entry, Group):
        entry = entry.entries[0] if entry.entries else entry
    return isinstance(entry, Control) and entry.kind == Kind.BASE


def _ends(batch: Publishes, rows: int, size: int) -> Iterator[tuple[int, int]]:
    """Where a long run of messages is cut: the row after each piece, and the bytes of the piece."""
    weights = lengths(batch.bodies) + _ROW
    properties = batch.properties
    if isinstance(properties, list):
        weights += np.fromiter(map(len, properties), np.int64, len(properties))
    else:
        weights += len(properties)
    sums = weights.cumsum()  # bytes up to and with each row
    start = before = 0
    while start < len(sums):
        end = min(int(np.searchsorted(sums, before + size, "right")), start + rows)
        end = max(end, start + 1)  # one message may be larger than a batch
        yield end, int(sums[end - 1]) - before
        start, before = end, int(sums[end - 1])


def cut(entries: Sequence[Entry], rows: int, size: int) -> Iterator[list[Entry]]:
    """The batches of a commit: at most `rows` rows and about `size` bytes each, unless one group alone is larger."""
    batch, have_rows, have_bytes = list[Entry](), 0, 0
    for entry in entries:
        n, weight = len(entry), size_of(entry)
        base = _is_base(entry)  # alone in its batch, so that recovery finds it by the first row
        if have_rows and (have_rows + n > rows or have_bytes + weight > size or base):
            yield batch
            batch, have_rows, have_bytes = [], 0, 0
        if isinstance(entry, Publishes) and (n > rows or weight > size):
            a = 0
            for end, weight in _ends(entry, rows, size):  # noqa: B007  the last weight is used below
                if end < n:
                    yield [slice_of(entry, a, end)]
                    a = end
            entry, n = slice_of(entry, a, n), n - a
        if n:
            batch.append(entry)
            have_rows, have_bytes = have_rows + (rows if base else n), have_bytes + weight
    if batch:
        yield batch


class NoRoom(OSError):
    """A write that found the disk full, and no reserve.  A sync that fails for that is another thing: it lost data."""


class Appender:
    """The end of the log.  One commit at a time; after an exception never again."""

    def __init__(
        self, disk: Disk, segment: Segment, room: Room, *, segment_bytes: int, batch_rows: int, batch_bytes: int
    ) -> None:
        self.encoder = Encoder()
        self.segment = segment
        self._disk = disk
        self._room = room
        self._limit = segment_bytes
        self._rows = batch_rows
        self._bytes = batch_bytes
        self._offset = segment.end
        self._last = segment.last
        self._opened: list[Segment] = []  # by the present commit
        self.told: TellCopies | None = None  # who copies what was written
        self.followed = False  # somebody reads whatever was written as soon as it is durable
        room.attach(segment.file, segment.end)

    def run(self, commit: Commit) -> None:
        """Do a commit and say in it what was done.  OSError, or whatever went wrong, is put into it too."""
        self.write(commit)
        if commit.sync and commit.error is None:
            self.sync(commit)

    def sync(self, commit: Commit) -> None:
        """The second half of a commit that is to be synced."""
        try:
            self.segment.file.sync()
        except OSError as error:
            commit.error = error

    def is_short(self, commit: Commit) -> bool:
        """Whether writing a commit is a matter of a millisecond: few bytes, and no other file is begun or synced."""
        goes_on = not commit.roll and self._offset + 2 * SHORT <= self._limit
        return commit.size <= SHORT and goes_on and not commit.base and self._room.failure is None

    def write(self, commit: Commit) -> None:
        """The first half of a commit: written, and not synced.

        When the disk has no room for all of it, nothing of it stays: who is told of a refusal then can rely on it.
        """
        segment, start = self.segment, self._offset
        self._opened.clear()
        try:
            if self._room.failure is not None:
                raise self._room.failure
            if commit.roll and self._offset > self.segment.start:
                self._roll(self._last + 1)
            small = commit.rows <= self._rows and commit.size <= self._bytes and not commit.base and commit.rows
            batches = [commit.entries] if small else cut(commit.entries, self._rows, self._bytes)
            for entries in batches:
                made = self.encoder.encode(entries, commit.claim, self._offset)
                if self._offset + made.size > self._limit and self._offset > self.segment.start:
                    self._roll(made.first)
                    self.encoder.move(made, self._offset)
                self._write(made.size, made.head, made.rest)
                data = made.data if self.followed and made.size <= SHORT else None
                commit.placed.append((self.segment, made.first, made.last, self._offset, made.size, made.rows, data))
                self._offset += made.size
                self._last = made.last
            if commit.mark >= 0:
                self._mark(commit)
            commit.end = self._offset
            self._room.advance(self._offset)
            if self.told is not None:
                self.tell()
        except BaseException as error:  # noqa: BLE001  the loop decides: whatever failed, nothing after it is confirmed
            commit.error = error
            if isinstance(error, NoRoom):
                self._take_back(commit, segment, start)

    def _mark(self, commit: Commit) -> None:
        """Write how far all is durable, where no batch has said it.  Where there is no room nobody is the worse for it:
        a start looks at more then.
        """
        mark = self.encoder.mark(commit.mark, commit.claim, self._offset)
        if mark is None:
            return
        try:
            self._write(len(mark), mark)
        except NoRoom:
            commit.mark = -1
            self.segment.file.truncate(self._offset)  # of some of it, which nothing may follow
            self._room.attach(self.segment.file, self._offset)
        else:
            self._offset += len(mark)

    def tell(self) -> None:
        """Say how far whole commits are written: others may sync them while this disk does."""
        if self.told is not None:
            self.told(self.segment.first, self._offset, self._last)

    def _take_back(self, commit: Commit, segment: Segment, end: int) -> None:
        """Cut the log where the commit began.  When that fails nobody knows what a start will find."""
        commit.placed.clear()
        try:
            for opened in reversed(self._opened):
                self._disk.remove(opened.name)
            if self._opened:
                self._disk.sync_folder(FOLDER)
            segment.file.truncate(end)
            segment.file.sync()
        except OSError as error:
            commit.error = error

    def _write(self, size: int, head: bytearray, rest: Sequence[bytes | memoryview] = ()) -> None:
        self._room.claim(self._offset + size)
        while True:
            try:
                if rest:
                    self.segment.file.pwritev([head, *rest], self._offset)
                else:
                    self.segment.file.pwrite(head, self._offset)
                return
            except OSError as error:
                self._make_room(error)

    def _make_room(self, error: OSError) -> None:
        """Free the reserve for a write that found the disk full; raises what stands in the way of writing again."""
        if not out_of_space(error):
            raise error
        if not self._room.give_reserve(error):
            raise NoRoom(error.errno, error.strerror) from error

    def _roll(self, first: int) -> None:
        """Go on in a new file, whose rows have this LSN or a higher one.

        On a full disk go on in the old one: a long segment is better than a broken log.

        The same where the process has no descriptor left; the next commit tries again.
        """
        old = self.segment
        old.file.sync()
        header = SegmentHeader(old.header.origin, first, self._last)
        try:
            new = create_segment(self._disk, header)
        except OSError as error:
            if exhausted(error):
                return
            if not out_of_space(error):
                raise
            self._room.full = True
            return
        self.segment = new
        self._opened.append(new)
        self._room.attach(new.file, new.end)
        closing = (self.encoder.mark(SEALED, self._last, self._offset) or b"") + END_OF_STREAM
        while True:
            try:
                old.file.pwrite(closing, self._offset)
                break
            except OSError as error:
                self._make_room(error)
        old.file.truncate(self._offset + len(closing))
        old.file.sync()
        self._offset = new.end


def create_segment(disk: Disk, header: SegmentHeader, start: bytes = b"") -> Segment:
    """A new file with its header, synced, its folder synced; `start`: the header's bytes as another member has them.

    When the disk is full, or there is no descriptor, nothing of it is left, for certain: the log goes on in the old
    file, and a crash must not find both.  OSError otherwise means that nobody knows what is there.
    """
    name = segment_name(header.first)
    file = disk.open(name, create=True)
    try:
        start = start or header.encode()
        file.pwrite(start, 0)
        file.sync()
        disk.sync_folder(FOLDER)
    except OSError as error:
        file.close()
        if out_of_space(error) or exhausted(error):
            disk.remove(name)
            try:
                disk.sync_folder(FOLDER)
            except OSError as second:
                raise OSError(errno.EIO, f"{name} could be neither made nor removed") from second
        raise
    return Segment(name, header, len(start), file)
