"""Ranks: the priority of each living message of a queue, as one number that sorts.

A rank ascends in the order of dispatch, so the highest priority has the lowest rank.  It is worked out once, when a
message enters the queue, and kept by LSN as long as the message lives, leased and delayed ones included.  A message
costs 16 bytes, 9 where priorities are few, 1 where its neighbours in the log are of the same queue as well.

It knows no order and no consumer.  Levels are the property `priority` as an order, as RabbitMQ's `x-max-priority` has
it:

    level = min(priority, most), 0 without one

With ageing A each A of age counts as much as one level.  A message published at t has at T the worth
level + (T - t) / A; of two messages the difference is that of `level * A - t`, whatever T is, so their order is known
when they come and never changes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.core.arena import Move
from penstock.core.queue.order.pool import Pool
from penstock.core.queue.order.runs import PIECE, all_within, view
from penstock.core.state.lsns import to_array
from penstock.errors import ProtocolError
from penstock.expr import Value, compile_value
from penstock.expr.values import number
from penstock.records import properties as header_codec
from penstock.records.chunks import Chunk, Longs, as_chunk
from penstock.records.compute import distinct_numbers
from penstock.records.queue_settings import LEVELS

Ints = npt.NDArray[np.int64]

UNKNOWN = 0
"""No message's rank: what a saved state says where nothing is known."""

LOWEST = (1 << 63) - 1
"""The rank behind all others: of a value that is NULL, negative or no number."""

HIGHEST = (1 << 64) - 3
"""The highest priority that is told from lower ones; what is above counts as this."""

DEAD_MOST = 65_536
"""Of fewer nothing is forgotten that is known of messages, though all of them are gone."""


def outgrown(known: int, living: Callable[[], int]) -> bool:
    """Whether most of so many of which something is known are gone."""
    return known > DEAD_MOST and known > 2 * living() + DEAD_MOST


FORGET_BLOCKS = 4
"""Blocks from which those of messages that are gone are dropped in one step."""


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
    """Ranks of some neighbours.  A sealed block holds them as tightly as they go, and never changes."""

    __slots__ = ("codes", "lsns", "ranks", "sealed")

    def __init__(self, lsns: Chunk, ranks: Longs) -> None:
        self.lsns = lsns
        self.ranks = ranks  # with codes: the distinct ones
        self.codes: bytes | bytearray | memoryview[int] | None = None
        self.sealed = False

    def seal(self) -> None:
        self.sealed = True
        self.lsns = as_chunk(self.lsns)
        ranks = np.frombuffer(self.ranks, dtype=np.int64)
        if len(distinct_numbers(ranks[:1024])) > 256:
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
    """The rank of every living message by its LSN, in sorted blocks of packed integers."""

    __slots__ = ("_blocks", "_forget_at", "_forget_upto", "_living", "count", "firsts")

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self.firsts: list[int] = []  # first LSN of each block
        self._living: Pool | None = None  # ranks are being forgotten: who lived when that began, a portion a block
        self._forget_at = self._forget_upto = 0  # the block to look at next, going down; the newest LSN of then
        self.count = 0  # those of messages that are gone among them

    def add(self, chunk: Chunk, ranks: Sequence[int]) -> None:
        """Ranks of messages newer than all before."""
        self.count += len(chunk)
        start, n = 0, len(chunk)
        while start < n:
            tail = self._blocks[-1] if self._blocks else None
            if tail is None or tail.sealed:
                tail = _Block(array("q"), array("q"))
                self._blocks.append(tail)
                self.firsts.append(chunk[start])
            held = tail.lsns
            assert isinstance(held, array)
            assert isinstance(tail.ranks, array)
            end = min(n, start + PIECE - len(held))
            held.extend(chunk[start:end])
            tail.ranks.extend(ranks[start:end])
            if len(held) >= PIECE:
                tail.seal()
            start = end

    def of(self, lsn: int) -> int:
        """The rank of one message that was added."""
        block = self._blocks[bisect_right(self.firsts, lsn) - 1]
        lsns = block.lsns
        return block.at(lsn - lsns.start if isinstance(lsns, range) else bisect_left(lsns, lsn))

    def knows(self, lsn: int) -> bool:
        """Whether the message was added, and not forgotten."""
        index = bisect_right(self.firsts, lsn) - 1
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
        start, index = 0, bisect_right(self.firsts, chunk[0]) - 1
        while start < len(chunk):
            end = len(chunk)
            if index + 1 < len(self.firsts):
                end = bisect_left(chunk, self.firsts[index + 1], start)
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
        if isinstance(chunk, range):
            return self.between(chunk.start, chunk.stop)
        out = list[Ints]()
        lsns = view(chunk)
        first = max(bisect_right(self.firsts, chunk[0]) - 1, 0)
        for block in self._blocks[first : bisect_right(self.firsts, chunk[-1])]:
            held = view(block.lsns)
            part = lsns[slice(*np.searchsorted(lsns, (held[0], held[-1] + 1)).tolist())]
            at = np.minimum(np.searchsorted(held, part), len(held) - 1)
            out.append(part[held[at] == part])
        return as_chunk(to_array(np.concatenate(out))) if out else range(0)

    def between(self, first: int, stop: int) -> Chunk:
        """The same of all LSNs in [first, stop)."""
        blocks = self._blocks[max(bisect_right(self.firsts, first) - 1, 0) : bisect_left(self.firsts, stop)]
        return all_within((block.lsns for block in blocks), first, stop)

    def replace(self, chunk: Chunk, ranks: Sequence[int]) -> None:
        """Other ranks for messages that were added."""
        told = np.array(ranks, dtype=np.int64)
        lsns = view(chunk)
        for index in range(bisect_right(self.firsts, chunk[0]) - 1, bisect_right(self.firsts, chunk[-1])):
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

    # -- those of messages that are gone

    @property
    def forgetting(self) -> bool:
        """Whether `forget_some` has more to do."""
        return self._living is not None

    def forget_if_many(self, count: Callable[[], int], living: Callable[[], Iterable[Chunk]]) -> None:
        """Begin to forget all but those that live, and what is added from now on, in steps, if most are gone."""
        if self._living is not None or not outgrown(self.count, count):
            return
        pool = self._living = Pool(self.firsts)
        for piece in living():
            pool.put(piece)
        self._forget_at, self._forget_upto = len(self._blocks) - 1, self.last

    def forget_some(self) -> bool:
        """One step; whether there is more to do."""
        pool = self._living
        if pool is None or pool.sort_some():
            return pool is not None
        for _ in range(FORGET_BLOCKS):
            if self._forget_at < 0:
                self._living = None
                return False
            self._forget_but(self._forget_at, pool.portion(self._forget_at))
            self._forget_at -= 1
        return True

    def _forget_but(self, index: int, living: Ints) -> None:
        """Keep these of a block, and what came since; with little left it joins the one behind."""
        block = self._blocks[index]
        held = view(block.lsns)
        mask = np.isin(held, living, assume_unique=True) | (held > self._forget_upto)
        lsns, ranks = held[mask], block.values()[mask]
        self.count -= len(held) - len(lsns)
        stop = index + 1
        if stop < len(self._blocks) - 1 and len(lsns) + len(self._blocks[stop].lsns) <= PIECE:
            lsns = np.concatenate((lsns, view(self._blocks[stop].lsns)))
            ranks = np.concatenate((ranks, self._blocks[stop].values()))
            stop += 1
        elif len(lsns) == len(held):
            return
        kept = [_Block(to_array(lsns), to_array(ranks))] if len(lsns) else []
        for one in kept if stop < len(self._blocks) or len(lsns) >= PIECE else ():
            one.seal()
        self._blocks[index:stop] = kept
        self.firsts[index:stop] = [one.lsns[0] for one in kept]

    # -- many at once

    @property
    def last(self) -> int:
        """The newest LSN; 0 when there is none."""
        return self._blocks[-1].lsns[-1] if self._blocks else 0

    def level(self, lsns: Ints, rank: int) -> None:
        """One rank for ascending LSNs; the object is new."""
        self.count = len(lsns)
        for start in range(0, len(lsns), PIECE):
            part = to_array(lsns[start : start + PIECE])
            self._blocks.append(_leveled(part, rank, len(part) < PIECE))
            self.firsts.append(part[0])

    def make_level(self, rank: int) -> None:
        """The same rank for all there are."""
        self._living = None
        last = len(self._blocks) - 1
        for index, block in enumerate(self._blocks):  # new ones: somebody may be saving what was
            self._blocks[index] = _leveled(block.lsns, rank, index == last and len(block.lsns) < PIECE)

    def load(self, lsns: Ints, ranks: Ints) -> None:
        """Ranks of ascending LSNs; the object is new."""
        self.add(to_array(lsns), to_array(ranks))

    def mix(self, lsns: Ints, rank: int) -> None:
        """Messages of one rank, ascending, some of which may be older than others here."""
        n = len(lsns)
        if not n:
            return
        self._living = None
        if not self.count or int(self._blocks[-1].lsns[-1]) < int(lsns[0]):
            self.load(lsns, np.full(n, rank, dtype=np.int64))
            return
        held = np.concatenate([*(view(block.lsns) for block in self._blocks), lsns])
        ranks = np.concatenate([*(block.values() for block in self._blocks), np.full(n, rank, dtype=np.int64)])
        everything, first = np.unique(held, return_index=True)
        self._blocks, self.firsts, self.count = [], [], 0
        self.load(everything, ranks[first])

    def page(self, move: Move) -> None:
        """Move what may go to an arena: full blocks."""
        for block in self._blocks:
            if len(block.lsns) >= PIECE and move.room >= 3:
                block.lsns = move.chunk(block.lsns)
                block.ranks = move.longs(block.ranks)
                if block.codes is not None:
                    block.codes = move.marks(block.codes)

    def copy(self) -> Ranks:
        """As they are now, to be asked and not changed; blocks that are sealed are shared."""
        out = Ranks()
        out._blocks, out.firsts, out.count = self._blocks[:], self.firsts[:], self.count
        if out._blocks and not (tail := out._blocks[-1]).sealed:
            out._blocks[-1] = _Block(tail.lsns[:], tail.ranks[:])
        return out


def _leveled(lsns: Chunk, rank: int, grows: bool) -> _Block:
    """A block of one rank."""
    if grows:
        return _Block(lsns if isinstance(lsns, array) else array("q", lsns), array("q", (rank,)) * len(lsns))
    block = _Block(as_chunk(lsns), array("q", (rank,)))
    block.codes = bytes(len(lsns))
    block.sealed = True
    return block


ZERO_US = 1 << 60
"""With ageing the age of a message counts from here on back: far beyond any time, so that no worth is negative."""

MEMO_MOST = 4096
"""Different headers that are remembered within one batch."""


class Levels:
    """The order by levels, in the shape of a compiled expression."""

    needs_body = False
    needs: frozenset[str] = frozenset()

    def __init__(self, text: str) -> None:
        self.text = text
        most, ageing = text.removeprefix(LEVELS).split(",")
        self.most = int(most)
        self.ageing = int(ageing)
        if self.ageing:
            self.needs = frozenset(("time",))

    def ranks(self, properties: bytes | Sequence[bytes], count: int, times: int | Sequence[int]) -> list[int]:
        """The rank of each of `count` messages.  times: microseconds since the epoch, of all or of each."""
        if isinstance(properties, bytes):
            levels = [self.level(properties)] * count
        else:
            memo: dict[bytes, int] = {}
            levels = list[int]()
            for data in properties:
                if (level := memo.get(data)) is None:
                    level = self.level(data)
                    if len(memo) < MEMO_MOST:
                        memo[data] = level
                levels.append(level)
        if not self.ageing:
            return [LOWEST - 1 - level for level in levels]
        ageing = self.ageing
        if isinstance(times, int):
            return [rank_of(level * ageing + ZERO_US - times) for level in levels]
        return [rank_of(level * ageing + ZERO_US - time) for level, time in zip(levels, times, strict=True)]

    def level(self, properties: bytes) -> int:
        """The level of a message with this header; of a header that cannot be read 0."""
        if header_codec.plain_mode(properties) >= 0:
            return 0
        try:
            priority = header_codec.peek(properties)[1]
        except ProtocolError:
            return 0
        return min(priority or 0, self.most)


Ranking: TypeAlias = "Levels | Value"


@lru_cache(maxsize=1024)
def compile_ranking(text: str) -> Ranking:
    """What a queue's `rank_text` stands for.  ExpressionError for an expression that cannot be read."""
    return Levels(text) if text.startswith(LEVELS) else compile_value(text)
