"""Rejecting modes: which newcomers a queue refuses, told before anything of them is written.

A newcomer is refused before anybody is asked whether he has room: a full queue refuses even what an idle consumer would
take at once.  What was accepted before it counts, unless it was dispatched meanwhile.  Where that can be reckoned the
whole batch is judged at once; elsewhere as far as the answer does not depend on it, and the caller asks again behind.

A delayed newcomer is not ready, so it is not refused; what becomes ready by itself, or comes back, never is.

One that refuses and has no limits lets nothing in at all: a fault has stopped it (`core.queue.stopped`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.core.effects import Sink
from penstock.core.queue.dispatching.dispatch import room_now, some_fill_nothing
from penstock.core.queue.order.runs import NEVER
from penstock.core.queue.whole import DISPATCH
from penstock.errors import QueueBlocked, QueueFull
from penstock.records.causes import MAXLEN
from penstock.records.chunks import Now
from penstock.records.entries import Publishes
from penstock.records.message_bodies import lengths

if TYPE_CHECKING:
    from penstock.core.queue.queue import Queue


def settled(queue: Queue, now: Now, sink: Sink, count: int) -> None:
    """Do what is due, and go on with a dispatch that stopped at its bound as far as it makes room for so many."""
    limits = queue.limits
    if limits is None:
        return
    if queue.is_due(now):
        queue.tick(now, sink)
    while queue.agenda & DISPATCH and (queue.ready + count > limits.length or limits.size < NEVER):
        queue.serve(now, sink)


def judged(
    queue: Queue, now: Now, batch: Publishes, rows: Sequence[int]
) -> tuple[list[int] | Sequence[int], int | None]:
    """Which of these rows of a batch, ascending, the queue refuses; and from which on that is not known yet, if any.

    Nothing but these rows may come in meanwhile, and the queue must be `settled`.
    """
    if queue.limits is None:
        return rows, None
    refused, unknown, _ = _refused(queue, now, batch, rows, (0, 0), _through(queue, now, batch))
    return refused, unknown


def _refused(
    queue: Queue, now: Now, batch: Publishes, rows: Sequence[int], taken: tuple[int, int], through: int | None
) -> tuple[list[int] | Sequence[int], int | None, tuple[int, int]]:
    """The same, and what was let in with these rows.

    taken      messages and bytes that were let in before, and have not come yet
    through    how many go out at once; None: that is not known
    """
    limits, later = queue.limits, batch.not_before
    assert limits is not None
    if limits.size < NEVER or (later is not None and any(later)):
        return _each_refused(queue, now, batch, rows, taken, through)
    free = limits.length - queue.ready - taken[0]
    if free <= 0:
        return rows, None, taken
    fits = min(free + (through or 0), len(rows))
    unknown = rows[fits] if through is None and fits < len(rows) else None
    return () if through is None else rows[fits:], unknown, (taken[0] + fits, taken[1])


def _each_refused(
    queue: Queue, now: Now, batch: Publishes, rows: Sequence[int], taken: tuple[int, int], through: int | None
) -> tuple[list[int], int | None, tuple[int, int]]:
    """The same row by row."""
    limits, later, (count, size) = queue.limits, batch.not_before, taken
    assert limits is not None
    free = limits.length - queue.ready - count
    space = limits.size - queue.weight - size if limits.size < NEVER else NEVER
    each = lengths(batch.bodies) if limits.size < NEVER else None
    refused: list[int] = []
    accepted = False
    for row in rows:
        if later is not None and later[row] > now.wall:
            continue
        mine = 0 if each is None else int(each[row])
        if free <= 0 or mine > space:
            if accepted and through is None:
                return refused, row, (count, size)
            refused.append(row)
            continue
        accepted = True
        if through:
            through -= 1
        else:
            free, space, count, size = free - 1, space - mine, count + 1, size + mine
    return refused, None, (count, size)


def held_up(queue: Queue, now: Now, batch: Publishes, rows: Sequence[int]) -> tuple[int | None, int | None]:
    """The first of these rows that has to wait for room, if any; and as in `judged` from which on that is not known.

    What could never fit does not wait: it is refused.
    """
    limits = queue.limits
    assert limits is not None
    refused, unknown = judged(queue, now, batch, rows)
    if not limits.length:
        return None, unknown
    if limits.size == NEVER or not len(refused):
        return (refused[0] if len(refused) else None), unknown
    each = lengths(batch.bodies)
    return next((row for row in refused if int(each[row]) <= limits.size), None), unknown


def _through(queue: Queue, now: Now, batch: Publishes) -> int | None:
    """How many newcomers would be dispatched at once; None: that takes a dispatch to know."""
    if queue.busy:
        return 0
    settings, roster = queue.settings, queue.roster
    if queue.shares is not None:
        return None  # it depends on their keys
    if batch.expires_at is not None or settings.message_ttl == 0 or settings.expiration == 0:
        return None  # some may be gone as soon as they were offered
    if not roster.all:
        return 0
    if queue.agenda & DISPATCH or queue.targets.lists or queue.sharing:
        return None
    if some_fill_nothing(queue):
        return None
    return max(0, room_now(queue, now))


def refusal(queue: Queue, count: int) -> QueueFull:
    """Why newcomers are refused; they are counted."""
    queue.counted().refused += count
    return QueueFull(
        f"queue '{queue.name}' in vhost '{queue.vhost}' takes no more: {told(queue)}; of those that came with it "
        f"{count} {'is' if count == 1 else 'are'} refused",
        reason=MAXLEN,
    )


def blocked(queue: Queue) -> QueueBlocked:
    """Why one that cannot wait for room is not published."""
    return QueueBlocked(
        f"queue '{queue.name}' in vhost '{queue.vhost}' holds its publishers up until there is room: {told(queue)}",
        reason=MAXLEN,
    )


def told(queue: Queue) -> str:
    """The limits of a queue, and what is ready."""
    if queue.stopped:
        return "an internal error has stopped it until the next start"
    limits = queue.limits
    out: list[str] = []
    if limits is not None and limits.length < NEVER:
        out.append(f"max_length is {limits.length}, {queue.ready} messages are ready")
    if limits is not None and limits.size < NEVER:
        out.append(f"max_length_bytes is {limits.size}, {queue.weight} bytes are ready")
    return "; ".join(out)


def dropped(queue: Queue, count: int) -> None:
    """So many newcomers find no room, and nobody is told; they are counted."""
    queue.counted().dropped += count


class Reckoning:
    """Room of rejecting queues for what is written as a whole: newcomers of several batches.

    Each that is not delayed takes some, so it refuses more than `judged` where consumers are about to make room.
    """

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken: dict[Queue, tuple[int, int]] = {}  # messages and bytes

    def refused(self, queue: Queue, now: Now, batch: Publishes, rows: Sequence[int]) -> list[int]:
        """Which of these rows, ascending, have no room behind those that were asked about before."""
        if queue.limits is None:
            return list(rows)
        refused, _, self._taken[queue] = _refused(queue, now, batch, rows, self._taken.get(queue, (0, 0)), 0)
        return list(refused)

    def taken(self, queue: Queue) -> int:
        """How many messages have been let in so far."""
        return self._taken.get(queue, (0, 0))[0]
