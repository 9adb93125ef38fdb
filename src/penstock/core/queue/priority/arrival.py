"""Messages on their way into a queue with priorities.

Message by message is the definition: whoever has room when a message arrives is given it, whatever its priority, and
only what nobody takes finds its place among the others.  So a batch is cut where somebody has room.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.core.effects import Sink
from penstock.core.queue.agenda import DISPATCH
from penstock.core.queue.dispatching.dispatch import dispatch, room_now
from penstock.core.queue.order.main_order import Main
from penstock.core.queue.priority.ranking import go_on
from penstock.core.queue.priority.ranks import DEAD_MOST, LOWEST
from penstock.core.queue.stages import Newcomers, Stage
from penstock.records.chunks import Chunk, Now, as_chunk

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue


class _Ranked(Stage):
    """The ranks of newcomers are remembered; without any they have the lowest.

    With too many of messages that are gone they begin to be forgotten: `tick` does that in steps.
    """

    def present(self, queue: Queue) -> bool:
        return queue.ranks is not None

    def admit(self, queue: Queue, now: Now, new: Newcomers, sink: Sink) -> None:
        known = queue.ranks
        if known is None:
            return
        living = queue.ready + queue.leased + queue.delayed + queue.dying
        if known.count > 2 * living + DEAD_MOST and queue.older is None and not known.forgetting:
            known.begin_to_forget(queue.living_pieces())
        known.add(new.chunk, [LOWEST] * len(new) if new.ranks is None else new.ranks)

    def prepare(self, queue: Queue, sink: Sink) -> None:
        if queue.ranking is not None:
            go_on(queue, sink)


class _ByPriority(Stage):
    """Newcomers find their places by rank, but for those that somebody takes at once."""

    def present(self, queue: Queue) -> bool:
        return queue.ranks is not None

    def admit(self, queue: Queue, now: Now, new: Newcomers, sink: Sink) -> None:
        if new.placed or queue.ranks is None:
            return
        chunk, rows = new.left()
        start = 0
        while start < len(chunk):
            end = _ahead(queue, now, chunk, new, rows, start)
            if end > start:
                _put(queue, chunk[start:end], new, new.rows_of(rows, start, end))
            elif queue.targets.lists:
                end = start + 1
                _put(queue, chunk[start:end], new, new.rows_of(rows, start, end))
                dispatch(queue, now, sink)
            else:
                end = min(len(chunk), start + _room(queue, now))
                _through(queue, now, chunk[start:end], sink)
            start = end
        new.placed = True


RANKED, BY_PRIORITY = _Ranked(), _ByPriority()


def _ahead(queue: Queue, now: Now, chunk: Chunk, new: Newcomers, rows: Sequence[int] | None, start: int) -> int:
    """Up to where nobody takes any of them at once."""
    if not _room(queue, now):
        return len(chunk)
    lists = queue.targets.lists
    if not lists or any(not c.paused and c.room > 0 for c in queue.roster.plain):
        return start
    if new.batch is None:
        return len(chunk)
    part = chunk[start:]
    found = queue.targets.matches(part, new.batch, new.rows_of(rows, start, len(chunk)) or ())
    if found is None:
        return len(chunk)
    first = len(part)
    for targets, places in found:
        if places and any(not (c.paused or c.passive) and c.room > 0 for c in targets.consumers):
            first = min(first, places[0])
    return start + first


def _room(queue: Queue, now: Now) -> int:
    """How many messages those with room would take."""
    return 0 if queue.agenda & DISPATCH else max(0, room_now(queue, now))


def _put(queue: Queue, chunk: Chunk, new: Newcomers, rows: Sequence[int] | None) -> None:
    if queue.targets.lists:
        queue.targets.arrive(chunk, new.batch, rows, queue.main)
    queue.filled().append(chunk)
    if queue.weight >= 0:
        queue.weight += queue.sizes.total(chunk)


def _through(queue: Queue, now: Now, chunk: Chunk, sink: Sink) -> None:
    """Hand messages to those who wait for any, in the order of arrival; nothing else is ready."""
    order, queue.main = queue.main, Main()
    queue.main.append(as_chunk(chunk), solid=False)
    if queue.weight >= 0:
        queue.weight += queue.sizes.total(chunk)
    dispatch(queue, now, sink)
    while queue.agenda & DISPATCH and queue.main.count:
        dispatch(queue, now, sink)
    rest, queue.main = queue.main, order
    for part in rest.chunks():
        order.append(part)
