"""Arrivals: batches as they came, whole, for what is delivered in the turn of its arrival or soon after.

A batch leaves when every queue that took it has delivered it and it is durable, or, oldest first, when the budget is
short: then `part` hands it to the other caches.  So what is here is always the youngest: every message above `lacking`
that still waits for its first delivery is here; of the others memory has what the other caches hold.  Batches that are
not yet durable never leave, for the log does not have them; the server bounds those by pausing publishers.

Messages that leave their queues undelivered are told (`left`).  A batch of which that is half of what it was wanted for
is looked at once it is durable (`thin`): if half of its rows or fewer are needed it is cut down to these.  So each look
is paid for by as many messages that left, and a batch that lost none is never looked at.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from itertools import islice

from penstock.memory import Budget
from penstock.memory.shelf import SHARE_MOST, HeadQueueCache, Line, PendingCache, TargetArea
from penstock.memory.slab import HEADER_OVERHEAD, HEADER_SHARE, ROW_OVERHEAD, Piece, Slab, missing
from penstock.records.chunks import Chunk, as_chunk, united
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes, Topic, measured
from penstock.records.kinds import NO_ROUTE
from penstock.records.message_bodies import WIDTH, listed
from penstock.records.one_or_each import Where, rows_at

PIECE_MOST = 256 << 10
"""Bytes of a piece for one consumer, about: it may have no room for the next.  A row alone may have more."""


BATCH_OVERHEAD = 416
"""Bytes of a batch beside its rows: the object, its lists, its numbers and its place among the arrivals."""

SCATTERED_WEIGHT = 8
"""So many rows that do not lie together cost about what asking a queue does."""

LINES_MOST = 1000
"""Queues of a batch that are asked what they still need of it; of more it is only counted what has left."""

DUE_MOST = 1000
"""Loose batches that are gone through at once."""

Needed = Callable[[Publishes], "Sequence[Chunk] | None"]
"""The rows of a batch that each queue still needs; None: that would cost more than it can bring."""


def batch_cost(batch: Publishes) -> int:
    """Bytes that a batch counts for.  Measures it if nobody has."""
    rows, properties = len(batch.bodies), batch.properties
    if not batch.size:
        batch.size = measured(batch.bodies, properties)
    several = isinstance(properties, list)
    size = batch.size + BATCH_OVERHEAD + (HEADER_OVERHEAD * rows if several else 0)
    if isinstance(batch.bodies, list):
        return size + ROW_OVERHEAD * rows
    return size + WIDTH * rows + (HEADER_SHARE * rows if several else 0)


class Arrivals:
    """Batches by first LSN.  `bytes` is what they cost."""

    def __init__(self) -> None:
        self.bytes = 0
        self.durable = 0
        self.lacking = 0  # no message above this that waits for its first delivery is missing here
        self._firsts: list[int] = []  # ascending; parallel to batches
        self.batches: list[Publishes | None] = []  # None: dropped, the slot goes at the next compaction
        self._costs: list[int] = []  # parallel; what a batch cost when it came
        self._holes = 0
        self._oldest = 0  # index: no batch stands before it
        self._unsettled = 0  # index of the first batch that is not durable
        self._left = dict[int, int]()  # by first LSN of a batch: messages that left undelivered since it was looked at
        self.loose = set[int]()  # first LSNs of batches to be looked at

    def __len__(self) -> int:
        return len(self.batches) - self._holes

    def add(self, batch: Publishes) -> None:
        """Take a batch that has just been given its LSNs; they are above all earlier ones."""
        self._firsts.append(batch.first)
        self.batches.append(batch)
        cost = batch_cost(batch)
        self._costs.append(cost)
        self.bytes += cost

    def set_durable(self, lsn: int) -> None:
        """The log has everything up to `lsn`: drop what is delivered."""
        self.durable = lsn
        batches = self.batches
        end = bisect_right(self._firsts, lsn, self._unsettled)
        for index in range(self._unsettled, end):
            batch = batches[index]
            if batch is not None and batch.wanted <= 0:
                self._drop(index)
        self._unsettled = end
        if self._holes > 64 and self._holes * 2 > len(batches):
            self._compact()

    def left(self, pairs: Sequence[int]) -> None:
        """Messages of a queue with LSNs in [a, b), a, b, ... left it undelivered, or all of them that it had."""
        firsts, batches, told = self._firsts, self.batches, self._left
        for low, high in zip(pairs[::2], pairs[1::2], strict=True):
            for index in range(max(bisect_right(firsts, low) - 1, 0), bisect_left(firsts, high)):
                batch = batches[index]
                if batch is not None:
                    first = batch.first
                    count = min(high, first + len(batch.bodies)) - max(low, first)
                    if count > 0:
                        told[first] = count = count + told.get(first, 0)
                        if 2 * count >= batch.wanted:
                            self.loose.add(first)

    def worth(self, lsn: int, count: int, *, all: bool) -> tuple[list[int], int]:
        """Durable batches to be looked at: among the next so many from an LSN on, and that of the batch behind these.

        Without `all` those of which half or less is wanted.  By their first LSNs; 0: there is none behind them.
        """
        start = bisect_left(self._firsts, lsn)
        stop = min(start + count, self._unsettled)
        some = [
            batch.first
            for batch in self.batches[start:stop]
            if batch is not None and (all or 2 * batch.wanted <= len(batch.bodies) > 1)
        ]
        return some, self._firsts[stop] if stop < self._unsettled else 0

    def thin(self, needed: Needed, enough: Callable[[], bool]) -> None:
        """Look at loose batches that are durable, until that is enough; the others stay loose."""
        due = [first for first in islice(self.loose, DUE_MOST) if first <= self.durable]
        self.thin_these(due, needed, enough)

    def thin_these(self, firsts: Sequence[int], needed: Needed, enough: Callable[[], bool]) -> int:
        """Look at batches by their first LSNs, until that is enough: how many were looked at, one of them at least."""
        for number, first in enumerate(firsts):
            if number and enough():
                return number
            self.loose.discard(first)
            index = bisect_left(self._firsts, first)
            batch = self.batches[index] if index < len(self._firsts) and self._firsts[index] == first else None
            if batch is None:
                continue
            if index >= self._unsettled:
                self.loose.add(first)
                continue
            chunks = needed(batch)
            if chunks is None:
                if self._left.get(first, 0) >= batch.wanted:  # as far as counting tells nobody wants any more of it
                    self._drop(index)
                continue
            self._left.pop(first, None)
            batch.wanted = sum(map(len, chunks))
            if not chunks:
                self._drop(index)
            elif 2 * len(rows := united(chunks)) <= len(batch.bodies):
                self._cut(index, batch, rows, chunks)
        return len(firsts)

    def part(self) -> Publishes | None:
        """Let the oldest durable batch go; None: there is none."""
        while self._oldest < self._unsettled:
            batch = self.batches[self._oldest]
            self._oldest += 1
            if batch is not None:
                self.lacking = batch.first + len(batch.bodies) - 1
                self._drop(self._oldest - 1)
                return batch
        return None

    @property
    def young(self) -> int:
        """Bytes of what is not durable.  Walks what is not durable."""
        return sum(self._costs[self._unsettled :])

    def pieces(self, chunk: Chunk) -> Iterator[Piece]:
        """The rows of a chunk in its order, cut where they leave a batch or are many bytes; they count as delivered."""
        start, total = 0, len(chunk)
        firsts, batches = self._firsts, self.batches
        while start < total:
            lsn = chunk[start]
            index = bisect_right(firsts, lsn) - 1
            batch = batches[index] if index >= 0 else None
            if batch is None or lsn >= batch.first + len(batch.bodies):
                stop = self._end_of_missing(chunk, start)
                yield missing(chunk[start:stop])
            else:
                last = batch.first + len(batch.bodies)
                stop = bisect_left(chunk, last, start) if chunk[-1] >= last else total
                stop = min(stop, start + max(1, PIECE_MOST * len(batch.bodies) // max(1, batch.size)))
                part = chunk if stop - start == total else chunk[start:stop]
                piece = self._rows(batch, part)
                batch.wanted -= stop - start
                if batch.wanted <= 0 and last - 1 <= self.durable:
                    self._drop(index)
                yield piece
            start = stop

    def whole(self, chunk: Chunk, most: int = 0) -> Piece | None:
        """The rows of a chunk that lies in one batch; counts them as delivered.  None: it does not, or is not here.

        most: bytes, about, beyond which rows are to come by `pieces`; 0: however many there are.
        """
        index = bisect_right(self._firsts, chunk[0]) - 1
        batch = self.batches[index] if index >= 0 else None
        if batch is None or chunk[-1] >= (stop := batch.first + len(batch.bodies)):
            return None
        if most and len(chunk) > 1 and batch.size * len(chunk) > most * len(batch.bodies):
            return None
        piece = self._rows(batch, chunk)
        batch.wanted -= len(chunk)
        if batch.wanted <= 0 and stop - 1 <= self.durable:
            self._drop(index)
        return piece

    def row(self, lsn: int) -> tuple[Topic, bytes, bytes] | None:
        """Topic, properties and body of one message; counts it as delivered.  None: it is not here."""
        index = bisect_right(self._firsts, lsn) - 1
        batch = self.batches[index] if index >= 0 else None
        if batch is None:
            return None
        at, topics, properties, bodies = lsn - batch.first, batch.topics, batch.properties, batch.bodies
        if at >= len(bodies):
            return None
        batch.wanted -= 1
        if batch.wanted <= 0 and batch.first + len(bodies) - 1 <= self.durable:
            self._drop(index)
        return (
            topics[at] if isinstance(topics, list) else topics,
            properties[at] if isinstance(properties, list) else properties,
            bodies[at],
        )

    def absent(self, chunk: Chunk) -> Chunk:
        """Those of a chunk that are not here, ascending."""
        if not self._firsts or chunk[-1] < self._firsts[0]:
            return chunk
        out = array("q")
        start = 0
        while start < len(chunk):
            batch = self.peek(chunk[start])
            if batch is not None:
                start = bisect_left(chunk, batch.first + len(batch.bodies), start)
                continue
            stop = self._end_of_missing(chunk, start)
            out.extend(chunk[start:stop])
            start = stop
        return as_chunk(out)

    def peek(self, lsn: int) -> Publishes | None:
        """The batch that holds a row, if it is here; not counted as a delivery."""
        index = bisect_right(self._firsts, lsn) - 1
        batch = self.batches[index] if index >= 0 else None
        return batch if batch is not None and lsn < batch.first + len(batch.bodies) else None

    def _rows(self, batch: Publishes, part: Chunk) -> Piece:
        first, bodies = batch.first, batch.bodies
        low, count = part[0] - first, len(part)
        if count == len(bodies):
            return Piece(part, batch.topics, batch.properties, listed(bodies), batch.size)
        where: Where
        if part[-1] - part[0] == count - 1:
            where = slice(low, low + count)
            some = bodies[where]
        else:
            where = [lsn - first for lsn in part]
            some = [bodies[row] for row in where]
        size = batch.size * count // len(bodies)
        return Piece(part, rows_at(batch.topics, where), rows_at(batch.properties, where), some, size)

    def _end_of_missing(self, chunk: Chunk, start: int) -> int:
        """How far from `start` the rows stay out of memory."""
        stop = start
        while stop < len(chunk):
            index = bisect_right(self._firsts, chunk[stop])
            batch = self.batches[index - 1] if index else None
            if batch is not None and chunk[stop] < batch.first + len(batch.bodies):
                break
            while index < len(self.batches) and self.batches[index] is None:
                index += 1
            if index == len(self.batches):
                return len(chunk)
            stop = max(bisect_left(chunk, self._firsts[index], stop), stop + 1)
        return stop

    def _cut(self, index: int, batch: Publishes, rows: Chunk, chunks: Sequence[Chunk]) -> None:
        """Keep these rows of a batch alone, and between them others that cost less than a batch more."""
        bridged = 1 + BATCH_OVERHEAD * len(batch.bodies) // self._costs[index]
        parts: list[Publishes] = []
        start = 0
        for at in range(1, len(rows) + 1) if not isinstance(rows, range) else (len(rows),):
            if at == len(rows) or rows[at] - rows[at - 1] > bridged:
                part = batch.stored_part(rows[start] - batch.first, rows[at - 1] + 1 - batch.first)
                low, high = part.first, rows[at - 1]
                part.wanted = sum(bisect_right(chunk, high) - bisect_left(chunk, low) for chunk in chunks)
                parts.append(part)
                start = at
        costs = list(map(batch_cost, parts))
        self.bytes += sum(costs) - self._costs[index]
        where = slice(index, index + 1)
        self._firsts[where], self.batches[where], self._costs[where] = [part.first for part in parts], parts, costs
        self._unsettled += len(parts) - 1

    def _drop(self, index: int) -> None:
        if self._left:
            self._left.pop(self._firsts[index], None)
        assert self.batches[index] is not None
        self.bytes -= self._costs[index]
        self.batches[index] = None
        self._costs[index] = 0
        self._holes += 1

    def _compact(self) -> None:
        kept = [index for index, batch in enumerate(self.batches) if batch is not None]
        self._firsts = [self._firsts[index] for index in kept]
        self.batches = [self.batches[index] for index in kept]
        self._costs = [self._costs[index] for index in kept]
        self._holes = self._oldest = 0
        self._unsettled = bisect_right(self._firsts, self.durable)


FORGET_ROUTES = 1 << 10
"""Parted batches after which it is asked anew whether a route's queues want bodies."""

PLACED_MOST = 256
"""Queues that are given rows of batches in one shrinking; of the batches after that nothing is kept.  2 to 4 ms."""

Takers = Callable[[int], Sequence[tuple[object, Line]]]
"""The queues that a row's route names: each with its key and its unfiltered list."""


def nobody(_: int) -> Sequence[tuple[object, Line]]:
    """No queue takes anything."""
    return ()


@dataclass(eq=False)
class Parting:
    """Where the rows of a batch go that leaves the arrivals: to lists, to what is pending, to heads of queues, or
    nowhere.

    Rows that a list wants and has room for become direct, rows that a list wants later are pending, rows of a queue
    without consumers follow on at its head if there is room, and the rest is in the log alone.  How much room there is,
    and when a batch has to go, say the caches.
    """

    takers: Takers
    _budget: Budget
    _arrivals: Arrivals
    _area: TargetArea
    _pending: PendingCache
    _heads: HeadQueueCache
    _lines: dict[int, Line]  # of queues whose heads are kept
    _high: Callable[[], int]  # the most bytes that a list holds directly
    asked: int = field(default=0, init=False)  # queues asked by `needed`, ever, and scattered rows by their weight
    _idle_routes: set[int] = field(default_factory=set[int], init=False)  # whose queues want no body at present
    _parted: int = field(default=0, init=False)
    _placed: int = field(default=0, init=False)  # how often a queue was given its rows of a batch
    _last: int = field(default=0, init=False)  # how often that may be before nothing more is kept

    def begin(self) -> None:
        """A shrinking begins, in which `PLACED_MOST` queues are given rows."""
        self._last = self._placed + PLACED_MOST

    def ask_anew(self) -> None:
        """Queues of any route may want bodies now."""
        self._idle_routes.clear()

    def part(self, batch: Publishes, need: int) -> None:
        """Find another place for the rows of a batch that leaves the arrivals, or none; `need`: bytes wanted beside."""
        if batch.wanted <= 0:
            return
        self._parted += 1
        if self._parted % FORGET_ROUTES == 0:
            self._idle_routes.clear()
        for route in self._busy_routes(batch):
            if self._placed >= self._last:
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
        if line.alive() and key not in self._area.lists:
            self._area.add(key, line)
        lists = self._area.by_queue.get(queue)
        if not lists:
            return self._put_head(batch, line, need)
        pending: list[Chunk] = []
        for one in lists:
            chunk = one.line.between(first, stop)
            if not len(chunk):
                continue
            slab = Slab.of_batch(batch, chunk)
            ahead = one.line.after(one.edge, 1)
            if one.bytes + slab.cost <= self._high() and len(ahead) and ahead[0] >= first:
                one.put(slab)
                one.edge = chunk[-1]
            else:
                pending.append(chunk)
        if pending:
            slab = Slab.of_batch(batch, united(pending))
            if slab.cost <= self._room(need) + self._heads.account.bytes or self._sooner(queue, slab):
                self._pending.put(queue, slab)
        return True

    def _put_head(self, batch: Publishes, line: Line, need: int) -> bool:
        queue, heads = line.queue, self._heads
        head = line.head()
        if head is None or (not heads.follows_on(queue) and head < batch.first):
            return False
        if head >= batch.first:
            heads.begin(queue)
            heads.keep_from(queue, head)
        chunk = line.between(batch.first, batch.first + len(batch.bodies))
        if not len(chunk):
            return True
        slab = Slab.of_batch(batch, chunk)
        if slab.cost > self._room(need) and not self._small(queue, slab):
            heads.leave_out(queue)
            return False
        self._lines[queue] = line
        heads.put(queue, slab)
        return True

    def _room(self, need: int) -> int:
        """Bytes that the arrivals leave to the other caches once they have shrunk to their eighth."""
        return max(0, self._arrivals.bytes - self._budget.limit // 8) - self._budget.over - need

    def _sooner(self, queue: int, slab: Slab) -> bool:
        """Whether these rows are needed sooner than something that is pending."""
        if not self._pending.account.bytes:
            return False
        latest, ahead = self._pending.latest()
        return latest != queue and self._pending.held(queue) + slab.cost < ahead

    def _small(self, queue: int, slab: Slab) -> bool:
        """Whether a queue is below the share that it has whatever the longest one holds."""
        heads = self._heads
        share = min(SHARE_MOST, self._budget.limit // (4 * max(1, len(heads.shelves))))
        if heads.held(queue) + slab.cost > share or not heads.account.bytes:
            return False
        return heads.held(heads.longest()) > share

    def needed(self, batch: Publishes) -> list[Chunk] | None:
        """The rows of a batch that each queue still needs; None where one would have to look at very many."""
        routes = {batch.routes} if isinstance(batch.routes, int) else set(batch.routes)
        if NO_ROUTE in routes:
            return None
        lines = {line.queue: line for route in routes for _, line in self.takers(route)}
        if len(lines) > LINES_MOST:
            return None
        self.asked += len(lines)
        out: list[Chunk] = []
        for line in lines.values():
            chunk = line.needed(batch.first, batch.first + len(batch.bodies))
            if chunk is None:
                return None
            if len(chunk):
                out.append(chunk)
            if not isinstance(chunk, range):
                self.asked += len(chunk) // SCATTERED_WEIGHT
        return out

    def leave_out(self, batch: Publishes) -> None:
        """A batch goes nowhere."""
        for route in self._busy_routes(batch):
            self._leave_out_of(route)

    def _leave_out_of(self, route: int) -> None:
        """The heads of a route's queues end here.  What lists want of a batch that is left out the loader brings."""
        idle = True
        for _, line in self.takers(route):
            self._heads.leave_out(line.queue)
            idle = idle and line.queue not in self._area.by_queue and not line.alive()
        if idle:  # nothing follows on at these heads
            self._idle_routes.add(route)
