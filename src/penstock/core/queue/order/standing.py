"""What stands where in a queue with priorities: who is first, who is behind whom, what is here at all.

While there are few priorities each has a main order of its own; with many, rank and LSN of each message stand in sorted
rows.  Nothing is put in or taken out here (`order`).

A place is one number: the rank in its high bits, the LSN below.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np

from penstock.core.queue.order.main_order import Main
from penstock.core.queue.order.pool import Pool
from penstock.core.queue.order.ranks import LOWEST, Ranks
from penstock.core.queue.order.runs import Key, packed, sorted_chunk
from penstock.core.queue.order.sorted_rows import SortedRows
from penstock.core.state.lsns import to_array
from penstock.records.chunks import Chunk, Longs, as_chunk

SINGLY = 64
"""So many messages are looked for one by one; for more everything is looked through once."""

LOW = (1 << 64) - 1
"""The bits of a place that hold an LSN."""


def place_of(rank: int, lsn: int) -> int:
    """Where a message stands among those of all ranks."""
    return (rank << 64) + lsn


class Standing(Main):
    """Messages by rank and then LSN, to be asked."""

    __slots__ = ("_levels", "_lowest", "_order", "_rows", "anyhow", "pool", "ranks")

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self.ranks = ranks
        self._levels: dict[int, Main] = {}  # by rank, none empty
        self._order: list[int] = []  # their ranks, ascending
        self._rows: SortedRows | None = None  # rank, LSN; instead of levels
        self._lowest = 0  # an LSN below which none was when it was looked for
        self.anyhow = False  # rows are asked for, however few ranks there are
        self.pool: Pool | None = None  # messages that have the lowest rank until theirs is known: nothing is taken yet

    # -- asked

    def head(self) -> int:
        """The place of the first; only when there is one."""
        return place_of(*self._first())

    def key(self) -> Key:
        """The key of the first; only when there is one."""
        rank, lsn = self._first()
        return place_of(rank, lsn), lsn

    def _first(self) -> tuple[int, int]:
        if self._rows is not None:
            if not self._rows.count:
                return LOWEST, self.ranks.firsts[0]
            rank, lsn = self._rows.head()
            return rank, lsn
        rank = self._order[0]
        return rank, self._levels[rank].head()

    def place(self, lsn: int) -> int:
        """Where a message of the queue stands or would stand, unless it took another's place."""
        return place_of(self.ranks.of(lsn), lsn)

    def places(self, chunk: Chunk) -> list[int]:
        """Where each of these stands, in their order."""
        if not len(chunk):
            return []
        return [place_of(rank, lsn) for rank, lsn in zip(self.ranks.each(chunk).tolist(), chunk, strict=True)]

    def lowest(self) -> int:
        """The oldest LSN; only when there is one."""
        if self._rows is None:
            return min(level.head() for level in self._levels.values())
        if self.pool is not None and self.pool.count:
            return self.ranks.firsts[0]  # nobody in there is older, and that will do until it is empty
        if not self._lowest or not self.has(self._lowest):
            self._lowest = self._rows.lowest()
        return self._lowest

    def _here(self, rank: int, lsn: int) -> bool:
        if self._rows is not None:
            here = self._rows.find((rank, lsn)) is not None
            return here or (self.pool is not None and rank == LOWEST and self.pool.has(lsn))
        level = self._levels.get(rank)
        return level is not None and level.has(lsn)

    def has(self, lsn: int) -> bool:
        """Whether this message is here."""
        return bool(self.count) and self.ranks.knows(lsn) and self._here(self.ranks.of(lsn), lsn)

    def stands(self, key: Key) -> bool:
        """Whether this message is here, at this place."""
        place, lsn = key
        return place & LOW == lsn and self._here(place >> 64, lsn)

    def priorities(self, most: int) -> list[tuple[int, int]]:
        """(rank, how many) of the first ranks."""
        if self._rows is None:
            return [(rank, self._levels[rank].count) for rank in self._order[:most]]
        out: dict[int, int] = {}
        for block in self._rows.blocks():
            values, counts = np.unique(block[0], return_counts=True)
            for rank, count in zip(values.tolist(), counts.tolist(), strict=True):
                out[rank] = out.get(rank, 0) + count
            if len(out) > most:
                break
        return list(out.items())[:most]

    # -- looked at

    def some(self, first: int, stop: int, count: int) -> Chunk:
        """Up to `count` messages with LSNs in [first, stop), ascending, whatever their ranks; they stay."""
        parts: list[Chunk] = []
        if self._rows is not None and stop - first > SINGLY:
            found = [lsns[(lsns >= first) & (lsns < stop)] for _, lsns in self._rows.blocks()]
            if self.pool is not None and self.pool.count:
                found.append(self.pool.between(first, stop))
            parts = [to_array(np.sort(one)) for one in found]
        elif self._rows is not None:
            parts.append(as_chunk([lsn for lsn in range(first, stop) if self.has(lsn)]))
        else:
            parts += (level.some(first, stop, count) for level in self._levels.values())
        return sorted_chunk([part for part in parts if len(part)])[: min(count, LOW)]

    def stretch_after(self, place: int, count: int, until: int) -> tuple[Chunk, int]:
        """Some of what stands behind a place: the LSNs, ascending, and the place of the last; all there is when few.

        Nothing of it stands behind `until`.

        For who only looks: messages that were taken from the middle are among them.
        """
        rank, lsn = place >> 64, place & LOW
        end, end_lsn = until >> 64, until & LOW
        if self._rows is not None:
            ranks, lsns = self._rows.after((rank, lsn), count)
            inside = int(np.count_nonzero((ranks < end) | ((ranks == end) & (lsns <= end_lsn))))
            if not inside:
                return range(0), place
            return packed(np.sort(lsns[:inside])), place_of(int(ranks[inside - 1]), int(lsns[inside - 1]))
        parts = list[Chunk]()
        left = count
        for index in range(bisect_left(self._order, rank), bisect_right(self._order, end)):
            here = self._order[index]
            part = self._levels[here].stretch(lsn if here == rank else 0, left)
            if here == end:
                part = part[: bisect_right(part, end_lsn)]
            if len(part):
                parts.append(part)
                left -= len(part)
                place = place_of(here, part[-1])
                if left <= 0 or part[-1] < self._levels[here].last():
                    break
        return (sorted_chunk(parts), place) if parts else (range(0), place)

    def behind(self, place: int) -> int | None:
        """The place of the first message behind a place; None without one."""
        rank, lsn = place >> 64, place & LOW
        if self._rows is not None:
            ranks, lsns = self._rows.after((rank, lsn), 1)
            return place_of(int(ranks[0]), int(lsns[0])) if len(lsns) else None
        for index in range(bisect_left(self._order, rank), len(self._order)):
            here = self._order[index]
            part = self._levels[here].after(lsn if here == rank else 0, 1)
            if len(part):
                return place_of(here, part[0])
        return None

    def next_ones(self, count: int) -> Chunk:
        """The first `count` to be taken, ascending by LSN; they stay."""
        if self._rows is not None:
            return packed(np.sort(self._rows.after((-(1 << 63), 0), count)[1]))
        parts = list[Chunk]()
        for rank in self._order:
            part = self._levels[rank].after(0, count)
            parts.append(part)
            count -= len(part)
            if count <= 0:
                break
        return sorted_chunk(parts)

    @property
    def in_rows(self) -> bool:
        """Whether `copies` has what is here."""
        return self._rows is not None

    def fresh(self) -> list[Chunk]:
        """What is in rows, so not in a pool, as ascending chunks in any order."""
        return [] if self._rows is None else self._rows.pieces()

    def copies(self) -> list[Longs]:
        """What is here where rows are, each as LSNs in any order; cheaper than chunks."""
        if self._rows is None:
            return []
        copies = self._rows.copies()
        return copies if self.pool is None else [*copies, *map(to_array, self.pool.pieces())]

    def whole(self) -> Iterator[Chunk]:
        """What is here, as ascending chunks in any order; to be looked at before anything changes."""
        if self._rows is None:
            for level in self._levels.values():
                yield from level.whole()
        else:
            yield from self._in_rows()

    def chunks(self) -> Iterator[Chunk]:
        """What is here, as chunks that will not change."""
        if self._rows is None:
            for level in self._levels.values():
                yield from level.chunks()
        else:
            yield from self._in_rows()

    def _in_rows(self) -> Iterator[Chunk]:
        yield from self.fresh()
        if self.pool is not None:
            yield from self.pool.chunks()
