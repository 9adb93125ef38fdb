"""Messages come in: each part of a queue is told of them in its turn, then they are dispatched, and limits hold.

It decides nothing itself: where what goes stands with the parts (`arrival`, `barriers.arrival`, `priority.arrival`,
`depth`, `shares`), and what an unset option costs is one look at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.core.effects import Sink
from penstock.core.queue.administering import drop_all
from penstock.core.queue.arrival import append_rest, divert, set_deadlines
from penstock.core.queue.barriers.arrival import arrive_behind
from penstock.core.queue.barriers.release import release
from penstock.core.queue.depth import activate, arrive_behind_depth
from penstock.core.queue.dispatching.dispatch import dispatch, room_now
from penstock.core.queue.limits.entry import arrive_in_parts, begin, end, together
from penstock.core.queue.order.runs import Run
from penstock.core.queue.priority.arrival import arrive_by_priority, note_ranks
from penstock.core.queue.shares.staging import Told
from penstock.core.queue.timed.due import expire_due
from penstock.core.queue.timed.onward import depart
from penstock.records.causes import TIME_LIMIT
from penstock.records.chunks import Chunk, Now
from penstock.records.entries import Publishes

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue


def arrive(
    queue: Queue,
    now: Now,
    chunk: Chunk,
    sink: Sink,
    *,
    batch: Publishes | None = None,
    rows: Sequence[int] | None = None,
    expires_at: Sequence[int] | None = None,
    not_before: Sequence[int] | None = None,
    priority: Sequence[int] | None = None,
    barriers: Sequence[int] | None = None,
    ranks: Sequence[int] | None = None,
    keys: Sequence[Told] | None = None,
    last_keys: Sequence[int] | None = None,
) -> None:
    """Take messages (ascending, newer than all before), then dispatch.

    batch, rows    their bodies, for filters: rows of the batch in the order of the chunk; None: all of it
    expires_at, not_before    as on `Publishes`, one value for each message of the chunk
    priority       of each message; queues of this version serve in order of arrival whatever it says
    ranks          of each message, what its priority expression gave (`core.queue.ranks`)
    keys           of each message, what the queue's expressions gave; None: they are worked out later
    last_keys      of each message, what its last-value key gave (`core.queue.last_values`)
    barriers       those of the chunk that are barriers, ascending; their BARRIER record is written
    """
    if not len(chunk):
        return
    if len(chunk) > 1 and _one_by_one(queue, now, expires_at):
        each = range(len(chunk)) if rows is None else rows  # what one replaces lets the next in
        for i in range(len(chunk)):
            queue.arrive(
                now, chunk[i : i + 1], sink, batch=batch, rows=[each[i]], expires_at=_one(expires_at, i),
                not_before=_one(not_before, i), priority=_one(priority, i), ranks=_one(ranks, i),
                keys=None if keys is None else keys[i : i + 1], last_keys=_one(last_keys, i),
            )  # fmt: skip
        return
    if queue.is_due(now):
        queue.tick(now, sink)
    before = 0
    if queue.limits is not None:
        if len(chunk) > 1 and together(queue, chunk) < len(chunk):
            columns = (rows, expires_at, not_before, priority, ranks, keys)
            arrive_in_parts(queue, now, chunk, sink, batch, *columns)
            return
        before = begin(queue, now, sink, len(chunk))
    if queue.ranks is not None:
        note_ranks(queue, chunk, ranks)
    elsewhere = None
    if not_before is not None:
        elsewhere = divert(queue, now, chunk, not_before)
    if expires_at is not None or queue.settings.expiration is not None or queue.settings.message_ttl is not None:
        dead = set_deadlines(queue, now, chunk, expires_at, elsewhere)
    else:
        dead = None
        if not queue.expiry.empty:
            queue.expiry.part()
    if queue.last_values is not None:
        gone = [part for part in (elsewhere, dead) if part is not None]
        queue.last_values.add(queue, chunk, [0] * len(chunk) if last_keys is None else last_keys, gone)
    behind = None
    if queue.shares is not None:
        queue.shares.mono = now.mono
        room = 0 if queue.shares.tenants is None else room_now(queue, now)
        behind = queue.shares.arrive(queue, chunk, keys, elsewhere, dead, room)
        if behind is not None and queue.weight >= 0:
            queue.weight += queue.sizes.total(behind)
        if behind is not None and queue.targets.lists:
            queue.targets.foreseen.look(queue.targets, behind, chunk, batch, rows)
    if barriers is not None or queue.barriers.held:
        arrive_behind(queue, chunk, batch, rows, barriers or (), elsewhere, dead)
        if dead is not None:
            queue.expire([Run(dead, False)], TIME_LIMIT, sink)
    elif queue.ranks is not None or queue.settings.target_queue_depth or queue.tail.count:
        gone = [part for part in (elsewhere, dead, behind) if part is not None]
        if queue.ranks is not None:
            arrive_by_priority(queue, now, chunk, batch, rows, gone, sink)
        else:
            arrive_behind_depth(queue, chunk, batch, rows, gone)
        if dead is not None:
            queue.expire([Run(dead, False)], TIME_LIMIT, sink)
    elif elsewhere is None and dead is None and behind is None:
        if queue.targets.lists:
            queue.targets.arrive(chunk, batch, rows, queue.main)
        queue.filled().append(chunk)
        if queue.weight >= 0:
            queue.weight += queue.sizes.total(chunk)
    else:
        apart = (elsewhere, dead, behind)
        append_rest(queue, chunk, batch, rows, [part for part in apart if part is not None])
        if dead is not None:
            queue.expire([Run(dead, False)], TIME_LIMIT, sink)
    if queue.roster.all:
        if queue.ready:
            dispatch(queue, now, sink)
    elif queue.onward is not None:
        if queue.ready and not queue.paused_until:
            depart(queue, sink)
    elif queue.settings.purge_on_no_consumers:
        drop_all(queue, sink)
    if queue.tail.count:
        activate(queue, now, sink)
    if queue.barriers.held:
        release(queue, now, sink)
    if queue.last_values is not None:
        while queue.hungry:  # who has room is given each before a later one of the batch replaces it
            dispatch(queue, now, sink)
        queue.last_values.settle(queue, sink)
    if queue.shares is not None:
        if queue.shares.tenants is not None and not queue.hungry:
            queue.shares.tenants.come_again()
        queue.shares.ask(queue, sink)
    if queue.targets.lists:
        queue.targets.ask(queue.main, sink)
    if queue.attendance.looking and not queue.targets.looking:
        queue.give_out(now, sink)
    if queue.expiry.due <= now.wall:  # a deadline that is now: offered once, then gone
        while queue.hungry:
            queue.give_out(now, sink)
        expire_due(queue, now, sink)
        if queue.barriers.held or queue.tail.count:  # one may have waited for those alone
            queue.give_out(now, sink)
    if queue.limits is not None:
        end(queue, now, sink, before)


def _one_by_one(queue: Queue, now: Now, expires_at: Sequence[int] | None) -> bool:
    """Whether each has to be over before the next comes.

    Where it may replace an older one and so let the next in, or expires at once and then keeps none of its key waiting.
    """
    if queue.shares is None:
        return queue.last_values is not None and queue.limits is not None
    at_once = 0 in (queue.settings.expiration, queue.settings.message_ttl)
    return queue.last_values is not None or at_once or (expires_at is not None and now.wall in expires_at)


def _one(values: Sequence[int] | None, place: int) -> Sequence[int] | None:
    return None if values is None else values[place : place + 1]
