"""Commands about deliveries: who consumes, what is granted and settled, what time does to it.

It knows queues and their consumers; what a delivery looks like on a wire is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, Unpack

from penstock.core.commands.queues import QueueCommands
from penstock.core.effects import Deliver, DeliverEach, Verb
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.dispatching.roster import Terms
from penstock.core.queue.queue import Letter, Queue, queue_of
from penstock.core.queue.settling.settle import Acked, apart
from penstock.errors import Draining
from penstock.records.chunks import Chunk, Now

Delivery: TypeAlias = Deliver[Consumer, Queue]
Deliveries: TypeAlias = DeliverEach[Consumer, Queue]


class DeliveryCommands(QueueCommands):
    """Consumers, grants, settlement, time."""

    # -- consumers

    def subscribe(self, now: Now, queue: Queue, **terms: Unpack[Terms]) -> Consumer:
        """A new consumer, served at once.

        Errors: AccessRefused when somebody has the queue for himself, Draining while the server runs empty.
        """
        self._refuse_consumers(queue.name)
        return self._attend(now, queue, **terms)

    def _refuse_consumers(self, name: str) -> None:
        """Draining while the server runs empty."""
        if self.draining:
            raise Draining(f"the server drains: it takes no new consumers, of '{name}' neither")

    def _attend(self, now: Now, queue: Queue, **terms: Unpack[Terms]) -> Consumer:
        """The same for who was there before the server drained."""
        consumer = queue.subscribe(self._at(now), self._out, **terms)
        self._touch(queue, consumer.shared)
        if self.attendance is not None and not consumer.passive:
            self.attendance.append((True, consumer))
        return consumer

    def unsubscribe(self, now: Now, consumer: Consumer, *, requeue: bool, lost: bool = False) -> None:
        """End a consumer.  requeue: what it holds goes back; lost: as its connection did, so its oldest failed."""
        now = self._at(now)
        queue = queue_of(consumer)
        if self._admin.by_id.get(queue.id) is not queue:
            return
        was_open = not consumer.closed
        queue.unsubscribe(now, consumer, self._out, requeue=requeue, lost=lost)
        self._touch(queue, consumer.shared)
        if self.attendance is not None and was_open and not consumer.passive:
            self.attendance.append((False, consumer))
        if queue.auto_delete and was_open and not consumer.passive and not queue.consumers:
            self.delete_queue(now, queue)

    def pull(self, now: Now, consumer: Consumer, count: int) -> int:
        """Grant up to `count` messages to a consumer that gets only what it asks for; returns how many."""
        if count < 1:
            return 0
        queue = queue_of(consumer)
        granted = queue.pull(self._at(now), consumer, count, self._out)
        self._touch(queue, consumer.shared)
        return granted

    def choke(self, consumer: Consumer) -> None:
        """A consumer's connection takes no more bytes now."""
        queue_of(consumer).choke(consumer)

    def unchoke(self, now: Now, consumer: Consumer) -> None:
        """A consumer's connection takes bytes again."""
        queue = queue_of(consumer)
        queue.unchoke(self._at(now), consumer, self._out)
        self._touch(queue, consumer.shared)

    def settle(
        self,
        now: Now,
        queue: Queue,
        chunks: Sequence[Chunk],
        verb: Verb,
        *,
        by: Consumer | None = None,
        client: str = "",
        delay: int | None = None,
        reason: str | None = None,
        dying: list[Letter] | None = None,
    ) -> int:
        """End deliveries; returns how many it affected.  Stale ones are counted, never an error.

        dying: takes what EXPIRE ends that wants a dead letter; the caller writes it (`Queue.settle`).
        """
        if self._admin.by_id.get(queue.id) is not queue:
            return 0
        affected = queue.settle(
            self._at(now), chunks, verb, self._out, by=by, client=client, delay=delay, reason=reason, dying=dying
        )
        if verb is Verb.CANCEL:
            self._cancelled[queue.id] = self._cancelled.get(queue.id, 0) + affected
        self._touch(queue, by.shared if by is not None else None)
        return affected

    def settle_several(self, now: Now, queue: Queue, settled: Sequence[Acked]) -> int:
        """Deliveries of several consumers of a queue are done: what `settle` does for one after the other."""
        if self._admin.by_id.get(queue.id) is not queue:
            return 0
        if queue.shares_credit:
            return sum([self.settle(now, queue, chunks, Verb.ACK, by=consumer) for consumer, chunks in settled])
        affected = queue.settle_several(self._at(now), settled, self._out)
        self._touch(queue)
        return affected

    def settle_each(self, now: Now, queue: Queue, consumers: Sequence[Consumer], chunk: Chunk) -> int:
        """The same of as many consumers as messages, each of which has done the one at its place; chunk: ascending."""
        if queue.shares_credit:
            return self.settle_several(now, queue, apart(consumers, chunk))
        if self._admin.by_id.get(queue.id) is not queue:
            return 0
        affected = queue.settle_each(self._at(now), consumers, chunk, self._out)
        self._touch(queue)
        return affected

    def set_aside(self, now: Now, consumer: Consumer, chunk: Chunk) -> int:
        """What a consumer holds and cannot be given, its body being unreadable, is held by nobody; how many."""
        queue = queue_of(consumer)
        if self._admin.by_id.get(queue.id) is not queue:
            return 0
        count = queue.set_aside(self._at(now), consumer, chunk, self._out)
        self._touch(queue, consumer.shared)
        return count

    # -- time

    def tick(self, now: Now) -> None:
        """Leases and delays that end, expiry, unused queues, publishers and streams that nobody hears of."""
        now = self._at(now)
        for number in self._timers.due(now):
            queue = self._admin.by_id.get(number)
            if queue is None:
                continue
            if queue.is_unused(now) and not self.streams.reads(number):
                self.delete_queue(now, queue)
                continue
            queue.tick(now, self._out)
            self._touch(queue)
        if self._publisher.keyed is not None:
            self._keyed.tick(now)
        self._publisher.publishers.tick(now)
        for name in self.streams.keeping.overdue(now):
            self.streams.release(now, name, abandoned=True)

    def next_deadline(self) -> tuple[int | None, int | None]:
        """When to `tick` next: (wall, monotonic) microseconds, None for never; 0 is at once."""
        wall, mono = self._timers.next()
        dues = [wall, self._publisher.publishers.due(), self.streams.keeping.due()]
        if self._publisher.keyed is not None:
            dues.append(self._keyed.sows.due())
        return min((due for due in dues if due is not None), default=None), mono

    def takers(self, route: int) -> list[Queue]:
        """The queues of today that a row's route names."""
        queues = [self._admin.by_id.get(number) for number in self._interning.queues_of(route)]
        return [queue for queue in queues if queue is not None]
