"""The leader's end of the stream: what one follower gets of the log's files, and how far it is behind.

Where a follower's copy stands, and what it gets next, is a `Place`: a file to its end and then the next.

There is one path for a follower that is level and for one that catches up: bytes of the leader's files, in the order in
which it wrote them, read when the follower's connection takes more.  No bytes wait in memory, so a slow follower costs
the leader nothing.  What a commit wrote is sent as soon as all of it is written: both disks sync at the same time.

Measured is how long followers take to say that what was sent is on their disks.  Of its log a leader keeps so much for
those that are behind, or away for a while; one that needs more copies everything anew.  So a follower that was away
for the time of a restart goes on where it stood, and one that never comes back costs the leader no more than a bound.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.errors import ProtocolError
from penstock.log.segment import read_header, segment_name
from penstock.ports import File
from penstock.replication.messages import (
    PIECE_MOST,
    Ack,
    Beat,
    Begin,
    Bye,
    Bytes,
    Hello,
    Message,
    Refusal,
    Retire,
    SegmentFile,
    Welcome,
)
from penstock.replication.register import ClusterState, written
from penstock.replication.terms import common
from penstock.server.cluster.side_sending import Files, SideSending

if TYPE_CHECKING:
    from penstock.log.catalog import SegmentInfo

BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds; what took longer is counted behind the last."""


class AckTimes:
    """Of all followers: a histogram over all of a leader's time."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._total = 0.0

    def took(self, seconds: float) -> None:
        """One piece of the log was acked."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._total += seconds

    def plain(self) -> dict[str, object]:
        """For programs: of each bound, and of no bound, how many took no longer."""
        return {"counts": list(accumulate(self._counts)), "sum": round(self._total, 6)}


class Unacked:
    """What was sent to one follower, and when."""

    def __init__(self, times: AckTimes) -> None:
        self._times = times
        self._sent = deque[tuple[int, float]]()

    def sent(self, upto: int, now: float) -> None:
        """Bytes of the stream, all up to here; seconds on any clock."""
        self._sent.append((upto, now))

    def acked(self, upto: int, now: float) -> None:
        """All up to here is on the follower's disk."""
        sent = self._sent
        while sent and sent[0][0] <= upto:
            self._times.took(now - sent.popleft()[1])


class Hold:
    """Of one leader."""

    def __init__(self, most: int, age: int) -> None:
        """most: bytes that are kept for one.  age: microseconds for which one that is away is waited for."""
        self._most, self._age = most, age
        self._seen: Mapping[str, tuple[int, int]] = {}  # member -> LSN that it acked, and when it was last here

    def learn(self, followers: Mapping[str, Mapping[str, Any]], members: Collection[str], now: int) -> None:
        """Who is here, and how far.  members: who may come back, also those that this leader has not seen yet."""
        here = {key: (one["acked_lsn"], now) for key, one in followers.items()}
        away = dict.fromkeys(members, (0, now))
        self._seen = {key: seen for key, seen in {**away, **self._seen, **here}.items() if key in members}

    def lets_go(self, segment: SegmentInfo, segments: Sequence[SegmentInfo], now: int) -> bool:
        """Whether no follower is waited for that needs this one.  segments: all of the log.  Any thread."""
        behind = [acked for acked, at in self._seen.values() if acked < segment.last and now - at <= self._age]
        if not behind:
            return True
        return all(sum(one.bytes for one in segments if one.last > acked) > self._most for acked in set(behind))


class Place(NamedTuple):
    """In a file of the log."""

    segment: int  # its first LSN
    offset: int
    identity: int = 0  # of the file, where some of it is there


class Piece(NamedTuple):
    """Bytes to send."""

    segment: int
    identity: int  # of the file that they are read from; another one there means: look again
    offset: int
    size: int


class Gone(Exception):
    """What comes next is no longer there as it was written: the follower must be seeded."""


def next_piece(place: Place, files: Sequence[SegmentFile]) -> Piece | None:
    """What comes next; None: nothing yet.

    files: the leader's, in their order, each with the bytes of it that may be sent.
    Gone for a file that was dropped, or replaced by a rewritten one that the follower has not begun.
    """
    at = next((n for n, one in enumerate(files) if one.first == place.segment), None)
    if at is None:
        raise Gone(f"the file that begins at LSN {place.segment} is no longer kept")
    file = files[at]
    if place.offset and place.identity != file.identity:
        raise Gone(f"the file that begins at LSN {place.segment} was written anew")
    if place.offset > file.bytes:
        raise Gone(f"the follower has {place.offset} bytes of {place.segment}, which has {file.bytes}")
    if place.offset < file.bytes:
        return Piece(file.first, file.identity, place.offset, min(PIECE_MOST, file.bytes - place.offset))
    if at + 1 == len(files):
        return None
    following = files[at + 1]
    return Piece(following.first, following.identity, 0, min(PIECE_MOST, following.bytes)) if following.bytes else None


def after(piece: Piece) -> Place:
    """Where a follower stands that has got it."""
    return Place(piece.segment, piece.offset + piece.size, piece.identity)


LEVEL_BYTES = 1 << 20
"""A follower that lacks no more than this is level: confirms may wait for it."""

PIECES_MOST = 8
"""Sent at once."""


class Link(Protocol):
    """A connection to another member."""

    @property
    def full(self) -> bool:
        """Whether it takes no more for now; whoever sends is told when it does again."""
        ...

    def send(self, message: Message) -> None: ...

    def close(self) -> None: ...


class Sending:
    """What one follower gets.  It is told what the follower says, and that there may be more to send."""

    def __init__(
        self, link: Link, hello: Hello, files: Files, state: ClusterState, times: AckTimes | None = None
    ) -> None:
        """A follower that may come.  state: of the register; its last term is ours.  times: of all followers."""
        self.link, self.member = link, hello.member
        self.term, self._format = state.term, state.format
        self.acked = 0  # LSN
        self.full = False  # its disk
        self.heard_at = 0
        self.level_at = 0  # when its disk last had all that there was; 0: never in this stream
        self.sent = 0  # bytes of the log, in this stream
        self.received = 0  # of these, what it has said that it has
        self._files = files
        self._waits = Unacked(times or AckTimes())
        self._place: Place | None = None  # None: it has not said where it stands
        self._size = 0  # of the file that is being sent, once it was closed
        self._open: tuple[int, int, File] | None = None
        self._beat_at = 0
        self._floor = 0
        self._beside = SideSending(self.term, files.disk, files.beside)
        self._cut = common(hello.terms, written(state, files.log.last))
        self._welcomed = False  # and it has not said where it stands since
        self.seeds = not self._cut and bool(hello.origin)  # it has to begin with nothing, and does not know yet
        if not self.seeds:
            self._welcome(Welcome(self.term, self._format, self._cut, seed=False))

    def seed(self) -> None:
        """Have it begin with nothing: it counts for nothing by now."""
        self.seeds = False
        self._welcome(Welcome(self.term, self._format, 0, seed=True))

    def _welcome(self, message: Welcome) -> None:
        self._welcomed = True
        self.link.send(message)

    @property
    def level(self) -> bool:
        """Whether it lacks so little that confirms may wait for it."""
        place = self._place
        if place is None or place.segment != self._files.log.segment or not self._beside.level(self.kept):
            return False
        return self._files.log.end - place.offset + self.sent - self.received <= LEVEL_BYTES

    @property
    def kept(self) -> int:
        """The number up to which it has the files beside the log."""
        return self._beside.kept

    def plain(self, now: int) -> dict[str, object]:
        """For people; lag_seconds: None where its disk never had all that there was."""
        behind = 0.0 if self.acked >= self._files.log.last else round((now - self.level_at) / 1e6, 3)
        return {
            "acked_lsn": self.acked, "lag_bytes": max(0, self.sent - self.received),
            "level": self.level, "full": self.full, "silent_seconds": round((now - self.heard_at) / 1e6, 3),
            "lag_seconds": behind if self.level_at else None,
        }  # fmt: skip

    def begin(self, message: Begin) -> None:
        """It has cut its log and says where it stands.  ProtocolError, as of `ack`, where it was not asked."""
        if not self._welcomed or message.term != self.term:
            raise ProtocolError(f"{self.member} begins in term {message.term}, and was not welcomed to that")
        self._welcomed = False
        files = self._files
        self._beside.begin(message.stages)
        self._tell_stages()
        files.look()
        if not message.segment:
            self._place = Place(files.listed[0].first, 0)
        elif any(
            (one.first, one.identity) == (message.segment, message.identity) and message.offset <= one.bytes
            for one in files.listed
        ):
            self._place = Place(message.segment, message.offset, message.identity)
        else:
            self.seeds = True

    def _tell_stages(self) -> None:
        if (keep := self._beside.told(self.acked, self._files.log.last)) is not None:
            self.link.send(keep)

    def ack(self, message: Ack) -> None:
        """What it says to have.  ProtocolError where there is no such thing: it would count for all that comes yet."""
        for what, said, most in (
            ("term", message.term, self.term),
            ("LSN", message.synced, self._files.log.last),
            ("byte", message.received, self.sent),
            ("file", message.files, self._beside.sent),
        ):
            if said > most:
                raise ProtocolError(f"{self.member} acks {what} {said}, and {most} is the last there is")
        self.acked = max(self.acked, message.synced)
        self.received, self.full = message.received, message.full
        self._waits.acked(message.received, time.monotonic())
        self._beside.ack(message.files)

    def pump(self) -> None:
        """Send what there is, as far as the connection takes it; `seeds` is to be looked at then.

        Some pieces at a time, for a connection may take all as fast as it is read: beats and others have their turn.
        What is left goes with the next ack, or the next tick.  OSError where a file cannot be read.
        """
        for _ in range(PIECES_MOST):
            if self._place is None or self.link.full:
                return
            beside = self._beside.piece()
            if beside is not None:
                self.link.send(beside)
            elif self._place[:2] == (self._files.log.segment, self._files.log.end):
                return
            try:
                if not self._piece(self._place) and beside is None:
                    return
            except (Gone, FileNotFoundError):
                self._files.look()
                self._place, self._open = None, None
                self.seeds = True

    def _piece(self, place: Place) -> bool:
        files = self._files.listed
        here = self._open
        if here is not None and here[0] == place.segment and place.segment != files[-1].first:
            # what is being read is read to its end, whatever became of its name
            mine = SegmentFile(here[0], 0, here[2].size(), here[1])
            files = sorted([*(one for one in files if one.first != here[0]), mine])
        piece = next_piece(place, files)
        if piece is None:
            return False
        if here is None or here[:2] != (piece.segment, piece.identity):
            if here is not None:
                here[2].close()
            here = self._open = self._opened(piece)
        data = here[2].pread(piece.size, piece.offset)
        if len(data) != piece.size:
            raise Gone(f"{segment_name(piece.segment)} is shorter than it was")
        self.link.send(Bytes(self.term, piece.segment, piece.offset, data))
        self.sent += piece.size
        self._files.sent += piece.size
        self._waits.sent(self.sent, time.monotonic())
        self._place = after(piece)
        return True

    def _opened(self, piece: Piece) -> tuple[int, int, File]:
        """The file of a piece.  Gone when another one has its name by now."""
        file = self._files.disk.open(segment_name(piece.segment), readonly=True)
        if read_header(file)[0].identity != piece.identity:
            file.close()
            raise Gone(f"{segment_name(piece.segment)} was written anew")
        return piece.segment, piece.identity, file

    def beat(self, beat: int, committed: int, now: int, every: int) -> None:
        """Say that the leader lives, when it is time; and send what else has changed."""
        if now - self._beat_at < every:
            return
        self._beat_at = now
        log = self._files.log
        self.link.send(Beat(self.term, beat, log.last, committed, time.time_ns() // 1000))
        if self._place is None:
            return
        if log.floor > self._floor and self.acked >= log.base and self._place.segment >= log.floor:
            self._floor = log.floor
            self.link.send(Retire(self.term, log.floor, log.base))
        self._tell_stages()
        if self._beside.beat(self.acked):
            self.pump()

    def finish(self) -> bool:
        """Whether it has all that there is beside the log, as far as that is ever sent; what it lacks is sent."""
        if self._beside.look(self.acked):
            self.pump()
        return self._beside.finished

    def close(self, why: str = "") -> None:
        if why:
            self.link.send(Bye(why))
        self.link.close()
        if self._open is not None:
            self._open[2].close()
            self._open = None


def refused(hello: Hello, state: ClusterState, term: int, me: str, check: Callable[[str], bool]) -> Refusal | None:
    """Why a follower cannot be had; None: it can.  check: whether this member's stream is here already."""
    why = ""
    if hello.cluster != state.cluster:
        why = f"this is cluster {state.cluster}, not {hello.cluster}"
    elif hello.origin not in {0, state.origin}:
        why = f"the follower's folder holds the log of origin {hello.origin}, not of {state.origin}"
    elif hello.member not in state.members:
        why = f"{hello.member} is no member"
    elif hello.reads < state.format:
        why = f"the log is of format {state.format}, and {hello.member} reads {hello.reads}"
    elif hello.member == me or check(hello.member):
        why = f"another process says that it is {hello.member}"
    return Refusal(term, why) if why else None
