"""The eager loader: it raises the watermarks of lists ahead of dispatch, and brings what a delivery waits for.

Again and again it takes the list that needs it most (one whose consumers wait; then those with credit; then the lowest
watermark for its high-water mark), and makes the next positions direct: from PendingCache or HeadQueueCache by moving
them, else by one read of neighbours off the loop.  Room for a read is reserved before it begins.  When no list needs
anything it fills the heads of queues that have no consumers yet.  It runs at the end of turns and when a read is
answered; it never touches the disk itself.

Heads: after a start, and when there is room again, bodies of queues that nobody consumes from are read before somebody
comes.  All queues asked for are filled by the same reads, in the order of the log, each up to its share of a quarter of
the budget: however the messages of many queues lie in the log, it is decoded about once.  Filling gives up when the
budget has no room, and never makes any.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import chain, islice, takewhile

from penstock.memory import JOIN_MOST, READ_BYTES, READ_ROWS, ReadCold, union
from penstock.memory.caches import SLAB_BYTES, Caches
from penstock.memory.shelf import MEAN_FIRST, Line, Shelf, TargetList
from penstock.memory.slab import Slab
from penstock.records.chunks import LSN_LIMIT, Chunk, as_chunk
from penstock.records.entries import Rows

_HEADS_MOST = 64 << 20
"""Bytes of heads filled at once."""


class _HeadLoader:
    """Fills the HeadQueueCache."""

    def __init__(self, caches: Caches, read: ReadCold) -> None:
        self._caches = caches
        self._read = read
        self.lines: dict[int, Line] = {}  # by queue: to be filled
        self._share = 0
        self.reading: dict[int, Chunk] = {}  # by queue

    def fill(self, lines: Iterable[Line]) -> None:
        """Nobody consumes from these queues yet: have the bodies at their heads when somebody comes."""
        self.lines.update((line.queue, line) for line in lines)
        self._share = min(self._caches.budget.limit // 4, _HEADS_MOST) // max(1, len(self.lines))

    def step(self) -> None:
        """Begin a read, if none is under way and there is room."""
        caches = self._caches
        if self.reading:
            return
        most = min(READ_BYTES, caches.budget.limit // 8)
        if -caches.budget.over < 2 * most:
            self.lines.clear()
            return
        parts = self._next()
        if not parts:
            return
        chunk = union(parts.values())[:READ_ROWS]
        caches.loading.add(most)
        cut = {queue: part[: bisect_right(part, chunk[-1])] for queue, part in parts.items()}
        self.reading = {queue: part for queue, part in cut.items() if len(part)}  # the others come with a later read
        self._read(chunk, lambda rows: self._loaded(chunk, rows, most), most)

    def _next(self) -> dict[int, Chunk]:
        """Of each queue positions that follow what is at its head, those of all that stand first in the log among them.

        One read's rows, where there are so many.  A queue is looked at further only where all that was looked at of it
        belongs to the read, so that the depths of many queues are not gone through for each.
        """
        lines = dict(islice(self.lines.items(), JOIN_MOST))
        share = READ_ROWS // max(1, len(lines)) + 1
        rooms = {queue: self._room(line) for queue, line in lines.items()}
        parts: dict[int, list[Chunk]] = {queue: [] for queue in lines}
        ends: list[tuple[int, int]] = []  # a heap: how far each was looked at

        def look(queue: int, lsn: int) -> None:
            chunk = lines[queue].after(lsn, min(share, rooms[queue])) if rooms[queue] > 0 else range(0)
            chunk = chunk[: bisect_right(chunk, self._caches.arrivals.lacking)]
            if len(chunk):
                rooms[queue] -= len(chunk)
                parts[queue].append(chunk)
                heappush(ends, (chunk[-1], queue))

        for queue, room in rooms.items():
            shelf = self._caches.heads.shelves.get(queue)
            look(queue, shelf.last if shelf is not None else 0)
            if not parts[queue]:
                if room:
                    self._caches.heads.begin(queue)
                del self.lines[queue]
        there = 0  # rows of which it is sure that no other stands before them
        while ends and there < READ_ROWS:
            lsn, queue = heappop(ends)
            there += len(parts[queue][-1])
            look(queue, lsn)
        return {queue: union(some) for queue, some in parts.items() if some}

    def _room(self, line: Line) -> int:
        """How many rows a head may still have; none when it has its share, or a consumer."""
        heads, queue = self._caches.heads, line.queue
        shelf = heads.shelves.get(queue)
        held, mean = (shelf.bytes, shelf.bytes // max(1, shelf.rows)) if shelf is not None else (0, MEAN_FIRST)
        if queue in self._caches.area.by_queue or 8 * held > 7 * self._share:
            return 0
        return max(1, (self._share - held) // max(1, mean))

    def _loaded(self, chunk: Chunk, rows: Rows, most: int) -> None:
        """A read is answered; other queues than those that it was for have nothing to do with it."""
        caches = self._caches
        caches.loading.add(-most)
        parts, self.reading = self.reading, {}
        if not len(rows):
            for queue in parts:
                self.lines.pop(queue, None)
            return
        slab = Slab.of_rows(rows)
        end = rows.lsns[-1]
        for queue, part in parts.items():
            line = self.lines[queue]
            came = part[: bisect_right(part, end)]
            if not len(came):
                continue
            mine, _ = slab.those(came)
            if mine is None or queue in caches.area.by_queue or line.head() is None:
                del self.lines[queue]
                continue
            caches.lines[queue] = line
            for piece in mine.in_pieces(min(SLAB_BYTES, max(1, self._share))):
                if caches.heads.held(queue) and caches.heads.held(queue) + piece.cost > self._share:
                    self.lines.pop(queue, None)
                    break
                caches.heads.put(queue, piece)
            caches.heads.leave_out(queue)
        if caches.budget.over > 0:
            caches.shrink()


READS = 2
"""Reads under way at once."""

_LOOK_AT = 64
"""Lists among which the neediest is chosen in one step."""

_BACK_MOST = 256
"""Positions that came back of which bodies are fetched ahead.  Where all are here nobody looks until half have gone."""

TURNS = 4
"""Of so many reads one goes to the list that has waited longest, wherever in the log it is."""

READ_LEAST = 64 << 10
"""Bytes read at once for somebody who waits, however small the budget is."""


class Loader:
    """Brings bodies into the caches."""

    def __init__(self, caches: Caches, read: ReadCold) -> None:
        self._caches = caches
        self._read = read
        self._look: dict[TargetList, None] = {}  # lists that may need something
        self._callbacks: dict[TargetList, list[Callable[[], None]]] = {}  # by list: who waits for its next rows
        self._reading: dict[TargetList, Chunk] = {}
        self._reads = 0  # under way; one may serve several lists
        self._missed: set[TargetList] = set()  # a read for these was filled up by what lay before their rows
        self._turn = 0  # of reads, see `_neediest`
        self.heads = _HeadLoader(caches, read)
        self.gone: set[int] = set()  # waited for, and no longer in the log

    @property
    def idle(self) -> bool:
        """Whether `step` would find nothing to do."""
        return not self._look and not self.heads.lines

    @property
    def reading(self) -> list[Chunk]:
        return [*self._reading.values(), *self.heads.reading.values()]

    # -- what others ask

    def look_after(self, one: TargetList, dispatched: int) -> None:
        """A list has something ready beyond what was dispatched from it: as many just now, at most."""
        one.ahead -= dispatched
        self._look[one] = None

    def want(self, one: TargetList, chunks: Iterable[Chunk], callback: Callable[[], None]) -> None:
        """Somebody waits for these; `callback` runs once some of them, from the first on, are there or `gone`."""
        one.wanted += chunks
        self._callbacks.setdefault(one, []).append(callback)
        self._look[one] = None

    # -- the work

    def step(self) -> None:
        """Move what can be moved, and begin reads, as far as bounds and budget allow."""
        for _ in range(_LOOK_AT):
            one = self._neediest()
            if one is None:
                break
            again = self._fill(one)
            if again is None:
                break
            if not again:
                self._look.pop(one, None)
        if self.heads.lines and not self._look and not self._reading:
            self.heads.step()

    def _neediest(self) -> TargetList | None:
        """The list whose need comes first.

        Of those that somebody waits for, one turn of four goes to the one that has waited longest, so that nobody
        starves; the others go to the one that is furthest back in the log, so that lists come to one place and are
        served by the same reads.  When that one is being read for, the others wait for it.
        """
        caches = self._caches
        by_place = self._turn % TURNS > 0
        if self._reads >= READS and not caches.pending.shelves and not caches.heads.shelves:
            return None
        best: TargetList | None = None
        least: tuple[int, int, float] = (3, 0, 0.0)
        done: list[TargetList] = []
        for looked, one in enumerate(islice((one for one in self._look if one not in self._reading), _LOOK_AT)):
            need = self._need(one, looked, by_place)
            if need is None:
                done.append(one)
            elif need < least:
                best, least = one, need
        for one in done:
            del self._look[one]
        return best if best is None or self._at_hand(best) or self._may_read(best, by_place) else None

    def _need(self, one: TargetList, looked: int, by_place: bool) -> tuple[int, int, float] | None:
        """How soon a list comes, the lowest first; None: it needs nothing."""
        if one.wanted:
            return 0, 0, one.wanted[0][0] if by_place else looked
        high = self._caches.high
        if not one.line.alive() or (4 * one.bytes > 3 * high and not self._front_is_cold(one)):
            return None
        return 1, 0 if one.line.credit() else 1, one.bytes / high

    def _front_is_cold(self, one: TargetList) -> bool:
        """Whether something came back whose body is not direct: it goes first."""
        back = one.line.returned(1)
        return bool(len(back)) and one.shelf.find(back, 0)[1] is None and self._caches.peek(back[0]) is None

    def _may_read(self, one: TargetList, by_place: bool) -> bool:
        """Whether a read may begin for it: a list that is further back in the log, and is read for, comes first."""
        if self._reads >= READS:
            return False
        reading = min((chunk[0] for other, chunk in self._reading.items() if other.wanted), default=LSN_LIMIT)
        return not (by_place and one.wanted and reading < one.wanted[0][0])

    def _at_hand(self, one: TargetList) -> bool:
        """Whether the caches may have something for it without a read."""
        queue = one.line.queue
        return queue in self._caches.pending.shelves or queue in self._caches.heads.shelves

    def _fill(self, one: TargetList) -> bool | None:
        """Bring the next of a list; whether it should be looked at again, None: not before a read has ended."""
        caches = self._caches
        waited = bool(one.wanted)
        rows_before = one.watermark
        chunk = self._lacking(one)
        if chunk is None:
            return False
        if not len(chunk):
            if waited:
                self._answer(one)
                return True
            return one.watermark > rows_before
        if self._reads >= READS:
            return None
        most = max(1, min(caches.high - one.bytes, READ_BYTES))
        if waited:
            most = max(most, READ_LEAST)
        parts, most = self._joined(one, chunk, most)
        if waited:
            caches.shrink(most - caches.budget.kept_back)
            if self._reads and caches.budget.used + most > caches.budget.limit:
                return None  # after the read that is under way
        elif not caches.shrink(most, direct=False):
            return False
        caches.loading.add(most)
        for each, part in parts.items():
            self._reading[each] = part
            if each in self._look:  # it has waited longest no more
                del self._look[each]
                self._look[each] = None
        self._reads += 1
        self._turn += 1
        self._read(union(parts.values()), lambda rows: self._loaded(parts, most, rows), most)
        return True

    def _lacking(self, one: TargetList, stop: int = LSN_LIMIT) -> Chunk | None:
        """Positions that a list needs from the log next, up to about `stop`; None: it needs none.

        What the other caches have of them is direct then.
        """
        caches = self._caches
        front = one.front()
        if front is None:
            return None
        one.skip(front)
        caches.lower(one)
        while one.shelf and caches.high - one.bytes < caches.least and (one.wanted or self._front_is_cold(one)):
            one.drop_last()
        room = max(caches.high - one.bytes, READ_LEAST if one.wanted else 0)
        rows = max(1, min(READ_ROWS, room // one.mean))
        chunk = self._next(one, rows, stop)
        if not len(chunk):
            return chunk if one.wanted else None
        return self._move(one, chunk)

    def _joined(self, one: TargetList, chunk: Chunk, most: int) -> tuple[dict[TargetList, Chunk], int]:
        """What is read at once: what one list needs, and what others need of that stretch of the log; and its bytes.

        The stretch begins with the first row, within its own length before the list's, that another needs; it is cut
        where what all need of it is more than one read brings.
        """
        caches = self._caches
        first, stop = chunk[0], chunk[min(len(chunk) - 1, most // one.mean)]
        parts, size = self._of_stretch(one, chunk, stop)
        size += bisect_right(chunk, stop) * one.mean
        limit = max(most, min(READ_BYTES, caches.budget.kept_back - caches.budget.over))
        waiting = sum(1 for other in islice(self._look, JOIN_MOST) if other.wanted)
        if waiting > len(parts) and self._turn % TURNS == 0:  # those further back shall catch up
            limit = max(1, limit * len(parts) // waiting)
        share = min(limit / size, READ_ROWS / sum(map(len, parts.values())))
        if share < 1:
            low = min(part[0] for part in parts.values())
            stop = max(first, low + int((stop - low) * share))
        cut = {other: part[: bisect_right(part, stop)] for other, part in parts.items()}
        return {other: part for other, part in cut.items() if len(part)}, max(most, min(limit, size))

    def _may_join(self, one: TargetList, stop: int) -> bool:
        """Whether a list that nobody waits for has room for what it lacks up to there."""
        return 8 * one.bytes <= 7 * self._caches.high and one.edge < stop and one.line.alive()

    def _of_stretch(self, one: TargetList, chunk: Chunk, stop: int) -> tuple[dict[TargetList, Chunk], int]:
        """What each list lacks up to `stop`, of `one` the chunk; and the bytes of what the others lack."""
        caches = self._caches
        high, parts, size = caches.high, {one: chunk}, 0
        first = chunk[0]
        low = first if one in self._missed else 2 * first - stop
        self._missed.discard(one)
        answered: list[TargetList] = []
        for other in islice(chain(self._look, caches.area.lists.values()), JOIN_MOST):
            if other in parts or other in self._reading:
                continue
            part = self._lacking(other, stop) if other.wanted or self._may_join(other, stop) else None
            if part is None or not len(part):
                if other.wanted and other.wanted[0][0] <= stop:  # what lies beyond was not asked for
                    answered.append(other)
                continue
            part = part[: min(bisect_right(part, stop), max(1, (high - other.bytes) // other.mean))]
            if len(part) and part[0] >= low:
                parts[other] = part
                size += len(part) * other.mean
        for other in answered:
            self._answer(other)
        return parts, size

    def _next(self, one: TargetList, rows: int, stop: int) -> Chunk:
        """Positions up to `stop` to make direct next: what is waited for, what came back, what follows."""
        shelf = one.shelf
        lacking = min(self._caches.arrivals.lacking, stop)
        some = self._asked_for(one, rows, stop)
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

    def _asked_for(self, one: TargetList, rows: int, stop: int) -> array[int]:
        """Positions up to `stop`, ascending, that are waited for, and what came back; without what is direct.

        What is waited for first comes first, wherever it lies: all of it may be more than the list has room for.
        """
        arrivals, shelf, missed = self._caches.arrivals, one.shelf, one in self._missed
        some = array("q")
        ascends = True
        within = (chunk for chunk in (one.wanted[:1] if missed else one.wanted) if chunk[0] <= stop)
        for chunk in takewhile(lambda _: len(some) < rows, within):
            ascends = ascends and (not some or chunk[0] > some[-1])
            _absent(shelf, arrivals.absent(chunk[: rows - len(some)]), some)
        back = range(0) if missed or one.ahead > 0 else one.line.returned(min(_BACK_MOST, rows))
        if len(back):
            ascends, before = False, len(some)
            _absent(shelf, arrivals.absent(back), some)
            one.ahead = len(back) // 2 if len(some) == before else 0
        return some if ascends or not some else array("q", sorted(set(some))[:READ_ROWS])

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

    def _loaded(self, parts: dict[TargetList, Chunk], most: int, rows: Rows) -> None:
        caches = self._caches
        caches.loading.add(-most)
        self._reads -= 1
        end = rows.lsns[-1] if rows.lsns else max(chunk[-1] for chunk in parts.values())
        slab = Slab.of_rows(rows) if rows.lsns else None
        gone = {one: self._came(one, chunk, end, slab) for one, chunk in parts.items()}
        for one, lost in gone.items():
            self.gone.update(lost)
            self._answer(one)
        self._missed = {one for one in self._missed if one.wanted}
        if caches.budget.over > 0:
            caches.shrink()
            for one in parts:
                if not one.wanted:
                    self._look.pop(one, None)  # what it got may be gone again: not before it dispatches
        self.step()

    def _came(self, one: TargetList, chunk: Chunk, end: int, slab: Slab | None) -> set[int]:
        """A read that got as far as `end` is over for a list; which of the chunk are no longer in the log."""
        self._reading.pop(one, None)
        came = chunk[: bisect_right(chunk, end)]
        if one.wanted and end < one.wanted[0][0]:
            self._missed.add(one)
        if not len(came):
            return set()
        lost = set(came) if slab is None else self._bring(one, came, slab)
        reached = came[-1]
        one.edge = max(one.edge, reached) if reached == chunk[-1] else min(one.edge, reached)
        area = self._caches.area
        if area.lists.get(one.key) is not one:
            area.account.add(-one.bytes)
            one.shelf = Shelf()
        return lost

    def _bring(self, one: TargetList, chunk: Chunk, slab: Slab) -> set[int]:
        """Make rows of an answer direct; those that it lacks."""
        part, lost = slab.those(chunk)
        if part is not None and (one.wanted or one.line.alive()):
            for piece in part.in_pieces(SLAB_BYTES):
                one.put(piece)
        return lost

    def _answer(self, one: TargetList) -> None:
        one.wanted = []
        for callback in self._callbacks.pop(one, ()):
            callback()
        self.gone.clear()


def _absent(shelf: Shelf, chunk: Chunk, out: array[int]) -> None:
    """Append those of a chunk that are not on a shelf."""
    start = 0
    while start < len(chunk):
        stop, slab, _ = shelf.find(chunk, start)
        if slab is None:
            out.extend(chunk[start:stop])
        start = stop
