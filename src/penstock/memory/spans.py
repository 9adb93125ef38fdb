"""Which spans of a file are free: the smallest that fits is cut, and what is given back joins its free neighbours.

Numbers are pages.  It knows no file.
"""

from __future__ import annotations

from bisect import bisect_left, insort


class Spans:
    """Free spans, found by size and by either end."""

    __slots__ = ("_by_end", "_by_size", "_by_start", "_edges", "free")

    def __init__(self) -> None:
        self._by_start: dict[int, int] = {}  # start -> pages
        self._by_end: dict[int, int] = {}  # stop -> start
        self._by_size: list[tuple[int, int]] = []  # (pages, start), ascending
        self._edges: set[int] = set()  # no span reaches over these
        self.free = 0

    def add(self, start: int, pages: int) -> None:
        """New room, which is never joined with what lies before or behind it."""
        self._edges.update((start, start + pages))
        self.give(start, pages)

    def take(self, pages: int) -> int | None:
        """The start of so many pages; None when no free span has as many."""
        at = bisect_left(self._by_size, (pages, 0))
        if at == len(self._by_size):
            return None
        size, start = self._by_size[at]
        self._remove(start, size)
        if size > pages:
            self._insert(start + pages, size - pages)
        return start

    def give(self, start: int, pages: int) -> None:
        """These are free again."""
        stop = start + pages
        if stop not in self._edges and (behind := self._by_start.get(stop)) is not None:
            self._remove(stop, behind)
            stop += behind
        if start not in self._edges and (before := self._by_end.get(start)) is not None:
            self._remove(before, start - before)
            start = before
        self._insert(start, stop - start)

    def _insert(self, start: int, pages: int) -> None:
        self._by_start[start] = pages
        self._by_end[start + pages] = start
        insort(self._by_size, (pages, start))
        self.free += pages

    def _remove(self, start: int, pages: int) -> None:
        del self._by_start[start], self._by_end[start + pages]
        del self._by_size[bisect_left(self._by_size, (pages, start))]
        self.free -= pages
