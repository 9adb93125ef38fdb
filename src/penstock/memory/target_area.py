"""TargetArea: the direct bodies of each list, those that a consumer gets without a look anywhere else.

A list is what the core would dispatch next in one queue, to consumers without a filter or with one certain filter.  The
core has the positions; here are the bodies of the first of them.  How many of them, from the front on, are here is the
list's watermark; how many bytes it should hold is the high-water mark.  Positions that another list has claimed are
skipped when the front of the list has gone beyond them.  It decides nothing about what is read.
"""

from __future__ import annotations

from typing import Protocol

from penstock.memory.budget import Account
from penstock.memory.shelf import Shelf
from penstock.memory.slab import Slab
from penstock.records.chunks import Chunk

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

    def returned(self, count: int) -> Chunk:
        """Up to `count` positions that came back and are ready again, ascending."""
        ...


class TargetList:
    """Direct bodies of one list."""

    __slots__ = ("_area", "edge", "key", "line", "mean", "shelf", "wanted")

    def __init__(self, area: TargetArea, key: object, line: Line) -> None:
        self._area = area
        self.key = key
        self.line = line
        self.shelf = Shelf()
        self.edge = 0  # all positions never delivered up to here are direct, or were
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
