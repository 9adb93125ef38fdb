"""Messages on their way into a queue: what is not due goes to the delays, what is overdue does not go in at all.

The rest is appended to the main order.  A message that went elsewhere lies between others: no chunk may span it and
still be called solid.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.effects import Sink
from penstock.core.queue.agenda import DISPATCH
from penstock.core.queue.order.runs import Run, packed, sorted_chunk, view
from penstock.core.queue.parts import NO_EXPIRY
from penstock.core.queue.stages import Newcomers, Stage
from penstock.core.queue.timed.due import expire_due
from penstock.core.queue.timed.expiry import deadlines, queue_deadline
from penstock.records.causes import TIME_LIMIT
from penstock.records.chunks import Chunk, Now, as_chunk

if TYPE_CHECKING:
    from penstock.core.queue.order.main_order import Main
    from penstock.core.queue.view import Queue


class _Scheduled(Stage):
    """What is not due yet waits among what is delayed."""

    def wanted(self, new: Newcomers) -> bool:
        return new.not_before is not None

    def admit(self, queue: Queue, now: Now, new: Newcomers, sink: Sink) -> None:
        if new.not_before is None:
            return
        later = [(lsn, when) for lsn, when in zip(new.chunk, new.not_before, strict=True) if when > now.wall]
        if later:
            lsns = [lsn for lsn, _ in later]
            queue.late().schedule(lsns, [when for _, when in later])
            new.delayed = as_chunk(lsns)


class _Expiring(Stage):
    """Deadlines are worked out.  What is over does not go in, what is over at this moment is offered once."""

    def present(self, queue: Queue) -> bool:
        settings = queue.settings
        return settings.expiration is not None or settings.message_ttl is not None or queue.expiry is not NO_EXPIRY

    def wanted(self, new: Newcomers) -> bool:
        return new.expires_at is not None

    def cut(self, queue: Queue, now: Now, new: Newcomers) -> int:
        if queue.shares is None:
            return len(new)
        at_once = 0 in (queue.settings.expiration, queue.settings.message_ttl)  # it then keeps none of its key waiting
        return 1 if at_once or (new.expires_at is not None and now.wall in new.expires_at) else len(new)

    def admit(self, queue: Queue, now: Now, new: Newcomers, sink: Sink) -> None:
        common = queue_deadline(queue.settings, now.wall)
        if new.expires_at is None or not any(new.expires_at):
            if common:
                queue.timed().add(new.chunk, common)
            elif not queue.expiry.empty:
                queue.expiry.part()
            return
        times = deadlines(queue.settings, now.wall, np.array(new.expires_at, dtype=np.int64))
        lsns = view(new.chunk)
        past = (times > 0) & (times < now.wall)
        if new.delayed is not None:
            past &= ~np.isin(lsns, view(new.delayed), assume_unique=True)
        queue.timed().add_each(lsns[~past], times[~past], common)
        new.dead = packed(lsns[past]) if past.any() else None

    def entered(self, queue: Queue, now: Now, new: Newcomers, sink: Sink) -> None:
        if new.dead is not None:
            queue.expire([Run(new.dead, False)], TIME_LIMIT, sink)

    def ended(self, queue: Queue, now: Now, new: Newcomers, sink: Sink) -> None:
        if queue.expiry.due > now.wall:
            return
        while queue.agenda & DISPATCH:
            queue.give_out(now, sink)
        expire_due(queue, now, sink)
        if queue.barriers.held or queue.tail.count:  # one may have waited for those alone
            queue.give_out(now, sink)


SCHEDULED, EXPIRING = _Scheduled(), _Expiring()


def append_rest(queue: Queue, new: Newcomers) -> None:
    """Append those that stand nowhere else to the main order."""
    if new.placed:
        return
    chunk, rows = new.left()
    if len(chunk):
        if queue.targets.lists:
            queue.targets.arrive(chunk, new.batch, rows, queue.main)
        if queue.weight >= 0:
            queue.weight += queue.sizes.total(chunk)
    if gone := new.gone:
        append_around(queue.filled(), chunk, sorted_chunk(gone))
    else:
        queue.filled().append(chunk)


def append_around(main: Main, left: Chunk, gone: Chunk) -> None:
    """Append what is left of a chunk without those that are gone, ascending and at least one."""
    if len(left):
        before = bisect_left(gone, left[0])
        if before:
            main.seal(gone[before - 1])
        main.append(left, solid=isinstance(left, range) or gone[-1] < left[0] or gone[0] > left[-1])
    main.seal(gone[-1])
