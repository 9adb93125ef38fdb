"""Filling heads: bodies of queues that nobody consumes from, read before somebody comes.

After a start, and when there is room again.  All queues asked for are filled by the same reads, in the order of the
log, each up to its share of a quarter of the budget: however the messages of many queues lie in the log, it is decoded
about once.  It gives up when the budget has no room, and never makes any.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import islice

from penstock.memory.caches import SLAB_BYTES, Caches
from penstock.memory.cold_reads import JOIN_MOST, READ_BYTES, READ_ROWS, ReadCold, union
from penstock.memory.slab import Slab
from penstock.memory.target_area import MEAN_FIRST, Line
from penstock.records.chunks import Chunk
from penstock.records.entries import Rows

HEADS_MOST = 64 << 20
"""Bytes of heads filled at once."""


class HeadLoader:
    """Fills the HeadQueueCache."""

    def __init__(self, caches: Caches, read: ReadCold) -> None:
        self._caches = caches
        self._read = read
        self._lines: dict[int, Line] = {}  # by queue: to be filled
        self._share = 0
        self.reading: dict[int, Chunk] = {}  # by queue

    def __bool__(self) -> bool:
        """Whether there is something left to do."""
        return bool(self._lines)

    def fill(self, lines: Iterable[Line]) -> None:
        """Nobody consumes from these queues yet: have the bodies at their heads when somebody comes."""
        self._lines.update((line.queue, line) for line in lines)
        self._share = min(self._caches.budget.limit // 4, HEADS_MOST) // max(1, len(self._lines))

    def step(self) -> None:
        """Begin a read, if none is under way and there is room."""
        caches = self._caches
        if self.reading:
            return
        most = min(READ_BYTES, caches.budget.limit // 8)
        if -caches.budget.over < 2 * most:
            self._lines.clear()
            return
        parts: dict[int, Chunk] = {}
        for queue, line in list(islice(self._lines.items(), JOIN_MOST)):
            chunk = self._next(line)
            if len(chunk):
                parts[queue] = chunk
            else:
                del self._lines[queue]
        if not parts:
            return
        chunk = union(parts.values())[:READ_ROWS]
        caches.loading.add(most)
        cut = {queue: part[: bisect_right(part, chunk[-1])] for queue, part in parts.items()}
        self.reading = {queue: part for queue, part in cut.items() if len(part)}  # the others come with a later read
        self._read(chunk, lambda rows: self._loaded(chunk, rows, most), most)

    def _next(self, line: Line) -> Chunk:
        """Positions that follow what is at the head of a queue; none when it has its share, or a consumer."""
        heads, queue = self._caches.heads, line.queue
        shelf = heads.shelves.get(queue)
        held, mean = (shelf.bytes, shelf.bytes // max(1, shelf.rows)) if shelf is not None else (0, MEAN_FIRST)
        if queue in self._caches.area.by_queue or 8 * held > 7 * self._share:
            return range(0)
        rows = max(1, (self._share - held) // max(1, mean))
        chunk = line.after(shelf.last if shelf is not None else 0, rows)
        chunk = chunk[: bisect_right(chunk, self._caches.arrivals.lacking)]
        if not len(chunk):
            heads.begin(queue)
        return chunk

    def _loaded(self, chunk: Chunk, rows: Rows, most: int) -> None:
        """A read is answered; other queues than those that it was for have nothing to do with it."""
        caches = self._caches
        caches.loading.add(-most)
        parts, self.reading = self.reading, {}
        if not len(rows):
            for queue in parts:
                self._lines.pop(queue, None)
            return
        slab = Slab.of_rows(rows)
        end = rows.lsns[-1]
        for queue, part in parts.items():
            line = self._lines[queue]
            came = part[: bisect_right(part, end)]
            if not len(came):
                continue
            mine, _ = slab.those(came)
            if mine is None or queue in caches.area.by_queue or line.head() is None:
                del self._lines[queue]
                continue
            caches.lines[queue] = line
            for piece in mine.in_pieces(min(SLAB_BYTES, max(1, self._share))):
                if caches.heads.held(queue) and caches.heads.held(queue) + piece.cost > self._share:
                    self._lines.pop(queue, None)
                    break
                caches.heads.put(queue, piece)
            caches.heads.leave_out(queue)
        if caches.budget.over > 0:
            caches.shrink()
