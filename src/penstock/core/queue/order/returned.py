"""What came back to a queue, or became due late, ordered by place; with priorities the highest first, then by place.

Without priorities it is runs in a heap; what comes back one by one is joined when the small runs are many, so that a
million of them are some hundred runs.  With priorities rank, place, LSN and a kind stand in sorted rows; runs of one
fate are put together again as they leave.  What entered a ring at its head before there were priorities stands at its
own LSN in its level.  It knows no consumer, clock or log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain

import numpy as np

from penstock.core.arena import Move
from penstock.core.queue.order.main_order import Main
from penstock.core.queue.order.ranks import Ints, Ranks
from penstock.core.queue.order.runs import END, NEVER, SMALL, Key, Run, all_within, packed, sift, sift_runs, view
from penstock.core.queue.order.sorted_rows import SortedRows
from penstock.core.queue.order.standing import LOW, SINGLY, place_of
from penstock.core.queue.settling.attempts import Tally
from penstock.records.chunks import Chunk
from penstock.records.kinds import HEAD

LOOSE_MOST = 1024
"""More small runs than this are joined."""

ALIKE = 4
"""As many small runs of a kind, on average, are worth a walk through all."""

KINDS_MOST = 16_384
"""So many small runs without much in common are left alone."""

JOINED = 2048
"""Messages in a joined run at most: what is taken from its middle copies the rest."""


def joined(runs: Iterable[Run]) -> list[Run]:
    """The same, small ones that have all in common in one, the order within being that of their LSNs."""
    out: list[Run] = []
    alike: dict[tuple[Tally, int, int], list[Run]] = {}
    for run in runs:
        if len(run.chunk) < SMALL:
            alike.setdefault((run.tally, run.place, run.deadline), []).append(run)
        else:
            out.append(run)
    for (tally, place, deadline), some in alike.items():
        if len(some) == 1:
            out += some
        else:
            lsns = np.sort(np.fromiter(chain.from_iterable(run.chunk for run in some), np.int64))
            out += [Run(chunk, False, tally, place, deadline) for chunk in _pieces(lsns)]
    return out


class RunHeap(ABC):
    """Runs ordered by a key of their first message, which may be cut or taken out anywhere."""

    __slots__ = ("_heap", "_kinds", "_loose", "_loose_most", "_serial", "count")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Run]] = []  # key, serial, run
        self._serial = 0  # breaks ties, so that runs are never compared
        self._loose = 0  # small runs that came since they were joined last
        self._loose_most = LOOSE_MOST
        self._kinds: set[tuple[Tally, int, int]] = set()  # what they are, as far as that says which can be joined
        self.count: int = 0

    @abstractmethod
    def key(self, run: Run) -> Key:
        """Where the run belongs among the others."""

    def push(self, run: Run) -> None:
        """Add a run at its place."""
        self.count += len(run.chunk)
        self._push(run)
        if len(run.chunk) < SMALL:
            self._loose += 1
            self._kinds.add((run.tally, run.place, run.deadline))
            if self._loose > self._loose_most:
                self._join_if_worth_it()

    def _join_if_worth_it(self) -> None:
        """Join what is alike, unless few are: a walk to find that out would cost time that grows with the heap."""
        if self._loose > ALIKE * len(self._kinds):
            self._join()
        elif self._loose < KINDS_MOST:
            self._loose_most = 2 * self._loose
        else:
            self._loose, self._loose_most = 0, LOOSE_MOST
            self._kinds.clear()

    def _join(self) -> None:
        """Join small runs that have all in common."""
        kept = joined(entry[3] for entry in self._heap)
        loose = sum(len(run.chunk) < SMALL for run in kept)
        self._loose, self._loose_most = 0, max(LOOSE_MOST, 2 * loose)
        self._kinds.clear()
        self._fill(kept)

    def _fill(self, runs: Iterable[Run]) -> None:
        """Have these, and no others."""
        self._heap = []
        for run in runs:
            self._serial += 1
            self._heap.append((*self.key(run), self._serial, run))
        heapify(self._heap)

    def _push(self, run: Run) -> None:
        self._serial += 1
        heappush(self._heap, (*self.key(run), self._serial, run))

    def head(self) -> Key:
        """The lowest key; only when there is a run."""
        return self._heap[0][0], self._heap[0][1]

    def lowest(self) -> int:
        """The oldest LSN; only when there is one."""
        return min(entry[3].chunk[0] for entry in self._heap)

    def pop(self) -> Run:
        """Take the run with the lowest key."""
        run = heappop(self._heap)[3]
        self.count -= len(run.chunk)
        return run

    def extract(self, wanted: Chunk) -> list[Run]:
        """Take those of the wanted that are here, in the order of their keys."""
        if not self.count:
            return []
        out, left = sift_runs(self.runs(), wanted)
        if out:
            self.count -= sum(len(run.chunk) for run in out)
            self._fill(left)
            out.sort(key=self.key)
        return out

    def runs(self) -> Iterator[Run]:
        """What is here, in no order."""
        return (entry[3] for entry in self._heap)

    def page(self, move: Move) -> None:
        """Move what may go to an arena."""
        for entry in self._heap:
            run = entry[3]
            if not isinstance(run.chunk, range):
                run.chunk = move.chunk(run.chunk)


def _pieces(lsns: Ints) -> Iterator[Chunk]:
    """Ascending LSNs in chunks of `JOINED` at most; what is dense stays one range."""
    if int(lsns[-1]) - int(lsns[0]) == len(lsns) - 1:
        yield packed(lsns)
        return
    for start in range(0, len(lsns), JOINED):
        yield packed(lsns[start : start + JOINED])


class Returned(RunHeap):
    """Ready messages that are not in the main order: what came back, and what became due.  A heap by place."""

    __slots__ = ()

    def key(self, run: Run) -> Key:
        """The place of its first message."""
        first = run.chunk[0]
        return (run.where if run.place else first, first)

    def take(self, count: int, limit: Key) -> list[Run]:
        """Up to `count` of the oldest that stand before `limit`, as one run or none."""
        if not self.count or self.head() >= limit:
            return []
        run = heappop(self._heap)[3]
        if self._heap:
            limit = min(limit, self.head())
        n = min(count, run.below(limit))
        if n < len(run.chunk):
            rest = run.part(run.chunk[n:], True)
            run.chunk = run.chunk[:n]
            self._push(rest)
        self.count -= n
        return [run]

    def present(self, wanted: Chunk) -> list[Key]:
        """Where those of the wanted that are here stand."""
        out: list[Key] = []
        for entry in self._heap:
            inside = sift(entry[3].chunk, wanted)[0]
            if inside is not None:
                run = entry[3]
                out.extend((run.where if run.place else lsn, lsn) for lsn in inside)
        return out


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

    def pieces(self) -> Iterator[Chunk]:
        """All of them, each chunk ascending."""
        yield from self.chunks()
        yield from (run.chunk for run in self.runs())

    def between(self, first: int, stop: int) -> Chunk:
        """All that wait here with LSNs in [first, stop), ascending; they stay."""
        return all_within((self.main.between(first, stop), *(run.chunk for run in self.runs())), first, stop)

    def floor(self) -> int:
        """No message of it is older."""
        return min([part.lowest() for part in (self.main, self.returned) if part.count], default=NEVER)

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
            self._lowest = min(int(block[2].min()) for block in self._rows.blocks())
        return self._lowest

    def last_rank(self) -> int:
        """The rank behind all others; only when there is one."""
        return self._rows.last()[0]

    def first_of(self, rank: int) -> tuple[int, int] | None:
        """Place and LSN of the first of one rank; None without one."""
        ranks, places, lsns, _ = self._rows.after((rank, 0), 1)
        return (int(places[0]), int(lsns[0])) if len(ranks) and int(ranks[0]) == rank else None

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
        own = places == lsns
        cut = (np.diff(lsns) < 0) | (np.diff(kinds) != 0) | (own[1:] != own[:-1])
        cut |= ~own[1:] & (np.diff(places) != 0)
        ends = np.append(np.flatnonzero(cut) + 1, len(lsns)).tolist()
        out = list[Run]()
        start = 0
        for end in ends:
            like = self._likes[int(kinds[start])]
            place = int(places[start])
            if own[start]:
                place = like.place if like.place >= HEAD else 0
            out.append(Run(packed(lsns[start:end]), False, like.tally, place, like.deadline))
            start = end
        return out

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
            columns = [np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)]
        elif isinstance(wanted, range):  # over a crash it is wider than anybody has memory for
            columns = self._rows.sift(lambda block: (block[2] >= wanted.start) & (block[2] < wanted.stop))
        else:
            asked = view(wanted)
            columns = self._rows.sift(lambda block: np.isin(block[2], asked))
        if not columns or not len(columns[0]):
            return []
        runs = self._grouped(columns)
        self._taken(runs)
        return runs

    def _grouped(self, columns: list[Ints]) -> list[Run]:
        """Rows as few runs, their order gone."""
        _, places, lsns, kinds = columns
        other = np.where(places == lsns, 0, places)
        order = np.lexsort((lsns, other, kinds))
        return self._as_runs([column[order] for column in columns])

    def runs(self) -> Iterator[Run]:
        """What is here, in no order."""
        blocks = [[column.copy() for column in block] for block in self._rows.blocks()]
        if blocks:
            yield from self._grouped([np.concatenate([block[at] for block in blocks]) for at in range(4)])

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

    def next_ones(self, count: int) -> list[tuple[int, int]]:
        """Keys of the first, in order."""
        ranks, places, lsns, _ = self._rows.after((-(1 << 63), 0, 0), count)
        return [
            (place_of(rank, place), lsn)
            for rank, place, lsn in zip(ranks.tolist(), places.tolist(), lsns.tolist(), strict=True)
        ]


def place_in_level(run: Run) -> int:
    """Its place among those of its rank; 0: its messages' own LSNs."""
    return run.place if run.place < HEAD else 0
