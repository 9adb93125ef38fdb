"""All bodies in memory: arrivals, direct bodies of lists, PendingCache, HeadQueueCache, under one budget.

What the engine uses.  A batch that comes in is an arrival; when the budget is short the oldest is parted: rows that a
list wants and has room for become direct, rows that a list wants later are pending, rows of a queue without consumers
follow on at its head if there is room, and the rest is in the log alone.  A delivery finds its bodies wherever they
are; what is nowhere the loader brings.

    room is made in this order
    1  arrivals are parted, as long as they hold more than an eighth of the budget
    2  HeadQueueCache, the newest first           so what is pending grows at its cost
    3  PendingCache, what is needed latest first
    4  what others keep and can read again        decoded batches, pages of replays, bodies for deltas
    5  direct bodies above each list's minimum, from the back of the longest list
    6  the other arrivals that are durable
    what is left waits for the log, for a connection to take it, or is being read (`penstock.memory`)
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TypeVar

from penstock.memory import GATHER_LEAST, Budget
from penstock.memory.arrived_batches import Arrivals, Parting, Takers, nobody
from penstock.memory.shelf import HeadQueueCache, Line, PendingCache, Shelf, TargetArea, TargetList
from penstock.memory.slab import Piece, missing
from penstock.records.chunks import Chunk, unpack_pairs
from penstock.records.entries import Publishes, Rows

HIGH_MOST = 4 << 20
"""Bytes a list holds directly at most: more would not make a consumer faster."""

LEAST_MOST = 32 << 10
"""Bytes of direct bodies that no other list can take away, if the budget allows that to all."""

SLAB_BYTES = 256 << 10
"""A slab is given free as a whole, so it is kept about this small."""

LOOKED_AT = 1000
"""Lists, and queues, that one sweep looks at."""

ASKED_MOST = 1000
"""Queues that are asked at once what they still need of arrivals; those of one batch always are."""

LOOK_US = 5_000
"""And for so long: what a queue is asked may cost it much, where it has many tenants."""

TRIMMED_MOST = 256
"""Queues remembered whose heads had to give way."""

K = TypeVar("K")


class Caches:
    """The linked caches.  All methods belong to the loop's thread."""

    def __init__(self, limit: int, takers: Takers = nobody) -> None:
        """limit: bytes for everything that `server.memory` covers."""
        self.budget = Budget(limit)
        self.arrivals = Arrivals()
        self.add = self.arrivals.add
        self.area = TargetArea(self.budget.account("direct"))
        self.pending = PendingCache(self.budget.account("pending"))
        self.heads = HeadQueueCache(self.budget.account("heads"))
        self.loading = self.budget.account("loading")
        self.sending = self.budget.account("sending")
        self.partial = self.budget.account("partial")
        self.budget.hold("arrivals", self.arrivals)
        self.lines: dict[int, Line] = {}  # of queues whose heads are kept
        self.parting = Parting(
            takers, self.budget, self.arrivals, self.area, self.pending, self.heads, self.lines, lambda: self.high
        )
        self.tight = False  # more is held than the budget allows, and no cache can shrink any more
        self.trimmed: dict[int, Line] = {}  # queues whose heads had to give way, to be filled when there is room again
        self.spare: list[Callable[[int], int]] = []  # who has what can be read again gives up about so many bytes of it
        self._turns: dict[str, int] = {}  # how far a sweep got
        self.mono: Callable[[], int] = int  # microseconds; a server's own clock
        self._swept_to = 0  # LSN of the arrivals that the next sweep begins with; 0: with the first
        self._look_over = 0  # sweeps to the end in which arrivals are looked at whatever their counts tell

    @property
    def used(self) -> int:
        """Bytes of bodies held here."""
        caches = self.area.account.bytes + self.pending.account.bytes + self.heads.account.bytes
        return self.arrivals.bytes + caches

    @property
    def spare_bytes(self) -> int:
        """Bytes that may be held until publishers have to wait; caches give way to them."""
        return 0 if self.tight else max(0, self.budget.limit - self.budget.used + self.used)

    @property
    def high(self) -> int:
        """The high-water mark of every list, in bytes."""
        fair = (self.budget.limit - self.budget.kept_back) // 2 // max(1, len(self.area.lists))
        return max(1, self.least, min(HIGH_MOST, fair))

    @property
    def least(self) -> int:
        """Direct bodies that each list keeps whatever happens, in bytes."""
        return min(LEAST_MOST, self.budget.limit // (4 * max(1, len(self.area.lists))))

    # -- coming

    def set_durable(self, lsn: int) -> None:
        """The log has everything up to `lsn`."""
        self.arrivals.set_durable(lsn)
        self.keep_to_budget()

    def left(self, body: bytes) -> None:
        """Messages left a queue, and nobody got them: the body of the record that says so."""
        if body:
            self.arrivals.left(unpack_pairs(body)[1])

    def thin(self) -> None:
        """Let go of arrivals that nobody needs, of batches of which enough has left."""
        if self.arrivals.loose:
            self.arrivals.thin(self.parting.needed, self._enough())

    def _enough(self) -> Callable[[], bool]:
        """Whether as many queues as one look may ask have been asked since this was called, or its time is over."""
        parting, mono, most, until = self.parting, self.mono, self.parting.asked + ASKED_MOST, self.mono() + LOOK_US
        return lambda: parting.asked >= most or mono() >= until

    def look_over(self) -> None:
        """Messages may have left a queue, and no record says which: have all arrivals looked at, some at each sweep."""
        self._look_over = 2 if self._swept_to else 1

    def keep_to_budget(self) -> None:
        """Shrink as far as it takes."""
        budget = self.budget
        if budget.used <= budget.limit - budget.kept_back:
            self.tight = False
        else:
            self.tight = not self.shrink() and budget.over > budget.kept_back + GATHER_LEAST

    def shrink(self, need: int = 0, *, direct: bool = True) -> bool:
        """Make room for `need` bytes more; whether there is.  direct: bodies that lists have may go for it."""
        budget, arrivals = self.budget, self.arrivals
        few = budget.limit // 8
        parting = self.parting
        parting.begin()
        while budget.over + need > 0:
            if arrivals.bytes > few and (batch := arrivals.part()) is not None:
                parting.part(batch, need)
            elif not (self._evict_head() or self.pending.evict()):
                if not direct:
                    return False
                for give in self.spare:
                    if (over := budget.over + need) > 0:
                        give(over)
                self._evict_direct(budget.over + need)
                while budget.over + need > 0 and (batch := arrivals.part()) is not None:
                    parting.leave_out(batch)
                return budget.over + need <= 0
        return True

    def _evict_head(self) -> int:
        heads = self.heads
        if not heads.account.bytes:
            return 0
        queue = heads.longest()
        if len(self.trimmed) < TRIMMED_MOST:
            self.trimmed[queue] = self.lines[queue]
        return heads.evict()

    def _evict_direct(self, need: int) -> None:
        """Take direct bodies above each list's minimum, from the longest lists first, until so much is free."""
        least = self.least
        for one in self.area.by_length():
            while need > 0 and one.bytes > least:
                freed = one.cut(least)
                if not freed:
                    break
                need -= freed
            if need <= 0:
                break

    # -- going

    def pieces(self, chunk: Chunk, key: object, queue: int) -> Iterator[Piece]:
        """The rows of a chunk in its order, cut where they lie apart; they count as delivered.

        key: of the list that they are dispatched from.  queue: its id.
        """
        for piece in self.arrivals.pieces(chunk):
            if piece.bodies is not None:
                yield piece
            else:
                yield from self._kept(piece.chunk, key, queue)

    def _kept(self, chunk: Chunk, key: object, queue: int) -> Iterator[Piece]:
        one = self.area.lists.get(key)
        start, total = 0, len(chunk)
        while start < total:
            stop = total
            if one is not None:
                stop, slab, where = one.shelf.find(chunk, start)
                if slab is not None:
                    part = chunk[start:stop]
                    piece = slab.piece(part, where)
                    one.take(slab, len(part))
                    yield piece
                    start = stop
                    continue
            part = chunk[start:stop]
            for store in (self.pending, self.heads):
                shelf = store.shelves.get(queue)
                if shelf is None:
                    continue
                end, slab, where = shelf.find(part, 0)
                part = part[:end]
                if slab is not None:
                    piece = slab.piece(part, where)
                    store.take(queue, slab, end)
                    yield piece
                    break
            else:
                yield missing(part)
            start += len(part)

    def want_more(self, lsn: int, count: int) -> None:
        """A message goes to so many more consumers than it was counted for when it came."""
        batch = self.arrivals.peek(lsn)
        if batch is not None:
            batch.wanted += count

    def peek(self, lsn: int) -> Publishes | None:
        """The arrival that holds a row; not counted as a delivery."""
        return self.arrivals.peek(lsn)

    def rows(self, chunk: Chunk, queue: int | None = None) -> tuple[Rows, array[int]]:
        """The rows of a chunk that are in memory, and the LSNs of the others; not counted as deliveries.

        queue: id of one that they are in, whose caches are looked through as well.
        """
        out, absent = Rows([], [], [], [], [], [], []), array("q")
        shelves: list[Shelf] = []
        if queue is not None:
            stores = [self.pending.shelves.get(queue), self.heads.shelves.get(queue)]
            shelves = [shelf for shelf in stores if shelf is not None]
            shelves += [one.shelf for one in self.area.by_queue.get(queue, ())]
        start = 0
        while start < len(chunk):
            lsn = chunk[start]
            batch = self.arrivals.peek(lsn)
            if batch is not None:
                stop = bisect_right(chunk, batch.first + len(batch.bodies) - 1, start)
                _add_rows(out, batch, chunk[start:stop])
                start = stop
                continue
            for shelf in shelves:
                stop, slab, where = shelf.find(chunk, start)
                if slab is not None:
                    slab.add_to(out, chunk[start:stop], where)
                    start = stop
                    break
            else:
                absent.append(lsn)
                start += 1
        return out, absent

    # -- lists that end

    def sweep(self) -> None:
        """Let go what nobody wants: arrivals, lists without consumers, bodies that lists or heads have gone beyond.

        Looks at a bounded number of each; who was not looked at comes next time.
        """
        self._sweep_arrivals()
        lists = self.area.lists
        for key in self._turn("lists", lists):
            one = lists[key]
            if not one.line.alive() and not one.wanted:
                self._fall_back(one)
            else:
                self.lower(one)
        for queue in self._turn("pending", self.pending.shelves):
            fronts = [one.front() for one in self.area.by_queue.get(queue, ())]
            self.pending.keep_from(queue, min([front for front in fronts if front is not None], default=None))
        for queue in self._turn("heads", self.heads.shelves):
            self.heads.keep_from(queue, self.lines[queue].head())
        if len(self.lines) > 2 * len(self.heads.shelves) + LOOKED_AT:
            for queue in [queue for queue in self.lines if queue not in self.heads.shelves]:
                del self.lines[queue]

    def _sweep_arrivals(self) -> None:
        arrivals = self.arrivals
        some, after = arrivals.worth(self._swept_to, LOOKED_AT, all=self._look_over > 0)
        done = arrivals.thin_these(some, self.parting.needed, self._enough())
        self._swept_to = after if done == len(some) else some[done]
        if not self._swept_to and self._look_over:
            self._look_over -= 1
        self.thin()

    def _turn(self, name: str, things: Mapping[K, object]) -> list[K]:
        """The next so many keys, beginning anew after the last."""
        if len(things) <= LOOKED_AT:
            return list(things)
        begin = self._turns.get(name, 0)
        if begin >= len(things):
            begin = 0
        self._turns[name] = begin + LOOKED_AT
        return list(islice(things, begin, begin + LOOKED_AT))

    def lower(self, one: TargetList) -> None:
        """The high-water mark may have come down, for there are more lists: what lies above it becomes pending."""
        high = self.high
        while one.bytes > high and len(one.shelf) > 1:
            self.pending.put(one.line.queue, one.drop_last())

    def _fall_back(self, one: TargetList) -> None:
        """A list has lost its last consumer: its bodies are pending for others, or the head of the queue."""
        queue, line = one.line.queue, one.line.whole
        slabs = self.area.remove(one)
        self.parting.ask_anew()
        if queue in self.area.by_queue:
            for slab in slabs:
                self.pending.put(queue, slab)
            return
        slabs += self.pending.forget(queue)
        if line.head() is not None:
            self.lines[queue] = line
            for slab in slabs:
                self.heads.put(queue, slab)
            self.heads.leave_out(queue)


def _add_rows(out: Rows, batch: Publishes, chunk: Chunk) -> None:
    for lsn in chunk:
        row = lsn - batch.first
        out.lsns.append(lsn)
        out.topics.append(batch.topic_of(row))
        out.properties.append(batch.properties_of(row))
        out.bodies.append(batch.bodies[row])
        out.times.append(batch.time)
        out.expires_at.append(batch.expires_at[row] if batch.expires_at is not None else 0)
        out.priority.append(batch.priority[row] if batch.priority is not None else 0)
