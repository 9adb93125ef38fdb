"""Barriers: messages that wait until all before them are settled, hold back all behind, then go to every subscription.

What stands behind the first barrier is in neither the main order nor among what came back: each barrier holds its own
part of the queue, up to the next one, so whoever looks for ready messages never meets what is held back.  When a
barrier goes, its part becomes the main order as it is, whatever its size.

    main, returned | barrier, its part | barrier, its part ...
      done first          held                held

Before and after are a matter of LSNs: an earlier message is one with a lower LSN that is ready, leased, delayed or
dying here.  A barrier that is itself delayed is an ordinary delayed message until it is due; then it stands where its
DUE record does, behind all that came before that.

What is a barrier is decided once, as the message enters the queue, and a BARRIER record of the same group says so.  It
knows no expression and no body; the filters of subscriptions are asked by a `Scan`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from penstock.core.arena import Move
from penstock.core.queue.order.main_order import Main, Nothing
from penstock.core.queue.order.returned import NOTHING_RETURNED, Returned, Waiting
from penstock.core.queue.order.runs import NEVER, Run, all_within, holds
from penstock.records.chunks import Chunk, as_chunk

GONE_MOST = 64
"""Places of barriers that went are cut off when they are more than this, and more than those that wait."""


_NOTHING = Nothing()
"""The order of barriers that hold nothing back."""


class Barrier(Waiting):
    """A barrier that waits, and the messages behind it up to the next barrier."""

    __slots__ = ("lsn", "place")

    def __init__(self, lsn: int, place: int) -> None:
        self.main: Main = _NOTHING  # `order` and `push` are what to add to
        self.returned = NOTHING_RETURNED
        self.lsn = lsn
        self.place = place  # its own LSN, or that of the record by which it became due

    def order(self) -> Main:
        """Its part, to append to."""
        if self.main is _NOTHING:
            self.main = Main()
        return self.main

    def push(self, run: Run) -> None:
        """Add what has its own place in its part."""
        if self.returned is NOTHING_RETURNED:
            self.returned = Returned()
        self.returned.push(run)

    def absorb(self, gone: Barrier) -> None:
        """The next barrier is gone: what was behind it is behind this one."""
        if self.main is _NOTHING:
            self.main = gone.main
        else:
            self.main.absorb(gone.main)
        for run in gone.runs():
            self.push(run)


class Barriers:
    """The barriers of a queue, in order, and all that they hold back."""

    __slots__ = (
        "_all", "_places", "_start", "answers", "asked", "asking", "dormant", "due", "held", "late", "serial",
    )  # fmt: skip

    def __init__(self) -> None:
        self._all: list[Barrier] = []  # those that wait begin at `_start`
        self._places: list[int] = []  # beside them
        self._start = 0
        self.held = 0  # barriers that wait and what is behind them
        self.dormant = set[int]()  # barriers that are delayed themselves
        self.due = set[int]()  # those that are it no longer, and not ready yet
        self.late: dict[int, int] = {}  # barriers that were delayed and wait now: LSN -> place
        # who of those with a filter wants the first barrier
        self.answers: dict[str, bool] = {}  # by filter text
        self.asked = 0  # serial of the scan under way; 0: none
        self.asking: tuple[str, ...] = ()  # the filters in it
        self.serial = 0

    def __len__(self) -> int:
        return len(self._all) - self._start

    @property
    def first(self) -> Barrier | None:
        """The one that goes next."""
        return self._all[self._start] if self._start < len(self._all) else None

    @property
    def last(self) -> Barrier | None:
        """The one behind which messages arrive."""
        return self._all[-1] if self._start < len(self._all) else None

    def waiting(self) -> Iterator[Barrier]:
        """Those that wait, in order."""
        for index in range(self._start, len(self._all)):
            yield self._all[index]

    def since(self, lsn: int) -> Iterator[Barrier]:
        """Those that wait, from the one behind which the message stands or would stand."""
        for index in range(max(bisect_right(self._places, lsn, self._start) - 1, self._start), len(self._all)):
            yield self._all[index]

    def add(self, lsn: int, place: int) -> Barrier:
        """One more behind all others."""
        barrier = Barrier(lsn, place)
        if place != lsn:
            self.late[lsn] = place
        self._all.append(barrier)
        self._places.append(place)
        self.held += 1
        return barrier

    def pop(self) -> Barrier:
        """The first one goes; what it held is the caller's."""
        barrier = self._all[self._start]
        self._start += 1
        if self._start > GONE_MOST and 2 * self._start > len(self._all):
            del self._all[: self._start], self._places[: self._start]
            self._start = 0
        self.held -= 1 + barrier.count
        self.late.pop(barrier.lsn, None)
        self.answers.clear()
        self.asked = 0
        return barrier

    def lsns(self) -> Chunk:
        """The barriers that wait, those at their own place."""
        return as_chunk(array("q", [barrier.lsn for barrier in self.waiting() if barrier.lsn == barrier.place]))

    def all_lsns(self) -> Iterator[int]:
        """LSNs of the barriers that wait, in order."""
        return (barrier.lsn for barrier in self.waiting())

    def clear(self) -> None:
        """All that is held is gone; what is delayed stays."""
        self._all, self._places, self._start, self.held = [], [], 0, 0
        self.late.clear()
        self.answers.clear()
        self.asked = 0

    # -- where a message belongs

    def cut(self, chunk: Chunk) -> Iterator[tuple[Barrier | None, Chunk]]:
        """An ascending chunk by parts: those before the first barrier (None), then those behind each."""
        at, n = 0, len(chunk)
        while at < n:
            index = bisect_right(self._places, chunk[at], self._start)
            end = n if index == len(self._places) else bisect_left(chunk, self._places[index], at)
            yield (self._all[index - 1] if index > self._start else None), chunk[at:end]
            at = end

    def wake(self, chunk: Chunk) -> None:
        """Delayed messages are due; those of them that are barriers wait once they are ready."""
        if self.dormant:
            due = self.dormant.intersection(chunk)
            self.dormant -= due
            self.due |= due

    def forget_delayed(self, runs: Sequence[Run]) -> None:
        """Delayed messages are gone for good."""
        for run in runs if self.dormant else ():
            self.dormant.difference_update(run.chunk)

    # -- what leaves from the middle

    def extract(self, wanted: Chunk) -> tuple[list[Run], list[Barrier]]:
        """Take those of the wanted that are held: (their runs, the barriers among them, without their parts).

        Parts of barriers that are gone were joined to the part before; the caller joins those before the first.
        """
        out = list[Run]()
        if not len(self) or (wanted[-1] < self._places[self._start] and not self.late):
            return out, []
        for barrier, part in self.cut(wanted):
            if barrier is not None:
                out += barrier.extract(part)
        self.held -= sum(len(run.chunk) for run in out)
        gone = self._among(wanted)
        for barrier in gone:
            late = barrier.place != barrier.lsn
            out.append(Run(range(barrier.lsn, barrier.lsn + 1), True, place=barrier.place if late else 0))
            self.late.pop(barrier.lsn, None)
        return out, self._remove(gone) if gone else []

    def _among(self, wanted: Chunk) -> list[Barrier]:
        """The wanted messages that are barriers."""
        out = list[Barrier]()
        index = bisect_left(self._places, wanted[0], self._start)
        while index < len(self._all) and self._places[index] <= wanted[-1]:
            barrier = self._all[index]
            if barrier.place == barrier.lsn and holds(wanted, barrier.lsn):
                out.append(barrier)
            index += 1
        if self.late:
            places = {place for lsn, place in self.late.items() if holds(wanted, lsn)}
            out += (b for b in self.waiting() if b.place in places and b.place != b.lsn and holds(wanted, b.lsn))
        return out

    def _remove(self, gone: Sequence[Barrier]) -> list[Barrier]:
        """Take barriers out; returns those that no remaining barrier precedes, so that their messages come free."""
        going = set(gone)
        freed = list[Barrier]()
        while (first := self.first) is not None and first in going:
            freed.append(self.pop())
        if len(freed) == len(going):
            return freed
        kept = list[Barrier]()
        for barrier in self.waiting():
            if barrier not in going:
                kept.append(barrier)
                continue
            kept[-1].absorb(barrier)
            self.held -= 1
        self._all, self._start = kept, 0
        self._places = [barrier.place for barrier in kept]
        return freed

    # -- all of it

    def chunks(self) -> Iterator[Chunk]:
        """All that is held, at its own place and never delivered; the chunks will not change."""
        lsns = self.lsns()
        if len(lsns):
            yield lsns
        for barrier in self.waiting():
            yield from barrier.chunks()

    def runs(self) -> Iterator[Run]:
        """Held messages that came back, with their tallies."""
        for lsn, place in self.late.items():
            yield Run(range(lsn, lsn + 1), True, place=place)
        for barrier in self.waiting():
            yield from barrier.runs()

    def between(self, first: int, stop: int) -> Chunk:
        """All that is held with LSNs in [first, stop), ascending; it stays."""
        parts = (barrier.between(first, stop) for barrier in self.waiting())
        return all_within((array("q", sorted(self.all_lsns())), *parts), first, stop)

    def solid(self) -> Iterator[Chunk]:
        """Which arrays are solid: no other message of the queue lies within them."""
        for barrier in self.waiting():
            yield from barrier.main.solid()

    def page(self, move: Move) -> None:
        """Move what may go to an arena."""
        for barrier in self.waiting():
            barrier.page(move)

    def marked(self) -> Chunk:
        """All barriers: those that wait and those that are delayed."""
        return as_chunk(array("q", sorted([*self.dormant, *self.all_lsns()])))

    def floor(self) -> int:
        """Nothing that is held is older."""
        return min([self._places[self._start] if len(self) else NEVER, *self.late])
