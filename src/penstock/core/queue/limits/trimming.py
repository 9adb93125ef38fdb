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
from penstock.core.queue.limits.yielding import heavy, take_yielding
from penstock.core.queue.order.runs import Run, pairs_body
from penstock.core.queue.settling.leases import STEP_MOST
from penstock.records.causes import MAXLEN, REPLACED
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue


def trim(queue: Queue, sink: Sink, most: int = STEP_MOST) -> None:
    """Let the head give way while a limit is exceeded: `most` messages at most; `overfull` says that there are more.

    Nothing is dispatched before it is over: what has to go must not be given out between two steps.
    """
    limits = queue.limits
    queue.overfull = False
    if limits is None or not limits.drops:
        return
    if not limits.exceeded(queue):
        return
    if queue.last_values is not None and queue.last_values.waiting:
        queue.last_values.settle(queue, sink)  # nothing gives way to what a newer one replaced
        if not limits.exceeded(queue):
            return
    if queue.expiry.busy or queue.ranking is not None:
        return  # who expires, or who comes last, is not known yet
    shares = queue.shares
    if shares is not None and shares.staging.count and _have_room(queue) and shares.asks(queue, sink):
        return  # nor who is taken at once: `Queue.keyed` offers what was told, and trims then
    count = min(queue.ready - limits.length, most)
    runs = take_yielding(queue, count) if count > 0 else []
    left = most - max(count, 0)
    while queue.weight > limits.size and left > 0:
        if queue.shares is not None:
            drop(queue, runs, MAXLEN, sink)  # whoever stood behind one of them may be the next
            runs = []
        runs += take_yielding(queue, count := heavy(queue, queue.weight - limits.size, left))
        left -= count
    queue.overfull = limits.exceeded(queue)
    drop(queue, runs, MAXLEN, sink)


def _have_room(queue: Queue) -> bool:
    """Whether somebody may be given more."""
    if queue.paused_until or queue.room <= 0:
        return False
    return any(one.room > 0 and not one.paused for level in queue.roster.levels for one in level)


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
        if queue.shares is not None and queue.shares.left(queue, runs):
            queue.hungry = True
        sink.record(Kind.DROP, queue.name, {"reason": reason}, pairs_body(queue.id, runs))
