"""The order of a queue with priorities: ready messages that were never delivered, highest priority first.

While there are few priorities each has a main order of its own, and what arrives is appended to it: ranges stay ranges.
With many, rank and LSN of each message stand in sorted rows.  Either way no step costs more because more wait.

A place is one number here: the rank in its high bits, the LSN below.  It knows no consumer, clock or log.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import chain

import numpy as np

from penstock.core.arena import Move
from penstock.core.queue.order.main_order import Main
from penstock.core.queue.order.pool import Pool
from penstock.core.queue.order.ranks import LOWEST, Ints
from penstock.core.queue.order.runs import NEVER, Run, ascending, packed, view
from penstock.core.queue.order.sorted_rows import SortedRows
from penstock.core.queue.order.standing import LOW, SINGLY, Standing
from penstock.records.chunks import Chunk, as_chunk

LEVELS_MOST = 256
"""Priorities that have a main order each; with more there are sorted rows."""

SCATTERED = 16
"""Messages of a chunk, on average, below which an array for each costs more than a step for each message."""


class PriorityOrder(Standing):
    """Messages never delivered, by rank and then LSN.  Ranks of what is appended are in `ranks` already."""

    __slots__ = ()

    def emptied(self) -> PriorityOrder:
        """A new one for the same queue."""
        new = PriorityOrder(self.ranks)
        if self.anyhow:
            new.use_rows(anyhow=True)
        return new

    # -- in

    def append(self, chunk: Chunk, solid: bool = True) -> None:
        """Put messages in their places; `solid` means nothing here."""
        n = len(chunk)
        if not n:
            return
        if not self.count and not self.anyhow:
            self._rows = None
        self.count += n
        ranks = self.ranks.each(chunk)
        if self._rows is None:
            parts = _by_rank(ranks, chunk)
            if (
                parts is not None
                and len(self._levels) + sum(rank not in self._levels for rank, _ in parts) <= LEVELS_MOST
            ):
                for rank, part in parts:
                    self._level(rank).append(part, False)
                return
            self.use_rows()
        rows = self._rows
        assert rows is not None
        if n == 1:
            rows.add((int(ranks[0]), chunk[0]))
        else:
            rows.add_many((ranks, view(chunk)))
        self._lowest = min(self._lowest, chunk[0])

    def use_rows(self, anyhow: bool = False) -> None:
        """Rows instead of levels, with `anyhow` even where these are few: then what is appended need not be newer.

        What stands in order stays in order.
        """
        self.anyhow = anyhow
        if self._rows is not None:
            return
        chunks = [(rank, chunk) for rank in self._order for chunk in self._levels[rank].whole()]
        self._rows = SortedRows(2, 2)
        self._lowest = 0
        if chunks:
            sizes = [len(chunk) for _, chunk in chunks]
            ranks: Ints = np.repeat(np.array([rank for rank, _ in chunks], dtype=np.int64), sizes)
            if len(ranks) < SCATTERED * len(chunks):
                lsns: Ints = np.fromiter(chain.from_iterable(chunk for _, chunk in chunks), np.int64, len(ranks))
            else:
                lsns = np.concatenate([view(chunk) for _, chunk in chunks])
            self._rows.add_sorted((ranks, lsns))
        self._levels, self._order = {}, []

    def use_pool(self, pool: Pool) -> None:
        """Take these up, whose ranks are `LOWEST` meanwhile; the order is new and empty."""
        self.use_rows(anyhow=True)
        self.pool = pool
        self.count = pool.count

    def _level(self, rank: int) -> Main:
        level = self._levels.get(rank)
        if level is None:
            level = self._levels[rank] = Main()
            insort(self._order, rank)
        return level

    def _drop(self, rank: int) -> None:
        """A level is empty and is forgotten."""
        del self._levels[rank]
        del self._order[bisect_left(self._order, rank)]

    # -- out

    def take(self, count: int, limit: int = NEVER) -> list[Run]:
        """Up to `count` of the first that stand before the place `limit`, in order; they are no longer here."""
        out = list[Run]()
        before = None if limit == NEVER else (limit >> 64, limit & LOW)
        while count and self.count:
            if self._rows is None:
                rank = self._order[0]
                level = self._levels[rank]
                end = NEVER
                if before is not None and rank >= before[0]:
                    if rank > before[0]:
                        break
                    end = before[1]
                runs = level.take(count, end)
                if not level.count:
                    self._drop(rank)
                if not runs:
                    break
            else:
                columns = self._rows.take(count, before)
                if columns is None:
                    break
                runs = [Run(part, False) for part in ascending(np.frombuffer(columns[1], dtype=np.int64))]
            taken = sum([len(run.chunk) for run in runs])
            count -= taken
            self.count -= taken
            for run in runs:
                run.solid = False
            out += runs
        return out

    def last_rank(self) -> int:
        """The rank behind all others; only when there is one, and no pool."""
        return self._order[-1] if self._rows is None else self._rows.last()[0]

    def take_of(self, rank: int, count: int, limit: int) -> list[Run]:
        """Up to `count` of the oldest of one rank with LSNs below `limit`; they are no longer here."""
        if self._rows is None:
            level = self._levels.get(rank)
            runs = [] if level is None else level.take(count, limit)
            if level is not None and not level.count:
                self._drop(rank)
            for run in runs:
                run.solid = False
        else:
            gone = self._rows.take_between((rank, 0), (rank, limit), count)[1]
            runs = [Run(packed(gone), False)] if len(gone) else []
        self.count -= sum([len(run.chunk) for run in runs])
        return runs

    def take_last(self, count: int, above: int) -> list[Run]:
        """Some of the last ranks behind `above`, the last first and of each the oldest: `count` messages at most."""
        rows = self._rows
        first, last = (self.last_rank(),) * 2 if rows is None else rows.ends(count)
        if rows is None or first == last:
            return self.take_of(last, count, NEVER)
        ranks, lsns = rows.take_between((max(above, first) + 1, 0), (last + 1, 0))
        self.count -= len(lsns)
        return [Run(part, False) for part in ascending(lsns[np.lexsort((lsns, ~ranks))])]

    def punch(self, lsn: int) -> Run:
        """Take one message that is here."""
        rank = self.ranks.of(lsn)
        self.count -= 1
        if self._rows is not None:
            if self._rows.remove((rank, lsn)) is None and self.pool is not None:
                self.pool.extract(range(lsn, lsn + 1))
        else:
            level = self._levels[rank]
            level.punch(lsn)
            if not level.count:
                self._drop(rank)
        return Run(range(lsn, lsn + 1), True)

    def extract(self, wanted: Chunk) -> list[Run]:
        """Take those of the wanted that are here, wherever they stand."""
        if not self.count or not len(wanted):
            return []
        if len(wanted) <= SINGLY:
            found = [lsn for lsn in wanted if self.has(lsn)]
            for lsn in found:
                self.punch(lsn)
            return [Run(as_chunk(found), False)] if found else []
        if self._rows is not None:
            gone = self._extract_rows(self._rows, wanted)
            chunks = [packed(gone)] if len(gone) else []
        else:
            chunks = [run.chunk for rank in list(self._order) for run in self._extract_level(rank, wanted)]
        self.count -= sum(len(chunk) for chunk in chunks)
        return [Run(chunk, False) for chunk in chunks]

    def _extract_rows(self, rows: SortedRows, wanted: Chunk) -> Ints:
        """Take those of the wanted out of the rows and the pool; ascending."""
        gone = rows.extract(wanted)[1]
        return np.sort(gone if self.pool is None else np.concatenate((gone, self.pool.extract(wanted))))

    def take_unranked(self, first: int, last: int) -> Ints:
        """Take what has the lowest rank and an LSN in [first, last]; only where rows are asked for anyhow.

        Of a pool all up to `last` is taken: what is judged is always the oldest in it.
        """
        rows = self._rows
        assert rows is not None
        lsns = rows.take_between((LOWEST, first), (LOWEST, last + 1))[1]
        if self.pool is not None and self.pool.count:
            lsns = np.sort(np.concatenate((lsns, self.pool.take_upto(last))))
        self.count -= len(lsns)
        return lsns

    def put_again(self, lsns: Ints) -> None:
        """Put back what was taken so, by the ranks that they have now."""
        rows = self._rows
        assert rows is not None
        if len(lsns):
            self.count += len(lsns)
            rows.add_many((self.ranks.each(packed(lsns)), lsns))
            self._lowest = min(self._lowest, int(lsns[0]))

    def _extract_level(self, rank: int, wanted: Chunk) -> list[Run]:
        level = self._levels[rank]
        runs = level.extract(wanted)
        if not level.count:
            self._drop(rank)
        return runs

    def page(self, move: Move) -> None:
        """Move what may go to an arena."""
        for level in self._levels.values():
            level.page(move)
        if self._rows is not None:
            self._rows.page(move)


def _by_rank(ranks: Ints, chunk: Chunk) -> list[tuple[int, Chunk]] | None:
    """Messages of one rank each, ascending; None when there are too many ranks for levels."""
    first = int(ranks[0])
    if len(chunk) == 1 or not (ranks != first).any():
        return [(first, chunk)]
    order = np.argsort(ranks, kind="stable")
    ordered, lsns = ranks[order], view(chunk)[order]
    ends: list[int] = np.append(np.flatnonzero(np.diff(ordered)) + 1, len(lsns)).tolist()
    if len(ends) > LEVELS_MOST:
        return None
    starts = [0, *ends[:-1]]
    return [(int(ordered[a]), packed(lsns[a:b])) for a, b in zip(starts, ends, strict=True)]


class Ranking:
    """Messages whose rank is to be worked out.  Those of the order's own pool are among them."""

    __slots__ = ("asked", "expression", "lsns", "more", "serial")

    def __init__(self, expression: str | None, lsns: Pool) -> None:
        self.expression = expression  # None: there are no ranks any more, only another order
        self.lsns = lsns  # some may be gone
        self.asked: Chunk = range(0)  # what the world is asked about
        self.serial = 0
        self.more = False  # a step of putting in order is due

    def left(self, order: Main) -> int:
        """How many there are, with some that are gone."""
        return self.lsns.count + (pool.count if (pool := pool_of(order)) is not None else 0)

    def pieces(self, order: Main) -> list[Ints]:
        """Those whose rank is not known, and some that are gone; nothing of it will change."""
        pool = pool_of(order)
        return [*self.lsns.pieces(), *(pool.pieces() if pool is not None else ())]


def pool_of(order: Main) -> Pool | None:
    """Where those of an order wait that have no rank yet."""
    return order.pool if isinstance(order, PriorityOrder) else None
