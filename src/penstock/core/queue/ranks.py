"""Ranks: the priority of each living message of a queue, as one number that sorts.

A rank ascends in the order of dispatch, so the highest priority has the lowest rank.  It is worked out once, when a
message enters the queue, and kept by LSN as long as the message lives, leased and delayed ones included.  A message
costs 16 bytes, 9 where priorities are few, 1 where its neighbours in the log are of the same queue as well.

It knows no order, no consumer and no expression.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.core.queue.runs import PIECE, view
from penstock.core.state.durable import to_array
from penstock.expr.values import number
from penstock.records.chunks import Chunk, as_chunk

Ints = npt.NDArray[np.int64]

UNKNOWN = 0
"""No message's rank: what a saved state says where nothing is known."""

LOWEST = (1 << 63) - 1
"""The rank behind all others: of a value that is NULL, negative or no number."""

HIGHEST = (1 << 64) - 3
"""The highest priority that is told from lower ones; what is above counts as this."""

DEAD_MOST = 65_536
"""More ranks than this, and more than there are living messages, belong to messages that are gone: they are dropped."""


def rank_of(value: object) -> int:
    """The rank of what a priority expression gave: a number, or a text that spells one, without its fraction."""
    value = number(value)
    if value is None or value != value or value < 0:
        return LOWEST
    whole = HIGHEST if value > HIGHEST else int(value)
    rank = LOWEST - 1 - whole
    return rank if rank > 0 else rank - 1


def priority_of(rank: int) -> int | None:
    """The priority that a rank stands for; None for the lowest."""
    return None if rank == LOWEST else LOWEST - 1 - (rank if rank > 0 else rank + 1)


class _Block:
    """Ranks of some neighbours.  A full block holds them as tightly as they go; it is not changed in place then."""

    __slots__ = ("codes", "lsns", "ranks")

    def __init__(self, lsns: Chunk, ranks: array[int]) -> None:
        self.lsns = lsns
        self.ranks = ranks  # with codes: the distinct ones
        self.codes: bytes | None = None

    def seal(self) -> None:
        self.lsns = as_chunk(self.lsns)
        ranks = np.frombuffer(self.ranks, dtype=np.int64)
        if len(np.unique(ranks[:1024])) > 256:
            return
        distinct, codes = np.unique(ranks, return_inverse=True)
        if len(distinct) <= 256:
            self.codes = codes.astype(np.uint8).tobytes()
            self.ranks = to_array(distinct)

    def values(self) -> Ints:
        ranks = np.frombuffer(self.ranks, dtype=np.int64)
        return ranks if self.codes is None else ranks[np.frombuffer(self.codes, dtype=np.uint8)]

    def at(self, place: int) -> int:
        return self.ranks[place if self.codes is None else self.codes[place]]


class Ranks:
    """Ranks by LSN."""

    __slots__ = ("_blocks", "_firsts", "count")

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._firsts: list[int] = []  # first LSN of each block
        self.count = 0  # those of messages that are gone among them

    def add(self, chunk: Chunk, ranks: Sequence[int]) -> None:
        """Ranks of messages newer than all before."""
        self.count += len(chunk)
        start, n = 0, len(chunk)
        while start < n:
            tail = self._blocks[-1] if self._blocks else None
            if tail is None or len(tail.lsns) >= PIECE:
                tail = _Block(array("q"), array("q"))
                self._blocks.append(tail)
                self._firsts.append(chunk[start])
            held = tail.lsns
            assert isinstance(held, array)
            end = min(n, start + PIECE - len(held))
            held.extend(chunk[start:end])
            tail.ranks.extend(ranks[start:end])
            if len(held) >= PIECE:
                tail.seal()
            start = end

    def of(self, lsn: int) -> int:
        """The rank of one message that was added."""
        block = self._blocks[bisect_right(self._firsts, lsn) - 1]
        lsns = block.lsns
        return block.at(lsn - lsns.start if isinstance(lsns, range) else bisect_left(lsns, lsn))

    def knows(self, lsn: int) -> bool:
        """Whether the message was added, and not forgotten."""
        index = bisect_right(self._firsts, lsn) - 1
        if index < 0:
            return False
        lsns = self._blocks[index].lsns
        place = bisect_left(lsns, lsn)
        return place < len(lsns) and lsns[place] == lsn

    def each(self, chunk: Chunk) -> Ints:
        """The ranks of messages, all of which were added; ascending LSNs."""
        if len(chunk) == 1:
            return np.array([self.of(chunk[0])], dtype=np.int64)
        out = np.empty(len(chunk), dtype=np.int64)
        lsns = view(chunk)
        start, index = 0, bisect_right(self._firsts, chunk[0]) - 1
        while start < len(chunk):
            end = len(chunk)
            if index + 1 < len(self._firsts):
                end = bisect_left(chunk, self._firsts[index + 1], start)
            if end > start:
                block = self._blocks[index]
                held = block.lsns
                part = lsns[start:end]
                at = part - held.start if isinstance(held, range) else np.searchsorted(view(held), part)
                out[start:end] = block.values()[at]
            start, index = end, index + 1
        return out

    def among(self, chunk: Chunk) -> Chunk:
        """Those of the chunk that were added and not forgotten."""
        out = list[Ints]()
        lsns = view(chunk)
        first = max(bisect_right(self._firsts, chunk[0]) - 1, 0)
        for block in self._blocks[first : bisect_right(self._firsts, chunk[-1])]:
            held = view(block.lsns)
            low, high = np.searchsorted(held, (lsns[0], lsns[-1] + 1)).tolist()
            if isinstance(chunk, range):
                out.append(held[low:high])
            else:
                part = lsns[slice(*np.searchsorted(lsns, (held[0], held[-1] + 1)).tolist())]
                at = np.minimum(np.searchsorted(held, part), len(held) - 1)
                out.append(part[held[at] == part])
        return as_chunk(to_array(np.concatenate(out))) if out else range(0)

    def replace(self, chunk: Chunk, ranks: Sequence[int]) -> None:
        """Other ranks for messages that were added."""
        told = np.array(ranks, dtype=np.int64)
        lsns = view(chunk)
        for index in range(bisect_right(self._firsts, chunk[0]) - 1, bisect_right(self._firsts, chunk[-1])):
            block = self._blocks[index]
            held = view(block.lsns)
            low, high = np.searchsorted(lsns, (held[0], held[-1] + 1)).tolist()
            if low == high:
                continue
            values = block.values().copy()
            values[np.searchsorted(held, lsns[low:high])] = told[low:high]
            full = len(block.lsns) >= PIECE
            other = _Block(block.lsns, to_array(values))  # a new one: somebody may be saving what was
            if full or index + 1 < len(self._blocks):
                other.seal()
            else:
                other.lsns = array("q", block.lsns)
            self._blocks[index] = other

    def keep(self, living: Ints) -> None:
        """Forget all but these, ascending, each of which was added."""
        ranks = self.each(as_chunk(to_array(living))) if len(living) else living
        self._blocks, self._firsts, self.count = [], [], 0
        if len(living):
            self.load(living, ranks)

    def load(self, lsns: Ints, ranks: Ints) -> None:
        """Ranks of ascending LSNs; the object is new."""
        self.add(to_array(lsns), to_array(ranks))

    def mix(self, lsns: Ints, rank: int) -> None:
        """Messages of one rank, ascending, some of which may be older than others here."""
        n = len(lsns)
        if not n:
            return
        if not self.count or int(self._blocks[-1].lsns[-1]) < int(lsns[0]):
            self.load(lsns, np.full(n, rank, dtype=np.int64))
            return
        held = np.concatenate([*(view(block.lsns) for block in self._blocks), lsns])
        ranks = np.concatenate([*(block.values() for block in self._blocks), np.full(n, rank, dtype=np.int64)])
        everything, first = np.unique(held, return_index=True)
        self._blocks, self._firsts, self.count = [], [], 0
        self.load(everything, ranks[first])

    def copy(self) -> Ranks:
        """As they are now, to be asked and not changed; blocks that are full are shared."""
        out = Ranks()
        out._blocks, out._firsts, out.count = self._blocks[:], self._firsts[:], self.count
        if out._blocks and out._blocks[-1].codes is None and isinstance(tail := out._blocks[-1].lsns, array):
            out._blocks[-1] = _Block(tail[:], out._blocks[-1].ranks[:])
        return out
