"""What a list of a queue would dispatch next: the questions that memory asks so as to have bodies there in time.

A list is the whole ready order of a queue, for consumers without a filter, or what one filter has found.  Every answer
is a chunk of positions as they stand now; asking changes nothing, so nobody has to keep a copy in step.  It knows no
body, no byte and no consumer but whether one is there.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import islice
from typing import TYPE_CHECKING

from penstock.core.queue.order.priority import PriorityOrder
from penstock.core.queue.order.runs import NEVER, all_within
from penstock.core.queue.order.targets import among_by_priority, lowest, next_by_priority
from penstock.core.queue.whole import WAITING
from penstock.records.chunks import Chunk, as_chunk

if TYPE_CHECKING:
    from penstock.core.queue.barrier import Barriers
    from penstock.core.queue.dispatching.consumers import TargetList
    from penstock.core.queue.queue import Queue

FOUND_MOST = 1024
"""Positions of a filter looked at for one answer: each is asked whether it is still there."""


LOOKED_AT = 1024
"""Stretches of a place without an order by LSN that are looked at for those of one batch."""


def reaches_back(queue: Queue, lsn: int) -> bool:
    """Whether something that is dispatched next may be no newer than this."""
    if not queue.ready and queue.barriers.floor() > lsn:
        return False
    main = queue.main
    return queue.ranks is not None or not main.count or main.head() <= lsn or queue.returned.count > 0


class Upcoming:
    """One list; equal and stable for as long as the queue and the filter's list are."""

    __slots__ = ("_queue", "_targets")

    def __init__(self, queue: Queue, targets: TargetList | None) -> None:
        self._queue = queue
        self._targets = targets

    @property
    def queue(self) -> int:
        """The id of the queue, by which memory knows the list."""
        return self._queue.id

    @property
    def whole(self) -> Upcoming:
        """The list of the same queue without a filter."""
        return self if self._targets is None else Upcoming(self._queue, None)

    def alive(self) -> bool:
        """Whether somebody consumes from this list."""
        targets = self._targets
        return bool(self._queue.roster.plain if targets is None else targets.consumers)

    def credit(self) -> bool:
        """Whether one of them would take a message now."""
        targets, roster = self._targets, self._queue.roster
        consumers = roster.plain if targets is None else targets.consumers
        return any(not (one.passive or one.choked) and one.room > 0 for one in consumers)

    def head(self) -> int | None:
        """The lowest position that would be dispatched; None: nothing is ready."""
        queue, targets = self._queue, self._targets
        if targets is not None and queue.ranks is None:
            key = targets.head(queue.main)
            return None if key is None else min(key[1], targets.found[0]) if targets.found else key[1]
        first, barrier = lowest(queue.main, queue.returned), queue.barriers.first
        return barrier.lsn if first is None and barrier is not None else first

    def after(self, lsn: int, count: int) -> Chunk:
        """Up to `count` positions that follow `lsn`, ascending, of those never delivered.

        None where priorities say what is next: that is what `returned` tells then.
        """
        if self._queue.ranks is not None:
            return range(0)
        return self._some(lsn + 1, NEVER, count)

    def between(self, first: int, stop: int) -> Chunk:
        """All positions in [first, stop), ascending, of those never delivered."""
        return self._some(first, stop, max(stop - first, 0))

    def needed(self, first: int, stop: int) -> Chunk | None:
        """All positions in [first, stop), ascending, that wait or die in the queue, whoever is to get them.

        None where a look at very many would be needed for that.
        """
        out = [self.between(first, stop)]
        for place in self._queue.places(*WAITING, "dying"):
            if place.part == "main":
                continue
            if place.between is not None:  # which looks at what lies there: the lowest of all may be dearer
                out.append(place.between(first, stop))
            elif place.lowest is None or place.lowest() < stop:
                some = list(islice(place.chunks(), LOOKED_AT + 1))
                if len(some) > LOOKED_AT:
                    return None
                out += some
        return all_within(out, first, stop)

    def returned(self, count: int) -> Chunk:
        """Up to `count` positions that came back and are ready again, ascending; with priorities the next of all."""
        queue, targets = self._queue, self._targets
        if queue.ranks is not None:
            return next_by_priority(queue.main, queue.returned, targets, count)
        if targets is not None:
            return as_chunk(sorted(lsn for _, lsn in targets.back.first(count)))
        return as_chunk(sorted(lsn for _, lsn in queue.returned.next_ones(count)))

    def _some(self, first: int, stop: int, count: int) -> Chunk:
        main, targets = self._queue.main, self._targets
        if isinstance(main, PriorityOrder):
            return among_by_priority(main, targets, first, stop)
        if targets is None:
            some = main.some(first, stop, count)
            if len(self._queue.barriers) and len(some) < count:
                return _with_held(self._queue.barriers, some, first, stop, count)
            return some
        found = targets.found
        start = bisect_left(found, first)
        matching: list[int] = []
        for lsn in islice(found, start, start + min(count, FOUND_MOST)):
            if lsn >= stop:
                break
            if main.has(lsn):
                matching.append(lsn)
        return as_chunk(matching)


def _with_held(barriers: Barriers, some: Chunk, first: int, stop: int, count: int) -> Chunk:
    """What is ready, then the barriers and what they hold back, in the order in which they would go."""
    out = array("q", some)
    for barrier in barriers.since(first):
        if barrier.place >= stop or len(out) >= count:
            break
        if barrier.lsn == barrier.place >= first:
            out.append(barrier.lsn)
        out.extend(barrier.main.some(first, stop, count - len(out)))
    return as_chunk(out)
