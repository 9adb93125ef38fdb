"""Runs ordered by a key of their first message, which may be cut or taken out anywhere.

What comes one by one is joined when the small runs are many, so that a million of them are some hundred runs; what has
little in common, as messages that became due each in its own moment, goes into rows (`scattered`).  It knows no
consumer, clock or log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush, nsmallest
from itertools import chain

import numpy as np

from penstock.core.arena import Move
from penstock.core.queue.order.runs import END, SMALL, Key, Run, packed, sift_runs
from penstock.core.queue.order.scattered import Scattered, Told
from penstock.core.queue.order.sorted_rows import Ints
from penstock.core.queue.settling.attempts import Tally
from penstock.records.chunks import Chunk

LOOSE_MOST = 1024
"""More small runs than this are joined, or go into rows."""

ALIKE = 4
"""As many small runs of a kind, on average, are worth a walk through all."""

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


def _pieces(lsns: Ints) -> Iterator[Chunk]:
    """Ascending LSNs in chunks of `JOINED` at most; what is dense stays one range."""
    if int(lsns[-1]) - int(lsns[0]) == len(lsns) - 1:
        yield packed(lsns)
        return
    for start in range(0, len(lsns), JOINED):
        yield packed(lsns[start : start + JOINED])


class RunHeap(ABC):
    """Runs ordered by a key of their first message, which may be cut or taken out anywhere."""

    __slots__ = ("_heap", "_kinds", "_loose", "_scattered", "_serial", "count")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Run]] = []  # key, serial, run
        self._serial = 0  # breaks ties, so that runs are never compared
        self._loose = 0  # small runs that came since they were joined last
        self._kinds: set[tuple[Tally, int, int]] = set()  # what they are, as far as that says which can be joined
        self._scattered: Scattered | None = None  # small runs of before with little in common
        self.count: int = 0

    @abstractmethod
    def stands(self, run: Run) -> int | None:
        """The first part of the key of all its messages; None: of each its LSN."""

    def key(self, run: Run) -> Key:
        """Where the run belongs among the others: the key of its first message."""
        first, stands = run.chunk[0], self.stands(run)
        return (first if stands is None else stands), first

    def push(self, run: Run) -> None:
        """Add a run at its place."""
        self.count += len(run.chunk)
        self._push(run)
        if len(run.chunk) < SMALL:
            self._loose += 1
            self._kinds.add((run.tally, run.place, run.deadline))
            if self._loose > LOOSE_MOST:
                self._make_fewer()

    def _make_fewer(self) -> None:
        """Join small runs that have all in common, if many are alike; the others go into rows, if they are many."""
        kept = joined(self.heaped()) if self._loose > ALIKE * len(self._kinds) else [*self.heaped()]
        small = [run for run in kept if len(run.chunk) < SMALL]
        if 2 * len(small) > LOOSE_MOST:
            if self._scattered is None:
                self._scattered = Scattered()
            self._scattered.put(small, [self.stands(run) for run in small])
            kept = [run for run in kept if len(run.chunk) >= SMALL]
        self._loose = 0
        self._kinds.clear()
        self._fill(kept)

    def _fill(self, runs: Iterable[Run]) -> None:
        """Have these in the heap, and no others."""
        self._heap = []
        for run in runs:
            self._serial += 1
            self._heap.append((*self.key(run), self._serial, run))
        heapify(self._heap)

    def _push(self, run: Run) -> None:
        self._serial += 1
        heappush(self._heap, (*self.key(run), self._serial, run))

    # -- asked

    def head(self) -> Key:
        """The lowest key; only when there is a run."""
        if self._scattered is None:
            return self._heap[0][:2]
        return min(self._heap[0][:2], self._scattered.head()) if self._heap else self._scattered.head()

    def lowest(self) -> int:
        """The oldest LSN; only when there is one."""
        found = [entry[3].chunk[0] for entry in self._heap]
        return min(found if self._scattered is None else [*found, self._scattered.lowest()])

    def next_ones(self, count: int) -> list[Key]:
        """Keys of the first, in order."""
        out: list[Key] = []
        for entry in nsmallest(count, self._heap):
            run, stands = entry[3], self.stands(entry[3])
            out += ((lsn if stands is None else stands, lsn) for lsn in run.chunk[:count])
        if self._scattered is not None:
            out += self._scattered.first(count)
        return sorted(out)[:count]

    @property
    def heaped_runs(self) -> int:
        """How many runs do not stand in rows."""
        return len(self._heap)

    def heaped(self) -> Iterator[Run]:
        """What does not stand in rows, in no order."""
        return (entry[3] for entry in self._heap)

    def runs(self) -> Iterator[Run]:
        """What is here, in no order."""
        yield from self.heaped()
        if self._scattered is not None:
            yield from self._scattered.runs()

    def pieces(self) -> Iterator[Chunk]:
        """The LSNs of all, as ascending chunks that will not change: cheaper than runs."""
        yield from [entry[3].chunk for entry in self._heap]
        if self._scattered is not None:
            yield from self._scattered.pieces()

    def copies(self) -> tuple[list[Run], list[Told]]:
        """The same with all that is known of them, as runs and as columns."""
        runs = [run.copy() for run in self.heaped()]
        return runs, [] if self._scattered is None else [self._scattered.told()]

    def among(self, wanted: Chunk) -> list[Run]:
        """Those of the wanted that are here, in no order; they stay."""
        if not self.count or not len(wanted):
            return []
        out = sift_runs([entry[3] for entry in self._near(wanted)], wanted)[0]
        return out if self._scattered is None else out + self._scattered.among(wanted)

    # -- out

    def take(self, count: int, limit: Key) -> list[Run]:
        """Up to `count` of the first that stand before `limit`, in order; a part of them where that is easier."""
        if not self.count or self.head() >= limit:
            return []
        rows = self._scattered
        if rows is not None and (not self._heap or rows.head() < self._heap[0][:2]):
            runs = self._left(rows.take(count, min(limit, self._heap[0][:2]) if self._heap else limit))
            self.count -= sum([len(run.chunk) for run in runs])
            return runs
        run = heappop(self._heap)[3]
        if self.count > len(run.chunk):
            limit = min(limit, self.head())
        n = min(count, self.below(run, limit))
        if n < len(run.chunk):
            rest = run.part(run.chunk[n:], True)
            run.chunk = run.chunk[:n]
            self._push(rest)
        self.count -= n
        return [run]

    def take_at(self, key: Key) -> Run:
        """Take the message with this key, which is here: cheap where it is the first, or stands in rows."""
        run = self._scattered.take_at(key) if self._scattered is not None else None
        if run is None:
            return self.extract(range(key[1], key[1] + 1))[0]
        self.count -= 1
        return self._left([run])[0]

    def below(self, run: Run, limit: Key) -> int:
        """How many of its messages, from the first on, stand before `limit`."""
        return run.below(limit)

    def extract(self, wanted: Chunk) -> list[Run]:
        """Take those of the wanted that are here, in the order of their keys."""
        if not self.count or not len(wanted):
            return []
        if len(wanted) == 1 and wanted[0] == self.head()[1]:
            return self.take(1, END)
        out = self._out_of_heap(wanted)
        if self._scattered is not None:
            out += self._left(self._scattered.extract(wanted))
        if out:
            self.count -= sum(len(run.chunk) for run in out)
            out.sort(key=self.key)
        return out

    def _out_of_heap(self, wanted: Chunk) -> list[Run]:
        """The same of the heap; what lies beside all of the wanted is not touched."""
        near = self._near(wanted)
        out, left = sift_runs([entry[3] for entry in near], wanted)
        if out:
            gone = {entry[2] for entry in near}
            self._heap = [entry for entry in self._heap if entry[2] not in gone]
            heapify(self._heap)
            for run in left:
                self._push(run)
        return out

    def _near(self, wanted: Chunk) -> list[tuple[int, int, int, Run]]:
        """What stands in the heap and reaches between the ends of the wanted."""
        first, last = wanted[0], wanted[-1]
        return [entry for entry in self._heap if entry[3].chunk[0] <= last and entry[3].chunk[-1] >= first]

    def _left(self, runs: list[Run]) -> list[Run]:
        """The same; where nothing stands in rows any more there are none."""
        if self._scattered is not None and not self._scattered.count:
            self._scattered = None
        return runs

    def page(self, move: Move) -> None:
        """Move what may go to an arena."""
        for entry in self._heap:
            run = entry[3]
            if not isinstance(run.chunk, range):
                run.chunk = move.chunk(run.chunk)
        if self._scattered is not None:
            self._scattered.page(move)
