"""The eager loader: it raises the watermarks of lists ahead of dispatch, and brings what a delivery waits for.

Again and again it takes the list that needs it most (one whose consumers wait; then those with credit; then the lowest
watermark for its high-water mark), and makes the next positions direct: from PendingCache or HeadQueueCache by moving
them, else by one read of neighbours off the loop.  Room for a read is reserved before it begins.  When no list needs
anything it fills the heads of queues that have no consumers yet.  It runs at the end of turns and when a read is
answered; it never touches the disk itself.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from penstock.memory.caches import SLAB_BYTES, Caches
from penstock.memory.shelf import Shelf
from penstock.memory.slab import Slab
from penstock.memory.target_area import Line, TargetList
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.entries import Rows

READS = 2
"""Reads under way at once."""

READ_ROWS = 8192
"""Rows of one read at most."""

READ_BYTES = 1 << 20
"""Bytes of one read at most, unless one row has more."""

LOOK_AT = 64
"""Lists among which the neediest is chosen in one step."""

BACK_MOST = 256
"""Positions that came back of which bodies are fetched ahead."""

READ_LEAST = 64 << 10
"""Bytes read at once for somebody who waits, however small the budget is."""

HEADS_MOST = 64 << 20
"""Bytes of heads filled after a start."""


class ReadCold(Protocol):
    """Reads rows of the log off the loop and answers on it, never before the call has returned."""

    def __call__(self, lsns: Chunk, answer: Callable[[Rows], None], most: int = 0, /) -> None:
        """most: bytes after which the answer ends; 0 is no limit.  At least the first row is there."""
        ...


class Loader:
    """Brings bodies into the caches."""

    def __init__(self, caches: Caches, read: ReadCold) -> None:
        self._caches = caches
        self._read = read
        self._look = dict[TargetList, None]()  # lists that may need something
        self._callbacks = dict[TargetList, list[Callable[[], None]]]()  # by list: who waits for its next rows
        self._reading = dict[object, Chunk]()  # by list, or by the id of a queue whose head is read
        self._heads = deque[Line]()
        self.gone = set[int]()  # waited for, and no longer in the log

    @property
    def idle(self) -> bool:
        """Whether `step` would find nothing to do."""
        return not self._look and not self._heads

    @property
    def reading(self) -> Iterable[Chunk]:
        """What is being read."""
        return self._reading.values()

    # -- what others ask

    def look_after(self, one: TargetList) -> None:
        """A list has something ready beyond what was dispatched from it."""
        self._look[one] = None

    def want(self, one: TargetList, chunk: Chunk, callback: Callable[[], None]) -> None:
        """Somebody waits for these; `callback` runs once some of them, from the first on, are there or `gone`."""
        one.wanted.append(chunk)
        self._callbacks.setdefault(one, []).append(callback)
        self._look[one] = None

    def fill_heads(self, lines: Iterable[Line]) -> None:
        """Nobody consumes from these queues yet: have the bodies at their heads when somebody comes."""
        self._heads.extend(lines)

    # -- the work

    def step(self) -> None:
        """Move what can be moved, and begin reads, as far as bounds and budget allow."""
        for _ in range(LOOK_AT):
            one = self._neediest()
            if one is None:
                break
            if not self._fill(one):
                self._look.pop(one, None)
        if self._heads and not self._look and not self._reading:
            self._fill_head()

    def _neediest(self) -> TargetList | None:
        best: TargetList | None = None
        least = (2, 2, 0.0)
        high = self._caches.high
        done = list[TargetList]()
        looked = 0
        for one in self._look:
            if one in self._reading:
                continue
            looked += 1
            if looked > LOOK_AT:
                break
            waited = bool(one.wanted)
            if not waited and (not one.line.alive() or (4 * one.bytes > 3 * high and not self._front_is_cold(one))):
                done.append(one)
                continue
            need = (0 if waited else 1, 0 if waited or one.line.credit() else 1, one.bytes / high)
            if need < least:
                best, least = one, need
        for one in done:
            del self._look[one]
        return best if best is None or len(self._reading) < READS or self._at_hand(best) else None

    def _front_is_cold(self, one: TargetList) -> bool:
        """Whether something came back whose body is not direct: it goes first."""
        back = one.line.returned(1)
        return bool(len(back)) and one.shelf.find(back, 0)[1] is None and self._caches.peek(back[0]) is None

    def _at_hand(self, one: TargetList) -> bool:
        """Whether the caches may have something for it without a read."""
        queue = one.line.queue
        return queue in self._caches.pending.shelves or queue in self._caches.heads.shelves

    def _fill(self, one: TargetList) -> bool:
        """Bring the next of a list; whether it should be looked at again."""
        caches = self._caches
        waited = bool(one.wanted)
        front = one.front()
        if front is None:
            return False
        one.skip(front)
        caches.lower(one)
        while one.shelf and caches.high - one.bytes < caches.least and (waited or self._front_is_cold(one)):
            one.drop_last()
        room = caches.high - one.bytes
        rows = max(1, min(READ_ROWS, room // one.mean))
        chunk = self._next(one, rows)
        if not len(chunk):
            if waited:
                self._answer(one)
            return False
        rows_before = one.watermark
        chunk = self._move(one, chunk)
        if not len(chunk):
            if waited:
                self._answer(one)
            return waited or one.watermark > rows_before
        if len(self._reading) >= READS:
            return True
        most = max(1, min(room, READ_BYTES))
        if waited:
            most = max(most, READ_LEAST)
            caches.shrink(most - caches.budget.kept_back)
            if self._reading and caches.budget.used + most > caches.budget.limit:
                return True  # after the read that is under way
        elif not caches.shrink(most, direct=False):
            return False
        caches.loading.add(most)
        self._reading[one] = chunk
        self._read(chunk, lambda rows: self._loaded(one, chunk, most, rows), most)
        return True

    def _next(self, one: TargetList, rows: int) -> Chunk:
        """Positions to make direct next: what is waited for, what came back, what follows."""
        arrivals, shelf = self._caches.arrivals, one.shelf
        lacking = arrivals.lacking
        some = array("q")
        for chunk in sorted(one.wanted, key=_first):
            _absent(shelf, arrivals.absent(chunk), some)
            if len(some) >= READ_ROWS:
                break
        back = one.line.returned(BACK_MOST)
        if len(back):
            _absent(shelf, arrivals.absent(back), some)
        if some:
            some = array("q", sorted(set(some))[:READ_ROWS])
        while len(some) < rows and one.edge < lacking:
            after = one.line.after(one.edge, rows - len(some))
            after = after[: bisect_right(after, lacking)]
            if not len(after):
                break
            absent = array("q")
            _absent(shelf, after, absent)
            if not some and len(absent) == len(after):
                return after
            if absent:
                return as_chunk(array("q", sorted({*some, *absent})) if some else absent)
            one.edge = after[-1]
        return as_chunk(some)

    def _move(self, one: TargetList, chunk: Chunk) -> Chunk:
        """Make direct what PendingCache and HeadQueueCache have; what they do not have."""
        caches, queue = self._caches, one.line.queue
        for store in (caches.pending, caches.heads):
            if not len(chunk):
                break
            if queue not in store.shelves:
                continue
            absent = array("q")
            start = 0
            while start < len(chunk):
                shelf = store.shelves.get(queue)
                if shelf is None:
                    absent.extend(chunk[start:])
                    break
                stop, slab, where = shelf.find(chunk, start)
                part = chunk[start:stop]
                if slab is None:
                    absent.extend(part)
                elif one.shelf and one.bytes + slab.cost * len(part) // len(slab) > caches.high:
                    return as_chunk(absent)
                else:
                    moved = slab.select(part, where)
                    store.take(queue, slab, len(part))
                    moved.left = len(moved)
                    one.put(moved)
                    one.edge = max(one.edge, part[-1])
                start = stop
            chunk = as_chunk(absent)
        return chunk

    def _loaded(self, one: TargetList, chunk: Chunk, most: int, rows: Rows) -> None:
        """A read is answered."""
        caches = self._caches
        caches.loading.add(-most)
        self._reading.pop(one, None)
        n = len(rows)
        reached = rows.lsns[-1] if n else chunk[-1]
        if n < bisect_right(chunk, reached):
            self.gone.update(set(chunk[: bisect_right(chunk, reached)]).difference(rows.lsns))
        if n and (one.wanted or one.line.alive()):
            for slab in Slab.of_rows(rows).in_pieces(SLAB_BYTES):
                one.put(slab)
        one.edge = max(one.edge, reached) if reached == chunk[-1] else min(one.edge, reached)
        if caches.area.lists.get(one.key) is not one:
            caches.area.account.add(-one.bytes)
            one.shelf = Shelf()
        self._answer(one)
        if caches.budget.over > 0:
            caches.shrink()
            if not one.wanted:
                self._look.pop(one, None)  # what it got may be gone again: not before it dispatches
        self.step()

    def _answer(self, one: TargetList) -> None:
        one.wanted = []
        for callback in self._callbacks.pop(one, ()):
            callback()
        self.gone.clear()

    # -- heads of queues nobody consumes from

    def _fill_head(self) -> None:
        caches = self._caches
        most = min(READ_BYTES, caches.budget.limit // 8)
        line = self._heads[0]
        queue = line.queue
        fair = min(caches.budget.limit // 4, HEADS_MOST) // len(self._heads)
        held = caches.heads.held(queue)
        if -caches.budget.over < 2 * most or queue in caches.area.by_queue or held > fair:
            self._heads.popleft()
            return
        shelf = caches.heads.shelves.get(queue)
        chunk = line.after(shelf.last if shelf is not None else 0, READ_ROWS)
        chunk = chunk[: bisect_right(chunk, caches.arrivals.lacking)]
        if not len(chunk):
            caches.heads.begin(queue)
            self._heads.popleft()
            return
        most = min(most, max(fair - held, 1))
        caches.loading.add(most)
        self._reading[queue] = chunk

        def answer(rows: Rows) -> None:
            caches.loading.add(-most)
            del self._reading[queue]
            if len(rows) and queue not in caches.area.by_queue and line.head() is not None:
                caches.lines[queue] = line
                for slab in Slab.of_rows(rows).in_pieces(SLAB_BYTES):
                    caches.heads.put(queue, slab)
                caches.heads.leave_out(queue)
            elif self._heads and self._heads[0] is line:
                self._heads.popleft()
            if caches.budget.over > 0:
                caches.shrink()
            self.step()

        self._read(chunk, answer, most)


def _absent(shelf: Shelf, chunk: Chunk, out: array[int]) -> None:
    """Append those of a chunk that are not on a shelf."""
    start = 0
    while start < len(chunk):
        stop, slab, _ = shelf.find(chunk, start)
        if slab is None:
            out.extend(chunk[start:stop])
        start = stop


def _first(chunk: Chunk) -> int:
    return chunk[0]
