"""Rows that say from which LSN on messages have which size, and blocks where sizes vary.

Each row knows the bytes before it.  These sums wrap at 2**64: differences stay exact.  It knows no body and nothing of
what comes in small batches (`sizes`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

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
        """From here on messages have this size."""
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
        """From here on these have one each."""
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
