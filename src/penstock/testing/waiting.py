"""What is asked about messages that wait: halted queues, messages that are withdrawn, moved, explained."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from penstock.core.queue.explaining import Reason, explain_queue
from penstock.errors import InvalidArgument, PreconditionFailed
from penstock.operations.messages import having, known, past
from penstock.operations.moving import Done, Wanted, move
from penstock.operations.story import tell
from penstock.testing.arguments import check_count, check_text, micros_of
from penstock.testing.instance import Instance
from penstock.testing.running import VHOST, Running

T = TypeVar("T")


class _Here:
    """An instance, to what reads its log."""

    def __init__(self, instance: Instance) -> None:
        self.core, self.log, self.now = instance.core, instance.log, instance.engine.now

    def call(self, work: Callable[[], T], *, durable: bool = True) -> T:
        """There is no other thread."""
        return work()

    def gone(self) -> bool:
        return False


class Waiting(Running):
    def pause(self, queue: str, seconds: float | None = None) -> None:
        """Deliver nothing from a queue for so long; None: until `resume`.  Durable when this returns."""
        wait = None if seconds is None else micros_of("seconds", seconds)

        def work(instance: Instance) -> None:
            now = instance.engine.now()
            found = instance.core.queue(VHOST, queue)
            instance.core.pause_queue(now, found, None if wait is None else now.wall + wait, by="test")
            instance.make_durable()

        self.command(work)

    def resume(self, queue: str) -> bool:
        """Deliver again; whether the queue was paused."""

        def work(instance: Instance) -> bool:
            was = instance.core.resume_queue(instance.engine.now(), instance.core.queue(VHOST, queue), by="test")
            instance.make_durable()
            return was

        return self.command(work)

    def cancel_message(self, bookmark: str, queue: str | None = None) -> list[str]:
        """Withdraw a message wherever it waits; the queues that it was taken from.  PreconditionFailed for none."""
        return self._each(bookmark, queue, None)

    def reschedule_message(self, bookmark: str, delay: float, queue: str | None = None) -> list[str]:
        """Let a message wait until `delay` seconds from now; the queues where it does.  PreconditionFailed for none."""
        return self._each(bookmark, queue, micros_of("delay", delay))

    def _each(self, bookmark: str, queue: str | None, wait: int | None) -> list[str]:
        check_text(queue=queue)

        def work(instance: Instance) -> list[str]:
            core, now = instance.core, instance.engine.now()
            lsn = self._lsn(instance, bookmark)
            queues = core.queues() if queue is None else [core.queue(VHOST, queue)]
            chunk = range(lsn, lsn + 1)
            if wait is None:
                done = core.cancel_messages(now, queues, chunk, by="test")
            else:
                done = core.reschedule_messages(now, queues, chunk, now.wall + wait, by="test")
            if not done:
                raise PreconditionFailed(f"the message {bookmark} does not wait")
            instance.make_durable()
            return [one.name for one, _ in done]

        return self.command(work)

    def explain(self, queue: str, bookmark: str | None = None) -> list[Reason]:
        """Why a queue, or one message of it, is not delivered now: each reason with a code and a sentence."""

        def work(instance: Instance) -> list[Reason]:
            core, log, now = instance.core, instance.log, instance.engine.now()
            found = core.queue(VHOST, queue)
            if bookmark is None:
                return explain_queue(found, now)
            lsn = self._lsn(instance, bookmark)
            for one, why in having(core, lsn, now, log.durable, VHOST):
                if one is found:
                    return why
            what = known(core)
            return [past(tell(log, lsn, what.names, what.routes, anew=what.anew), queue, lsn)]

        return self.command(work)

    def redrive(
        self, queue: str, filter: str | None = None, count: int | None = None, dry_run: bool = False
    ) -> dict[str, object]:
        """Dead letters back to where they died first; `moved`, `matched`, `targets` and `strays` as the SDK tells."""
        return self._moved(Wanted(queue, VHOST, None, filter, dry=dry_run, by="test"), count)

    def move(
        self, queue: str, to: str, filter: str | None = None, count: int | None = None, dry_run: bool = False
    ) -> dict[str, object]:
        """What waits in a queue to the end of another."""
        return self._moved(Wanted(queue, VHOST, to, filter, dry=dry_run, by="test"), count)

    def _moved(self, wanted: Wanted, count: int | None) -> dict[str, object]:
        check_text(queue=wanted.queue, to=wanted.to, filter=wanted.filter)
        check_count(count=count)
        if count is not None:
            if not count:
                raise InvalidArgument("count is 0; at least one message is moved")
            wanted.count = count

        def work(instance: Instance) -> Done:
            instance.make_durable()  # what is not on the disk is not read
            done = move(_Here(instance), wanted)
            instance.make_durable()
            return done

        told = self.command(work).told()
        del told["next"]
        return told
