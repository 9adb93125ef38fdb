"""Rows of integers in ascending order, where they come and go anywhere: packed columns in blocks.

8 bytes a column and row.  A row is found by halves, put in its place in a block of bounded size, and taken from the
front as slices, so no step costs more because more rows wait.  The last of the keys is a message's LSN, by which rows
are looked for in one pass over that column; of the others it knows no meaning.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.core.arena import Move, heap
from penstock.core.state.lsns import to_array
from penstock.records.chunks import Chunk, Longs
from penstock.records.compute import lsns_of

Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Row: TypeAlias = tuple[int, ...]
Block: TypeAlias = "list[array[int]] | tuple[Longs, ...]"
"""A column after the other; a tuple is in an arena and is not changed."""

BLOCK = 1024
"""Rows of a block; it is cut in two at twice as many."""

MERGE_LEAST = 16
"""So many rows for one block are merged into it at once, fewer are put in one by one."""

ALL = 1 << 62
"""More rows than there are."""

SPREAD_MOST = 4096
"""Up to so many rows are parted among the blocks as Python's tuples: cheap where a block gets one or two of them."""


class SortedRows:
    """Rows of `width` integers, of which the first `keys` are their order and the last of these an LSN, each once."""

    __slots__ = ("_blocks", "_firsts", "_keys", "_seen", "_width", "count")

    def __init__(self, width: int, keys: int) -> None:
        self._width = width
        self._keys = keys
        self._blocks: list[Block] = []
        self._firsts: list[Row] = []  # keys of the first row of each
        self._seen: dict[int, int] = {}  # by identity: rows of each block at the last look at what may be moved
        self.count = 0

    # -- in

    def add(self, row: Row) -> None:
        """Put in one row, at its place."""
        if not self._blocks:
            self._blocks.append([array("q", (value,)) for value in row])
            self._firsts.append(row[: self._keys])
            self.count += 1
            return
        key = row[: self._keys]
        self._insert(max(bisect_right(self._firsts, key) - 1, 0), key, row)

    def _insert(self, index: int, key: Row, row: Row) -> bool:
        """Put a row into this block; whether that was cut in two."""
        self.count += 1
        block = self._own(index)
        place = self._place(block, key)
        for column, value in zip(block, row, strict=True):
            column.insert(place, value)
        if not place:
            self._firsts[index] = key
        if len(block[0]) > 2 * BLOCK:
            self._cut(index)
            return True
        return False

    def _own(self, index: int) -> list[array[int]]:
        """A block that is about to change, on the heap."""
        block = self._blocks[index]
        if isinstance(block, tuple):
            self._blocks[index] = block = [heap(column) for column in block]
        return block

    def add_many(self, columns: Sequence[Ints]) -> None:
        """Put in rows in any order, a column after the other."""
        n = len(columns[0])
        if n < MERGE_LEAST:
            for row in zip(*(column.tolist() for column in columns), strict=True):
                self.add(row)
            return
        order = np.lexsort(tuple(columns[key] for key in range(self._keys - 1, -1, -1)))
        self.add_sorted([column[order] for column in columns])

    def add_sorted(self, columns: Sequence[Ints]) -> None:
        """The same of rows that ascend."""
        n = len(columns[0])
        if not self._blocks:
            self.count += n
            self._blocks = _cut_up(columns)
            self._firsts = [self._first(block) for block in self._blocks]
            return
        if n <= SPREAD_MOST:
            self._spread(columns)
            return
        start = 0
        while start < n:
            key = tuple(int(columns[k][start]) for k in range(self._keys))
            index = max(bisect_right(self._firsts, key) - 1, 0)
            end = n if index + 1 == len(self._blocks) else self._below(columns, self._firsts[index + 1], start)
            self._merge(index, [column[start:end] for column in columns])
            start = end

    def _spread(self, columns: Sequence[Ints]) -> None:
        """Bring ascending rows to their blocks."""
        rows: list[Row] = list(zip(*(column.tolist() for column in columns), strict=True))
        keys = rows if self._keys == self._width else [row[: self._keys] for row in rows]
        firsts = self._firsts
        start, n, index = 0, len(rows), 0
        while start < n:
            index = max(bisect_right(firsts, keys[start], index) - 1, 0)
            end = start + 1
            if index + 1 == len(firsts):
                end = n
            elif end < n and keys[end] < firsts[index + 1]:
                end = bisect_left(keys, firsts[index + 1], end)
            if end - start >= MERGE_LEAST:
                self._merge(index, [column[start:end] for column in columns])
            else:
                for at in range(start, end):
                    if self._insert(index, keys[at], rows[at]):
                        end = at + 1  # the rest may belong to the other half
                        break
            start = end

    def _below(self, columns: Sequence[Ints], key: Row, start: int) -> int:
        """How many of the sorted rows, from the first on, stand before `key`."""
        low, high = start, len(columns[0])
        for column, value in zip(columns, key, strict=False):
            part = column[low:high]
            left, right = np.searchsorted(part, (value, value + 1)) if value < (1 << 63) - 1 else (
                np.searchsorted(part, value), len(part)
            )  # fmt: skip
            low, high = low + int(left), low + int(right)
            if low == high:
                break
        return low

    def _merge(self, index: int, columns: Sequence[Ints]) -> None:
        """Merge sorted rows into a block."""
        self.count += len(columns[0])
        both = [
            np.concatenate((np.frombuffer(held, dtype=np.int64), more))
            for held, more in zip(self._blocks[index], columns, strict=True)
        ]
        order = np.lexsort(tuple(both[key] for key in range(self._keys - 1, -1, -1)))
        self._blocks[index : index + 1] = blocks = _cut_up([column[order] for column in both])
        self._firsts[index : index + 1] = [self._first(block) for block in blocks]

    def _first(self, block: Block) -> Row:
        return tuple(column[0] for column in block[: self._keys])

    def _cut(self, index: int) -> None:
        block = self._own(index)
        half = len(block[0]) // 2
        rest = [column[half:] for column in block]
        for column in block:
            del column[half:]
        self._blocks.insert(index + 1, rest)
        self._firsts.insert(index + 1, self._first(rest))

    def _place(self, block: Block, key: Row) -> int:
        """Where the key stands or would stand in a block."""
        low, high = 0, len(block[0])
        last = len(key) - 1
        for at, value in enumerate(key):
            column = block[at]
            left = bisect_left(column, value, low, high)
            if at == last:
                return left
            low, high = left, bisect_right(column, value, left, high)
            if low == high:
                return low
        return low

    # -- asked

    def head(self) -> Row:
        """The keys of the first row; only when there is one."""
        return self._firsts[0]

    def last(self) -> Row:
        """The keys of the last row; only when there is one."""
        block = self._blocks[-1]
        return tuple(column[-1] for column in block[: self._keys])

    def ends(self, count: int) -> tuple[int, int]:
        """The first keys of the first and of the last of the last so many rows; only when there is one."""
        for block in reversed(self._blocks):
            if count <= len(block[0]):
                return block[0][-count], self._blocks[-1][0][-1]
            count -= len(block[0])
        return self._firsts[0][0], self._blocks[-1][0][-1]

    def find(self, key: Row) -> tuple[int, int] | None:
        """Where the row with these keys is, as (block, place)."""
        index = bisect_right(self._firsts, key) - 1
        if index < 0:
            return None
        block = self._blocks[index]
        place = self._place(block, key)
        if place < len(block[0]) and all(block[at][place] == value for at, value in enumerate(key)):
            return index, place
        return None

    def blocks(self) -> Iterator[list[Ints]]:
        """All rows in order, block by block; to be looked at before anything changes."""
        for block in self._blocks:
            yield [np.frombuffer(column, dtype=np.int64) for column in block]

    def columns(self) -> list[Ints]:
        """All rows in order, as copies."""
        return [_joined([block[at] for block in self._blocks]) for at in range(self._width)]

    def copies(self) -> list[Longs]:
        """The LSNs in the order of the rows, as copies."""
        return [block[self._keys - 1][:] for block in self._blocks]

    def pieces(self) -> list[Chunk]:
        """The LSNs, each piece ascending, as copies."""
        return [to_array(np.sort(block[self._keys - 1])) for block in self.blocks()]

    def lowest(self) -> int:
        """The oldest LSN; only when there is one."""
        return min(int(block[self._keys - 1].min()) for block in self.blocks())

    def among(self, wanted: Chunk) -> list[Ints]:
        """The columns of the rows of these LSNs, in order; they stay."""
        return self._at(self._members(wanted))

    def _members(self, wanted: Chunk) -> list[Mask | None]:
        """Of each block the rows of these LSNs."""
        return [_members(block[self._keys - 1], wanted) for block in self._blocks]

    def _at(self, masks: Sequence[Mask | None]) -> list[Ints]:
        """The columns of these rows of each block, in order."""
        some = [(block, mask) for block, mask in zip(self._blocks, masks, strict=True) if mask is not None]
        if not some:
            return [np.zeros(0, dtype=np.int64)] * self._width
        return [
            np.concatenate([np.frombuffer(block[at], dtype=np.int64)[mask] for block, mask in some])
            for at in range(self._width)
        ]

    def after(self, key: Row, count: int) -> list[Ints]:
        """The columns of up to `count` rows that stand after `key` (which may be shorter than the keys are)."""
        index = max(bisect_right(self._firsts, key) - 1, 0)
        parts: list[list[Longs]] = []
        while index < len(self._blocks) and count > 0:
            block = self._blocks[index]
            start = 0
            if not parts:
                start = self._place(block, key)
                if start < len(block[0]) and all(block[at][start] == value for at, value in enumerate(key)):
                    start += 1
            part = [column[start : start + count] for column in block]
            if len(part[0]):
                parts.append(part)
                count -= len(part[0])
            index += 1
        return [_joined([part[at] for part in parts]) for at in range(self._width)]

    # -- out

    def take(self, count: int, limit: Row | None = None) -> Block | None:
        """Take up to `count` rows off the front that stand before `limit`, of one block; None when there is none."""
        if not self._blocks:
            return None
        block = self._blocks[0]
        end = min(count, len(block[0]))
        if limit is not None and end:
            end = min(end, self._place(block, limit))
        if not end:
            return None
        self.count -= end
        if end == len(block[0]):
            del self._blocks[0], self._firsts[0]
            return block
        own = self._own(0)
        out = [column[:end] for column in own]
        for column in own:
            del column[:end]
        self._firsts[0] = self._first(own)
        return out

    def take_between(self, first: Row, stop: Row, count: int = ALL) -> list[Ints]:
        """Take the rows from the keys `first` on to those before `stop`, so many at most; their columns, in order."""
        start = end = max(bisect_right(self._firsts, first) - 1, 0)
        out: list[list[array[int]]] = []
        kept: list[Block] = []
        while count and end < len(self._blocks) and self._firsts[end] < stop:
            block = self._own(end)
            end += 1
            low = self._place(block, first)
            high = min(self._place(block, stop), low + count)
            count -= high - low
            out.append([column[low:high] for column in block])
            for column in block:
                del column[low:high]
            if len(block[0]):
                kept.append(block)
        kept = _gathered(kept)
        self._blocks[start:end] = kept
        self._firsts[start:end] = [self._first(block) for block in kept]
        columns = [_joined([part[at] for part in out]) for at in range(self._width)]
        self.count -= len(columns[0])
        return columns

    def remove(self, key: Row) -> Row | None:
        """Take the row with these keys."""
        found = self.find(key)
        if found is None:
            return None
        index, place = found
        block = self._own(index)
        row = tuple(column[place] for column in block)
        self.count -= 1
        if len(block[0]) == 1:
            del self._blocks[index], self._firsts[index]
            return row
        for column in block:
            del column[place]
        if not place:
            self._firsts[index] = self._first(block)
        if len(block[0]) < BLOCK // 4 and index + 1 < len(self._blocks):
            more = self._blocks[index + 1]
            if len(block[0]) + len(more[0]) <= BLOCK:
                for column, rest in zip(block, more, strict=True):
                    column.extend(rest)
                del self._blocks[index + 1], self._firsts[index + 1]
        return row

    def extract(self, wanted: Chunk) -> list[Ints]:
        """Take the rows of these LSNs; their columns, in order."""
        masks = self._members(wanted)
        gone = self._at(masks)
        if not len(gone[0]):
            return gone
        kept: list[Block] = []
        for block, mask in zip(self._blocks, masks, strict=True):
            if mask is None:
                kept.append(block)
            elif not mask.all():
                kept.append([to_array(np.frombuffer(column, dtype=np.int64)[~mask]) for column in block])
        self._blocks = _gathered(kept)
        self._firsts = [self._first(block) for block in self._blocks]
        self.count -= len(gone[0])
        return gone

    def page(self, move: Move) -> None:
        """Move what may go to an arena: blocks that are as at the last look, but the first, which is taken from."""
        seen, self._seen = self._seen, {id(block): len(block[0]) for block in self._blocks}
        for index in range(1, len(self._blocks)):
            block = self._blocks[index]
            if move.room < len(block):
                break
            if isinstance(block, list) and seen.get(id(block)) == len(block[0]):
                moved = tuple(move.longs(column) for column in block)
                if any(isinstance(column, memoryview) for column in moved):
                    self._blocks[index] = moved


def _members(column: Longs, wanted: Chunk) -> Mask | None:
    """Which of a column of LSNs are among the wanted; None: no one is."""
    lsns = np.frombuffer(column, dtype=np.int64)
    mask = (lsns >= wanted[0]) & (lsns <= wanted[-1])
    if not isinstance(wanted, range) and len(wanted) > 1 and mask.any():
        asked = lsns_of(wanted)
        mask &= asked[np.minimum(np.searchsorted(asked, lsns), len(asked) - 1)] == lsns
    return mask if mask.any() else None


def _cut_up(columns: Sequence[Ints]) -> list[Block]:
    """Sorted rows in blocks of about one size."""
    return [
        [array("q", column[start : start + BLOCK].tobytes()) for column in columns]
        for start in range(0, len(columns[0]), BLOCK)
    ]


def _gathered(blocks: list[Block]) -> list[Block]:
    """Neighbours of which little is left, as one."""
    out: list[Block] = []
    for block in blocks:
        if out and len(out[-1][0]) + len(block[0]) <= BLOCK:
            out[-1] = [heap(held) + heap(more) for held, more in zip(out[-1], block, strict=True)]
        else:
            out.append(block)
    return out


def _joined(parts: Sequence[Longs]) -> Ints:
    if not parts:
        return np.zeros(0, dtype=np.int64)
    return np.concatenate([np.frombuffer(part, dtype=np.int64) for part in parts])
