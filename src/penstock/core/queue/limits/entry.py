"""Where the commands of a queue with limits meet these: as messages arrive, and as time makes some ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.effects import Sink
from penstock.core.queue.dispatching.dispatch import dispatch
from penstock.core.queue.limits.trimming import trim
from penstock.core.queue.order.runs import NEVER
from penstock.core.queue.timed.due import end_retries, end_scheduled, expire_due
from penstock.records.chunks import Now

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue


def begin(queue: Queue, now: Now, sink: Sink, count: int) -> int:
    """Before so many messages arrive: finish what has begun, as far as it matters; how many are ready then.

    An older trim takes none of the newcomers, and a dispatch that stopped at its bound comes before theirs.
    """
    while queue.overfull and queue.roster.all and not queue.expiry.busy:
        trim(queue, sink)
    return queue.ready


def end(queue: Queue, now: Now, sink: Sink, before: int) -> None:
    """They have arrived, and who has room was given some: go on with that while too much is ready, then let it go."""
    limits = queue.limits
    assert limits is not None
    while queue.hungry and limits.exceeded(queue):
        dispatch(queue, now, sink)
    trim(queue, sink, NEVER)


def keep_time(queue: Queue, now: Now, sink: Sink) -> None:
    """Delays end and messages expire.

    What failed returns to its place, and the oldest give way to it as to any return.  A scheduled message enters like a
    newcomer: it is offered first.
    """
    if queue.delays.due <= now.wall:
        end_retries(queue, now, sink)
    if queue.expiry.due <= now.wall:
        expire_due(queue, now, sink)
    trim(queue, sink)
    if queue.delays.due <= now.wall:
        before = queue.ready
        end_scheduled(queue, now, sink)
        if queue.ready > before:
            dispatch(queue, now, sink)
            end(queue, now, sink, before)
