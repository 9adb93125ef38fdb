"""What falls due by the wall clock: back-offs, scheduled messages, deadlines.

A tick may be late: of scheduled messages whose time has come some have expired by then.  That is as if each had become
ready, and expired, in its time, and shows in queues with last values alone.  What was due and over while nobody served
never arrived.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from itertools import groupby

import numpy as np

from penstock.core.effects import Sink
from penstock.core.queue.contents import Contents
from penstock.core.queue.dispatching.dispatch import dispatch
from penstock.core.queue.order.runs import NEVER, Run, ascending, packed, pairs_body, view
from penstock.core.queue.owning import expire_foreign
from penstock.core.queue.trimming import trim
from penstock.core.queue.whole import DISPATCH
from penstock.records.causes import REPLACED, TIME_LIMIT
from penstock.records.chunks import Chunk, Now, as_chunk
from penstock.records.kinds import HEAD, Kind


def fall_due(queue: Contents, now: Now, sink: Sink) -> None:
    """Back-offs are over, scheduled messages come, messages expire: in the order of the stages."""
    if queue.limits is not None:
        keep_time(queue, now, sink)
        return
    if queue.delays.due <= now.wall:
        end_delays(queue, now, sink)
    if queue.expiry.due <= now.wall:
        expire_due(queue, now, sink)


def end_delays(queue: Contents, now: Now, sink: Sink) -> None:
    end_retries(queue, now, sink)
    end_scheduled(queue, now, sink)


def end_retries(queue: Contents, now: Now, sink: Sink) -> None:
    """Back-offs that are over: what failed goes back to its place."""
    runs = queue.delays.pop_retries(now.wall)
    if runs:
        sink.record(Kind.DUE, queue.name, {"place": 0}, pairs_body(queue.id, runs))
        queue.come_back(runs, sink)


def end_scheduled(queue: Contents, now: Now, sink: Sink) -> None:
    """Scheduled messages whose time has come stand behind all that came before; of very many the first."""
    chunks, over = fallen_due(queue, now, sink)
    for chunk in chunks:
        queue.barriers.wake(chunk)
    for chunk in chunks:
        for part, expired in apart(chunk, over):
            run = Run(part, False)
            if expired and queue.last_values is not None:
                queue.last_values.came_back(run)
                queue.expire([run], TIME_LIMIT, sink)
                continue
            run.place = sink.record(Kind.DUE, queue.name, {"place": 1}, pairs_body(queue.id, [run]))
            queue.put_back(run)


def expire_due(queue: Contents, now: Now, sink: Sink) -> None:
    chunks = [without_due(queue, chunk) for chunk in queue.expiry.come_due(now.wall)]
    if queue.foreign is not None:
        for chunk in chunks:
            if len(chunk):
                expire_foreign(queue, chunk, sink)
    runs = [run for chunk in chunks if len(chunk) for run in queue.extract(chunk)]
    if runs:
        queue.expire(runs, TIME_LIMIT, sink)
    if not queue.expiry.busy and queue.expiry.bulky():
        queue.expiry.trim(queue.floor())


def keep_time(queue: Contents, now: Now, sink: Sink) -> None:
    """Delays end and messages expire.

    What failed returns to its place, and the oldest give way to it as to any return.  A scheduled message enters like a
    newcomer: it is offered first.  Into a ring it enters at the head, and a full one refuses it.
    """
    limits = queue.limits
    assert limits is not None
    if queue.delays.due <= now.wall:
        end_retries(queue, now, sink)
    if queue.expiry.due <= now.wall:
        expire_due(queue, now, sink)
    trim(queue, sink)
    if queue.delays.due <= now.wall and not queue.expiry.busy:  # what is over has no part in who finds room
        before = queue.ready
        if limits.ring < NEVER:
            enter_scheduled(queue, now, sink)
        else:
            end_scheduled(queue, now, sink)
        if queue.ready > before and limits.mode.drops_head:
            offer_first(queue, now, sink)
            trim(queue, sink, NEVER)


def offer_first(queue: Contents, now: Now, sink: Sink) -> None:
    """Something entered like a newcomer: whoever has room is given some before anything gives way to it."""
    limits = queue.limits
    assert limits is not None
    dispatch(queue, now, sink)
    while queue.agenda & DISPATCH and limits.exceeded(queue):
        dispatch(queue, now, sink)


def _by_room(chunks: Sequence[Chunk], room: int) -> Iterator[tuple[Chunk, Chunk]]:
    """Of each chunk, the last first, those for which there is no room, and the others."""
    for chunk in reversed(chunks):
        at = max(len(chunk) - room, 0)
        yield chunk[:at], chunk[at:]
        room -= len(chunk) - at


def _by_key(chunk: Chunk, stay: Container[int], over: Container[int]) -> tuple[Chunk, Chunk]:
    """The same where last values say who finds room; what is over is neither."""
    outside = [lsn for lsn in chunk if lsn not in stay and lsn not in over]
    return as_chunk(outside), as_chunk([lsn for lsn in chunk if lsn in stay])


def enter_scheduled(queue: Contents, now: Now, sink: Sink) -> None:
    """Scheduled messages whose time has come enter at the head, the earliest in front; of very many the first.

    They enter latest first, so where the ring is full it is the earliest that find no room.  In a queue with priorities
    each has its own place in its level.  One that is a last value replaces the waiting one of its key and takes its
    room; of several of a key the one that is due last is the newest, as it is when they are due one by one.
    """
    limits = queue.limits
    assert limits is not None
    chunks, over = fallen_due(queue, now, sink)
    stay = None if queue.last_values is None else queue.last_values.come_due(queue, chunks, over, limits.ring, sink)
    if over:
        queue.expire([Run(as_chunk(sorted(over)), False)], TIME_LIMIT, sink)
    if stay is None:
        parts = list(_by_room(chunks, max(limits.ring - queue.ready, 0)))
    else:
        parts = [_by_key(chunk, stay, over) for chunk in reversed(chunks)]
    late = [Run(outside, False) for outside, _ in reversed(parts) if len(outside)]
    _log_due(queue, late, sink)
    queue.evict(late, REPLACED, sink)
    for run in [Run(inside, False) for _, inside in parts if len(inside)]:
        lsn = _log_due(queue, [run], sink)
        run.place = HEAD + lsn if queue.ranks is None else 0
        queue.put_back(run)


def _log_due(queue: Contents, runs: Sequence[Run], sink: Sink) -> int:
    """They are ready, at the head of the queue, or at their own places where priorities say who is first."""
    if not runs:
        return 0
    return sink.record(Kind.DUE, queue.name, {"place": 2 if queue.ranks is None else 0}, pairs_body(queue.id, runs))


def fallen_due(queue: Contents, now: Now, sink: Sink) -> tuple[list[Chunk], frozenset[int]]:
    """Take scheduled messages whose time has come, as `Delays.pop_scheduled` does; which of them have expired since.

    That is told of last values alone: one replaces the older one of its key though it is over by now.  What expired
    before its time came was never there, and is gone; the others are still counted as delayed.
    """
    if queue.last_values is None or queue.expiry.empty:
        return queue.delays.pop_scheduled(now.wall), frozenset()
    lsns, times = queue.delays.take_scheduled(now.wall)
    ends = np.zeros(len(lsns), dtype=np.int64)
    order = np.argsort(lsns)
    ends[order] = queue.expiry.deadlines_of(packed(lsns[order]))
    never = queue.last_values.loaded  # what was due and over while nobody served
    before = (ends > 0) & (ends <= (now.wall if never else times - 1))
    if before.any():
        queue.expire([Run(packed(np.sort(lsns[before])), False)], TIME_LIMIT, sink)
    since = ~before & (ends > 0) & (ends <= now.wall)
    return ascending(lsns[~before]), frozenset(lsns[since].tolist())


def apart(chunk: Chunk, some: frozenset[int]) -> Iterator[tuple[Chunk, bool]]:
    """The chunk in parts of which all or none are among some; whether they are."""
    if not some:
        yield chunk, False
        return
    for among, part in groupby(chunk, some.__contains__):
        yield as_chunk([*part]), among


def without_due(queue: Contents, chunk: Chunk) -> Chunk:
    """Of what has expired all but what is scheduled and became due before: it replaces an older one, and then ends."""
    if queue.last_values is None or queue.last_values.loaded or not queue.delays.scheduled.count:
        return chunk
    times = queue.delays.scheduled.times_of(chunk)
    due = (times >= 0) & (times <= queue.expiry.deadlines_of(chunk))
    return packed(view(chunk)[~due]) if due.any() else chunk
