"""Acks of several consumers of one queue at once: what `settle` does for one after the other, for a fraction of it.

A thousand workers behind one connection are answered by one ack for all that a read brought.  Where nothing could be
granted between two of them the order shows nowhere: their messages leave together, in one record for each client.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

from penstock.core.effects import Sink, Verb
from penstock.core.queue.order.runs import Run, pairs_body
from penstock.core.queue.settling.leases import SLOT
from penstock.core.queue.settling.settle import settle
from penstock.records.chunks import Chunk, Now
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from penstock.core.queue.dispatching.consumers import Consumer
    from penstock.core.queue.view import Queue

Acked: TypeAlias = "tuple[Consumer, Sequence[Chunk]]"
"""A consumer, and what it has done of its deliveries, each chunk ascending."""


def together(queue: Queue) -> bool:
    """Whether nothing can be granted, moved or told between the acks of two consumers."""
    return not (
        queue.ready or queue.sharing or queue.free_credit or queue.actions or queue.tail.count or queue.barriers.held
        or queue.shares is not None or queue.last_values is not None
    )  # fmt: skip


def acknowledge(queue: Queue, now: Now, settled: Sequence[Acked], sink: Sink) -> int:
    """Deliveries of these consumers are done; returns how many messages that affected.  The queue is `together`."""
    affected = 0
    runs, named = list[Run](), ""
    for consumer, chunks in settled:
        name = consumer.client or consumer.tag
        if name != named:
            _record(queue, now, runs, named, sink)
            runs, named = [], name
        held, stale = list[Run](), list[Chunk]()
        for chunk in chunks:
            found, missing = consumer.leases.take(chunk)
            held += found
            stale += missing
        if held:
            count, slots = queue.freed(consumer, held)
            affected += count
            if slots:
                held = [run for run in held if run.place != SLOT]
            if held:
                queue.counted(now.mono).acked += count
                runs += held
        if stale:
            _record(queue, now, runs, named, sink)
            runs = []
            affected += settle(queue, now, stale, Verb.ACK, sink, consumer, "", None, None)
    _record(queue, now, runs, named, sink)
    return affected


def _record(queue: Queue, now: Now, runs: Sequence[Run], named: str, sink: Sink) -> None:
    """Say that these are done; they are held no longer."""
    if not runs:
        return
    sink.record(Kind.SETTLE, queue.name, {"by": named} if named else None, _body(queue.id, runs))
    if (figures := queue.figures) is not None:
        figures.unsampled += sum([len(run.chunk) for run in runs])
        if figures.unsampled >= figures.step:
            figures.sample(now.mono, runs[0])


def _body(queue: int, runs: Sequence[Run]) -> bytes:
    """The body of the record, with neighbours of several consumers in one pair."""
    if not all(isinstance(run.chunk, range) for run in runs):
        return pairs_body(queue, runs)
    pairs = [queue]
    for chunk in sorted([run.chunk for run in runs], key=itemgetter(0)):
        if pairs[-1] == chunk[0] and len(pairs) > 1:
            pairs[-1] = chunk[-1] + 1
        else:
            pairs += (chunk[0], chunk[-1] + 1)
    return struct.pack(f"<{len(pairs)}q", *pairs)
