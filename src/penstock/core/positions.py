"""Positions of messages: runs of LSNs, the main order of a queue, and what came back to it.

A run is a chunk with what its messages have in common.  It moves through the states as a whole and is cut where it must
be.  The main order holds messages that were never delivered, oldest first, and is consumed by a cursor; what comes back
(or becomes due late) waits in a heap of runs ordered by place.  Nothing here knows a consumer, a clock or the log.

*Solid* means: between the ends of the chunk lie no other living messages of this queue, so that one LSN pair names it
in the log.  A range is solid whatever the flag says, for it has no gaps.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.core.attempts import FRESH, Tally
from penstock.records.chunks import Chunk, as_chunk, pairs_of

Key: TypeAlias = tuple[int, int]
"""The order of waiting messages: (place, LSN).  A message's own place is its LSN."""

SMALL = 64
"""Ranges shorter than this are gathered in an array, so that a message costs about 8 bytes."""
PIECE = 8192
"""LSNs in an array of the main order, about."""
HOLES_MOST = 4096
"""More holes than this are cut out of the segments."""
NEVER = 1 << 62
"""Later than every LSN and every time."""


class Run:
    """Messages that share tally, place and fate."""

    __slots__ = ("chunk", "deadline", "place", "solid", "tally")

    def __init__(self, chunk: Chunk, solid: bool, tally: Tally = FRESH, place: int = 0, deadline: int = 0) -> None:
        self.chunk = chunk
        self.solid = solid
        self.tally = tally
        self.place = place  # 0: each at its own LSN
        self.deadline = deadline  # end of a lease, or of a delay; 0 is none

    def part(self, chunk: Chunk, solid: bool) -> Run:
        """Some of the messages; `solid` says that they are a slice."""
        return Run(chunk, solid and self.solid, self.tally, self.place, self.deadline)

    def pairs(self) -> list[int]:
        """Its LSN pairs for the log."""
        if isinstance(self.chunk, range):
            return [self.chunk.start, self.chunk.stop]
        if not self.solid and len(self.chunk) >= SMALL:
            lsns = view(self.chunk)
            last = np.append(np.diff(lsns) != 1, True)
            starts = lsns[np.concatenate((last[-1:], last[:-1]))]
            pairs: list[int] = np.stack((starts, lsns[last] + 1), axis=1).reshape(-1).tolist()
            return pairs
        return pairs_of(self.chunk, self.solid)

    def below(self, limit: Key) -> int:
        """How many of its messages, from the first on, stand before `limit`."""
        if not self.place:
            return bisect_left(self.chunk, limit[0])
        if self.place == limit[0]:
            return bisect_left(self.chunk, limit[1])
        return len(self.chunk) if self.place < limit[0] else 0

    def __repr__(self) -> str:
        return f"Run({self.chunk!r}, solid={self.solid}, {self.tally}, place={self.place}, deadline={self.deadline})"


def view(chunk: Chunk) -> npt.NDArray[np.int64]:
    """The chunk as numpy integers, without a copy if it is an array."""
    if isinstance(chunk, range):
        return np.arange(chunk.start, chunk.stop, dtype=np.int64)
    return np.frombuffer(chunk, dtype=np.int64)


def packed(lsns: npt.NDArray[np.int64]) -> Chunk:
    """Ascending numpy integers as the tightest chunk."""
    n = len(lsns)
    if n and int(lsns[-1]) - int(lsns[0]) == n - 1:
        return range(int(lsns[0]), int(lsns[0]) + n)
    out = array("q")
    out.frombytes(lsns.tobytes())
    return out


def sorted_chunk(chunks: Sequence[Chunk]) -> Chunk:
    """All LSNs of several chunks as one, ascending, each once."""
    if len(chunks) == 1:
        return chunks[0]
    if not chunks:
        return range(0)
    total = sum(map(len, chunks))
    if total < SMALL:
        return as_chunk(sorted({lsn for chunk in chunks for lsn in chunk}))
    return packed(np.unique(np.concatenate([view(chunk) for chunk in chunks])))


def tidy(lsns: npt.NDArray[np.int64]) -> Iterator[tuple[Chunk, bool]]:
    """Ascending LSNs cut into ranges where they are dense and arrays where they are not; the flag: all of a slice."""
    n = len(lsns)
    if not n:
        return
    breaks = np.flatnonzero(np.diff(lsns) != 1) + 1
    starts = np.concatenate(([0], breaks))
    ends = np.concatenate((breaks, [n]))
    done = 0
    for k in np.flatnonzero(ends - starts >= SMALL).tolist():
        start, end = int(starts[k]), int(ends[k])
        for i in range(done, start, PIECE):
            yield packed(lsns[i : min(i + PIECE, start)]), True
        yield range(int(lsns[start]), int(lsns[start]) + end - start), True
        done = end
    for i in range(done, n, PIECE):
        yield packed(lsns[i : min(i + PIECE, n)]), True


def sift(chunk: Chunk, wanted: Chunk) -> tuple[Chunk | None, list[Chunk], bool]:
    """Part an ascending chunk by membership in another: (inside or None, pieces outside, all of them slices)."""
    if not len(chunk) or not len(wanted) or wanted[-1] < chunk[0] or chunk[-1] < wanted[0]:
        return None, [chunk], True
    if len(chunk) == 1:
        return (chunk, [], True) if chunk[0] in _members(wanted, chunk[0]) else (None, [chunk], True)
    if isinstance(wanted, range) or len(wanted) == 1:
        low = bisect_left(chunk, wanted[0])
        high = bisect_left(chunk, wanted[-1] + 1, low)
        if low == high:
            return None, [chunk], True
        return chunk[low:high], [part for part in (chunk[:low], chunk[high:]) if len(part)], True
    if isinstance(chunk, range):
        low, high = bisect_left(wanted, chunk.start), bisect_left(wanted, chunk.stop)
        inside = as_chunk(wanted[low:high])
        if not len(inside):
            return None, [chunk], True
        if isinstance(inside, range):
            outside = (range(chunk.start, inside.start), range(inside.stop, chunk.stop))
            return inside, [part for part in outside if len(part)], True
        return inside, list(gaps(chunk, inside)), False
    mask = np.isin(view(chunk), view(wanted), assume_unique=True)
    if not mask.any():
        return None, [chunk], True
    lsns = view(chunk)
    rest = lsns[~mask]
    return packed(lsns[mask]), ([packed(rest)] if len(rest) else []), False


def _members(wanted: Chunk, lsn: int) -> Sequence[int]:
    """What to search for one LSN: the range itself, or the one place of an array where it may stand."""
    if isinstance(wanted, range):
        return wanted
    place = bisect_left(wanted, lsn)
    return wanted[place : place + 1]


def gaps(chunk: range, holes: Chunk) -> Iterator[Chunk]:
    """What remains of a range without some of its elements (ascending): long gaps as ranges, short ones gathered."""
    short = array("q")
    start = chunk.start
    for hole in [*holes, chunk.stop]:
        if hole - start >= SMALL:
            if short:
                yield short
                short = array("q")
            yield range(start, hole)
        elif hole > start:
            short.extend(range(start, hole))
        start = hole + 1
    if short:
        yield short


class Segment:
    """A chunk of the main order."""

    __slots__ = ("chunk", "solid")

    def __init__(self, chunk: Chunk, solid: bool) -> None:
        self.chunk = chunk
        self.solid = solid


class Main:
    """Messages never delivered, in LSN order, taken from the head by a cursor and from the middle by holes."""

    __slots__ = ("_barrier", "count", "cursor", "holes", "segments")

    def __init__(self) -> None:
        self.segments: deque[Segment] = deque()
        self.cursor = 0  # index of the head in the first segment
        self.holes: set[int] = set()  # in a segment, not before the cursor, and gone
        self.count = 0
        self._barrier = 0  # the newest message that went elsewhere, from the middle or past this order

    def append(self, chunk: Chunk, solid: bool = True) -> None:
        """Add messages at the tail.  The chunk is not kept if it is an array: others may hold it too."""
        n = len(chunk)
        if not n:
            return
        self.count += n
        if self.segments:
            tail = self.segments[-1]
            held = tail.chunk
            sealed = self._barrier > held[-1]
            if isinstance(held, range):
                if isinstance(chunk, range) and held.stop == chunk.start:
                    tail.chunk = range(held.start, chunk.stop)
                    return
                if len(held) < SMALL and not sealed and (n < SMALL or not isinstance(chunk, range)):
                    tail.chunk = held = array("q", held)
                    tail.solid = solid
                    held.extend(chunk)
                    return
            elif (
                not sealed and tail.solid == solid and len(held) < PIECE and (n < SMALL or not isinstance(chunk, range))
            ):
                held.extend(chunk)
                return
        self.segments.append(Segment(chunk if isinstance(chunk, range) else chunk[:], solid))

    def seal(self, lsn: int) -> None:
        """Say that this message went elsewhere: no array that is appended to may span it and be solid."""
        if lsn > self._barrier:
            self._barrier = lsn

    def head(self) -> int:
        """The oldest LSN; only when there is one."""
        if self.holes:
            self._skip()
        return self.segments[0].chunk[self.cursor]

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
            self.segments.popleft()
            self.cursor = 0

    def take(self, count: int, limit: int = NEVER) -> list[Run]:
        """Up to `count` of the oldest with LSNs below `limit`, in order, as runs; they are no longer here."""
        out = list[Run]()
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
                segments.popleft()
                self.cursor = 0
            else:
                part = chunk[start:end]
                self.cursor = end
            solid = segment.solid
            if self.holes:
                gone = (
                    {lsn for lsn in self.holes if lsn <= part[-1]}
                    if len(part) > len(self.holes)
                    else self.holes.intersection(part)
                )
                if gone:
                    self.holes -= gone
                    for kept in sift(part, as_chunk(sorted(gone)))[1]:
                        out.append(Run(kept, False))
                        count -= len(kept)
                        self.count -= len(kept)
                    continue
            out.append(Run(part, solid))
            count -= len(part)
            self.count -= len(part)
        return out

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
        self.compact()
        out = list[Run]()
        kept: deque[Segment] = deque()
        for index, segment in enumerate(self.segments):
            chunk = segment.chunk
            start = self.cursor if index == 0 else 0
            if chunk[-1] < wanted[0] or chunk[start] > wanted[-1]:
                kept.append(segment)
                continue
            if start:
                chunk = chunk[start:]
                self.cursor = 0
            inside, outside, slices = sift(chunk, wanted)
            if inside is not None:
                out.append(Run(inside, segment.solid and slices))
                self.count -= len(inside)
                self.seal(inside[-1])
            # a piece that has the taken ones between its ends is one slice no more
            kept.extend(Segment(part, segment.solid and (slices or isinstance(part, range))) for part in outside)
        self.segments = kept
        return out

    def compact(self) -> None:
        """Rebuild the segments without holes."""
        if not self.holes:
            return
        self._skip()
        holes = as_chunk(sorted(self.holes))
        self.holes.clear()
        if not len(holes):
            return
        kept: deque[Segment] = deque()
        for index, segment in enumerate(self.segments):
            chunk = segment.chunk
            if index == 0 and self.cursor:
                if chunk[self.cursor] > holes[-1] or chunk[-1] < holes[0]:
                    kept.append(segment)
                    continue
                chunk = chunk[self.cursor :]
                self.cursor = 0
            inside, outside, slices = sift(chunk, holes)
            if inside is None:
                kept.append(Segment(chunk, segment.solid))
            else:
                kept.extend(Segment(part, segment.solid and slices) for part in outside)
        self.segments = _joined(kept)

    def after(self, lsn: int, count: int) -> Chunk:
        """Up to `count` messages that stand after `lsn`, ascending; they stay."""
        out = array("q")
        for index, segment in enumerate(self.segments):
            chunk = segment.chunk
            if chunk[-1] <= lsn:
                continue
            start = bisect_left(chunk, lsn + 1, self.cursor if index == 0 else 0)
            while start < len(chunk) and len(out) < count:
                part = chunk[start : start + count - len(out)]
                out.extend(x for x in part if x not in self.holes) if self.holes else out.extend(part)
                start += len(part)
            if len(out) >= count:
                break
        return as_chunk(out)

    def clear(self) -> list[Run]:
        """Take everything."""
        return self.take(self.count)

    def chunks(self) -> Iterator[Chunk]:
        """What is here, as chunks that will not change."""
        self.compact()
        last = len(self.segments) - 1
        for index, segment in enumerate(self.segments):
            chunk = segment.chunk
            if index == 0 and self.cursor:
                yield chunk[self.cursor :]
            elif index == last:
                yield chunk[:]
            else:
                yield chunk


def _last_of(segment: Segment) -> int:
    return segment.chunk[-1]


def _joined(segments: Iterable[Segment]) -> deque[Segment]:
    """Small neighbours gathered, so that many holes do not leave many small arrays."""
    out: deque[Segment] = deque()
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


class RunHeap:
    """Runs ordered by a key of their first message, which may be cut or taken out anywhere."""

    __slots__ = ("_heap", "_serial", "count")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Run]] = []  # key, serial, run
        self._serial = 0  # breaks ties, so that runs are never compared
        self.count: int = 0

    def key(self, run: Run) -> Key:
        """Where the run belongs."""
        raise NotImplementedError

    def push(self, run: Run) -> None:
        """Add a run."""
        self.count += len(run.chunk)
        self._push(run)

    def _push(self, run: Run) -> None:
        self._serial += 1
        heappush(self._heap, (*self.key(run), self._serial, run))

    def head(self) -> Key:
        """The lowest key; only when there is a run."""
        return self._heap[0][0], self._heap[0][1]

    def pop(self) -> Run:
        """Take the run with the lowest key."""
        run = heappop(self._heap)[3]
        self.count -= len(run.chunk)
        return run

    def extract(self, wanted: Chunk) -> list[Run]:
        """Take those of the wanted that are here, in the order of their keys."""
        if not self.count:
            return []
        out = list[Run]()
        left = list[Run]()
        for entry in self._heap:
            run = entry[3]
            inside, outside, slices = sift(run.chunk, wanted)
            if inside is None:
                left.append(run)
                continue
            out.append(run.part(inside, slices))
            self.count -= len(inside)
            left.extend(run.part(part, slices) for part in outside)
        if out:
            self._heap = []
            for run in left:
                self._serial += 1
                self._heap.append((*self.key(run), self._serial, run))
            heapify(self._heap)
            out.sort(key=self.key)
        return out

    def clear(self) -> list[Run]:
        """Take everything, in the order of the keys."""
        runs = [entry[3] for entry in sorted(self._heap)]
        self._heap.clear()
        self.count = 0
        return runs

    def runs(self) -> Iterator[Run]:
        """What is here, in no order."""
        return (entry[3] for entry in self._heap)


class Returned(RunHeap):
    """Ready messages that are not in the main order: what came back, and what became due.  A heap by place."""

    __slots__ = ()

    def key(self, run: Run) -> Key:
        """The place of its first message."""
        first = run.chunk[0]
        return (run.place or first, first)

    def take(self, count: int, limit: Key) -> list[Run]:
        """Up to `count` of the oldest that stand before `limit`, as one run or none."""
        if not self.count or self.head() >= limit:
            return []
        run = heappop(self._heap)[3]
        if self._heap:
            limit = min(limit, self.head())
        n = min(count, run.below(limit))
        if n < len(run.chunk):
            rest = run.part(run.chunk[n:], True)
            run.chunk = run.chunk[:n]
            self._push(rest)
        self.count -= n
        return [run]

    def present(self, wanted: Chunk) -> list[Key]:
        """Where those of the wanted that are here stand."""
        out = list[Key]()
        for entry in self._heap:
            inside = sift(entry[3].chunk, wanted)[0]
            if inside is not None:
                place = entry[3].place
                out.extend((place or lsn, lsn) for lsn in inside)
        return out
