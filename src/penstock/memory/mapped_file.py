"""Arrays in a file instead of on the heap: the file is mapped, and the system keeps in memory what there is room for.

A block is written once, through the file, and read through the mapping: a full disk is an error of that write and
never a signal, and what cannot be written stays where it was.  A block lives as long as anybody holds a view of it or
of a part; then its pages are used again.  The file grows by extents and never shrinks.  Its content means nothing to
another process: the log is the truth.
"""

from __future__ import annotations

import weakref
from array import array
from bisect import bisect_left, insort
from collections import deque
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from penstock.ports import Backing


class Spans:
    """Which spans of a file are free: the smallest that fits is cut, and what is given back joins its free neighbours.

    Numbers are pages.  It knows no file.
    """

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


Bytes: TypeAlias = npt.NDArray[np.uint8]

PAGE = 4096

EXTENT = 4 << 20
"""Bytes of the first extent; the file is never smaller."""

EXTENT_MOST = 64 << 20
"""A file grows by an eighth, but by no more than this at once."""


class _Block(weakref.ref[Bytes]):
    """What is known of a block when the last view of it is gone."""

    __slots__ = ("pages", "start")

    start: int
    pages: int


class Arena:
    """One file.  `keep` belongs to one thread; views may be dropped by any."""

    def __init__(self, backing: Backing, *, least: int = PAGE, extent: int = EXTENT) -> None:
        """least: bytes; smaller arrays stay where they are."""
        self.least = least
        self.used = 0  # bytes of living blocks, whole pages
        self.size = 0  # bytes of the file
        self.refused = 0  # times that it could not grow
        self.reason: str | None = None  # why it could not, when it was last tried
        self._backing = backing
        self._extent = extent
        self._extents: list[tuple[int, Bytes]] = []  # first byte, and the mapping
        self._spans = Spans()
        self._blocks: dict[int, _Block] = {}  # by first page
        self._gone: deque[_Block] = deque()  # their pages are free as soon as `keep` comes by

    def keep(self, values: array[int] | memoryview[int] | bytes | bytearray) -> memoryview[int] | None:
        """A copy that lies in the file, read only, with the same items; None: there is no room, `reason` says why."""
        self._collect()
        source = memoryview(values)
        pages = -(-source.nbytes // PAGE)
        start = self._spans.take(pages)
        if start is None and (not self._grow(pages) or (start := self._spans.take(pages)) is None):
            return None
        place = start * PAGE
        try:
            self._backing.write(source.cast("B"), place)
        except OSError as error:
            self._spans.give(start, pages)
            self._refuse(error)
            return None
        first, mapping = next(one for one in reversed(self._extents) if one[0] <= place)
        own = mapping[place - first : place - first + source.nbytes]
        block = _Block(own, self._gone.append)
        block.start, block.pages = start, pages
        self._blocks[start] = block
        self.used += pages * PAGE
        view = memoryview(cast("bytearray", own))  # numpy's arrays are buffers, which its types do not say
        return view.cast(cast("Literal['B', 'q', 'Q']", source.format))

    def block(self, view: memoryview[int]) -> int:
        """Bytes of the block that a view from `keep`, or a part of one, keeps from being used again."""
        return cast("Bytes", view.obj).nbytes

    def retry(self) -> None:
        """What could not grow may be tried again."""
        self.reason = None

    def tidy(self) -> None:
        """Pages of the mapping leave this process's memory; the system keeps them while there is room.  Any thread."""
        self._backing.give_back()

    def close(self) -> None:
        """The file goes; views stay good as long as they are held."""
        self._backing.close()

    def _collect(self) -> None:
        while self._gone:
            block = self._gone.popleft()
            del self._blocks[block.start]
            self._spans.give(block.start, block.pages)
            self.used -= block.pages * PAGE

    def _grow(self, pages: int) -> bool:
        if self.reason is not None:
            return False
        step = self._extent * max(1, min(self.size // 8, EXTENT_MOST) // self._extent)
        step = max(step, -(-pages * PAGE // self._extent) * self._extent)
        try:
            mapping = np.frombuffer(self._backing.extend(step), dtype=np.uint8)
        except OSError as error:
            self._refuse(error)
            return False
        mapping.flags.writeable = False
        self._extents.append((self.size, mapping))
        self._spans.add(self.size // PAGE, step // PAGE)
        self.size += step
        return True

    def _refuse(self, error: OSError) -> None:
        self.refused += 1
        self.reason = error.strerror or str(error)
