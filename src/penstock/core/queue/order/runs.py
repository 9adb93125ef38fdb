"""Runs: LSNs with what their messages have in common, and the operations on chunks of LSNs.

A run moves through the states of a queue as a whole and is cut where it must be.  Nothing here knows an order, a
consumer, a clock or the log.

*Solid* means: between the ends of the chunk lie no other living messages of this queue, so that one LSN pair names it
in the log.  A range is solid whatever the flag says, for it has no gaps.

Leased runs may end in any order (`Lease`): found by LSN, each message in a few steps, one byte a message.  One that
lost messages from its middle keeps its chunk and marks what is gone.  Small ones are found by each of their messages;
the others stand in lanes, each ascending and without overlap, so that a bisection finds the one that may hold a message
and what was delivered again begins a new lane.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.core.queue.settling.attempts import FRESH, Tally
from penstock.core.state.lsns import chunked, stretches
from penstock.records.chunks import Chunk, as_chunk, pairs_of, united
from penstock.records.compute import distinct_numbers, lsns_of
from penstock.records.kinds import HEAD

Key: TypeAlias = tuple[int, int]
"""The order of waiting messages: (place, LSN).  A message's own place is its LSN."""

SMALL = 64
"""Ranges shorter than this are gathered in an array, so that a message costs about 8 bytes."""
PIECE = 8192
"""LSNs in an array of the main order, about."""
SPARSE = 16
"""So many times as many are looked through by halves for each of a few."""
NEVER = 1 << 62
"""Later than every LSN and every time."""
pack_pair = struct.Struct("<2q").pack
pack_number = struct.Struct("<q").pack

PAIR_BYTES = 16
END: Key = (1 << 128, 0)
"""Behind every place, with priorities or without."""
ALL = END[0]
"""The place up to which a list of a filter has looked that has looked at everything: it follows."""


class Run:
    """Messages that share tally, place and fate."""

    __slots__ = ("by", "chunk", "deadline", "granted", "place", "solid", "tally")

    def __init__(self, chunk: Chunk, solid: bool, tally: Tally = FRESH, place: int = 0, deadline: int = 0) -> None:
        self.chunk = chunk
        self.solid = solid
        self.tally = tally
        self.place = place  # 0: each at its own LSN
        self.deadline = deadline  # end of a lease, or of a delay; 0 is none
        self.granted = 0  # when it was leased, on the monotonic clock; 0: it is not, or was by an earlier process
        self.by: object = None  # on its way back: the filter's list by which it was given out, for filters alone

    def part(self, chunk: Chunk, solid: bool) -> Run:
        """Some of the messages; `solid` says that they are a slice."""
        run = Run(chunk, solid and self.solid, self.tally, self.place, self.deadline)
        run.granted, run.by = self.granted, self.by
        return run

    def copy(self) -> Run:
        """The same, which will not change with it; that it was leased is not known of it."""
        return Run(self.chunk, self.solid, self.tally, self.place, self.deadline)

    def pairs(self) -> list[int]:
        """Its LSN pairs for the log."""
        if isinstance(self.chunk, range):
            return [self.chunk.start, self.chunk.stop]
        if not self.solid and len(self.chunk) >= SMALL:
            pairs: list[int] = stretches(view(self.chunk)).reshape(-1).tolist()
            return pairs
        return pairs_of(self.chunk, self.solid)

    def pair_bytes(self) -> bytes:
        """Its LSN pairs as they stand in a record."""
        chunk = self.chunk
        if isinstance(chunk, range):
            return pack_pair(chunk.start, chunk.stop)
        if self.solid or len(chunk) < SMALL:
            pairs = self.pairs()
            return struct.pack(f"<{len(pairs)}q", *pairs)
        return stretches(view(chunk)).astype("<i8").tobytes()

    @property
    def where(self) -> int:
        """Its place as a number that sorts; only if it has one."""
        return self.place if self.place < HEAD else HEAD - self.place

    def below(self, limit: Key) -> int:
        """How many of its messages, from the first on, stand before `limit`."""
        if not self.place:
            return bisect_left(self.chunk, limit[0])
        where = self.where
        if where == limit[0]:
            return bisect_left(self.chunk, limit[1])
        return len(self.chunk) if where < limit[0] else 0

    def __repr__(self) -> str:
        return f"Run({self.chunk!r}, solid={self.solid}, {self.tally}, place={self.place}, deadline={self.deadline})"


def pairs_body(queue: int, runs: Sequence[Run]) -> bytes:
    """The body of a record about these messages: the queue's id, then the LSN pairs of each run."""
    if len(runs) == 1 and isinstance(chunk := runs[0].chunk, range):
        return struct.pack("<3q", queue, chunk.start, chunk.stop)
    return b"".join([pack_number(queue), *[run.pair_bytes() for run in runs]])


def holds(chunk: Chunk, lsn: int) -> bool:
    """Whether this is among ascending LSNs."""
    if isinstance(chunk, range):
        return lsn in chunk
    at = bisect_left(chunk, lsn)
    return at < len(chunk) and chunk[at] == lsn


view = lsns_of


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
        return united(chunks)
    return packed(distinct_numbers(np.concatenate([view(chunk) for chunk in chunks])))


FEW, TOGETHER = 8192, 1 << 16
"""Scattered LSNs that are put together with others, and so many of them."""


def in_fewer(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """All of them in no order, a few scattered ones as part of a larger chunk: whoever goes over all between the ends
    of each, as one does who adds up bytes, does so once for many.
    """
    few = array("q")
    for chunk in chunks:
        if len(chunk) >= (SMALL if isinstance(chunk, range) else FEW):
            yield chunk
            continue
        if isinstance(chunk, memoryview):
            few.frombytes(chunk.cast("B"))
        else:
            few.extend(chunk)
        if len(few) >= TOGETHER:
            yield packed(np.sort(few))
            few = array("q")
    if few:
        yield packed(np.sort(few))


def tidy(lsns: npt.NDArray[np.int64]) -> list[Chunk]:
    """Ascending LSNs cut into ranges where they are dense and arrays where they are not."""
    return [as_chunk(chunk) for chunk in chunked(lsns, SMALL, PIECE)]


def ascending(lsns: npt.NDArray[np.int64]) -> list[Chunk]:
    """LSNs in any order as chunks that ascend."""
    cuts = np.flatnonzero(np.diff(lsns) < 0) + 1
    return [packed(part) for part in np.split(lsns, cuts)] if len(lsns) else []


def within(chunk: Chunk, first: int, stop: int) -> Chunk:
    """Those of an ascending chunk in [first, stop)."""
    return chunk[bisect_left(chunk, first) : bisect_left(chunk, stop)]


def all_within(chunks: Iterable[Chunk], first: int, stop: int) -> Chunk:
    """Those of several ascending chunks in [first, stop), ascending, each once."""
    near = [chunk for chunk in chunks if len(chunk) and chunk[0] < stop and chunk[-1] >= first]
    return sorted_chunk([some for chunk in near if len(some := within(chunk, first, stop))])


def sift(chunk: Chunk, wanted: Chunk) -> tuple[Chunk | None, list[Chunk], bool]:
    """Part an ascending chunk by membership in another: (inside or None, pieces outside, all of them slices)."""
    if not len(chunk) or not len(wanted) or wanted[-1] < chunk[0] or chunk[-1] < wanted[0]:
        return None, [chunk], True
    if len(chunk) == 1:
        return (chunk, [], True) if chunk[0] in _members(wanted, chunk[0]) else (None, [chunk], True)
    if isinstance(wanted, range) or len(wanted) == 1:
        low = bisect_left(chunk, wanted[0])
        high = bisect_left(chunk, wanted[-1] + 1, low)
        return (chunk[low:high], _around(chunk, low, high), True) if low < high else (None, [chunk], True)
    return _sift_range(chunk, wanted) if isinstance(chunk, range) else _sift_array(chunk, wanted)


def without(chunk: Chunk, gone: Chunk) -> Chunk:
    """Those of an ascending chunk that are not in another."""
    return sorted_chunk(sift(chunk, gone)[1])


def sift_runs(runs: Iterable[Run], wanted: Chunk) -> tuple[list[Run], list[Run]]:
    """Part runs by membership in a chunk: (inside, outside)."""
    out: list[Run] = []
    left: list[Run] = []
    for run in runs:
        inside, outside, slices = sift(run.chunk, wanted)
        if inside is None:
            left.append(run)
        else:
            out.append(run.part(inside, slices))
            left += [run.part(part, slices) for part in outside]
    return out, left


def _around(chunk: Chunk, low: int, high: int) -> list[Chunk]:
    """What stands before and behind a slice."""
    return [part for part in (chunk[:low], chunk[high:]) if len(part)]


def _sift_range(chunk: range, wanted: Chunk) -> tuple[Chunk | None, list[Chunk], bool]:
    low, high = bisect_left(wanted, chunk.start), bisect_left(wanted, chunk.stop)
    inside = as_chunk(wanted[low:high])
    if not len(inside):
        return None, [chunk], True
    if isinstance(inside, range):
        return inside, _around(chunk, inside.start - chunk.start, inside.stop - chunk.start), True
    return inside, list(gaps(chunk, inside)), False


def _sift_array(chunk: Chunk, wanted: Chunk) -> tuple[Chunk | None, list[Chunk], bool]:
    low = bisect_left(chunk, wanted[0])  # mostly the one is a stretch of the other
    high = low + len(wanted)
    if high <= len(chunk) and chunk[low:high] == wanted:
        return wanted, _around(chunk, low, high), True
    low = bisect_left(wanted, chunk[0])
    if wanted[low : low + len(chunk)] == chunk:
        return chunk, [], True
    lsns, those = view(chunk), view(wanted)
    if len(chunk) * SPARSE < len(wanted):  # what is wanted ascends: each is looked up in it, and not all of it in these
        mask = those[np.minimum(np.searchsorted(those, lsns), len(those) - 1)] == lsns
    else:
        mask = np.isin(lsns, those, assume_unique=True)
    if not mask.any():
        return None, [chunk], True
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
    if len(holes) >= SMALL:
        yield from _many_gaps(chunk, view(holes))
        return
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


def _many_gaps(chunk: range, holes: npt.NDArray[np.int64]) -> Iterator[Chunk]:
    """The same for many holes, without a step for each."""
    starts, stops = np.append(chunk.start, holes + 1), np.append(holes, chunk.stop)
    long = np.flatnonzero(stops - starts >= SMALL).tolist()
    low, begin = chunk.start, 0
    for gap in [*long, len(holes) + 1]:
        high = chunk.stop if gap > len(holes) else int(starts[gap])
        if low < high:
            left = np.ones(high - low, dtype=np.bool_)
            left[holes[begin:gap] - low] = False
            rest = np.flatnonzero(left) + low
            if len(rest):
                short = array("q")
                short.frombytes(rest.astype(np.int64).tobytes())
                yield short
        if gap <= len(holes):
            yield range(int(starts[gap]), int(stops[gap]))
            low, begin = int(stops[gap]), gap


class Lease(Run):
    """A leased run of which some messages may be gone."""

    __slots__ = ("gone", "left")

    def __init__(self, run: Run) -> None:
        super().__init__(run.chunk, run.solid, run.tally, run.place, run.deadline)
        self.granted = run.granted
        self.gone: bytearray | memoryview[int] | None = None  # 1 for each that is not held any more; None: all are held
        self.left = len(run.chunk)  # 0: an empty shell that waits to be swept away

    def first(self) -> int:
        """The first message that is held."""
        gone = self.gone
        if gone is None:
            return self.chunk[0]
        return self.chunk[gone.find(0) if isinstance(gone, bytearray) else bytes(gone).find(0)]

    def living(self) -> Run:
        """What is held of it, as a plain run."""
        if self.gone is None:
            return self.part(self.chunk, True)
        return self.part(packed(view(self.chunk)[np.frombuffer(self.gone, dtype=np.uint8) == 0]), False)

    def lacks(self, start: int, stop: int) -> bool:
        """Whether one of these rows of its chunk is held no more."""
        return not self.left or (self.gone is not None and any(self.gone[start:stop]))

    def holding(self, wanted: Chunk) -> Chunk | None:
        """Those of the wanted that are held here; None if none is."""
        inside = sift(wanted, self.chunk)[0] if self.left else None
        if inside is None or self.gone is None:
            return inside
        lsns = view(inside)
        there = lsns[np.frombuffer(self.gone, dtype=np.uint8)[self._places(lsns)] == 0]
        return packed(there) if len(there) else None

    def _places(self, lsns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        chunk = self.chunk
        return lsns - chunk.start if isinstance(chunk, range) else np.searchsorted(view(chunk), lsns)

    def end(self) -> Run:
        """Take everything that is left."""
        run = self.living()
        self.left = 0
        return run

    def take(self, wanted: Chunk) -> Run | None:
        """Take those of the wanted that are held here; None if none is."""
        chunk, gone = self.chunk, self.gone
        if len(wanted) == 1:
            lsn = wanted[0]
            place = lsn - chunk[0] if isinstance(chunk, range) else bisect_left(chunk, lsn)
            if not (0 <= place < len(chunk)) or chunk[place] != lsn or (gone is not None and gone[place]):
                return None
            if not isinstance(gone, bytearray):
                gone = self._marks()
            gone[place] = 1
            self.left -= 1
            return self.part(wanted, True)
        inside = sift(wanted, chunk)[0]
        if inside is None:
            return None
        if gone is None and len(inside) == len(chunk):
            self.left = 0
            return self.part(chunk, True)
        if not isinstance(gone, bytearray):
            gone = self._marks()
        marks = np.frombuffer(gone, dtype=np.uint8)
        taken = view(inside)
        places = self._places(taken)
        fresh = marks[places] == 0
        if not fresh.any():
            return None
        places = places[fresh]
        marks[places] = 1
        self.left -= len(places)
        return self.part(inside if fresh.all() else packed(taken[fresh]), False)

    def _marks(self) -> bytearray:
        """`gone`, to be changed."""
        gone = self.gone
        marks = self.gone = bytearray(len(self.chunk)) if gone is None else bytearray(gone)
        return marks


class Lane:
    """Leases that ascend and do not overlap."""

    __slots__ = ("lasts", "leases")

    def __init__(self) -> None:
        self.leases: list[Lease] = []
        self.lasts: list[int] = []  # the last LSN of each, taken or not

    def add(self, lease: Lease) -> bool:
        """Put it at the end if it belongs there."""
        if self.lasts and lease.chunk[0] <= self.lasts[-1]:
            return False
        self.leases.append(lease)
        self.lasts.append(lease.chunk[-1])
        return True

    def take(self, chunk: Chunk, out: list[Run]) -> list[Chunk]:
        """Take those of the chunk that are held here; returns the others."""
        at = bisect_left(self.lasts, chunk[0])
        last, found = chunk[-1], list[Chunk]()
        while at < len(self.leases):
            lease = self.leases[at]
            if lease.chunk[0] > last:
                break
            if lease.left and (run := lease.take(chunk)) is not None:
                out.append(run)
                found.append(run.chunk)
            at += 1
        if not found:
            return [chunk]
        if len(chunk) == 1:
            return []
        return sift(chunk, sorted_chunk(found))[1]


SINGLES, LANES_MOST = 16, 16
"""A lease of fewer messages is found by each of them: in an order of priorities a lane would have one of those.  So is
one of no range that would need one more lane than these: each is asked for what is not the oldest."""


class Lanes:
    """All leases of one consumer: small ones by message, the others in lanes."""

    __slots__ = ("_lanes", "_small")

    def __init__(self) -> None:
        self._lanes: list[Lane] = []
        self._small: dict[int, Lease] = {}  # by each LSN; some may be held no more

    def add(self, lease: Lease) -> None:
        """A new grant of some messages."""
        few = len(lease.chunk) < SINGLES
        if not few and any(lane.add(lease) for lane in self._lanes):
            return
        if few or (len(self._lanes) >= LANES_MOST and not isinstance(lease.chunk, range)):
            self._small.update(dict.fromkeys(lease.chunk, lease))
        else:
            self._lanes.append(Lane())
            self._lanes[-1].add(lease)

    def take(self, chunk: Chunk, out: list[Run]) -> list[Chunk]:
        """Take those of the chunk that are held; returns the others."""
        left = [chunk]
        if self._small:
            left = self._take_one(chunk, out) if len(chunk) == 1 else self._take_small(chunk, out)
        for lane in self._lanes:
            if not left:
                break
            left = [rest for part in left for rest in lane.take(part, out)]
        return left

    def _take_one(self, one: Chunk, out: list[Run]) -> list[Chunk]:
        lease = self._small.pop(one[0], None)
        if lease is None or not lease.left or (run := lease.take(one)) is None:
            return [one]
        out.append(run)
        return []

    def _take_small(self, chunk: Chunk, out: list[Run]) -> list[Chunk]:
        small = self._small
        here = chunk if len(chunk) <= len(small) else sorted(lsn for lsn in small if holds(chunk, lsn))
        leases = dict.fromkeys(one for lsn in here if (one := small.pop(lsn, None)) is not None and one.left)
        runs = [run for one in leases if (run := one.take(chunk)) is not None]
        out += runs
        return sift(chunk, sorted_chunk([run.chunk for run in runs]))[1] if runs else [chunk]

    def sweep(self) -> None:
        """Forget those of which nothing is left."""
        self._small = {lsn: lease for lsn, lease in self._small.items() if lease.left}
        for lane in self._lanes:
            lane.leases = [lease for lease in lane.leases if lease.left]
            lane.lasts = [lease.chunk[-1] for lease in lane.leases]
        self._lanes = [lane for lane in self._lanes if lane.leases]
