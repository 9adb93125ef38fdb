"""What came back to a queue, or became due late, ordered by place; with priorities the highest first, then by place.

Without priorities it is runs in a heap.  With priorities rank, place, LSN and a kind stand in sorted rows; runs of one
fate are put together again as they leave.  What entered a ring at its head before there were priorities stands at its
own LSN in its level.  It knows no consumer, clock or log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import numpy as np

from penstock.core.arena import Move
from penstock.core.queue.order.main_order import Main
from penstock.core.queue.order.ranks import Ints, Ranks
from penstock.core.queue.order.run_heap import RunHeap
from penstock.core.queue.order.runs import END, NEVER, SMALL, Key, Run, all_within, packed, sift_runs, view
from penstock.core.queue.order.scattered import Told
from penstock.core.queue.order.sorted_rows import SortedRows
from penstock.core.queue.order.standing import LOW, SINGLY, place_of
from penstock.core.state.lsns import to_array
from penstock.records.chunks import Chunk
from penstock.records.kinds import HEAD


class Returned(RunHeap):
    """Ready messages that are not in the main order: what came back, and what became due.  A heap by place."""

    __slots__ = ()

    def stands(self, run: Run) -> int | None:
        """Its place as a number that sorts; None: each of its messages at its own LSN."""
        return run.where if run.place else None

    def in_order(self) -> Iterator[tuple[Sequence[int], Sequence[int] | int]]:
        """All of it, each part in the order of the queue: LSNs, and the place of all or of each; 0: its own LSN."""
        small = list[tuple[Key, int]]()
        for run in self.heaped():
            stands = self.stands(run)
            if len(run.chunk) < SMALL:
                small += (((lsn if stands is None else stands, lsn), stands or 0) for lsn in run.chunk)
            else:
                yield run.chunk, stands or 0
        if small:
            small.sort()
            yield [lsn for (_, lsn), _ in small], [place for _, place in small]
        if self._scattered is not None:
            yield from self._scattered.in_order()

    def heads(self) -> list[Run]:
        """What entered a ring at its head, in order."""
        runs = self.runs() if self._scattered is not None and self._scattered.head()[0] < 0 else self.heaped()
        return sorted((run for run in runs if run.place >= HEAD), key=self.key)

    def behind(self, key: Key, count: int) -> Iterator[Run]:
        """The first so many at least that stand behind a key and entered at no head, and some others; in no order."""
        yield from self.heaped()
        if self._scattered is not None:
            yield from self._scattered.behind(key, count)

    def present(self, wanted: Chunk) -> list[Key]:
        """Where those of the wanted that are here stand."""
        return [
            (lsn if (stands := self.stands(run)) is None else stands, lsn)
            for run in self.among(wanted)
            for lsn in run.chunk
        ]


def take_oldest(main: Main, returned: Returned, count: int, told: Callable[[Chunk], object] | None = None) -> list[Run]:
    """Up to so many of the first in both, in order; whoever is to be told hears of those that had come back."""
    out: list[Run] = []
    while count > 0 and (main.count or returned.count):
        first = main.key() if main.count else END
        if returned.count and returned.head() < first:
            part = returned.take(count, first)
            if told is not None:
                for run in part:
                    told(run.chunk)
        else:
            part = main.take(count, returned.head()[0] if returned.count else NEVER)
        count -= sum([len(run.chunk) for run in part])
        out += part
    return out


NOTHING_RETURNED = Returned()
"""Where nothing came back yet: shared, and never added to."""


class Waiting:
    """Messages in the order of a queue: never delivered and at their own places, and beside them what came back."""

    __slots__ = ("main", "returned")

    def __init__(self, main: Main, returned: Returned) -> None:
        self.main = main
        self.returned = returned

    @property
    def count(self) -> int:
        """Messages that wait here."""
        return self.main.count + self.returned.count

    def head(self) -> Key:
        """Where the first of them stands; `END` without one."""
        first = self.main.key() if self.main.count else END
        return min(first, self.returned.head()) if self.returned.count else first

    def take(self, count: int) -> list[Run]:
        """The first so many, which there are."""
        return take_oldest(self.main, self.returned, count) if self.returned.count else self.main.take(count)

    def extract(self, wanted: Chunk) -> list[Run]:
        """Take those of the wanted that are here."""
        return [*self.main.extract(wanted), *self.returned.extract(wanted)]

    def chunks(self) -> Iterator[Chunk]:
        """What was never delivered and stands at its own place, as chunks that will not change."""
        return self.main.chunks()

    def runs(self) -> Iterator[Run]:
        """The others: what came back, or became due."""
        return self.returned.runs()

    def back(self) -> Iterator[Chunk]:
        """The same as ascending chunks: cheaper than runs."""
        return self.returned.pieces()

    def pieces(self) -> Iterator[Chunk]:
        """All of them, each chunk ascending."""
        return chain(self.chunks(), self.back()) if self.returned.count else self.chunks()

    def among(self, wanted: Chunk) -> list[Run]:
        """Those of the wanted that are here, as runs; they stay."""
        fresh = [Run(chunk, False) for chunk in self.chunks()]
        return [*sift_runs(fresh, wanted)[0], *self.returned.among(wanted)]

    def copies(self) -> tuple[list[Run], list[Told]]:
        """The others than `chunks`, as runs and as columns that will not change."""
        return self.returned.copies()

    def between(self, first: int, stop: int) -> Chunk:
        """All that wait here with LSNs in [first, stop), ascending; they stay."""
        return all_within((self.main.between(first, stop), *self.back()), first, stop)

    def floor(self) -> int:
        """No message of it is older."""
        first = self.main.lowest() if self.main.count else NEVER
        return min(first, self.returned.lowest()) if self.returned.count else first

    def page(self, move: Move) -> None:
        """Move what may go to an arena."""
        self.main.page(move)
        self.returned.page(move)


class PriorityReturned(Returned):
    """Messages that came back, by rank and then place."""

    __slots__ = ("_likes", "_lowest", "_numbers", "_placed", "_rows", "ranks")

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self.ranks = ranks
        self._rows = SortedRows(4, 3)
        self._likes: list[Run] = []  # what messages of a number have in common: a place at the head too, but no chunk
        self._numbers: dict[object, int] = {}  # of tally, deadline and place at the head
        self._placed: dict[int, int] = {}  # places other than the message's own LSN, by LSN
        self._lowest = 0  # an LSN below which none was when it was looked for

    def key(self, run: Run) -> Key:
        """The key of its first message."""
        first = run.chunk[0]
        return place_of(self.ranks.of(first), place_in_level(run) or first), first

    def push(self, run: Run) -> None:
        """Add a run, by the ranks of its messages."""
        n = len(run.chunk)
        self.count += n
        self._lowest = min(self._lowest, run.chunk[0])
        place = place_in_level(run)
        kind = (run.tally, run.deadline, run.place - place)
        number = self._numbers.get(kind)
        if number is None:
            number = self._numbers[kind] = len(self._likes)
            self._likes.append(run.part(range(0), False))
        if place:
            self._placed.update((lsn, place) for lsn in run.chunk)
        if n == 1:
            lsn = run.chunk[0]
            self._rows.add((self.ranks.of(lsn), place or lsn, lsn, number))
            return
        lsns = view(run.chunk)
        places = np.full(n, place, dtype=np.int64) if place else lsns
        self._rows.add_many((self.ranks.each(run.chunk), places, lsns, np.full(n, number, dtype=np.int64)))

    def head(self) -> Key:
        """The first key; only when there is one."""
        rank, place, lsn = self._rows.head()
        return place_of(rank, place), lsn

    def lowest(self) -> int:
        """The oldest LSN; only when there is one."""
        if not self._lowest or not self.present(range(self._lowest, self._lowest + 1)):
            self._lowest = self._rows.lowest()
        return self._lowest

    def last_rank(self) -> int:
        """The rank behind all others; only when there is one."""
        return self._rows.last()[0]

    def first_of(self, rank: int) -> int:
        """The place of the first of one rank; `NEVER` without one."""
        ranks, places, *_ = self._rows.after((rank, 0), 1)
        return int(places[0]) if len(ranks) and int(ranks[0]) == rank else NEVER

    def take_of(self, rank: int, count: int, limit: int) -> list[Run]:
        """Up to `count` of the first of one rank with places below `limit`, in order; they are no longer here."""
        runs = self._as_runs(self._rows.take_between((rank, 0, 0), (rank, limit, 0), count))
        self._taken(runs)
        return runs

    def take_last(self, count: int, above: int) -> list[Run]:
        """Some of the last ranks behind `above`, the last first and of each the oldest: `count` messages at most."""
        first, last = self._rows.ends(count)
        if first == last:
            return self.take_of(last, count, NEVER)
        columns = self._rows.take_between((max(above, first) + 1, 0, 0), (last + 1, 0, 0))
        ranks, places, lsns, _ = columns
        order = np.lexsort((lsns, places, ~ranks))
        runs = self._as_runs([column[order] for column in columns])
        self._taken(runs)
        return runs

    def take(self, count: int, limit: Key) -> list[Run]:
        """Up to `count` of the first that stand before `limit`, in order; a part of them where that is easier."""
        place, lsn = limit
        columns = self._rows.take(count, (place >> 64, place & LOW, lsn) if place < END[0] else None)
        if columns is None:
            return []
        runs = self._as_runs([np.frombuffer(column, dtype=np.int64) for column in columns])
        self._taken(runs)
        return runs

    def _taken(self, runs: Sequence[Run]) -> None:
        for run in runs:
            self.count -= len(run.chunk)
            if place_in_level(run):
                for lsn in run.chunk:
                    del self._placed[lsn]
        if not self.count:
            self._likes.clear()
            self._numbers.clear()

    def _as_runs(self, columns: list[Ints]) -> list[Run]:
        """Rows as runs of ascending LSNs, in their order."""
        _, places, lsns, kinds = columns
        if len(lsns) < 2:
            return [self._run(packed(lsns), int(places[0]), int(kinds[0]))] if len(lsns) else []
        own = places == lsns
        cut = (np.diff(lsns) < 0) | (np.diff(kinds) != 0) | (own[1:] != own[:-1])
        cut |= ~own[1:] & (np.diff(places) != 0)
        ends = np.append(np.flatnonzero(cut) + 1, len(lsns)).tolist()
        out = list[Run]()
        start = 0
        for end in ends:
            out.append(self._run(packed(lsns[start:end]), int(places[start]), int(kinds[start])))
            start = end
        return out

    def _run(self, chunk: Chunk, place: int, number: int) -> Run:
        """What has all in common, also its place unless each stands at its own LSN."""
        like = self._likes[number]
        if place == chunk[0]:
            place = like.place if like.place >= HEAD else 0
        return Run(chunk, False, like.tally, place, like.deadline)

    def take_at(self, key: Key) -> Run:
        """Take the message with this key, which is here."""
        return self.extract(range(key[1], key[1] + 1))[0]

    def extract(self, wanted: Chunk) -> list[Run]:
        """Take those of the wanted that are here."""
        if not self.count or not len(wanted):
            return []
        if len(wanted) <= SINGLY:
            rows = [
                row
                for lsn in wanted
                if self.ranks.knows(lsn)
                and (row := self._rows.remove((self.ranks.of(lsn), self._placed.get(lsn, lsn), lsn))) is not None
            ]
            columns = [np.array([row[at] for row in rows], dtype=np.int64) for at in range(4)]
        else:
            columns = self._rows.extract(wanted)
        runs = self._grouped(columns)
        self._taken(runs)
        return runs

    def _grouped(self, columns: list[Ints]) -> list[Run]:
        """Rows as few runs, their order gone."""
        _, places, lsns, kinds = columns
        if len(lsns) < 2:
            return self._as_runs(columns)
        other = np.where(places == lsns, 0, places)
        order = np.lexsort((lsns, other, kinds))
        return self._as_runs([column[order] for column in columns])

    def runs(self) -> Iterator[Run]:
        """What is here, in no order."""
        if self.count:
            yield from self._grouped(self._rows.columns())

    def pieces(self) -> Iterator[Chunk]:
        """The LSNs of all, as ascending chunks that will not change."""
        return iter(self._rows.pieces())

    def copies(self) -> tuple[list[Run], list[Told]]:
        """The same with all that is known of them."""
        _, places, lsns, numbers = self._rows.columns()
        heads = np.array([like.place if like.place >= HEAD else 0 for like in self._likes], dtype=np.int64)
        deadlines = np.array([like.deadline for like in self._likes], dtype=np.int64)
        places = np.where(places == lsns, heads[numbers], places)
        return [], [Told(lsns, places, deadlines[numbers], numbers, [like.tally for like in self._likes])]

    def in_order(self) -> Iterator[tuple[Sequence[int], Sequence[int] | int]]:
        """All of it, each part in the order of the queue."""
        for _, places, lsns, _ in self._rows.blocks():
            yield to_array(lsns), to_array(np.where(places == lsns, 0, places))

    def heads(self) -> list[Run]:
        """What entered a ring at its head, before there were priorities."""
        return sorted((run for run in self.runs() if run.place >= HEAD), key=self.key)

    def behind(self, key: Key, count: int) -> Iterator[Run]:
        """All that came back, wherever it stands."""
        return self.runs()

    def among(self, wanted: Chunk) -> list[Run]:
        """Those of the wanted that are here, in no order; they stay."""
        columns = self._rows.among(wanted) if self.count and len(wanted) else []
        return self._grouped(columns) if columns and len(columns[0]) else []

    def page(self, move: Move) -> None:
        """Move what may go to an arena."""
        self._rows.page(move)

    def present(self, wanted: Chunk) -> list[Key]:
        """Where those of the wanted that are here stand."""
        out = list[Key]()
        for lsn in wanted:
            if self.ranks.knows(lsn):
                rank, place = self.ranks.of(lsn), self._placed.get(lsn, lsn)
                if self._rows.find((rank, place, lsn)) is not None:
                    out.append((place_of(rank, place), lsn))
        return out

    def next_ones(self, count: int) -> list[Key]:
        """Keys of the first, in order."""
        ranks, places, lsns, _ = self._rows.after((-(1 << 63), 0, 0), count)
        return [
            (place_of(rank, place), lsn)
            for rank, place, lsn in zip(ranks.tolist(), places.tolist(), lsns.tolist(), strict=True)
        ]


def place_in_level(run: Run) -> int:
    """Its place among those of its rank; 0: its messages' own LSNs."""
    return run.place if run.place < HEAD else 0
