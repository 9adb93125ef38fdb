"""What each message gave to a view, by position, for as long as the message lives.

A message is available, away (leased, delayed) or inactive (beyond the target depth): what it gave is kept meanwhile, so
that a return needs no body.
Positions ascend; they stand in blocks of at most `BLOCK`, with the values as tightly as their kind allows.  A message
costs some 20 bytes and 8 a number, more for texts.  Owns positions, states and values; refuses to know what they mean.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, cast

from penstock.expr.values import Value

BLOCK = 4096
"""Messages in a block at most."""

SPARSE = 4
SQUEEZED = 64
"""A block of at least `SQUEEZED` is rewritten when less than one in `SPARSE` of its messages is left."""

GONE, AVAILABLE, AWAY, INACTIVE = 0, 1, 2, 3

Values: TypeAlias = Sequence[Value]


class Block:
    """Neighbours.  `columns` has one sequence of values for each input that is kept."""

    __slots__ = ("columns", "groups", "living", "lsns", "states")

    def __init__(self, width: int) -> None:
        self.lsns = array("q")
        self.groups = array("q")
        self.states = bytearray()
        self.columns: list[Values] = [[] for _ in range(width)]
        self.living = 0

    def seal(self) -> None:
        """No more come: numbers are packed."""
        self.columns = [packed(column) for column in self.columns]

    def squeeze(self) -> None:
        """Let go what is gone."""
        kept = [row for row, state in enumerate(self.states) if state]
        self.lsns = array("q", [self.lsns[row] for row in kept])
        self.groups = array("q", [self.groups[row] for row in kept])
        self.states = bytearray(self.states[row] for row in kept)
        self.columns = [_some(column, kept) for column in self.columns]


def _some(values: Values, rows: Sequence[int]) -> Values:
    found = [values[row] for row in rows]
    return packed(found) if isinstance(values, array) else found


def packed(values: Values) -> Values:
    """Integers or doubles as an array; anything else as it is."""
    kinds = set(map(type, values))
    if kinds == {int}:
        try:
            return array("q", cast("list[int]", values))
        except OverflowError:
            return values
    if kinds == {float}:
        return array("d", cast("list[float]", values))
    return values


Change: TypeAlias = "Callable[[Block, Sequence[int], int], None]"
"""Told of rows of a block that became available (+1) or are no longer (-1)."""

Forget: TypeAlias = "Callable[[Block, Sequence[int]], None]"
"""Told of rows of a block that are gone for good, after `Change`."""


class Contributions:
    """All blocks of a view, oldest first."""

    __slots__ = ("_blocks", "_firsts", "_width", "count")

    def __init__(self, width: int) -> None:
        self._width = width
        self._blocks: list[Block] = []
        self._firsts: list[int] = []
        self.count = 0  # living messages

    def add(
        self, lsns: Sequence[int], groups: Sequence[int], columns: Sequence[Values], states: bytes, change: Change
    ) -> None:
        """Messages newer than all before, each in its state."""
        start, n = 0, len(lsns)
        self.count += n
        while start < n:
            block = self._blocks[-1] if self._blocks else None
            if block is None or len(block.lsns) >= BLOCK:
                if block is not None:
                    block.seal()
                block = Block(self._width)
                self._blocks.append(block)
                self._firsts.append(lsns[start])
            end = min(n, start + BLOCK - len(block.lsns))
            first = len(block.lsns)
            block.lsns.extend(lsns[start:end])
            block.groups.extend(groups[start:end])
            block.states.extend(states[start:end])
            block.living += end - start
            for held, column in zip(block.columns, columns, strict=True):
                held.extend(column[start:end])  # type: ignore[attr-defined]  # an open block has lists
            rows: Sequence[int] = range(first, first + end - start)
            if states.count(AVAILABLE, start, end) < end - start:
                rows = [row for row in rows if block.states[row] == AVAILABLE]
            if rows:
                change(block, rows, 1)
            start = end

    def move(self, pairs: Iterable[int], state: int, change: Change, forget: Forget) -> None:
        """Living messages in the half-open spans a, b, a, b ... are now in this state.

        AVAILABLE is told of those that were away; INACTIVE means that those that were inactive are available.
        """
        ends = iter(pairs)
        dead = False
        for low, high in zip(ends, ends, strict=True):
            at = max(bisect_right(self._firsts, low) - 1, 0)
            while at < len(self._blocks) and self._firsts[at] < high:
                dead |= self._move(self._blocks[at], low, high, state, change, forget)
                at += 1
        if dead:
            kept = [block for block in self._blocks if block.living]
            self._blocks = kept
            self._firsts = [block.lsns[0] for block in kept]

    def _move(self, block: Block, low: int, high: int, state: int, change: Change, forget: Forget) -> bool:
        """Whether nothing is left of the block."""
        states = block.states
        span = range(bisect_left(block.lsns, low), bisect_left(block.lsns, high))
        if state in (AVAILABLE, INACTIVE):
            before = AWAY if state == AVAILABLE else INACTIVE
            rows = [row for row in span if states[row] == before]
            for row in rows:
                states[row] = AVAILABLE
            if rows:
                change(block, rows, 1)
            return False
        rows = [row for row in span if states[row] == AVAILABLE]
        living = [row for row in span if states[row]]
        for row in living:
            states[row] = state
        if rows:
            change(block, rows, -1)
        if state == AWAY:
            return False
        if living:
            forget(block, living)
            self._end(block, len(living))
        return not block.living

    def _end(self, block: Block, count: int) -> None:
        """So many messages of a block are gone for good."""
        block.living -= count
        self.count -= count
        if 0 < block.living * SPARSE < len(block.lsns) and len(block.lsns) >= SQUEEZED:
            block.squeeze()

    def measure(self, low: int, high: int, most: int) -> tuple[int, int]:
        """How far from `low` at most so many messages go, and how many: (`high`, all of them) where that is enough."""
        at = max(bisect_right(self._firsts, low) - 1, 0)
        rows = 0
        while at < len(self._blocks) and self._firsts[at] < high:
            lsns = self._blocks[at].lsns
            start, stop = bisect_left(lsns, low), bisect_left(lsns, high)
            if rows + stop - start > most:
                return lsns[start + most - rows], most
            rows += stop - start
            at += 1
        return high, rows

    def find(self, lsn: int) -> tuple[Block, int] | None:
        """Where an available message stands; None when it is not available."""
        at = bisect_right(self._firsts, lsn) - 1
        if at < 0:
            return None
        block = self._blocks[at]
        row = bisect_left(block.lsns, lsn)
        there = row < len(block.lsns) and block.lsns[row] == lsn and block.states[row] == AVAILABLE
        return (block, row) if there else None
