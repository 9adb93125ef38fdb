"""Ring queues: an arrival beyond the size replaces the message at the head; what comes back to a full ring is replaced.

It differs from drop-head in three ways.  An arrival removes one message at most, so a ring that was made smaller keeps
its length until consumers bring it down.  What returns gives way itself, the newest of them last, for a ring prefers
what is new.  And what is replaced is nobody's dead letter, unless an action asks for it by the reason `replaced`.

    leased and delayed messages are outside the size; a scheduled one that is due enters at the head
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.effects import Sink
from penstock.core.queue.limits.trimming import drop, take_yielding
from penstock.core.queue.order.runs import Run, pairs_body, view
from penstock.core.queue.timed.delays import fallen_due
from penstock.records.causes import REPLACED, TIME_LIMIT
from penstock.records.chunks import Now, as_chunk
from penstock.records.kinds import HEAD, Kind

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents
    from penstock.core.queue.view import Queue


def replace(queue: Contents, count: int, sink: Sink) -> None:
    """So many arrivals stay where the ring has no room for them: as many others go from the head."""
    if count > 0:
        drop(queue, take_yielding(queue, count), REPLACED, sink)


def returning(queue: Contents, runs: list[Run], sink: Sink) -> list[Run]:
    """Of what comes back those that the ring has room for, the newest; the others are replaced.

    Their return is logged and they are in no state when this is called.
    """
    limits = queue.limits
    assert limits is not None
    room = max(limits.ring - queue.ready, 0)
    count = sum([len(run.chunk) for run in runs])
    if count > room and queue.last_values is not None:
        old, runs = queue.last_values.outdated(queue, runs)
        drop(queue, old, REPLACED, sink)  # and nobody gives way to them
        count = sum([len(run.chunk) for run in runs])
    excess = count - room
    if excess <= 0:
        return runs
    if excess >= count:
        drop(queue, runs, REPLACED, sink)
        return []
    lsns = np.concatenate([view(run.chunk) for run in runs])
    places = np.concatenate([view(run.chunk) if not run.place else np.full(len(run.chunk), run.where) for run in runs])
    order = np.lexsort((lsns, places))
    first = int(places[order[excess]]), int(lsns[order[excess]])  # the oldest that stays
    gone, kept = list[Run](), list[Run]()
    for run in runs:
        at = run.below(first)
        if at:
            gone.append(run.part(run.chunk[:at], True))
        if at < len(run.chunk):
            kept.append(run.part(run.chunk[at:], True))
    drop(queue, gone, REPLACED, sink)
    return kept


def enter_scheduled(queue: Queue, now: Now, sink: Sink) -> None:
    """Scheduled messages whose time has come enter at the head, the earliest in front; of very many the first.

    They enter latest first, so where the ring is full it is the earliest that find no room.  In a queue with priorities
    each has its own place in its level.  One that is a last value replaces the waiting one of its key and takes its
    room; of several of a key the one that is due last is the newest, as it is when they are due one by one.
    """
    limits = queue.limits
    assert limits is not None
    chunks, over = fallen_due(queue, now, sink)
    entering, late = list[Run](), list[Run]()
    stay = None if queue.last_values is None else queue.last_values.come_due(queue, chunks, over, limits.ring, sink)
    if over:
        queue.expire([Run(as_chunk(sorted(over)), False)], TIME_LIMIT, sink)
    room = max(limits.ring - queue.ready, 0)
    for chunk in reversed(chunks):
        if stay is None:
            at = max(len(chunk) - room, 0)
            outside, inside = chunk[:at], chunk[at:]
            room -= len(inside)
        else:
            outside = as_chunk([lsn for lsn in chunk if lsn not in stay and lsn not in over])
            inside = as_chunk([lsn for lsn in chunk if lsn in stay])
        if len(outside):
            late.append(Run(outside, False))
        if len(inside):
            entering.append(Run(inside, False))
    late.reverse()
    _log_due(queue, late, sink)
    drop(queue, late, REPLACED, sink)
    for run in entering:
        lsn = _log_due(queue, [run], sink)
        run.place = HEAD + lsn if queue.ranks is None else 0
        queue.put_back(run)


def _log_due(queue: Queue, runs: Sequence[Run], sink: Sink) -> int:
    """They are ready, at the head of the queue, or at their own places where priorities say who is first."""
    if not runs:
        return 0
    return sink.record(Kind.DUE, queue.name, {"place": 2 if queue.ranks is None else 0}, pairs_body(queue.id, runs))
