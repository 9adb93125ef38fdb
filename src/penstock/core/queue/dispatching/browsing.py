"""Non-destructive queues: each consumer reads all that is ready from the head on, then what comes, and nothing leaves.

A consumer has a place in the order of the queue, and what it was sent and has not acknowledged fills its backlog; it
holds nothing that anybody else could not be sent as well.  What enters a ring at its head stands before that place, so
of such messages it knows which ones it has read.  No record is written of it: a start forgets it, as it does
all consumers.  What leaves a queue leaves it by a limit, a newer value, its time or a purge.

Nothing is sent before it is durable, whatever `deliver` says of leases: what a crash takes back would have been shown,
comes to nobody again, and is published anew by who was told nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from penstock.core.effects import Deliver, Sink
from penstock.core.queue.order.runs import Key, Run
from penstock.core.queue.settling.attempts import FRESH, delivered
from penstock.core.queue.settling.leases import SLOT
from penstock.core.queue.whole import DISPATCH
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.kinds import HEAD

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents
    from penstock.core.queue.dispatching.consumers import Consumer


def browse_all(queue: Contents, sink: Sink, budget: int) -> None:
    """Send every consumer with room what it has not seen, `budget` messages at most; `DISPATCH` if more are left."""
    queue.agenda &= ~DISPATCH
    for consumer in queue.roster.all:
        if consumer.choked or consumer.room <= 0:
            continue
        count = min(consumer.room, queue.room, budget)
        budget -= browse(queue, sink, consumer, count)
        if budget <= 0:
            queue.agenda |= DISPATCH
            return


def browse(queue: Contents, sink: Sink, consumer: Consumer, count: int) -> int:
    """Send up to so many of those behind the consumer's place; how many there were."""
    sent = 0
    for place, chunk in _unread(queue, consumer, count):
        if sent >= count:
            break
        part = chunk[: count - sent]
        sent += len(part)
        if place < HEAD:
            consumer.read = (place or part[-1], part[-1])
        else:
            _note(queue, consumer, part)
        run = Run(part, False, delivered(FRESH))
        run.place = SLOT
        if not consumer.no_ack:
            consumer.leases.add(run)
            queue.outstanding += len(part)
            if consumer.shared is not None:
                consumer.shared.used += len(part)
        sink.effect(Deliver(consumer, queue, part, 1, False, part[-1]))
    queue.counted().delivered += sent
    if consumer.passive or consumer.no_ack:
        queue.counted().handed(sent, asked=consumer.passive, no_ack=consumer.no_ack)
    return sent


def newest(queue: Contents) -> int:
    """The LSN of the newest message that is ready; 0 when there is none."""
    chunks = [*queue.main.chunks(), *queue.returned.pieces()]
    return max((chunk[-1] for chunk in chunks), default=0)


def _unread(queue: Contents, consumer: Consumer, count: int) -> Iterator[tuple[int, Chunk]]:
    """The first so many that are ready and unread, in order: chunks, each with the place of its messages.

    0 is their own; there may be more of them.
    """
    for run in queue.returned.heads():  # parts of what entered together have one place
        chunk = run.chunk if not consumer.heads else as_chunk([lsn for lsn in run.chunk if lsn not in consumer.heads])
        if len(chunk):
            yield run.place, chunk
    yield from _behind(queue, consumer.read, count)


def _note(queue: Contents, consumer: Consumer, part: Chunk) -> None:
    """These were at the head and are read; of those that went away nothing is kept for long."""
    heads = consumer.heads = consumer.heads or set()
    heads.update(part)
    if len(heads) > 2 * queue.ready:
        heads.intersection_update([lsn for run in queue.returned.heads() for lsn in run.chunk])


def _behind(queue: Contents, read: Key, count: int) -> Iterator[tuple[int, Chunk]]:
    """The same of what stands behind a place, and not at the head."""
    heap: list[tuple[Key, int, Chunk]] = []
    for chunk in queue.main.chunks():
        _enter(heap, 0, chunk[bisect_right(chunk, read[0]) :])
    for run in queue.returned.behind(read, count):
        if run.place >= HEAD or (run.place and run.place < read[0]):
            continue
        if run.place:
            _enter(heap, run.place, run.chunk if run.place > read[0] else run.chunk[bisect_right(run.chunk, read[1]) :])
        else:
            _enter(heap, 0, run.chunk[bisect_right(run.chunk, read[0]) :])
    while heap:
        _, place, chunk = heappop(heap)
        if heap and not place:  # up to where the next one begins
            end = bisect_left(chunk, heap[0][0][0])
            _enter(heap, 0, chunk[end:])
            chunk = chunk[:end]
        yield place, chunk


def _enter(heap: list[tuple[Key, int, Chunk]], place: int, chunk: Chunk) -> None:
    if len(chunk):
        heappush(heap, ((place or chunk[0], chunk[0]), place, chunk))
