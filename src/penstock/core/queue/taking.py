"""Messages come in: they pass the stages that their queue has, stand in its order, and are offered to consumers.

What comes back, or is due, passes the same stages from the first on (`Contents.come_back`, `put_back`); what came free
is let go on from the last to the first (`Queue.offer_all`).

| stage | before the next because |
| --- | --- |
| limits | what one gives way to another for shows within a batch: it says how many may be decided as a whole |
| ranks | whoever places a message asks for its rank |
| scheduled | what is due enters like a newcomer: all below see it then |
| expiry | what is over must not replace another, nor take a turn |
| last value | before all that hold back: of a key one alone waits |
| shares | keys say who may be offered what; what stands in line is ready, and in no order |
| barrier, priority, depth | the orders of a queue: one of them takes all that is left; none: the main order does |

A plain queue has no stage: an arrival is one append.  The stages of scheduled messages and of deadlines are here, the
others where the parts of the queue are that they know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.effects import Sink
from penstock.core.queue.agenda import DISPATCH
from penstock.core.queue.barrier_release import BEHIND_BARRIERS
from penstock.core.queue.depth import BEHIND_DEPTH
from penstock.core.queue.last_values import REPLACING
from penstock.core.queue.limits.trimming import BOUNDED
from penstock.core.queue.order.runs import Run, packed, view
from penstock.core.queue.parts import NO_EXPIRY
from penstock.core.queue.priority.ranking import BY_PRIORITY, RANKED
from penstock.core.queue.shares.shares import SHARED
from penstock.core.queue.stages import Newcomers, Plan, Stage, append_rest, plan_of
from penstock.core.queue.ticking import expire_due
from penstock.core.queue.timed.expiry import deadlines, queue_deadline
from penstock.records.causes import TIME_LIMIT
from penstock.records.chunks import Chunk, Now, as_chunk
from penstock.records.entries import Publishes

if TYPE_CHECKING:
    from penstock.core.queue.shares.staging import Told
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


STAGES: tuple[Stage, ...] = (
    BOUNDED, RANKED, SCHEDULED, EXPIRING, REPLACING, SHARED, BEHIND_BARRIERS, BY_PRIORITY, BEHIND_DEPTH,
)  # fmt: skip


def arrive(
    queue: Queue,
    now: Now,
    chunk: Chunk,
    sink: Sink,
    *,
    batch: Publishes | None = None,
    rows: Sequence[int] | None = None,
    expires_at: Sequence[int] | None = None,
    not_before: Sequence[int] | None = None,
    ranks: Sequence[int] | None = None,
    keys: Sequence[Told] | None = None,
    last_keys: Sequence[int] | None = None,
    barriers: Sequence[int] | None = None,
) -> None:
    """Take messages (ascending, newer than all before), then dispatch.  What the others are: see `Newcomers`."""
    if not len(chunk):
        return
    plan = queue.stages().stages
    if not plan and expires_at is None and not_before is None and barriers is None:
        if queue.is_due(now):
            queue.tick(now, sink)
        if queue.targets.lists:
            queue.targets.arrive(chunk, batch, rows, queue.main)
        queue.filled().append(chunk)
        queue.offer_all(now, sink)
        if queue.targets.lists or queue.attendance.looking:
            queue.look_on(now, sink)
        return
    new = Newcomers(chunk, batch, rows, expires_at, not_before, ranks, keys, last_keys, barriers)
    while True:
        if queue.is_due(now):
            queue.tick(now, sink)
        stages = [stage for stage in STAGES if stage in plan or stage.wanted(new)]
        count = len(new)
        if count > 1:
            count = min([stage.cut(queue, now, new) for stage in stages])
        if count == len(new):
            _enter(queue, now, new, stages, sink)
            return
        _enter(queue, now, new.part(0, count), stages, sink)
        new = new.part(count, len(new))


def plan(queue: Queue) -> Plan:
    """The stages of a queue as it is now."""
    queue.plan = out = plan_of(tuple([stage for stage in STAGES if stage.present(queue)]))
    return out


def _enter(queue: Queue, now: Now, new: Newcomers, stages: Sequence[Stage], sink: Sink) -> None:
    """Newcomers that may be decided as a whole."""
    for stage in stages:
        stage.begin(queue, now, new, sink)
    for stage in stages:
        stage.admit(queue, now, new, sink)
    append_rest(queue, new)
    for stage in stages:
        stage.entered(queue, now, new, sink)
    queue.offer_all(now, sink)
    for stage in stages:
        stage.offered(queue, now, new, sink)
    queue.look_on(now, sink)
    for stage in reversed(stages):
        stage.ended(queue, now, new, sink)
