"""Rows of integers in ascending order, where they come and go anywhere: packed columns in blocks.

8 bytes a column and row.  A row is found by halves, put in its place in a block of bounded size, and taken from the
front as slices, so no step costs more because more rows wait.  It knows no meaning of its columns.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Row: TypeAlias = tuple[int, ...]

BLOCK = 1024
"""Rows of a block; it is cut in two at twice as many."""

MERGE_LEAST = 16
"""So many rows for one block are merged into it at once, fewer are put in one by one."""


class SortedRows:
    """Rows of `width` integers, of which the first `keys` are their order; no two rows have the same keys."""

    __slots__ = ("_blocks", "_firsts", "_keys", "_width", "count")

    def __init__(self, width: int, keys: int) -> None:
        self._width = width
        self._keys = keys
        self._blocks: list[list[array[int]]] = []  # each a column after the other
        self._firsts: list[Row] = []  # keys of the first row of each
        self.count = 0

    # -- in

    def add(self, row: Row) -> None:
        """Put in one row."""
        self.count += 1
        if not self._blocks:
            self._blocks.append([array("q", (value,)) for value in row])
            self._firsts.append(row[: self._keys])
            return
        key = row[: self._keys]
        index = max(bisect_right(self._firsts, key) - 1, 0)
        block = self._blocks[index]
        place = self._place(block, key)
        for column, value in zip(block, row, strict=True):
            column.insert(place, value)
        if not place:
            self._firsts[index] = key
        if len(block[0]) > 2 * BLOCK:
            self._cut(index)

    def add_many(self, columns: Sequence[Ints]) -> None:
        """Put in rows in any order, a column after the other."""
        n = len(columns[0])
        if n < MERGE_LEAST:
            for row in zip(*(column.tolist() for column in columns), strict=True):
                self.add(row)
            return
        order = np.lexsort(tuple(columns[key] for key in range(self._keys - 1, -1, -1)))
        columns = [column[order] for column in columns]
        if not self._blocks:
            self.count += n
            self._blocks = _cut_up(columns)
            self._firsts = [self._first(block) for block in self._blocks]
            return
        start = 0
        while start < n:
            key = tuple(int(columns[k][start]) for k in range(self._keys))
            index = max(bisect_right(self._firsts, key) - 1, 0)
            end = n if index + 1 == len(self._blocks) else self._below(columns, self._firsts[index + 1], start)
            part = [column[start:end] for column in columns]
            if end - start < MERGE_LEAST:
                for row in zip(*(column.tolist() for column in part), strict=True):
                    self.add(row)
            else:
                self._merge(index, part)
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

    def _first(self, block: list[array[int]]) -> Row:
        return tuple(column[0] for column in block[: self._keys])

    def _cut(self, index: int) -> None:
        block = self._blocks[index]
        half = len(block[0]) // 2
        rest = [column[half:] for column in block]
        for column in block:
            del column[half:]
        self._blocks.insert(index + 1, rest)
        self._firsts.insert(index + 1, self._first(rest))

    def _place(self, block: list[array[int]], key: Row) -> int:
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

    def copies(self, at: int) -> list[array[int]]:
        """One column, as copies of its blocks."""
        return [block[at][:] for block in self._blocks]

    def after(self, key: Row, count: int) -> list[Ints]:
        """The columns of up to `count` rows that stand after `key` (which may be shorter than the keys are)."""
        index = max(bisect_right(self._firsts, key) - 1, 0)
        parts: list[list[array[int]]] = []
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

    def take(self, count: int, limit: Row | None = None) -> list[array[int]] | None:
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
        out = [column[:end] for column in block]
        for column in block:
            del column[:end]
        self._firsts[0] = self._first(block)
        return out

    def take_between(self, first: Row, stop: Row) -> list[Ints]:
        """Take the rows from the keys `first` on up to those before `stop`; their columns, in order."""
        start = max(bisect_right(self._firsts, first) - 1, 0)
        end = bisect_left(self._firsts, stop)
        out: list[list[array[int]]] = []
        kept: list[list[array[int]]] = []
        for block in self._blocks[start:end]:
            low, high = self._place(block, first), self._place(block, stop)
            out.append([column[low:high] for column in block])
            for part in ([column[:low] for column in block], [column[high:] for column in block]):
                if len(part[0]):
                    kept.append(part)
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
        block = self._blocks[index]
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

    def sift(self, chosen: Callable[[list[Ints]], npt.NDArray[np.bool_]]) -> list[Ints]:
        """Take all rows of which this says so, block by block; their columns, in order."""
        out: list[list[Ints]] = [[] for _ in range(self._width)]
        kept: list[list[array[int]]] = []
        for block in self._blocks:
            columns = [np.frombuffer(column, dtype=np.int64) for column in block]
            mask = chosen(columns)
            if not mask.any():
                kept.append(block)
                continue
            for at, column in enumerate(columns):
                out[at].append(column[mask])
            if not mask.all():
                kept.append([array("q", column[~mask].tobytes()) for column in columns])
        self._blocks = _gathered(kept)
        self._firsts = [self._first(block) for block in self._blocks]
        gone = [np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64) for parts in out]
        self.count -= len(gone[0])
        return gone


def _cut_up(columns: Sequence[Ints]) -> list[list[array[int]]]:
    """Sorted rows as blocks."""
    return [
        [array("q", column[start : start + BLOCK].tobytes()) for column in columns]
        for start in range(0, len(columns[0]), BLOCK)
    ]


def _gathered(blocks: list[list[array[int]]]) -> list[list[array[int]]]:
    """Neighbours of which little is left, as one."""
    out: list[list[array[int]]] = []
    for block in blocks:
        if out and len(out[-1][0]) + len(block[0]) <= BLOCK:
            out[-1] = [held + more for held, more in zip(out[-1], block, strict=True)]
        else:
            out.append(block)
    return out


def _joined(parts: list[array[int]]) -> Ints:
    if not parts:
        return np.zeros(0, dtype=np.int64)
    return np.concatenate([np.frombuffer(part, dtype=np.int64) for part in parts])
