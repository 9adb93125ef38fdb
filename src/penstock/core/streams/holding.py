"""What streams hold of a queue: ordinary leases of a silent consumer, but without a deadline.

A stream's consumer gets nothing unasked, and its grants cause no deliveries: their reader fetches the rows by LSN.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.effects import Deliver, Effect, Verb
from penstock.core.outbox import Outbox
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.order.runs import Run
from penstock.core.queue.view import Queue
from penstock.records.causes import POISON
from penstock.records.chunks import Chunk, Now


class Holdings:
    """The silent consumers of all streams."""

    def __init__(self, outbox: Outbox[Effect], touched: set[Queue]) -> None:
        self._outbox = outbox
        self._touched = touched  # queues whose deadlines may have changed
        self._consumers: dict[tuple[int, str], Consumer] = {}

    def take(self, now: Now, queue: Queue, name: str, count: int) -> list[Chunk]:
        """Lease up to `count` ready messages to the stream; ascending, each run a chunk."""
        consumer = self._consumer(now, queue, name)
        queue.pull(now, consumer, count, self._outbox)
        for run in consumer.leases.runs:
            run.deadline = 0
        chunks = list[Chunk]()
        others = list[Effect]()
        for effect in self._outbox.effects:
            if isinstance(effect, Deliver) and effect.consumer is consumer:
                chunks.append(effect.chunk)
            else:
                others.append(effect)
        self._outbox.effects[:] = others
        self._touched.add(queue)
        return chunks

    def settle(self, now: Now, queue: Queue, name: str, chunks: list[Chunk], verb: Verb) -> None:
        """End what the stream holds."""
        consumer = self._consumer(now, queue, name)
        queue.settle(now, chunks, verb, self._outbox, by=consumer, cause=POISON)
        self._touched.add(queue)

    def restore(self, now: Now, queue: Queue, name: str, chunks: Iterable[Chunk]) -> None:
        """After a start: what was planned and not settled is held again, as the log says; nothing is written."""
        consumer = self._consumer(now, queue, name, starting=True)
        for chunk in chunks:
            for run in queue.extract(chunk):
                consumer.leases.add(Run(run.chunk, False, run.tally, run.place))
                queue.leased += len(run.chunk)
                queue.outstanding += len(run.chunk)

    def forget(self, queue: Queue, gone: Chunk) -> None:
        """Messages that ended with the process are held no more; BOOT says so, nothing is written."""
        for (number, _), consumer in self._consumers.items():
            if number == queue.id:
                held = sum(len(run.chunk) for run in consumer.leases.take(gone)[0])
                queue.leased -= held
                queue.outstanding -= held

    def queue_gone(self, queue: int) -> None:
        """The queue was deleted, with what was held of it."""
        for key in [key for key in self._consumers if key[0] == queue]:
            del self._consumers[key]

    def _consumer(self, now: Now, queue: Queue, name: str, *, starting: bool = False) -> Consumer:
        consumer = self._consumers.get((queue.id, name))
        if consumer is None:
            consumer = queue.subscribe(
                now, self._outbox, starting=starting, tag=f"stream:{name}", holder=self, client=f"stream:{name}",
                passive=True,
            )  # fmt: skip
            consumer.fenced = True
            self._consumers[queue.id, name] = consumer
        return consumer
