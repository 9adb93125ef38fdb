"""Commands of whoever administers queues: halt them, and withdraw, reschedule or move what waits in them.

A message that is moved is in one place at any moment.  Who calls has read the rows and says what becomes of them; here
is decided which of them still wait, and the new rows lie in one group with the record that ends the old ones.  Who may
say so is the doors' affair.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.core.actions.templates import iso_time
from penstock.core.commands.queues import QueueCommands
from penstock.core.queue.administering import paused_until
from penstock.core.queue.order.runs import NEVER, pairs_body
from penstock.core.queue.view import Queue
from penstock.errors import InvalidArgument, PreconditionFailed
from penstock.records.chunks import Chunk, Now, as_chunk
from penstock.records.entries import Publishes, Topic
from penstock.records.kinds import Kind

LATEST = 1 << 61
"""Microseconds since the epoch: a time beyond this is a mistake."""


class InterventionCommands(QueueCommands):
    """Halting queues; withdrawing, rescheduling and moving what waits in them."""

    def pause_queue(self, now: Now, queue: Queue, until: int | None = None, *, by: str = "") -> None:
        """Deliver nothing from a queue before `until` (microseconds since the epoch), or, with None, before `resume`.

        Publishes, acks, delays and expiry go on.  Errors: InvalidArgument for a moment that is over.
        """
        now = self._at(now)
        if until is not None and not now.wall < until <= LATEST:
            when = iso_time(until) if 0 < until <= now.wall else f"{until} us after 1970"
            raise InvalidArgument(f"queue '{queue.name}' cannot be paused until {when}: it is {iso_time(now.wall)} now")
        queue.halt(now, NEVER if until is None else until, self._out, by)
        self._touch(queue)

    def resume_queue(self, now: Now, queue: Queue, *, by: str = "") -> bool:
        """Deliver again; whether the queue was paused."""
        was = paused_until(queue) > 0
        queue.halt(self._at(now), 0, self._out, by)
        self._touch(queue)
        return was

    def drain(self, now: Now, draining: bool = True) -> None:
        """Grant nothing and take no consumers until this is said again with False, or the process ends.

        What is leased is settled, extended and ended as ever; delays and expiry go on.
        """
        now = self._at(now)
        self.draining = draining
        for queue in self.queues():
            queue.drain(now, draining, self._out)
            self._touch(queue)

    def cancel_messages(
        self, now: Now, queues: Iterable[Queue], wanted: Chunk, *, by: str = ""
    ) -> list[tuple[Queue, int]]:
        """Remove messages where they wait: not where somebody holds them.  Of each queue how many, where any did."""
        return self._each(now, queues, wanted, None, by)

    def reschedule_messages(
        self, now: Now, queues: Iterable[Queue], wanted: Chunk, when: int, *, by: str = ""
    ) -> list[tuple[Queue, int]]:
        """Let messages wait until `when` (microseconds since the epoch; what is over is now) where they wait."""
        if not 0 < when <= LATEST:
            raise InvalidArgument(f"{when} is no time in microseconds since the epoch")
        return self._each(now, queues, wanted, when, by)

    def _each(
        self, now: Now, queues: Iterable[Queue], wanted: Chunk, when: int | None, by: str
    ) -> list[tuple[Queue, int]]:
        now = self._at(now)
        out = list[tuple[Queue, int]]()
        if not len(wanted):
            return out
        self._out.begin()
        for queue in queues:
            if queue.id > wanted[-1] and not self.looked_back(queue):
                continue  # it came later than all of them
            if when is None:
                count = queue.withdraw(now, wanted, self._out, by)
            else:
                count = queue.reschedule(now, wanted, when, self._out, by)
            if count:
                out.append((queue, count))
            self._touch(queue)
        self._out.end()
        return out

    def interned(self, vhost: str, exchange: str, key: str) -> Topic:
        """The topic of that name, whether its exchange is there or not."""
        return self._topic(vhost, exchange, key)

    def move_messages(
        self,
        now: Now,
        source: Queue,
        target: Queue,
        lsns: Sequence[int],
        batch: Publishes,
        reason: str,
        *,
        by: str = "",
    ) -> int:
        """Move those that wait in `source` to the end of `target`; how many.

        lsns     ascending; what is leased, dying or gone by now is left out
        batch    what they become there, row by row: topics, headers, bodies, times
        They begin anew: no attempt counts.  Errors: PreconditionFailed for a queue that is its own target.
        """
        if source is target:
            raise PreconditionFailed(f"queue '{source.name}' cannot give its messages to itself")
        now = self._at(now)
        for queue in (source, target):
            if queue.is_due(now):
                queue.tick(now, self._out)
            self._touch(queue)
        runs = source.extract(as_chunk(list(lsns)))
        there = {lsn for run in runs for lsn in run.chunk}
        if not there:
            return 0
        rows = [row for row, lsn in enumerate(lsns) if lsn in there]
        chosen = batch if len(rows) == len(lsns) else batch.select(rows)
        self._out.begin()
        first = self._publisher.put_into(now, target, chosen)
        sent = [[lsns[row], first + i] for i, row in enumerate(rows)]
        header: dict[str, object] = {"reason": reason, "sent": sent}
        if by:
            header["by"] = by
        self._out.record(Kind.EXPIRE, source.name, header, pairs_body(source.id, runs))
        self._out.end()
        source.counted(now.mono).expired(reason, len(rows))
        source.go_on(now, self._out)
        self._touch(source)
        return len(rows)
