"""Acks for messages that are not in their queue: remembered for a while, and applied when they appear.

An ack may come before its message: another instance gave the message its number and it has not come here yet, or it is
older than the queue, which may still take it up by its recovery point.  What the queue has had is stale instead, and
is not remembered.  Bounded by time (`deferred_ack_expiration`) and by number, since any reader can ask for more.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.effects import Sink, Verb
from penstock.core.queue.order.runs import NEVER, view
from penstock.core.state.pending import DeferredAck, DeferredAcks, copies, forget
from penstock.errors import QueueFull
from penstock.records.chunks import Chunk, Now, as_chunk, pack_pairs, pairs_of
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from penstock.core.queue.queue import Queue

DEFERRED_MOST = 100_000
"""Messages of one queue whose acks are remembered."""


class Deferred:
    """The deferred acks of all queues."""

    __slots__ = ("by_queue", "due")

    def __init__(self, start: DeferredAcks | None = None) -> None:
        self.by_queue: DeferredAcks = copies(start or {})
        self.due = NEVER  # wall: nothing is forgotten before this
        self._set_due()

    def count(self, queue: int) -> int:
        """How many messages of a queue are remembered."""
        return sum(len(entry.lsns) for entry in self.by_queue.get(queue, ()))

    def add(self, now: Now, queue: Queue, origin: int, chunk: Chunk, verb: Verb, by: str, sink: Sink) -> int:
        """Remember an ACK or EXPIRE of these messages of an origin (ascending); how many are new.

        Errors: QueueFull when that would be more than there may be; nothing is remembered then.
        """
        if not queue.settings.deferred_ack_expiration:
            return 0
        lsns = view(chunk)
        for entry in self.by_queue.get(queue.id, ()):
            if entry.origin == origin:
                lsns = np.setdiff1d(lsns, np.frombuffer(entry.lsns, np.int64), assume_unique=True)
        if not len(lsns):
            return 0
        known = self.count(queue.id)
        if known + len(lsns) > DEFERRED_MOST:
            raise QueueFull(
                f"queue '{queue.name}' in vhost '{queue.vhost}' remembers {known} acks of messages that are not there; "
                f"{len(lsns)} more would be beyond {DEFERRED_MOST}"
            )
        until = now.wall + queue.settings.deferred_ack_expiration
        entry = DeferredAck(origin, verb.value, by, until, array("q", lsns.tolist()))
        sink.record(Kind.DEFER, queue.name, entry.header(), pack_pairs(queue.id, entry.pairs()))
        self.by_queue.setdefault(queue.id, []).append(entry)
        self.due = min(self.due, until)
        return len(lsns)

    def appeared(self, now: Now, queue: Queue, origin: int, chunk: Chunk, here: Chunk, sink: Sink) -> int:
        """Messages of an origin (`chunk`, ascending) came into the queue, as `here`: do what was said about them.

        Returns how many left the queue by that.
        """
        affected = 0
        for entry in list(self.by_queue.get(queue.id, ())):
            if entry.origin != origin:
                continue
            both, _, places = np.intersect1d(np.frombuffer(entry.lsns, np.int64), view(chunk), return_indices=True)
            if not len(both):
                continue
            wanted = as_chunk(array("q", sorted(view(here)[places].tolist())))
            affected += queue.settle(now, [wanted], Verb(entry.verb), sink, client=entry.by)
            self._forget(queue, origin, array("q", both.tolist()), sink)
        self._set_due()
        return affected

    def expire(self, now: Now, queues: dict[int, Queue], sink: Sink) -> None:
        """Forget what has been remembered for long enough."""
        for number, entries in list(self.by_queue.items()):
            for entry in list(entries):
                if entry.until <= now.wall:
                    self._forget(queues[number], entry.origin, entry.lsns, sink)
        self._set_due()

    def queue_gone(self, number: int) -> None:
        """The queue was deleted, and its record says so."""
        if self.by_queue.pop(number, None) is not None:
            self._set_due()

    def _forget(self, queue: Queue, origin: int, lsns: array[int], sink: Sink) -> None:
        pairs = pairs_of(as_chunk(lsns), False)
        sink.record(Kind.UNDEFER, queue.name, {"origin": str(origin)}, pack_pairs(queue.id, pairs))
        forget(self.by_queue, queue.id, origin, lsns)

    def _set_due(self) -> None:
        self.due = min((entry.until for entries in self.by_queue.values() for entry in entries), default=NEVER)
