"""Where the commands of a queue with limits meet these: as messages arrive, and as time makes some ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.effects import Sink
from penstock.core.queue.agenda import DISPATCH, TRIM
from penstock.core.queue.dispatching.dispatch import dispatch
from penstock.core.queue.limits.limits import limits_of
from penstock.core.queue.limits.ring import enter_scheduled, replace, returning
from penstock.core.queue.limits.trimming import trim
from penstock.core.queue.order.runs import NEVER, Run
from penstock.core.queue.stages import Newcomers, Stage
from penstock.core.queue.timed.due import end_retries, end_scheduled, expire_due
from penstock.records.causes import MAXLEN
from penstock.records.chunks import Now

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents
    from penstock.core.queue.view import Queue


class _Bounded(Stage):
    """Something may have to give way to newcomers."""

    def present(self, queue: Queue) -> bool:
        return limits_of(queue.settings) is not None

    def cut(self, queue: Queue, now: Now, new: Newcomers) -> int:
        """As few as show who came between whom.

        That are priorities with dead letters or with sizes; keys, where who gives way lets another come; and a ring
        with a limit beside it, where each arrival asks both.
        """
        limits, chunk = queue.limits, new.chunk
        if limits is None:
            return len(chunk)
        if not limits.drops and (queue.shares is None or limits.ring == NEVER):
            return len(chunk)
        if (
            queue.shares is None
            and limits.ring == NEVER
            and (queue.ranks is None or (limits.size == NEVER and not queue.wants_letter(MAXLEN)))
        ):
            return len(chunk)
        fits = min(limits.length, limits.ring) - queue.ready
        if limits.size < NEVER and queue.weight + queue.sizes.total(chunk) > limits.size:
            fits = 1
        return min(len(chunk), max(fits, 1))

    def returned(self, queue: Contents, runs: list[Run], sink: Sink) -> list[Run]:
        limits = queue.limits
        return runs if limits is None or limits.ring == NEVER else returning(queue, runs, sink)

    def trim(self, queue: Queue, sink: Sink) -> None:
        trim(queue, sink)

    def begin(self, queue: Queue, now: Now, new: Newcomers, sink: Sink) -> None:
        """Finish what has begun, as far as it matters.

        An older trim takes none of the newcomers, and a dispatch that stopped at its bound comes before theirs.
        """
        limits = queue.limits
        if limits is None:
            return
        while queue.agenda & TRIM and queue.roster.all and not queue.expiry.busy and queue.ranking is None:
            trim(queue, sink)
        while queue.agenda & DISPATCH and queue.ready + len(new) > limits.ring:
            queue.serve(now, sink)
        new.ready_before = queue.ready

    def ended(self, queue: Queue, now: Now, new: Newcomers, sink: Sink) -> None:
        """Who has room was given some: go on with that while too much is ready, then let it go."""
        limits = queue.limits
        if limits is None:
            return
        while queue.agenda & DISPATCH and (queue.ready > limits.ring or limits.exceeded(queue)):
            dispatch(queue, now, sink)
        if queue.ready > limits.ring and queue.ranking is None:
            replace(queue, min(queue.ready - new.ready_before, queue.ready - limits.ring), sink)
        trim(queue, sink, NEVER)


BOUNDED = _Bounded()


def keep_time(queue: Queue, now: Now, sink: Sink) -> None:
    """Delays end and messages expire.

    What failed returns to its place, and the oldest give way to it as to any return.  A scheduled message enters like a
    newcomer: it is offered first.  Into a ring it enters at the head, and a full one refuses it.
    """
    limits = queue.limits
    assert limits is not None
    if queue.delays.due <= now.wall:
        end_retries(queue, now, sink)
    if queue.expiry.due <= now.wall:
        expire_due(queue, now, sink)
    trim(queue, sink)
    if queue.delays.due <= now.wall:
        before = queue.ready
        if limits.ring < NEVER:
            enter_scheduled(queue, now, sink)
        else:
            end_scheduled(queue, now, sink)
        if queue.ready > before and limits.drops:
            offer_first(queue, now, sink)
            trim(queue, sink, NEVER)


def offer_first(queue: Queue, now: Now, sink: Sink) -> None:
    """Something entered like a newcomer: whoever has room is given some before anything gives way to it."""
    limits = queue.limits
    assert limits is not None
    dispatch(queue, now, sink)
    while queue.agenda & DISPATCH and limits.exceeded(queue):
        dispatch(queue, now, sink)
