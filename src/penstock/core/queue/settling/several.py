"""Acks of several consumers of one queue at once: what `settle` does for one after the other, for a fraction of it.

A thousand workers behind one connection are answered by one ack for all that a read brought.  Where nothing could be
granted between two of them the order shows nowhere: their messages leave together, in one record for each client.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from penstock.core.effects import Sink, Verb
from penstock.core.queue.order.runs import Run, pairs_body
from penstock.core.queue.settling.leases import SLOT
from penstock.core.queue.settling.settle import count_acked, settle
from penstock.records.chunks import Chunk, Now, as_chunk
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from penstock.core.queue.dispatching.consumers import Consumer
    from penstock.core.queue.dispatching.target_list import TargetList
    from penstock.core.queue.view import Queue

Acked: TypeAlias = "tuple[Consumer, Sequence[Chunk]]"
"""A consumer, and what it has done of its deliveries, each chunk ascending."""


def together(queue: Queue) -> bool:
    """Whether nothing can be granted, moved or told between the acks of two consumers."""
    return not (
        queue.ready or queue.sharing or queue.free_credit or queue.actions or queue.stages().keeps
    )  # fmt: skip


def acknowledge(queue: Queue, now: Now, settled: Sequence[Acked], sink: Sink) -> int:
    """Deliveries of these consumers are done; returns how many messages that affected.  The queue is `together`."""
    affected = freed = 0
    runs: list[Run] = []
    named = ""
    for consumer, chunks in settled:
        name = consumer.client or consumer.tag
        if name != named:
            _record(queue, now, runs, named, sink)
            runs, named = [], name
        first = consumer.leases.take_first(chunks[0]) if len(chunks) == 1 and not consumer.closed else None
        if first is not None and first.place != SLOT:  # what `freed` does, for one run of one who holds more or not
            if consumer.serial:
                freed += len(first.chunk)
            else:
                queue.leased -= len(first.chunk)
            affected += len(first.chunk)
            runs.append(first)
            if consumer.targets is not None:
                consumer.targets.wake(consumer)
            continue
        held: list[Run] = [] if first is None else [first]
        stale: list[Chunk] = []
        for chunk in chunks if first is None else ():
            found, missing = consumer.leases.take(chunk)
            held += found
            stale += missing
        if held:
            count, slots = queue.freed(consumer, held)
            affected += count
            if slots and (held := [run for run in held if run.place != SLOT]):
                queue.counted(now.mono).acked += slots
            runs += held
        if stale:
            _record(queue, now, runs, named, sink)
            runs = []
            affected += settle(queue, now, stale, Verb.ACK, sink, consumer, "", None, None)
    queue.outstanding -= freed
    queue.leased -= freed
    _record(queue, now, runs, named, sink)
    return affected


def acknowledge_each(queue: Queue, now: Now, consumers: Sequence[Consumer], chunk: Chunk, sink: Sink) -> int:
    """The same where each of these consumers has done the one message at its place.  The queue is `together`.

    Nearly always each holds just that message, alone, and one client has them all; what is not so goes the other way.
    """
    client = consumers[0].client
    if not client:
        return acknowledge(queue, now, apart(consumers, chunk), sink)
    terms: Run | None = None
    others: list[tuple[Consumer, int]] = []
    last: TargetList | None = None
    stirred: TargetList | None = None  # its consumers need not be told any more
    for consumer, lsn in zip(consumers, chunk, strict=True):
        leases = consumer.leases
        if leases.lone != lsn or consumer.client != client or consumer.closed:
            others.append((consumer, lsn))
            continue
        terms = leases.terms
        leases.count, leases.lone, leases.terms = 0, 0, None
        targets = consumer.targets
        if targets is not stirred and targets is not None:
            targets.wake(consumer)
            if targets is last and targets.complete:  # asked of the second: most lists may have one consumer
                stirred = targets
            last = targets
    if not others:
        done = chunk
    else:
        left = {lsn for _, lsn in others}
        done = as_chunk([lsn for lsn in chunk if lsn not in left])
    affected = len(done)
    queue.outstanding -= affected
    queue.leased -= affected
    if terms is not None:
        _record(queue, now, [terms.part(done, False)], client, sink)
    if others:
        rest = apart([consumer for consumer, _ in others], as_chunk([lsn for _, lsn in others]))
        affected += acknowledge(queue, now, rest, sink)
    return affected


def apart(consumers: Sequence[Consumer], chunk: Chunk) -> list[Acked]:
    """One message of each of these consumers, one by one; neighbours of one consumer together."""
    out: list[tuple[Consumer, list[Chunk]]] = []
    for consumer, lsn in zip(consumers, chunk, strict=True):
        if out and out[-1][0] is consumer:
            out[-1][1].append(range(lsn, lsn + 1))
        else:
            out.append((consumer, [range(lsn, lsn + 1)]))
    return [*out]


def _record(queue: Queue, now: Now, runs: Sequence[Run], named: str, sink: Sink) -> None:
    """Say that these are done; they are held no longer."""
    if not runs:
        return
    sink.record(Kind.SETTLE, queue.name, {"by": named} if named else None, _body(queue.id, runs))
    count_acked(queue, now, runs[0], sum([len(run.chunk) for run in runs]))


def _body(queue: int, runs: Sequence[Run]) -> bytes:
    """The body of the record, with neighbours of several consumers in one pair."""
    chunks = [run.chunk for run in runs]
    if {*map(type, chunks)} != {range}:
        return pairs_body(queue, runs)
    pairs, end = [queue], -1
    for first, last in sorted([(chunk[0], chunk[-1] + 1) for chunk in chunks]):
        if first == end:
            pairs[-1] = last
        else:
            pairs += (first, last)
        end = last
    return struct.pack(f"<{len(pairs)}q", *pairs)
