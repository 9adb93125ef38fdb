"""Commands that settle by name: by bookmarks or by a filter, by whoever asks, wherever the messages are.

It knows bookmarks as origins and LSNs, and what a queue has not had yet; deliveries are `deliveries`'.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping

from penstock.core.asks import Scanned
from penstock.core.commands.deliveries import DeliveryCommands
from penstock.core.effects import Verb
from penstock.core.queue.order.runs import sift, sorted_chunk
from penstock.core.queue.queue import Queue
from penstock.core.queue.settling.sweep import Sweep
from penstock.errors import InvalidArgument, QueueFull
from penstock.expr import Matcher
from penstock.records.chunks import Chunk, Now

SWEEPS_MOST = 64
"""Settlements by filter at the same time."""

REMEMBERED = frozenset({Verb.ACK, Verb.EXPIRE})
"""What may be said of a message before it comes; there is nothing yet to give back."""


class AcknowledgeCommands(DeliveryCommands):
    """Settling by anybody."""

    def acknowledge(
        self, now: Now, queue: Queue, marks: Mapping[int, Chunk], verb: Verb = Verb.ACK, *, client: str = ""
    ) -> int:
        """Settle messages of a queue, by origin (ascending chunks), as its `leasing` allows to the client; how many.

        What is not in the queue and may still come is remembered: see `core.queue.deferred`.
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
        super().tick(now)
        now = self._at(now)
        if self._deferred.due <= now.wall:
            self._deferred.expire(now, self._admin.by_id, self._out)

    def next_deadline(self) -> tuple[int | None, int | None]:
        """When to `tick` next: (wall, monotonic) microseconds, None for never; 0 is at once."""
        wall, mono = super().next_deadline()
        if self._deferred.by_queue:
            wall = self._deferred.due if wall is None else min(wall, self._deferred.due)
        return wall, mono
