"""All bodies in memory: arrivals, direct bodies of lists, PendingCache, HeadQueueCache, under one budget.

What the engine uses.  A batch that comes in is an arrival; when the budget is short the oldest is parted: rows that a
list wants and has room for become direct, rows that a list wants later are pending, rows of a queue without consumers
follow on at its head if there is room, and the rest is in the log alone.  A delivery finds its bodies wherever they
are; what is nowhere the loader brings.

    room is made in this order
    1  arrivals are parted, as long as they hold more than an eighth of the budget
    2  HeadQueueCache, the newest first           so what is pending grows at its cost
    3  PendingCache, what is needed latest first
    4  direct bodies above each list's minimum, from the back of the longest list
    5  the other arrivals that are durable
    what is left waits for the log, for a connection to take it, or is being read
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from penstock.memory.arrivals import Arrivals
from penstock.memory.budget import GATHER_LEAST, Budget
from penstock.memory.head_cache import SHARE_MOST, HeadQueueCache
from penstock.memory.pending_cache import PendingCache
from penstock.memory.shelf import Shelf
from penstock.memory.slab import Piece, Slab, missing
from penstock.memory.target_area import Line, TargetArea, TargetList
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.entries import Publishes, Rows

HIGH_MOST = 4 << 20
"""Bytes a list holds directly at most: more would not make a consumer faster."""

LEAST_MOST = 32 << 10
"""Bytes of direct bodies that no other list can take away, if the budget allows that to all."""

SLAB_BYTES = 256 << 10
"""A slab is given free as a whole, so it is kept about this small."""

FORGET_ROUTES = 1 << 10
"""Parted batches after which it is asked anew whether a route's queues want bodies."""

PLACED_MOST = 256
"""Queues that are given rows of batches in one shrinking; of the batches after that nothing is kept.  2 to 4 ms."""

LOOKED_AT = 1000
"""Lists, and queues, that one sweep looks at."""

TRIMMED_MOST = 256
"""Queues remembered whose heads had to give way."""

K = TypeVar("K")

Takers = Callable[[int], Sequence[tuple[object, Line]]]
"""The queues that a row's route names: each with its key and its unfiltered list."""


def _nobody(_: int) -> Sequence[tuple[object, Line]]:
    return ()


class Caches:
    """The linked caches.  All methods belong to the loop's thread."""

    def __init__(self, limit: int, takers: Takers = _nobody) -> None:
        """limit: bytes for everything that `server.memory` covers."""
        self.budget = Budget(limit)
        self.arrivals = Arrivals()
        self.area = TargetArea(self.budget.account("direct"))
        self.pending = PendingCache(self.budget.account("pending"))
        self.heads = HeadQueueCache(self.budget.account("heads"))
        self.loading = self.budget.account("loading")
        self.sending = self.budget.account("sending")
        self.partial = self.budget.account("partial")
        self.budget.watch("arrivals", lambda: self.arrivals.bytes)
        self.takers = takers
        self.lines = dict[int, Line]()  # of queues whose heads are kept
        self.tight = False  # more is held than the budget allows, and no cache can shrink any more
        self._idle_routes = set[int]()  # whose queues want no body at present
        self.trimmed = dict[int, Line]()  # queues whose heads had to give way, to be filled when there is room again
        self._parted = 0
        self._placed = 0  # how often a queue was given its rows of a batch
        self._turns = dict[str, int]()  # how far a sweep got

    @property
    def used(self) -> int:
        """Bytes of bodies held here."""
        caches = self.area.account.bytes + self.pending.account.bytes + self.heads.account.bytes
        return self.arrivals.bytes + caches

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

    def add(self, batch: Publishes) -> None:
        """A batch has been given its LSNs; they are above all earlier ones."""
        self.arrivals.add(batch)

    def set_durable(self, lsn: int) -> None:
        """The log has everything up to `lsn`."""
        self.arrivals.set_durable(lsn)
        self.keep_to_budget()

    def keep_to_budget(self) -> None:
        """Shrink as far as it takes."""
        over = self.budget.over
        if over <= 0:
            self.tight = False
        else:
            self.tight = not self.shrink() and self.budget.over > self.budget.kept_back + GATHER_LEAST

    def shrink(self, need: int = 0, *, direct: bool = True) -> bool:
        """Make room for `need` bytes more; whether there is.  direct: bodies that lists have may go for it."""
        budget, arrivals = self.budget, self.arrivals
        few = budget.limit // 8
        last = self._placed + PLACED_MOST
        while budget.over + need > 0:
            if arrivals.bytes > few and (batch := arrivals.part()) is not None:
                self._part(batch, need, last)
            elif not (self._evict_head() or self.pending.evict()):
                if not direct:
                    return False
                self._evict_direct(budget.over + need)
                while budget.over + need > 0 and (batch := arrivals.part()) is not None:
                    self._leave_out(batch)
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

    # -- parting

    def _part(self, batch: Publishes, need: int, last: int) -> None:
        """Find another place for the rows of a batch that leaves the arrivals, or none; `last`: of `_placed`."""
        if batch.wanted <= 0:
            return
        self._parted += 1
        if self._parted % FORGET_ROUTES == 0:
            self._idle_routes.clear()
        for route in self._busy_routes(batch):
            if self._placed >= last:
                self._leave_out_of(route)
                continue
            idle = True
            for key, line in self.takers(route):
                self._placed += 1
                if self._part_for(batch, key, line, need):
                    idle = False
            if idle:
                self._idle_routes.add(route)

    def _busy_routes(self, batch: Publishes) -> set[int]:
        routes = {batch.routes} if isinstance(batch.routes, int) else set(batch.routes)
        return routes - self._idle_routes

    def _part_for(self, batch: Publishes, key: object, line: Line, need: int) -> bool:
        """Give a queue its rows of a batch; whether it may want more of the next."""
        queue, first = line.queue, batch.first
        stop = first + len(batch.bodies)
        if line.alive() and key not in self.area.lists:
            self.area.add(key, line)
        lists = self.area.by_queue.get(queue)
        if not lists:
            return self._put_head(batch, line, need)
        pending = list[Chunk]()
        for one in lists:
            chunk = one.line.between(first, stop)
            if not len(chunk):
                continue
            slab = Slab.of_batch(batch, chunk)
            ahead = one.line.after(one.edge, 1)
            if one.bytes + slab.cost <= self.high and len(ahead) and ahead[0] >= first:
                one.put(slab)
                one.edge = chunk[-1]
            else:
                pending.append(chunk)
        if pending:
            chunk = pending[0] if len(pending) == 1 else as_chunk(sorted({lsn for part in pending for lsn in part}))
            slab = Slab.of_batch(batch, chunk)
            if slab.cost <= self._room(need) + self.heads.account.bytes or self._sooner(queue, slab):
                self.pending.put(queue, slab)
        return True

    def _put_head(self, batch: Publishes, line: Line, need: int) -> bool:
        queue, heads = line.queue, self.heads
        head = line.head()
        if head is None or (not heads.follows_on(queue) and head < batch.first):
            return False
        if head >= batch.first:
            heads.begin(queue)
            heads.drop_below(queue, head)
        chunk = line.between(batch.first, batch.first + len(batch.bodies))
        if not len(chunk):
            return True
        slab = Slab.of_batch(batch, chunk)
        if slab.cost > self._room(need) and not self._small(queue, slab):
            heads.leave_out(queue)
            return False
        self.lines[queue] = line
        heads.put(queue, slab)
        return True

    def _room(self, need: int) -> int:
        """Bytes that the arrivals leave to the other caches once they have shrunk to their eighth."""
        return max(0, self.arrivals.bytes - self.budget.limit // 8) - self.budget.over - need

    def _sooner(self, queue: int, slab: Slab) -> bool:
        """Whether these rows are needed sooner than something that is pending."""
        if not self.pending.account.bytes:
            return False
        latest, ahead = self.pending.latest()
        return latest != queue and self.pending.held(queue) + slab.cost < ahead

    def _small(self, queue: int, slab: Slab) -> bool:
        """Whether a queue is below the share that it has whatever the longest one holds."""
        heads = self.heads
        share = min(SHARE_MOST, self.budget.limit // (4 * max(1, len(heads.shelves))))
        if heads.held(queue) + slab.cost > share or not heads.account.bytes:
            return False
        return heads.held(heads.longest()) > share

    def _leave_out(self, batch: Publishes) -> None:
        """A batch goes nowhere."""
        for route in self._busy_routes(batch):
            self._leave_out_of(route)

    def _leave_out_of(self, route: int) -> None:
        """The heads of a route's queues end here.  What lists want of a batch that is left out the loader brings."""
        idle = True
        for _, line in self.takers(route):
            self.heads.leave_out(line.queue)
            idle = idle and line.queue not in self.area.by_queue and not line.alive()
        if idle:  # nothing follows on at these heads
            self._idle_routes.add(route)

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
        shelves = list[Shelf]()
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
        """Let go what nobody wants: lists without consumers, bodies that lists or heads have gone beyond.

        Looks at a bounded number of each; who was not looked at comes next time.
        """
        lists = self.area.lists
        for key in self._turn("lists", lists):
            one = lists[key]
            if not one.line.alive() and not one.wanted:
                self._fall_back(one)
            else:
                self.lower(one)
        for queue in self._turn("pending", self.pending.shelves):
            fronts = [one.front() for one in self.area.by_queue.get(queue, ())]
            ahead = [front for front in fronts if front is not None]
            if ahead:
                self.pending.drop_below(queue, min(ahead))
            else:
                self.pending.forget(queue)
        for queue in self._turn("heads", self.heads.shelves):
            head = self.lines[queue].head()
            if head is None:
                self.heads.forget(queue)
            else:
                self.heads.drop_below(queue, head)
        if len(self.lines) > 2 * len(self.heads.shelves) + LOOKED_AT:
            self.lines = {queue: line for queue, line in self.lines.items() if queue in self.heads.shelves}

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
        self._idle_routes.clear()
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
