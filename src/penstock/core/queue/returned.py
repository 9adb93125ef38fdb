"""What came back to a queue, or became due late: runs in a heap, ordered by place.

It knows no consumer, clock or log.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from penstock.core.queue.runs import Key, Run, sift
from penstock.records.chunks import Chunk


class RunHeap:
    """Runs ordered by a key of their first message, which may be cut or taken out anywhere."""

    __slots__ = ("_heap", "_serial", "count")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Run]] = []  # key, serial, run
        self._serial = 0  # breaks ties, so that runs are never compared
        self.count: int = 0

    def key(self, run: Run) -> Key:
        """Where the run belongs."""
        raise NotImplementedError

    def push(self, run: Run) -> None:
        """Add a run."""
        self.count += len(run.chunk)
        self._push(run)

    def _push(self, run: Run) -> None:
        self._serial += 1
        heappush(self._heap, (*self.key(run), self._serial, run))

    def head(self) -> Key:
        """The lowest key; only when there is a run."""
        return self._heap[0][0], self._heap[0][1]

    def pop(self) -> Run:
        """Take the run with the lowest key."""
        run = heappop(self._heap)[3]
        self.count -= len(run.chunk)
        return run

    def extract(self, wanted: Chunk) -> list[Run]:
        """Take those of the wanted that are here, in the order of their keys."""
        if not self.count:
            return []
        out = list[Run]()
        left = list[Run]()
        for entry in self._heap:
            run = entry[3]
            inside, outside, slices = sift(run.chunk, wanted)
            if inside is None:
                left.append(run)
                continue
            out.append(run.part(inside, slices))
            self.count -= len(inside)
            left.extend(run.part(part, slices) for part in outside)
        if out:
            self._heap = []
            for run in left:
                self._serial += 1
                self._heap.append((*self.key(run), self._serial, run))
            heapify(self._heap)
            out.sort(key=self.key)
        return out

    def runs(self) -> Iterator[Run]:
        """What is here, in no order."""
        return (entry[3] for entry in self._heap)


class Returned(RunHeap):
    """Ready messages that are not in the main order: what came back, and what became due.  A heap by place."""

    __slots__ = ()

    def key(self, run: Run) -> Key:
        """The place of its first message."""
        first = run.chunk[0]
        return (run.place or first, first)

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
        out = list[Key]()
        for entry in self._heap:
            inside = sift(entry[3].chunk, wanted)[0]
            if inside is not None:
                place = entry[3].place
                out.extend((place or lsn, lsn) for lsn in inside)
        return out
