"""Bytes of the bodies of messages by LSN: one store for all queues of a core, so that any queue knows what it holds.

A queue holds LSNs, and what they weigh is asked here, so a count of bytes is exact after any history: nothing is added
and taken away along the way.  Rows say from which LSN on messages have which size.  A row of one size holds for any
number of messages; where sizes vary, a row is a block with one small integer for each LSN.  What lies between
messages (control records, messages that are gone) has a size too, which means nothing and is never asked for.

Each row knows the bytes before it, so a range costs two searches.  These sums wrap at 2**64: differences stay exact.
It knows no queue and no body.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.records.chunks import LSN_LIMIT, Chunk
from penstock.records.compute import distinct_numbers, lsns_of
from penstock.records.message_bodies import lengths

if TYPE_CHECKING:
    from penstock.records.entries import Publishes


Ints: TypeAlias = npt.NDArray[np.int64]
Block: TypeAlias = npt.NDArray[Any]
"""Sizes of adjacent LSNs, in the smallest unsigned integers; it never changes."""

Rest: TypeAlias = "tuple[array[int], array[int], array[int], list[Block | None]]"

BLOCK = 8192
"""LSNs of a block at most: a part of one is added up each time."""

LONG = 16
"""A row takes as much memory as so many LSNs in a block."""

SLAB = 1 << 20
"""LSNs of varied sizes that are unfolded at once."""

WRAP = (1 << 64) - 1
VARIED = -1
NONE: Ints = np.zeros(0, dtype=np.int64)


class Rows:
    """Rows of one size for any number of messages, and of blocks."""

    __slots__ = ("_bases", "_blocks", "_firsts", "_loose", "_sizes")

    def __init__(self) -> None:
        self._firsts: array[int] = array("q")  # of each row, ascending
        self._sizes: array[int] = array("q")  # of each message of a row; VARIED: see its block
        self._bases: array[int] = array("Q")  # bytes before each row, modulo 2**64
        self._blocks: list[Block | None] = []
        self._loose = 0  # rows from here on were not looked at

    # -- asking

    def _each(self, lsns: Ints) -> Ints:
        if not self._firsts:
            return np.zeros(len(lsns), dtype=np.int64)
        rows = np.searchsorted(np.frombuffer(self._firsts, np.int64), lsns, side="right") - 1
        out: Ints = np.frombuffer(self._sizes, np.int64)[rows]
        if rows[0] < 0:  # nobody told of these
            out[: np.searchsorted(rows, 0)] = 0
        varied = np.flatnonzero(out == VARIED)
        if len(varied):
            at = rows[varied]
            cuts = np.concatenate(([0], np.flatnonzero(np.diff(at)) + 1, [len(at)])).tolist()
            for start, stop in pairwise(cuts):
                row = int(at[start])
                block = self._blocks[row]
                assert block is not None
                where = varied[start:stop]
                places = lsns[where] - self._firsts[row]
                out[where] = np.where(places < len(block), block[np.minimum(places, len(block) - 1)], 0)
        return out

    def _before(self, lsn: int) -> int:
        """Bytes before an LSN, modulo 2**64."""
        at = bisect_right(self._firsts, lsn) - 1
        if at < 0:
            return self._bases[0]
        block = self._blocks[at]
        if block is None:
            return self._bases[at] + (lsn - self._firsts[at]) * self._sizes[at]
        return self._bases[at] + int(block[: lsn - self._firsts[at]].sum())

    # -- more

    def _row(self, first: int, size: int) -> None:
        """Add a row: messages from here on have this size."""
        base = 0
        if self._firsts:
            block = self._blocks[-1]
            base = (first - self._firsts[-1]) * self._sizes[-1] if block is None else int(block.sum())
            base = (base + self._bases[-1]) & WRAP
        self._bases.append(base)
        self._firsts.append(first)
        self._sizes.append(size)
        self._blocks.append(None)

    def _varied(self, first: int, sizes: Ints) -> None:
        """Add a block: messages from here on have these sizes, one each."""
        low, high = int(sizes.min()), int(sizes.max())
        if low == high:
            if not self._sizes or self._sizes[-1] != low:
                self._row(first, low)
            return
        self._row(first, VARIED)
        self._blocks[-1] = _narrow(sizes, high)

    def _extend(self, firsts: Ints, sizes: Ints) -> None:
        """Rows of one size each, each another than the one before."""
        if len(sizes) and self._sizes and self._sizes[-1] == sizes[0]:
            firsts, sizes = firsts[1:], sizes[1:]
        if not len(firsts):
            return
        self._row(int(firsts[0]), int(sizes[0]))
        more = (np.diff(firsts) * sizes[:-1]).astype(np.uint64)
        self._bases.frombytes((np.cumsum(more, dtype=np.uint64) + np.uint64(self._bases[-1])).tobytes())
        self._firsts.frombytes(np.ascontiguousarray(firsts[1:], dtype=np.int64).tobytes())
        self._sizes.frombytes(np.ascontiguousarray(sizes[1:], dtype=np.int64).tobytes())
        self._blocks += [None] * (len(firsts) - 1)

    # -- form

    def _unfolded(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """The same of some rows."""
        firsts, sizes = list[Ints](), list[Ints]()
        last, n = start, stop
        mine, each = np.frombuffer(self._firsts, np.int64), np.frombuffer(self._sizes, np.int64)
        for at in (np.flatnonzero(each[start:stop] == VARIED) + start).tolist():
            if last < at:
                firsts.append(mine[last:at])
                sizes.append(each[last:at])
            block = self._blocks[at]
            assert block is not None
            turns = np.flatnonzero(np.concatenate(([True], block[1:] != block[:-1])))
            firsts.append(turns + self._firsts[at])
            sizes.append(block[turns].astype(np.int64))
            last = at + 1
        if last < n:
            firsts.append(mine[last:n])
            sizes.append(each[last:n])
        if not firsts:
            return NONE, NONE
        places, values = np.concatenate(firsts), np.concatenate(sizes)
        turns = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))
        return places[turns], values[turns]

    def _pack(self) -> None:
        """Make blocks of short rows and larger ones of small blocks; the last row stays, for it may go on."""
        start, stop = self._loose, len(self._firsts) - 1
        if stop - start < LONG:
            return
        firsts, sizes = self._unfolded(start, stop)
        spans = np.diff(firsts, append=self._firsts[stop])
        rest = self._cut(start, stop)
        short = np.concatenate(([False], spans < LONG, [False]))
        edges = np.flatnonzero(short[1:] != short[:-1])
        done = 0
        for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            if end - begin < LONG:
                continue
            self._extend(firsts[done:begin], sizes[done:begin])
            first, each = int(firsts[begin]), np.repeat(sizes[begin:end], spans[begin:end])
            for at in range(0, len(each), BLOCK):
                self._varied(first + at, each[at : at + BLOCK])
            done = end
        self._extend(firsts[done:], sizes[done:])
        self._loose = len(self._firsts)
        self._join(rest)

    def _slabs(self) -> Iterator[tuple[int, int]]:
        """Rows that unfold to about `SLAB` LSNs, one part after the other."""
        start, held = 0, 0
        for at, block in enumerate(self._blocks):
            held += 1 if block is None else len(block)
            if held >= SLAB:
                yield start, at + 1
                start, held = at + 1, 0
        if start < len(self._blocks):
            yield start, len(self._blocks)

    def _drop(self, count: int) -> None:
        del self._firsts[:count], self._sizes[:count], self._bases[:count], self._blocks[:count]
        self._loose = max(self._loose - count, 0)

    def _cut(self, start: int, stop: int) -> Rest:
        """Take away all rows from `start` on; those from `stop` on are to be joined again."""
        rest = self._firsts[stop:], self._sizes[stop:], self._bases[stop:], self._blocks[stop:]
        del self._firsts[start:], self._sizes[start:], self._bases[start:], self._blocks[start:]
        return rest

    def _join(self, rest: Rest) -> None:
        firsts, sizes, bases, blocks = rest
        if not firsts:
            return
        shift = np.uint64(((self._before(firsts[0]) if self._firsts else 0) - bases[0]) & WRAP)
        self._bases.frombytes((np.frombuffer(bases, np.uint64) + shift).tobytes())
        self._firsts += firsts
        self._sizes += sizes
        self._blocks += blocks


def _narrow(sizes: Ints, most: int) -> Block:
    """In the smallest unsigned integers that take them."""
    return sizes.astype(
        np.uint8 if most < 1 << 8 else np.uint16 if most < 1 << 16 else np.uint32 if most < 1 << 32 else np.uint64
    )


AS_BLOCK = 1024
"""Messages of one batch from which they are a block at once, if their sizes vary."""

NEW_MOST = 4096
"""Messages of smaller batches that wait to become rows together."""

LOOSE_MOST = 256
"""Rows that came since the last look at what is better a block."""

SMALL = 1 << 16
WORTH = 8
"""It may take so many bytes of memory in any case, and so many for each living message, before it is cut down."""


class Sizes(Rows):
    """LSN -> bytes of the body, of every message that some queue may still ask for."""

    __slots__ = ("_kept", "_new", "_spans")

    def __init__(self) -> None:
        super().__init__()
        self._new: list[int] = []  # sizes of what came in small batches and is in no row yet
        self._spans: list[int] = []  # of each of these batches the first LSN, then how many they are
        self._kept = 0  # bytes of memory that the last `only` left

    def __len__(self) -> int:
        self._settle()
        return len(self._firsts)

    def __repr__(self) -> str:
        return f"Sizes({len(self)} rows, {self.nbytes} bytes)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sizes):
            return NotImplemented
        mine, others = self.runs(), other.runs()
        return np.array_equal(mine[0], others[0]) and np.array_equal(mine[1], others[1])

    __hash__ = None  # type: ignore[assignment]  # it changes

    @property
    def nbytes(self) -> int:
        self._settle()
        return 32 * len(self._firsts) + sum(block.nbytes + 112 for block in self._blocks if block is not None)

    def copy(self) -> Sizes:
        """As it is now.  Any thread may ask a copy that nobody adds to."""
        out = Sizes()
        out.become(self)
        return out

    def become(self, other: Sizes) -> None:
        """Hold the same as another one does now."""
        other._settle()
        self._new, self._spans = [], []
        self._firsts, self._sizes, self._bases = other._firsts[:], other._sizes[:], other._bases[:]
        self._blocks, self._loose, self._kept = other._blocks[:], other._loose, other._kept

    # -- asking

    def total(self, chunk: Chunk) -> int:
        """Bytes of all messages of a chunk."""
        n = len(chunk)
        if self._new:
            self._settle()
        if not n or not self._firsts:
            return 0
        firsts = self._firsts
        at = bisect_right(firsts, chunk[0]) - 1
        if at >= 0 and (at + 1 == len(firsts) or chunk[-1] < firsts[at + 1]):  # all in one row
            block = self._blocks[at]
            if block is None:
                return n * self._sizes[at]
            if isinstance(chunk, range):
                return int(block[chunk.start - firsts[at] : chunk.stop - firsts[at]].sum())
            return int(block[np.frombuffer(chunk, np.int64) - firsts[at]].sum())
        if isinstance(chunk, range):
            return (self._before(chunk.stop) - self._before(chunk.start)) & WRAP
        last = bisect_right(firsts, chunk[-1])
        if at >= 0 and (last - at) * LONG <= n:
            return self._by_row(np.frombuffer(chunk, np.int64), at, last)
        return int(self.of(chunk).sum())

    def _by_row(self, lsns: Ints, low: int, high: int) -> int:
        """Bytes of scattered messages, many to each of the rows in [low, high) that have them: a fifth of the cost."""
        firsts = np.frombuffer(self._firsts, np.int64)[low:high]
        cuts = [0, *np.searchsorted(lsns, firsts[1:]).tolist(), len(lsns)]
        total = 0
        for row, start, stop in zip(range(low, high), cuts, cuts[1:], strict=False):
            block = self._blocks[row]
            if block is None:
                total += (stop - start) * self._sizes[row]
            elif start < stop:
                places = lsns[start:stop] - self._firsts[row]
                total += int(block[places[: np.searchsorted(places, len(block))]].sum())
        return total

    def of(self, chunk: Chunk) -> Ints:
        """Shape (len,): bytes of each message of a chunk, which is ascending."""
        if not len(chunk):
            return NONE
        self._settle()
        return self._each(lsns_of(chunk))

    # -- telling

    def add(self, first: int, batch: Publishes) -> None:
        """A batch was stored, whose first message has this LSN; above all before."""
        bodies = batch.bodies
        if not isinstance(bodies, list):
            each = lengths(bodies)
            last = int(each[0])
            if not (each == last).all():
                self._at_once(first, each)
            elif self._new or not self._sizes or self._sizes[-1] != last:
                self._settle()
                self._row(first, last)
            return
        n = len(bodies)
        if n >= AS_BLOCK:
            each = np.fromiter(map(len, bodies), np.int64, n)
            self._at_once(first, each)
            return
        sizes, new = self._sizes, self._new
        if n == 1:
            size = len(bodies[0])
            if not new and sizes and sizes[-1] == size:
                return
            new.append(size)
        else:
            told = [*map(len, bodies)]
            if not new and sizes and told.count(sizes[-1]) == n:
                return
            new += told
        self._spans += (first, n)
        if len(new) >= NEW_MOST:
            self._settle()

    def _at_once(self, first: int, each: Ints) -> None:
        """A large batch is blocks at once."""
        self._settle()
        whole = self._loose >= len(self._firsts) - 1
        for at in range(0, len(each), BLOCK):
            self._varied(first + at, each[at : at + BLOCK])
        if whole:
            self._loose = len(self._firsts)

    def _settle(self) -> None:
        """Messages that came in small batches become rows."""
        if not self._new:
            return
        sizes, spans = np.array(self._new, dtype=np.int64), np.array(self._spans, dtype=np.int64)
        self._new, self._spans = [], []
        firsts, counts = spans[::2], spans[1::2]
        lsns = np.repeat(firsts - (np.cumsum(counts) - counts), counts) + np.arange(len(sizes))
        self._add_rows(lsns, sizes)

    def add_rows(self, lsns: Ints, sizes: Ints) -> None:
        """Messages, ascending and above all before, and what each has."""
        if len(lsns):
            self._settle()
            self._add_rows(lsns, sizes)

    def _add_rows(self, lsns: Ints, sizes: Ints) -> None:
        turns = np.flatnonzero(np.concatenate(([True], sizes[1:] != sizes[:-1])))
        self._extend(lsns[turns], sizes[turns])
        if len(self._firsts) - self._loose > LOOSE_MOST:
            self._pack()

    def add_older(self, lsns: Ints, sizes: Ints) -> None:
        """Messages, ascending, wherever they lie among the others; some may be known."""
        if not len(lsns):
            return
        self._settle()
        if not self._firsts:
            self._add_rows(lsns, sizes)
            return
        low = max(bisect_right(self._firsts, int(lsns[0])) - 1, 0)
        high = bisect_right(self._firsts, int(lsns[-1]) + 1)
        firsts, old = self._unfolded(low, high)
        known = Sizes()
        if len(firsts):
            known._extend(firsts, old)
        after = lsns + 1  # what follows one of these has the size it had
        places = np.concatenate((firsts, after, lsns))
        values = np.concatenate((old, known._each(after), sizes))
        order = np.argsort(places, kind="stable")  # of equal places the one that is told here is the last
        places, values = places[order], values[order]
        final = np.concatenate((places[1:] != places[:-1], [True]))
        rest = self._cut(low, high)
        self._extend(places[final], values[final])
        self._loose = min(self._loose, low)
        self._join(rest)

    # -- form

    def rows(self) -> tuple[Ints, Ints, list[Block]]:
        """From which LSN on what holds, the size of each message there or -1 for a block, and the blocks in order."""
        self.pack()
        blocks = [block for block in self._blocks if block is not None]
        return np.array(self._firsts, dtype=np.int64), np.array(self._sizes, dtype=np.int64), blocks

    def load_rows(self, firsts: Ints, sizes: Ints, blocks: Sequence[Block]) -> None:
        """Take up what `rows` said; nothing is known yet."""
        self._firsts.frombytes(firsts.tobytes())
        self._sizes.frombytes(sizes.tobytes())
        self._blocks += [None] * len(firsts)
        more = np.diff(firsts, append=firsts[-1:]) * sizes
        for at, block in zip(np.flatnonzero(sizes == VARIED).tolist(), blocks, strict=True):
            self._blocks[at] = block
            more[at] = int(block.sum())
        bases = np.cumsum(more.astype(np.uint64), dtype=np.uint64)
        self._bases.frombytes(np.concatenate((np.zeros(1, dtype=np.uint64), bases[:-1])).tobytes())
        self._loose = len(firsts)

    def runs(self) -> tuple[Ints, Ints]:
        """From which LSN on messages have which size, each another than the one before."""
        self._settle()
        return self._unfolded(0, len(self._firsts))

    def pack(self) -> None:
        """Store the rows in as little memory as possible."""
        self._settle()
        self._pack()

    def forget(self, floor: int) -> None:
        """Drop the sizes of messages below this LSN."""
        self._settle()
        at = bisect_right(self._firsts, floor) - 1
        if at > 0:
            self._drop(at)

    def wasteful(self, count: int) -> bool:
        """Whether `only` would save enough memory, when so many messages live."""
        return self.nbytes > max(SMALL + WORTH * count, 2 * self._kept)

    def replace_upto(self, last: int, kept: Sizes) -> None:
        """Keep, of the messages up to this LSN, only those that `kept` has."""
        self._settle()
        high = bisect_right(self._firsts, last)
        later = Sizes()
        if high:
            first, block = last + 1, self._blocks[high - 1]
            if block is None:
                later._row(first, self._sizes[high - 1])
            elif first - self._firsts[high - 1] < len(block):
                later._varied(first, block[first - self._firsts[high - 1] :].astype(np.int64))
        later._join(self._cut(0, high))
        self.become(kept)
        self._join((later._firsts, later._sizes, later._bases, later._blocks))

    def only(self, pairs: Ints) -> Sizes:
        """A store of the messages in these ascending, disjoint LSN pairs [a, b), shape (n, 2), and no others."""
        self._settle()
        out = Sizes()
        for start, stop in self._slabs():
            firsts, sizes = self._unfolded(start, stop)
            low = int(firsts[0])
            high = self._firsts[stop] if stop < len(self._firsts) else LSN_LIMIT
            touching = pairs[np.searchsorted(pairs[:, 1], low, side="right") : np.searchsorted(pairs[:, 0], high)]
            if not len(touching):
                continue
            begins = np.maximum(touching[:, 0], low)
            begun, ended = (np.searchsorted(touching[:, side], firsts, side="right") for side in (0, 1))
            inside = begun > ended
            places = distinct_numbers(np.concatenate((begins, firsts[inside])))
            values = sizes[np.searchsorted(firsts, places, side="right") - 1]
            turns = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))
            out._extend(places[turns], values[turns])
            if len(out) - out._loose > BLOCK:
                out._pack()
        out._pack()
        out._kept = out.nbytes
        return out
