"""The target depth of a queue: how many of its messages are active; what arrives beyond them is inactive.

Inactive messages are a main order of their own behind the active one.  Nobody is given any, no filter and no query
looks at them; they expire, may be acknowledged and are purged as others.  As active ones leave, the oldest move up.

Active are those that are ready, leased, or in back-off after a failure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.effects import Sink
from penstock.core.queue.agenda import DISPATCH
from penstock.core.queue.dispatching.dispatch import dispatch
from penstock.core.queue.parts import NO_TAIL
from penstock.core.queue.stages import Newcomers, Stage
from penstock.records.chunks import Now

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents


def free(queue: Contents) -> int:
    """How many more may be active."""
    active = queue.ready + queue.leased + queue.delays.retries.count
    depth = queue.settings.target_queue_depth
    return max(depth - active, 0) if depth else queue.tail.count


class _BehindDepth(Stage):
    """As many newcomers as the depth allows are active."""

    def present(self, queue: Contents) -> bool:
        return queue.settings.target_queue_depth > 0 or queue.tail is not NO_TAIL

    def admit(self, queue: Contents, now: Now, new: Newcomers, sink: Sink) -> None:
        if new.placed or not (queue.settings.target_queue_depth or queue.tail.count):
            return
        chunk, rows = new.left()
        if gone := new.gone:
            queue.ensure_main().seal(max(part[-1] for part in gone))
        room = 0 if queue.tail.count else min(free(queue), len(chunk))
        if room:
            first = chunk[:room]
            if queue.targets.lists:
                queue.targets.arrive(first, new.batch, new.rows_of(rows, 0, room), queue.main)
            queue.ensure_main().append(first, solid=False)
        if room < len(chunk):
            queue.ensure_tail().append(chunk[room:], solid=False)
        new.placed = True

    def release(self, queue: Contents, now: Now, sink: Sink) -> None:
        if queue.tail.count:
            activate(queue, now, sink)


BEHIND_DEPTH = _BehindDepth()


def activate(queue: Contents, now: Now, sink: Sink) -> None:
    """Let inactive messages move up, and be dispatched, until the depth is reached; of very many the first.

    A dispatch that stopped at its bound comes first: what moves up may stand before what it had still to give.
    """
    most = queue.dispatch_most
    while queue.tail.count and not queue.agenda & DISPATCH and (moved := move_up(queue)):
        if queue.roster.all:
            dispatch(queue, now, sink)
        most -= moved
        if most <= 0 and queue.tail.count:
            queue.agenda |= DISPATCH
            return


def move_up(queue: Contents) -> int:
    """Make the oldest inactive messages active; how many there were."""
    runs = queue.tail.take(free(queue))
    for run in runs:
        if queue.targets.lists:
            queue.targets.arrive(run.chunk, None, None, queue.main)
        queue.ensure_main().append(run.chunk, solid=False)
    return sum(len(run.chunk) for run in runs)


__all__ = ["BEHIND_DEPTH", "activate", "free", "move_up"]
