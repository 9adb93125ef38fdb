"""Commands about messages that wait, by whoever administers them: withdrawn, moved to another time, a queue halted.

It knows queues and LSNs; who may say so is the doors' affair.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.actions.templates import iso_time
from penstock.core.commands.queues import QueueCommands
from penstock.core.queue.order.runs import NEVER
from penstock.core.queue.timed.moving import paused_until
from penstock.core.queue.view import Queue
from penstock.errors import InvalidArgument
from penstock.records.chunks import Chunk, Now

LATEST = 1 << 61
"""Microseconds since the epoch: a time beyond this is a mistake."""


class WaitingCommands(QueueCommands):
    """Halting queues; withdrawing and moving what waits in them."""

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
