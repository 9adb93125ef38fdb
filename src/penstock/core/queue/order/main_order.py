"""The main order of a queue: messages that were never delivered, oldest first.

It is consumed by a cursor at the head; what is taken from the middle leaves a hole until the segments are rebuilt.
It knows no consumer, clock or log.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from penstock.core.arena import Move
from penstock.core.queue.order.runs import NEVER, PIECE, SMALL, Key, Run, sift
from penstock.records.chunks import Chunk, as_chunk

HOLES_MOST = 4096
"""More holes than this are cut out of the segments."""
FEW = 8
"""So few messages taken from anywhere leave holes; more are cut out of the segments in one walk through all."""
STRETCH = 65_536
"""Messages of several segments that `stretch` puts together: half a megabyte, and a few milliseconds."""


class Segment:
    """A chunk of the main order."""

    __slots__ = ("chunk", "solid")

    def __init__(self, chunk: Chunk, solid: bool) -> None:
        self.chunk = chunk
        self.solid = solid


Segments: TypeAlias = list[Segment] | deque[Segment]
"""Several are a deque, which takes ten times the bytes of a list of one: most orders of tenants have one message."""

_NO_SEGMENTS: Segments = []
_NO_HOLES = set[int]()
"""Shared by all that are empty; nobody adds to these."""


class Main:
    """Messages never delivered, in LSN order, taken from the head by a cursor and from the middle by holes."""

    __slots__ = ("count", "cursor", "holes", "sealed", "segments")

    def __init__(self) -> None:
        self.segments: Segments = _NO_SEGMENTS
        self.cursor = 0  # index of the head in the first segment
        self.holes: set[int] = _NO_HOLES  # in a segment, not before the cursor, and gone
        self.count = 0
        self.sealed = 0  # the newest message that went elsewhere, from the middle or past this order

    def append(self, chunk: Chunk, solid: bool = True) -> None:
        """Add messages at the tail.  The chunk is not kept if it is an array: others may hold it too."""
        n = len(chunk)
        if not n:
            return
        self.count += n
        if self.segments:
            tail = self.segments[-1]
            held = tail.chunk
            sealed = self.sealed > held[-1]
            if isinstance(held, range):
                if isinstance(chunk, range) and held.stop == chunk.start:
                    tail.chunk = range(held.start, chunk.stop)
                    return
                if len(held) < SMALL and not sealed and (n < SMALL or not isinstance(chunk, range)):
                    tail.chunk = held = array("q", held)
                    tail.solid = tail.solid and solid  # a range that is not may lie alone between others
                    held.extend(chunk)
                    return
            elif (
                not sealed
                and tail.solid == solid
                and len(held) < PIECE
                and (n < SMALL or not isinstance(chunk, range))
                and isinstance(held, array)
            ):
                held.extend(chunk)
                return
        self._add(Segment(chunk if isinstance(chunk, range) else chunk[:], solid))

    def _add(self, segment: Segment) -> None:
        if self.segments:
            if isinstance(self.segments, list):
                self.segments = deque(self.segments)
            self.segments.append(segment)
        else:
            self.segments = [segment]

    def seal(self, lsn: int) -> None:
        """Say that this message went elsewhere: no array that is appended to may span it and be solid."""
        if lsn > self.sealed:
            self.sealed = lsn

    def head(self) -> int:
        """The oldest LSN; only when there is one."""
        if self.holes:
            self._skip()
        return self.segments[0].chunk[self.cursor]

    def key(self) -> Key:
        """The key of the oldest; only when there is one."""
        first = self.head()
        return first, first

    def lowest(self) -> int:
        """The oldest LSN; only when there is one."""
        return self.head()

    def stands(self, key: Key) -> bool:
        """Whether this message is here, at this place."""
        return key[0] == key[1] and self.has(key[1])

    def emptied(self) -> Main:
        """A new one for the same queue: what went elsewhere is still there."""
        new = Main()
        new.seal(self.sealed)
        return new

    def last(self) -> int:
        """The newest LSN of the segments, a hole or not; 0 when there is none."""
        return self.segments[-1].chunk[-1] if self.segments else 0

    def _skip(self) -> None:
        holes = self.holes
        while self.segments:
            chunk = self.segments[0].chunk
            cursor, end = self.cursor, len(chunk)
            while cursor < end and chunk[cursor] in holes:
                holes.discard(chunk[cursor])
                cursor += 1
            self.cursor = cursor
            if cursor < end:
                return
            del self.segments[0]
            self.cursor = 0

    def take(self, count: int, limit: int = NEVER) -> list[Run]:
        """Up to `count` of the oldest with LSNs below `limit`, in order, as runs; they are no longer here."""
        out: list[Run] = []
        segments = self.segments
        while count and self.count:
            if self.holes:
                self._skip()
            segment = segments[0]
            chunk, start = segment.chunk, self.cursor
            end = min(start + count, len(chunk))
            if chunk[end - 1] >= limit:
                end = bisect_left(chunk, limit, start, end)
                if end == start:
                    break
            if end == len(chunk):
                part = chunk[start:] if start else chunk
                del segments[0]
                self.cursor = 0
            else:
                part = chunk[start:end]
                self.cursor = end
            solid = segment.solid
            if self.holes and (gone := self._holes_in(part)):
                for kept in sift(part, as_chunk(sorted(gone)))[1]:
                    out.append(Run(kept, False))
                    count -= len(kept)
                    self.count -= len(kept)
                continue
            out.append(Run(part, solid))
            count -= len(part)
            self.count -= len(part)
        if not segments:
            self.segments = _NO_SEGMENTS
        return out

    def _holes_in(self, part: Chunk) -> set[int]:
        """Take the holes out that lie in the part at the head."""
        holes = self.holes
        gone = {lsn for lsn in holes if lsn <= part[-1]} if len(part) > len(holes) else holes.intersection(part)
        self.holes -= gone
        return gone

    def front(self, count: int) -> Chunk:
        """Up to `count` of the oldest, of one segment, in order; they stay.  Only when there is one."""
        self.head()
        chunk = self.segments[0].chunk[self.cursor : self.cursor + count]
        return chunk if not self.holes else chunk[:1]

    def begins_with(self, wanted: Sequence[int]) -> bool:
        """Whether these are the oldest, all of one segment."""
        if self.holes:
            self._skip()
        if not self.count or self.holes or not wanted:
            return False
        chunk = self.segments[0].chunk
        end = self.cursor + len(wanted)
        return end <= len(chunk) and chunk[end - 1] == wanted[-1] and list(chunk[self.cursor : end]) == list(wanted)

    def has(self, lsn: int) -> bool:
        """Whether this message is here."""
        if lsn in self.holes or not self.count:
            return False
        index = bisect_left(self.segments, lsn, key=_last_of)
        if index == len(self.segments):
            return False
        chunk = self.segments[index].chunk
        place = bisect_left(chunk, lsn, 0 if index else self.cursor)
        return place < len(chunk) and chunk[place] == lsn

    def punch(self, lsn: int) -> Run:
        """Take one message that is here."""
        if self.head() == lsn:
            return self.take(1)[0]
        if self.holes is _NO_HOLES:
            self.holes = set()
        self.holes.add(lsn)
        self.seal(lsn)
        self.count -= 1
        if len(self.holes) > HOLES_MOST:
            self.compact()
        return Run(range(lsn, lsn + 1), True)

    def extract(self, wanted: Chunk) -> list[Run]:
        """Take those of the wanted that are here, wherever they stand."""
        if not self.count or wanted[-1] < self.head():
            return []
        if len(wanted) <= FEW:
            return [self.punch(lsn) for lsn in wanted if self.has(lsn)]
        self.compact()
        out, kept = self._without(wanted)
        self.segments = _held(kept)
        for run in out:
            self.count -= len(run.chunk)
            self.seal(run.chunk[-1])
        return out

    def _without(self, gone: Chunk) -> tuple[list[Run], list[Segment]]:
        """Runs of these that are in the segments, and segments without them."""
        out: list[Run] = []
        kept = list[Segment]()
        for index, segment in enumerate(self.segments):
            chunk = segment.chunk
            start = self.cursor if index == 0 else 0
            if chunk[-1] < gone[0] or chunk[start] > gone[-1]:
                kept.append(segment)
                continue
            if start:
                chunk = chunk[start:]
                self.cursor = 0
            inside, outside, slices = sift(chunk, gone)
            if inside is not None:
                out.append(Run(inside, segment.solid and slices))
            # a piece that has the taken ones between its ends is one slice no more
            kept.extend(Segment(part, segment.solid and (slices or isinstance(part, range))) for part in outside)
        return out, kept

    def compact(self) -> None:
        """Rebuild the segments without holes."""
        if not self.holes:
            return
        self._skip()
        holes = as_chunk(sorted(self.holes))
        self.holes = _NO_HOLES
        if not len(holes):
            return
        self.segments = _held(_joined(self._without(holes)[1]))

    def absorb(self, other: Main) -> None:
        """Add all of another order, whose messages are newer, at the tail; the other is not to be used any more."""
        self.seal(other.sealed)
        other.compact()
        if not other.count:
            return
        for chunk, segment in zip(list(other.whole()), list(other.segments), strict=True):
            segment.chunk = chunk
            self._add(segment)
        self.count += other.count

    def solid(self) -> Iterator[Chunk]:
        """Chunks within which no other message of the queue lies."""
        return (segment.chunk for segment in self.segments if segment.solid)

    def page(self, move: Move) -> None:
        """Move what may go to an arena: all but the last segment while that still grows."""
        last = len(self.segments) - 1
        for index, segment in enumerate(self.segments):
            if not isinstance(segment.chunk, range) and (index < last or len(segment.chunk) >= PIECE):
                segment.chunk = move.chunk(segment.chunk)

    def loosen(self) -> None:
        """Messages of the queue may lie between those of an array from now on."""
        for segment in self.segments:
            segment.solid = False

    def after(self, lsn: int, count: int) -> Chunk:
        """Up to `count` messages that stand after `lsn`, ascending; they stay."""
        return self.some(lsn + 1, NEVER, count)

    def between(self, first: int, stop: int) -> Chunk:
        """All messages with LSNs in [first, stop), ascending; they stay."""
        return self.some(first, stop, NEVER)

    def some(self, first: int, stop: int, count: int) -> Chunk:
        """Up to `count` messages with LSNs in [first, stop), ascending; they stay."""
        segments, holes = self.segments, self.holes
        out = array("q")
        for index in range(bisect_left(segments, first, key=_last_of) if count > 0 else 0, len(segments)):
            chunk = segments[index].chunk
            if len(out) >= count or chunk[0] >= stop:
                break
            start = bisect_left(chunk, first, self.cursor if index == 0 else 0)
            end = bisect_left(chunk, stop, start)
            while start < end and len(out) < count:
                part = chunk[start : min(end, start + count - len(out))]
                start += len(part)
                last = start < len(chunk) or index == len(segments) - 1 or len(out) + len(part) == count
                if last and not holes and not out:
                    return part
                out.extend([lsn for lsn in part if lsn not in holes] if holes else part)
        return as_chunk(out)

    def stretch(self, lsn: int, count: int) -> Chunk:
        """Some of what follows `lsn`, ascending, nothing left out: `count` at most, and as many as cost little.

        For who only looks: messages that were taken from the middle are among them.
        """
        out = array("q")
        for index in range(bisect_left(self.segments, lsn + 1, key=_last_of), len(self.segments)):
            chunk = self.segments[index].chunk
            start = bisect_left(chunk, lsn + 1, self.cursor if index == 0 else 0)
            part = chunk[start : start + count - len(out)]
            if isinstance(part, range) and not out and len(part) >= min(count, STRETCH):
                return part
            out.extend(part[:STRETCH])
            if len(out) >= min(count, STRETCH):
                break
        return as_chunk(out)

    def stretch_after(self, place: int, count: int, until: int) -> tuple[Chunk, int]:
        """The same of what stands behind a place and not behind `until`, and the place of the last."""
        chunk = self.stretch(place, count) if self.count else range(0)
        if len(chunk) and chunk[-1] > until:
            chunk = chunk[: bisect_right(chunk, until)]
        return chunk, chunk[-1] if len(chunk) else place

    def whole(self) -> Iterator[Chunk]:
        """What is here, in order; to be looked at before anything changes."""
        self.compact()
        for index, segment in enumerate(self.segments):
            yield segment.chunk if index or not self.cursor else segment.chunk[self.cursor :]

    def chunks(self) -> Iterator[Chunk]:
        """What is here, as chunks that will not change."""
        self.compact()
        out = [segment.chunk for segment in self.segments]
        if out:
            out[0] = out[0][self.cursor :] if self.cursor else out[0]
            out[-1] = out[-1][:]
        return iter(out)


class Nothing(Main):
    """An order that many queues share, for it stays empty: who has something to put there makes one of its own."""

    __slots__ = ()

    def append(self, chunk: Chunk, solid: bool = True) -> None:
        raise AssertionError("nobody adds to the order that empty queues share")

    def seal(self, lsn: int) -> None:
        raise AssertionError("nobody seals the order that empty queues share")

    def absorb(self, other: Main) -> None:
        raise AssertionError("nobody adds to the order that empty queues share")


def _last_of(segment: Segment) -> int:
    return segment.chunk[-1]


def _held(segments: list[Segment]) -> Segments:
    return segments if len(segments) < 2 else deque(segments)


def _joined(segments: Iterable[Segment]) -> list[Segment]:
    """Small neighbours gathered, so that many holes do not leave many small arrays."""
    out = list[Segment]()
    joined: array[int] | None = None  # of the last in `out`, if it was made here: others may hold the rest
    for segment in segments:
        chunk = segment.chunk
        if out and len(chunk) < SMALL:
            held = out[-1].chunk
            if joined is None and len(held) < (SMALL if isinstance(held, range) else PIECE):
                joined = array("q", held)
                out[-1] = Segment(joined, False)
            if joined is not None:
                joined.extend(chunk)
                if len(joined) >= PIECE:
                    joined = None
                continue
        joined = None
        out.append(segment)
    return out
