"""Scheduled messages whose time has come, of which some have expired when somebody looks: a tick may be late.

What is late is as if each had become ready, and expired, in its time.  That shows in queues with last values alone.
What was due and over while nobody served never arrived.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.effects import Sink
from penstock.core.queue.order.runs import Run, packed, view
from penstock.core.queue.timed.delays import ascending
from penstock.records.causes import TIME_LIMIT
from penstock.records.chunks import Chunk, Now, as_chunk

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue


def fallen_due(queue: Queue, now: Now, sink: Sink) -> tuple[list[Chunk], frozenset[int]]:
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


def without_due(queue: Queue, chunk: Chunk) -> Chunk:
    """Of what has expired all but what is scheduled and became due before: it replaces an older one, and then ends."""
    if queue.last_values is None or queue.last_values.loaded or not queue.delays.scheduled.count:
        return chunk
    times = queue.delays.scheduled.times_of(chunk)
    due = (times >= 0) & (times <= queue.expiry.deadlines_of(chunk))
    return packed(view(chunk)[~due]) if due.any() else chunk
