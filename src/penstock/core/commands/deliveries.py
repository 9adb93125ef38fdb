"""Commands about deliveries: who consumes, what is granted and settled, what time does to it.

It knows queues and their consumers; what a delivery looks like on a wire is not known here.  Whoever may settle by name
names messages by bookmarks or by a filter, wherever they are: bookmarks are origins and LSNs, and what a queue has not
had yet is remembered for it (`core.queue.settling.deferred`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, Unpack

from penstock.core.asks import Scanned
from penstock.core.commands.queues import QueueCommands
from penstock.core.effects import Deliver, DeliverEach, Verb
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.dispatching.roster import Terms
from penstock.core.queue.order.runs import sift, sorted_chunk
from penstock.core.queue.queue import Letter, Queue, queue_of
from penstock.core.queue.settling.settle import Acked, apart
from penstock.core.queue.settling.sweep import Sweep
from penstock.errors import Draining, InvalidArgument, QueueFull
from penstock.expr import Filter, Matcher
from penstock.records.chunks import Chunk, Now

Delivery: TypeAlias = Deliver[Consumer, Queue]
Deliveries: TypeAlias = DeliverEach[Consumer, Queue]


SWEEPS_MOST = 64
"""Settlements by filter at the same time."""

REMEMBERED = frozenset({Verb.ACK, Verb.EXPIRE})
"""What may be said of a message before it comes; there is nothing yet to give back."""


class DeliveryCommands(QueueCommands):
    """Consumers, grants, settlement by who holds or by name, time."""

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
        if isinstance(asked := terms.get("filter"), Filter):
            terms["filter"] = asked.reading(queue.settings.message_type)
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

    # -- settling by name

    def acknowledge(
        self, now: Now, queue: Queue, marks: Mapping[int, Chunk], verb: Verb = Verb.ACK, *, client: str = ""
    ) -> int:
        """Settle messages of a queue, by origin (ascending chunks), as its `leasing` allows to the client; how many.

        What is not in the queue and may still come is remembered: see `core.queue.settling.deferred`.
        Errors: InvalidArgument for an LSN that this instance has not given out; nothing is settled then.  QueueFull
        when too much is remembered; the rest is done.
        """
        own = marks.get(self.origin, range(0))
        if len(own) and own[-1] > self.last_lsn:
            raise InvalidArgument(
                f"{self.origin}|{own[-1]}| is no message: the last LSN that was given out is {self.last_lsn}"
            )
        affected = self.settle(now, queue, [own], verb, client=client) if len(own) else 0
        if verb in REMEMBERED and self._by_id(queue.id) is queue:
            refused: QueueFull | None = None
            for origin, chunk in marks.items():
                if origin == self.origin:
                    chunk = self._never_offered(queue, chunk)
                if len(chunk):
                    try:
                        self._deferred.add(self._at(now), queue, origin, chunk, verb, client, self._out)
                    except QueueFull as full:
                        refused = full
            if refused is not None:
                raise refused
        return affected

    def appeared(self, now: Now, queue: Queue, origin: int, chunk: Chunk, here: Chunk) -> int:
        """Messages that their origin calls `chunk` came into a queue as `here`: apply deferred acks; how many left."""
        if queue.id not in self._deferred.by_queue:
            return 0
        affected = self._deferred.appeared(self._at(now), queue, origin, chunk, here, self._out)
        self._touch(queue)
        return affected

    def _never_offered(self, queue: Queue, chunk: Chunk) -> Chunk:
        """Those that are older than the queue, and that no pass over the log has offered to it."""
        parts = [chunk[: bisect_left(chunk, queue.id)]]
        for low, high in self._passes.get(queue.id, ((), None))[0]:
            parts = [rest for part in parts for rest in sift(part, range(low, high))[1]]
        return sorted_chunk([part for part in parts if len(part)])

    # -- by a filter

    def settle_matching(
        self, now: Now, queue: Queue, filter: Matcher, answer: Callable[[int], None], verb: Verb = Verb.ACK, *,
        client: str = "",
    ) -> None:  # fmt: skip
        """Settle whatever matches of what is in the queue now, whoever holds it, as its `leasing` allows.

        `answer` hears how many messages that affected, once the queue was gone through.
        Errors: QueueFull when many others are on their way.
        """
        if len(self._sweeps) >= SWEEPS_MOST:
            raise QueueFull(f"{SWEEPS_MOST} settlements by filter are on their way; one more has to wait")
        if queue.is_due(now := self._at(now)):
            queue.tick(now, self._out)
        self._sweeping += 1
        sweep = Sweep(queue, self._sweeping, filter, verb, client, answer)
        if sweep.ask(self._out):
            self._sweeps[sweep.token] = sweep
        self._touch(queue)

    def _swept(self, now: Now, answer: Scanned) -> None:
        """A stretch of a settlement by filter was looked through."""
        sweep = self._sweeps.get(answer.token)
        if sweep is None:
            return
        if self._by_id(answer.token.queue) is not sweep.queue:
            sweep.end(self._out)
            more = False
        else:
            more = sweep.scanned(now, answer.found[0], answer.upto, self._out)
            self._touch(sweep.queue)
        if not more:
            del self._sweeps[answer.token]

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
        if self._deferred.due <= now.wall:
            self._deferred.expire(now, self._admin.by_id, self._out)

    def next_deadline(self) -> tuple[int | None, int | None]:
        """When to `tick` next: (wall, monotonic) microseconds, None for never; 0 is at once."""
        wall, mono = self._timers.next()
        dues = [wall, self._publisher.publishers.due(), self.streams.keeping.due()]
        if self._publisher.keyed is not None:
            dues.append(self._keyed.sows.due())
        if self._deferred.by_queue:
            dues.append(self._deferred.due)
        return min((due for due in dues if due is not None), default=None), mono

    def takers(self, route: int) -> list[Queue]:
        """The queues of today that a row's route names."""
        queues = [self._admin.by_id.get(number) for number in self._interning.queues_of(route)]
        return [queue for queue in queues if queue is not None]
