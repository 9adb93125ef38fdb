"""Where the rows of a batch go that leaves the arrivals: to lists, to what is pending, to heads of queues, or nowhere.

Rows that a list wants and has room for become direct, rows that a list wants later are pending, rows of a queue without
consumers follow on at its head if there is room, and the rest is in the log alone.  How much room there is, and when a
batch has to go, say the caches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.memory.arrivals import Arrivals
from penstock.memory.budget import Budget
from penstock.memory.head_cache import SHARE_MOST, HeadQueueCache
from penstock.memory.pending_cache import PendingCache
from penstock.memory.slab import Slab
from penstock.memory.target_area import Line, TargetArea
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.entries import Publishes

FORGET_ROUTES = 1 << 10
"""Parted batches after which it is asked anew whether a route's queues want bodies."""

PLACED_MOST = 256
"""Queues that are given rows of batches in one shrinking; of the batches after that nothing is kept.  2 to 4 ms."""

Takers = Callable[[int], Sequence[tuple[object, Line]]]
"""The queues that a row's route names: each with its key and its unfiltered list."""


def nobody(_: int) -> Sequence[tuple[object, Line]]:
    """No queue takes anything."""
    return ()


class Parting:
    """Of the batches of one `Caches`, between its stores."""

    def __init__(
        self,
        takers: Takers,
        budget: Budget,
        arrivals: Arrivals,
        area: TargetArea,
        pending: PendingCache,
        heads: HeadQueueCache,
        lines: dict[int, Line],
        high: Callable[[], int],
    ) -> None:
        """lines: of queues whose heads are kept.  high: the most bytes that a list holds directly."""
        self.takers = takers
        self._lines = lines
        self._budget = budget
        self._arrivals = arrivals
        self._area = area
        self._pending = pending
        self._heads = heads
        self._high = high
        self._idle_routes: set[int] = set()  # whose queues want no body at present
        self._parted = 0
        self._placed = 0  # how often a queue was given its rows of a batch
        self._last = 0  # how often that may be before nothing more is kept

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
            chunk = pending[0] if len(pending) == 1 else as_chunk(sorted({lsn for part in pending for lsn in part}))
            slab = Slab.of_batch(batch, chunk)
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
            heads.drop_below(queue, head)
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
