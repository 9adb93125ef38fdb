"""Drop-head: what is ready beyond a limit leaves from the head, and becomes a dead letter if there is a place for it.

One message at a time is the definition: a newcomer is offered to whoever has room, else it stays, and the head goes
while there is too much.  For a batch this is done once, at its end.  Within a batch room is only used, never freed, so
what stands at the head and was not dispatched before it would not be dispatched during it; and what is left is in both
cases the longest tail of the queue that fits.

What returns takes its own place first, and then the head goes: the oldest give way, returned ones or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.core.effects import Sink
from penstock.core.queue.figures import Figures
from penstock.core.queue.limits.limits import MAXLEN, REPLACED
from penstock.core.queue.order.runs import Run, pairs_body
from penstock.core.queue.settling.leases import STEP_MOST
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue


def trim(queue: Queue, sink: Sink, most: int = STEP_MOST) -> None:
    """Let the head give way while a limit is exceeded: `most` messages at most; `overfull` says that there are more.

    Nothing is dispatched before it is over: what has to go must not be given out between two steps.
    """
    limits = queue.limits
    queue.overfull = False
    if limits is None or not limits.drops or queue.ready <= limits.length or queue.expiry.busy:
        return
    count = queue.ready - limits.length
    if count > most:
        queue.overfull = True
        count = most
    drop(queue, queue.take_ready(count), MAXLEN, sink)


def drop(queue: Queue, runs: Sequence[Run], reason: str, sink: Sink) -> None:
    """These gave way; they are counted in no state any more when this is called."""
    if not runs:
        return
    count = sum(len(run.chunk) for run in runs)
    figures = queue.figures
    if figures is None:
        figures = queue.figures = Figures()
    if reason == REPLACED:
        figures.replaced += count
    else:
        figures.dropped += count
    if queue.wants_letter(reason):
        queue.expire(runs, reason, sink)
    else:
        sink.record(Kind.DROP, queue.name, {"reason": reason}, pairs_body(queue.id, runs))
