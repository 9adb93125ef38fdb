"""Leases that end in any order: found by LSN, each message in a few steps, one byte a message.

A run that lost messages from its middle keeps its chunk and marks what is gone.  Runs stand in lanes, each ascending
and without overlap, so that a bisection finds the one that may hold a message; what was delivered again begins a new
lane.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from penstock.core.queue.order.runs import Run, packed, sift, sorted_chunk, view
from penstock.records.chunks import Chunk

DEAD_MOST = 64
"""Empty runs are swept away when there are more than this, and more than living ones."""


class Lease(Run):
    """A leased run of which some messages may be gone."""

    __slots__ = ("gone", "left")

    def __init__(self, run: Run) -> None:
        super().__init__(run.chunk, run.solid, run.tally, run.place, run.deadline)
        self.granted = run.granted
        self.gone: bytearray | memoryview[int] | None = None  # 1 for each that is not held any more; None: all are held
        self.left = len(run.chunk)  # 0: an empty shell that waits to be swept away

    def first(self) -> int:
        """The first message that is held."""
        gone = self.gone
        if gone is None:
            return self.chunk[0]
        return self.chunk[gone.find(0) if isinstance(gone, bytearray) else bytes(gone).find(0)]

    def living(self) -> Run:
        """What is held of it, as a plain run."""
        if self.gone is None:
            return self.part(self.chunk, True)
        return self.part(packed(view(self.chunk)[np.frombuffer(self.gone, dtype=np.uint8) == 0]), False)

    def end(self) -> Run:
        """Take everything that is left."""
        run = self.living()
        self.left = 0
        return run

    def take(self, wanted: Chunk) -> Run | None:
        """Take those of the wanted that are held here; None if none is."""
        chunk, gone = self.chunk, self.gone
        if len(wanted) == 1:
            lsn = wanted[0]
            place = lsn - chunk[0] if isinstance(chunk, range) else bisect_left(chunk, lsn)
            if not (0 <= place < len(chunk)) or chunk[place] != lsn or (gone is not None and gone[place]):
                return None
            if not isinstance(gone, bytearray):
                gone = self._marks()
            gone[place] = 1
            self.left -= 1
            return self.part(wanted, True)
        inside = sift(chunk, wanted)[0]
        if inside is None:
            return None
        if gone is None and len(inside) == len(chunk):
            self.left = 0
            return self.part(chunk, True)
        if not isinstance(gone, bytearray):
            gone = self._marks()
        marks = np.frombuffer(gone, dtype=np.uint8)
        taken = view(inside)
        places = taken - chunk.start if isinstance(chunk, range) else np.searchsorted(view(chunk), taken)
        fresh = marks[places] == 0
        if not fresh.any():
            return None
        places = places[fresh]
        marks[places] = 1
        self.left -= len(places)
        return self.part(inside if fresh.all() else packed(taken[fresh]), False)

    def _marks(self) -> bytearray:
        """`gone`, to be changed."""
        gone = self.gone
        marks = self.gone = bytearray(len(self.chunk)) if gone is None else bytearray(gone)
        return marks


class Lane:
    """Leases that ascend and do not overlap."""

    __slots__ = ("lasts", "leases")

    def __init__(self) -> None:
        self.leases: list[Lease] = []
        self.lasts: list[int] = []  # the last LSN of each, taken or not

    def add(self, lease: Lease) -> bool:
        """Put it at the end if it belongs there."""
        if self.lasts and lease.chunk[0] <= self.lasts[-1]:
            return False
        self.leases.append(lease)
        self.lasts.append(lease.chunk[-1])
        return True

    def take(self, chunk: Chunk, out: list[Run]) -> list[Chunk]:
        """Take those of the chunk that are held here; returns the others."""
        at = bisect_left(self.lasts, chunk[0])
        last, found = chunk[-1], list[Chunk]()
        while at < len(self.leases):
            lease = self.leases[at]
            if lease.chunk[0] > last:
                break
            if lease.left and (run := lease.take(chunk)) is not None:
                out.append(run)
                found.append(run.chunk)
            at += 1
        if not found:
            return [chunk]
        if len(chunk) == 1:
            return []
        return sift(chunk, sorted_chunk(found))[1]


class Lanes:
    """All leases of one consumer, in as many lanes as it takes."""

    __slots__ = ("_lanes",)

    def __init__(self) -> None:
        self._lanes: list[Lane] = []

    def add(self, lease: Lease) -> None:
        """A new grant of one message."""
        for lane in self._lanes:
            if lane.add(lease):
                return
        self._lanes.append(Lane())
        self._lanes[-1].add(lease)

    def take(self, chunk: Chunk, out: list[Run]) -> list[Chunk]:
        """Take those of the chunk that are held; returns the others."""
        left = [chunk]
        for lane in self._lanes:
            if not left:
                break
            left = [rest for part in left for rest in lane.take(part, out)]
        return left

    def sweep(self) -> None:
        """Forget those of which nothing is left."""
        for lane in self._lanes:
            lane.leases = [lease for lease in lane.leases if lease.left]
            lane.lasts = [lease.chunk[-1] for lease in lane.leases]
        self._lanes = [lane for lane in self._lanes if lane.leases]
