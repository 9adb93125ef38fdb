"""Where bodies stand in memory: shelves of slabs, one a queue, and the direct bodies of each list.

Slabs of one queue stand in order, no two of them overlapping, with what they cost.  The caches are made of shelves and
differ only in what they put on them and take off first.

A list is what the core would dispatch next in one queue, to consumers without a filter or with one certain filter.  The
core has the positions; `TargetArea` has the bodies of the first of them, those that a consumer gets without a look
anywhere else.  How many of them, from the front on, are here is the list's watermark; how many bytes it should hold is
the high-water mark.  Positions that another list has claimed are skipped when the front of the list has gone beyond
them.  Nothing is decided here about what is read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator
from heapq import heappop, heappush
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from penstock.memory import Account
from penstock.memory.slab import Slab
from penstock.records.chunks import Chunk
from penstock.records.compute import distinct_numbers, lsns_of
from penstock.records.one_or_each import Where


def _cut(slab: Slab, others: npt.NDArray[np.int64]) -> list[Slab]:
    """A slab cut wherever positions of others, which ascend, lie between its rows; without rows that are among them."""
    start, stop = int(np.searchsorted(others, slab.first)), int(np.searchsorted(others, slab.last, "right"))
    if start == stop:
        return [slab]
    lsns, between = lsns_of(slab.chunk), others[start:stop]
    places = np.searchsorted(lsns, between)
    same = places[lsns[places] == between]
    cuts = [0, *distinct_numbers(np.concatenate([places, same + 1])).tolist(), len(slab)]
    doubled = frozenset(same.tolist())
    return [slab.part(low, high) for low, high in pairwise(cuts) if low < high and low not in doubled]


def _first_of(slab: Slab) -> int:
    return slab.first


class Shelf:
    """Slabs by position.  `bytes` is the cost of all that are here, `rows` how many rows of them are not given out."""

    __slots__ = ("_firsts", "bytes", "rows", "slabs")

    def __init__(self) -> None:
        self._firsts: list[int] = []  # parallel to `slabs`
        self.slabs: list[Slab] = []  # ascending
        self.bytes = 0
        self.rows = 0

    def __len__(self) -> int:
        return len(self.slabs)

    @property
    def first(self) -> int:
        """Lowest position; only when there is a slab."""
        return self.slabs[0].first

    @property
    def last(self) -> int:
        """Highest position; only when there is a slab."""
        return self.slabs[-1].last

    # -- putting

    def put(self, slab: Slab) -> None:
        """Put a slab in its place.  Slabs that interlace are cut, each once.

        Rows that are here go for it: they were given out to where the slab comes from, of others that still are here.
        """
        stop = bisect_right(self._firsts, slab.last)
        start = bisect_right(self._firsts, slab.first, 0, stop)
        if start and self.slabs[start - 1].last >= slab.first:
            start -= 1
        if start == stop:
            self._insert(start, [slab])
            return
        lsns, there = lsns_of(slab.chunk), self._take_off(start, stop)
        pieces = [piece for one in there for piece in _cut(one, lsns)]
        pieces += _cut(slab, np.array([piece.first for piece in pieces], np.int64))
        self._insert(start, sorted(pieces, key=_first_of))

    def _take_off(self, start: int, stop: int) -> list[Slab]:
        slabs = self.slabs[start:stop]
        del self.slabs[start:stop], self._firsts[start:stop]
        for slab in slabs:
            self.bytes -= slab.cost
            self.rows -= slab.left
        return slabs

    def _insert(self, index: int, slabs: list[Slab]) -> None:
        self._firsts[index:index] = [slab.first for slab in slabs]
        self.slabs[index:index] = slabs
        for slab in slabs:
            self.bytes += slab.cost
            self.rows += slab.left

    # -- taking

    def drop(self, index: int = -1) -> Slab:
        """Take a slab off, the last if nothing else is said."""
        slab = self.slabs.pop(index)
        self._firsts.pop(index)
        self.bytes -= slab.cost
        self.rows -= slab.left
        return slab

    def drop_below(self, lsn: int) -> int:
        """Take off the slabs all of whose positions are below; the bytes that came free."""
        before = self.bytes
        while self.slabs and self.slabs[0].last < lsn:
            self.drop(0)
        return before - self.bytes

    def find(self, chunk: Chunk, start: int) -> tuple[int, Slab | None, Where]:
        """The longest run from chunk[start] on that one slab has, or that no slab has: its end, the slab, the rows."""
        firsts, total = self._firsts, len(chunk)
        stop = start
        while stop < total:
            index = bisect_right(firsts, chunk[stop]) - 1
            if index >= 0:
                slab = self.slabs[index]
                if chunk[stop] <= slab.last:
                    end, where = slab.find(chunk, stop)
                    if where is not None:
                        return (stop, None, _NOWHERE) if stop > start else (end, slab, where)
                    stop = end
                    continue
            if index + 1 == len(firsts):
                return total, None, _NOWHERE
            stop = bisect_left(chunk, firsts[index + 1], stop + 1)
        return stop, None, _NOWHERE

    def take(self, slab: Slab, count: int) -> int:
        """So many rows of a slab are given out; the bytes that came free, which is all or nothing of a slab."""
        slab.left -= count
        self.rows -= count
        if slab.left > 0:
            return 0
        self.rows -= slab.left  # below 0 when rows of a slab that was cut were given out before
        slab.left = 0
        index = bisect_right(self._firsts, slab.first) - 1
        while self.slabs[index] is not slab:
            index -= 1
        self.drop(index)
        return slab.cost

    def __iter__(self) -> Iterator[Slab]:
        return iter(self.slabs)


class Shelves:
    """A shelf for each queue, by id; `account` is what they cost together.  Room is made at the longest one's end."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.shelves: dict[int, Shelf] = {}
        self._longest: list[tuple[int, int]] = []  # heap of (-bytes, queue); some are out of date

    def put(self, queue: int, slab: Slab) -> None:
        """Put rows in their place, and for those of them that are here."""
        shelf = self.shelves.get(queue)
        if shelf is None:
            shelf = self.shelves[queue] = Shelf()
        before = shelf.bytes
        shelf.put(slab)
        self._changed(queue, shelf, before)

    def held(self, queue: int) -> int:
        """Bytes that bodies of one queue take."""
        shelf = self.shelves.get(queue)
        return shelf.bytes if shelf is not None else 0

    def longest(self) -> int:
        """The queue that holds most; only when something is here."""
        heap = self._longest
        while -heap[0][0] != self.held(heap[0][1]):
            heappop(heap)
        return heap[0][1]

    def evict(self) -> int:
        """Drop the last slab of the queue that holds most; the bytes that came free, 0 when nothing is here."""
        if not self.account.bytes:
            return 0
        queue = self.longest()
        shelf = self.shelves[queue]
        before = shelf.bytes
        shelf.drop()
        self._changed(queue, shelf, before)
        return before - shelf.bytes

    def take(self, queue: int, slab: Slab, count: int) -> None:
        """So many rows of a slab of this queue are given out."""
        shelf = self.shelves[queue]
        before = shelf.bytes
        shelf.take(slab, count)
        self._changed(queue, shelf, before)

    def keep_from(self, queue: int, lsn: int | None) -> None:
        """Drop the slabs of a queue all of whose positions are below; None: all of them."""
        if lsn is None:
            self.forget(queue)
        elif (shelf := self.shelves.get(queue)) is not None:
            before = shelf.bytes
            shelf.drop_below(lsn)
            self._changed(queue, shelf, before)

    def forget(self, queue: int) -> list[Slab]:
        """Drop all of a queue; what that was."""
        shelf = self.shelves.pop(queue, None)
        if shelf is None:
            return []
        self.account.add(-shelf.bytes)
        return shelf.slabs

    def _changed(self, queue: int, shelf: Shelf, before: int) -> None:
        if shelf.bytes == before:
            return
        self.account.add(shelf.bytes - before)
        if not shelf:
            del self.shelves[queue]
        else:
            heappush(self._longest, (-shelf.bytes, queue))
        if len(self._longest) > 64 + 4 * len(self.shelves):
            self._longest = sorted((-one.bytes, number) for number, one in self.shelves.items())


_NOWHERE = slice(0, 0)


SHARE_MOST = 64 << 10
"""Bytes that a queue keeps at its head whatever the others have, if the budget allows that to all who ask."""


class HeadQueueCache(Shelves):
    """Bodies nearest the head of queues that have no consumers, for consumers to come.

    A simple FIFO for each queue, filled from the head on: what arrives is appended as long as nothing between was left
    out, and when room is needed the newest go first, from the queue that has most.  A queue keeps a small share
    whatever the others have.  It is what the rest of the budget leaves, and may be empty.  It knows no list and reads
    nothing.
    """

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._parted: set[int] = set()  # queues of which something newer than their shelf was left out

    def follows_on(self, queue: int) -> bool:
        """Whether what arrives next in a queue comes right after what is here."""
        return queue not in self._parted

    def leave_out(self, queue: int) -> None:
        """Something of the queue is not put here: what comes later does not follow on."""
        self._parted.add(queue)

    def begin(self, queue: int) -> None:
        """Nothing of the queue was left out between what is here and what comes next."""
        self._parted.discard(queue)

    @property
    def remembered(self) -> int:
        """Of how many queues something is remembered, gone ones among them."""
        return len(self._parted)

    def forget_all_but(self, queues: Collection[int]) -> None:
        """Of what is remembered, keep what is about these queues."""
        self._parted.intersection_update(queues)

    def evict(self) -> int:
        """Drop the newest slab of the queue that holds most; the bytes that came free, 0 when nothing is here."""
        if self.account.bytes:
            self._parted.add(self.longest())
        return super().evict()

    def forget(self, queue: int) -> list[Slab]:
        """Drop all of a queue; what that was.  It begins anew."""
        self._parted.discard(queue)
        return super().forget(queue)


class PendingCache(Shelves):
    """Bodies that lists want, but not yet: above their high-water marks.

    Keyed by position and shared by all lists of a queue: whichever list comes to a position first moves the body to its
    direct ones.  When room is needed the body that is needed latest goes first: the one with the most before it.  It
    knows no list and reads nothing.
    """

    def latest(self) -> tuple[int, int]:
        """(queue, bytes of bodies before and with it) of the body that is needed latest; only when there is one."""
        queue = self.longest()
        return queue, self.held(queue)


MEAN_FIRST = 300
"""Bytes a row is taken to cost before the first is known."""


class Line(Protocol):
    """What memory asks of the core about one list: positions as they stand now, never bodies."""

    @property
    def queue(self) -> int:
        """The queue's id."""
        ...

    @property
    def whole(self) -> Line:
        """The list of the same queue without a filter."""
        ...

    def alive(self) -> bool:
        """Whether somebody consumes from this list."""
        ...

    def credit(self) -> bool:
        """Whether one of them would take a message now."""
        ...

    def head(self) -> int | None:
        """The lowest position that would be dispatched; None: nothing is ready."""
        ...

    def after(self, lsn: int, count: int) -> Chunk:
        """Up to `count` positions that follow, ascending, of those never delivered."""
        ...

    def between(self, first: int, stop: int) -> Chunk:
        """All positions in [first, stop), ascending, of those never delivered."""
        ...

    def needed(self, first: int, stop: int) -> Chunk | None:
        """All positions in [first, stop), ascending, of which the queue will ask for the bodies.

        None where that would take a look at very many.
        """
        ...

    def returned(self, count: int) -> Chunk:
        """Up to `count` positions that came back and are ready again, ascending."""
        ...


class TargetList:
    """Direct bodies of one list."""

    __slots__ = ("_area", "ahead", "edge", "key", "line", "mean", "shelf", "wanted")

    def __init__(self, area: TargetArea, key: object, line: Line) -> None:
        self._area = area
        self.key = key
        self.line = line
        self.shelf = Shelf()
        self.edge = 0  # all positions never delivered up to here are direct, or were
        self.ahead = 0  # as many of what came back may be dispatched before more of it is looked at
        self.mean = MEAN_FIRST  # bytes a row
        self.wanted: list[Chunk] = []  # granted and waited for; some of it may be here by now

    @property
    def bytes(self) -> int:
        """What its direct bodies cost."""
        return self.shelf.bytes

    @property
    def watermark(self) -> int:
        """How many direct bodies it has; claimed ones among them until they are skipped."""
        return self.shelf.rows

    def put(self, slab: Slab) -> None:
        """Make rows direct."""
        before, mean = self.shelf.bytes, slab.cost // len(slab)
        self.shelf.put(slab)
        self._area.account.add(self.shelf.bytes - before)
        self.mean = max(1, (3 * self.mean + mean) // 4)

    def take(self, slab: Slab, count: int) -> None:
        """So many rows of a slab of it are dispatched."""
        self._area.account.add(-self.shelf.take(slab, count))

    def drop_last(self) -> Slab:
        """Take the last slab off: its rows are no longer direct."""
        slab = self.shelf.drop()
        self._area.account.add(-slab.cost)
        self.edge = min(self.edge, slab.first - 1)
        self.ahead = 0
        return slab

    def cut(self, least: int) -> int:
        """Give up the last slab, but for what keeps about `least` bytes direct; the bytes that came free."""
        slab = self.drop_last()
        room = least - self.bytes
        if room > 0:
            first = slab.in_pieces(room)[0]
            if first.cost <= 2 * room:
                self.put(first)
                self.edge = first.last
                return slab.cost - first.cost
        return slab.cost

    def skip(self, lsn: int) -> None:
        """The front of the list has come to `lsn`: what lies before it was claimed by others."""
        self._area.account.add(-self.shelf.drop_below(lsn))

    def front(self) -> int | None:
        """The lowest position that is waited for or would be dispatched."""
        fronts = [chunk[0] for chunk in self.wanted]
        head = self.line.head()
        if head is not None:
            fronts.append(head)
        return min(fronts, default=None)


class TargetArea:
    """All lists that have been delivered to, by the core's own object for each; `account` is what they cost."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.lists: dict[object, TargetList] = {}
        self.by_queue: dict[int, list[TargetList]] = {}

    def add(self, key: object, line: Line) -> TargetList:
        """A list that something was dispatched from, or will be."""
        one = self.lists[key] = TargetList(self, key, line)
        self.by_queue.setdefault(line.queue, []).append(one)
        return one

    def remove(self, one: TargetList) -> list[Slab]:
        """The list has no consumers any more; its bodies."""
        del self.lists[one.key]
        others = self.by_queue[one.line.queue]
        others.remove(one)
        if not others:
            del self.by_queue[one.line.queue]
        self.account.add(-one.bytes)
        return one.shelf.slabs

    def by_length(self) -> list[TargetList]:
        """All lists, those whose direct bodies cost most first."""
        return sorted(self.lists.values(), key=_bytes_of, reverse=True)


def _bytes_of(one: TargetList) -> int:
    return one.shelf.bytes
