"""The leader's files, and what one follower gets of those beside the log.

Some count: who may take over must have them as they are now, and what needs them is answered when all have.  These are
users and vhosts when they change, the archive's, and each stage of a sink from its upload until its rows are in the log
or will never be.  The others save time: users and vhosts as they were found, and checkpoints.

A file goes in pieces, and no more of it is in memory than one.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from typing import NamedTuple

from crc32c import crc32c

from penstock.log import checkpoints
from penstock.log.segment import FOLDER, NotASegment, first_lsn, read_header, segment_name
from penstock.ports import Disk, read_whole
from penstock.replication.messages import PIECE_MOST, SIDE_MOST, STAGE, STAGES_MOST, File, Keep, SegmentFile

SIDE_PIECE = PIECE_MOST
"""Bytes of a file in one message."""

ACCOUNTS = "accounts.json"

STEADY_BEATS = 4
"""Who lacks nothing that has counted for so long is level, whatever is on its way."""


class Counting:
    """The files that count, of a leader, each with the number of its last change."""

    def __init__(self) -> None:
        self.newest = 0  # the highest number
        self._numbers = dict[str, int]()  # rising
        self._stages: tuple[str, ...] | None = ()

    def keep(self, name: str, number: int) -> None:
        """A file counts, or has changed."""
        self._numbers.pop(name, None)
        self._numbers[name] = self.newest = number
        self._stages = None

    def forget(self, name: str) -> None:
        """It counts no longer."""
        self._numbers.pop(name, None)
        self._stages = None

    def number(self, name: str) -> int:
        """Of its last change; 0: it does not count."""
        return self._numbers.get(name, 0)

    def since(self, number: int) -> list[str]:
        """What has changed after this number, in that order."""
        found = list[str]()
        for name, changed in reversed(self._numbers.items()):
            if changed <= number:
                break
            found.append(name)
        return found[::-1]

    @property
    def stages(self) -> tuple[str, ...]:
        """Those that count; the same tuple as long as these are the same."""
        if self._stages is None:
            self._stages = tuple(name for name in self._numbers if name.startswith(STAGE))
        return self._stages


class SideSending:
    """Of one follower, in one stream."""

    def __init__(self, term: int, disk: Disk, counting: Counting) -> None:
        self._term, self._disk, self._counting = term, disk, counting
        self._seen = 0  # no change up to this number is news
        self._lacks = dict[str, int]()  # what counts, and the follower has not, or not so; with rising numbers
        self._wanted = deque[tuple[str, int]]()  # of these, what was not sent
        self._unacked = deque[tuple[str, int]]()  # what was sent, with its number; 0: one that does not count
        self._acked = 0  # how many were acked
        self.sent = 0  # how many were sent to their end
        self._rest: Iterator[File] | None = None  # of the file that is being sent
        self._accounts = 0  # CRC of what was sent
        self._checkpoint = 0  # LSN of the newest that was sent
        self._stages: tuple[str, ...] | None = None  # what was said of which count
        self._telling: tuple[int, tuple[str, ...]] | None = None  # what is to be said, once this LSN is acked
        self._due = deque([counting.newest], STEADY_BEATS)

    # what the follower has

    def begin(self, stages: Sequence[str]) -> None:
        """It has these already."""
        self._look_for_news()
        for name in stages:
            self._lacks.pop(name, None)

    def ack(self, files: int) -> None:
        """It has put so many of those that were sent into place."""
        while self._acked < files and self._unacked:
            self._acked += 1
            name, number = self._unacked.popleft()
            if number and self._lacks.get(name) == number:
                del self._lacks[name]

    @property
    def kept(self) -> int:
        """The number up to which it has what counts."""
        self._look_for_news()
        while self._lacks:
            name, number = next(iter(self._lacks.items()))
            if self._counting.number(name) == number:
                return number - 1
            del self._lacks[name]
        return self._counting.newest

    def level(self, kept: int) -> bool:
        """Whether one that has what counts up to this number lacks so little that what is answered may wait for it."""
        return kept >= self._due[0]

    def _look_for_news(self) -> None:
        counting = self._counting
        if self._seen == counting.newest:
            return
        for name in counting.since(self._seen):
            self._lacks.pop(name, None)
            number = self._lacks[name] = counting.number(name)
            self._wanted.append((name, number))
        self._seen = counting.newest

    # what it gets

    def piece(self) -> File | None:
        """What is to be sent next; None: there is nothing."""
        while True:
            self._rest = self._rest or self._next_that_counts()
            if self._rest is None:
                return None
            if (piece := next(self._rest, None)) is not None:
                return piece
            self._rest = None

    def look(self, acked: int) -> bool:
        """Have something sent that only saves time, where it has changed; whether there is anything to send.

        acked: the LSN up to which the follower has the log
        """
        if self._rest is None:
            self._rest = self._changed(acked)
        return self._rest is not None

    def beat(self, acked: int) -> bool:
        """`look`, now and then."""
        self._due.append(self._counting.newest)
        busy = self._rest is not None
        return self.look(acked) and not busy

    @property
    def finished(self) -> bool:
        """Whether all that was to be sent has arrived."""
        return self._rest is None and not self._unacked

    def told(self, acked: int, last: int) -> Keep | None:
        """Which stages count, where that is news: others may go at the follower, which has these and what else counts.

        Not before its log has what says that they count no longer, for it may have to lead.  last: LSN of our log
        """
        now = self._counting.stages
        if self._telling is None and now is not self._stages:
            self._telling = last, now
        if self._telling is None or acked < self._telling[0] or not self.level(self.kept):
            return None
        stages = tuple(dict.fromkeys((*self._telling[1], *now)))
        self._telling, self._stages = None, now if len(stages) == len(now) else stages
        return Keep(self._term, stages) if len(stages) <= STAGES_MOST else None

    def _next_that_counts(self) -> Iterator[File] | None:
        self._look_for_news()
        while self._wanted:
            name, number = self._wanted.popleft()
            if self._lacks.get(name) == number == self._counting.number(name):
                return self._pieces(name, 0, number)
        return None

    def _changed(self, acked: int) -> Iterator[File] | None:
        disk = self._disk
        with suppress(FileNotFoundError):
            if (crc := crc32c(read_whole(disk, ACCOUNTS))) != self._accounts:
                self._accounts = crc
                return self._pieces(ACCOUNTS, 0)
        newest = max(checkpoints.lsns(disk), default=0)
        if self._checkpoint < newest <= acked:
            self._checkpoint = newest
            name = checkpoints.name_of(newest)
            if size_of(disk, name) <= SIDE_MOST:
                return self._pieces(name, newest)
        return None

    def _pieces(self, name: str, lsn: int, number: int = 0) -> Iterator[File]:
        """What is read is one state of the file, for each change replaces it as a whole."""
        try:
            file = self._disk.open(name, readonly=True)
        except FileNotFoundError:
            self._counting.forget(name)  # what it brought is in the log
            return
        with closing(file):
            size, offset, crc = file.size(), 0, 0
            while offset < size or not offset:
                part = file.pread(SIDE_PIECE, offset)
                if len(part) < min(SIDE_PIECE, size - offset):
                    raise OSError(errno.EIO, f"{name} ends before its end")
                crc = crc32c(part, crc)
                self.sent += offset + len(part) == size
                yield File(self._term, name, size, offset, crc, lsn, part)
                offset += max(1, len(part))
        self._unacked.append((name, number))
        if name == ACCOUNTS:
            self._accounts = crc


def size_of(disk: Disk, name: str) -> int:
    """Bytes of a file; 0 when it has just gone."""
    with suppress(FileNotFoundError), closing(disk.open(name, readonly=True)) as file:
        return file.size()
    return 0


class Log(NamedTuple):
    """How far the leader's log goes."""

    segment: int = 0  # the open file's first LSN
    end: int = 0  # bytes of it that may be sent
    last: int = 0  # LSN
    floor: int = 0  # the first LSN that is kept
    base: int = 0  # all up to here must be synced before what lies below the floor may go


class Files:
    """The leader's files, as far as they may be sent."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.log = Log()
        self.sent = 0  # bytes of the log, to all followers
        self.beside = Counting()
        self._closed = list[SegmentFile]()

    def told(self, log: Log) -> None:
        """The log has gone on."""
        if log.segment != self.log.segment:
            self.log = log
            self.look()
        self.log = log

    def look(self) -> None:
        """See which closed files there are now."""
        found = list[SegmentFile]()
        for first in sorted(one for name in self.disk.list(FOLDER) if (one := first_lsn(name)) is not None):
            if first >= self.log.segment or (found and first <= found[-1].last and found[-1].identity):
                continue
            try:
                file = self.disk.open(segment_name(first), readonly=True)
            except FileNotFoundError:
                continue
            try:
                header, _ = read_header(file)
                found.append(SegmentFile(first, header.last, file.size(), header.identity))
            except NotASegment:
                continue
            finally:
                file.close()
        self._closed = found

    @property
    def listed(self) -> list[SegmentFile]:
        """Oldest first."""
        return [*self._closed, SegmentFile(self.log.segment, self.log.last, self.log.end, 0)]
