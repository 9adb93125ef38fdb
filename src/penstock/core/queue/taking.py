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

A plain queue has no stage: an arrival is one append.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.core.effects import Sink
from penstock.core.queue.arrival import EXPIRING, SCHEDULED, append_rest
from penstock.core.queue.barriers.arrival import BEHIND_BARRIERS
from penstock.core.queue.depth import BEHIND_DEPTH
from penstock.core.queue.last_values import REPLACING
from penstock.core.queue.limits.entry import BOUNDED
from penstock.core.queue.priority.arrival import BY_PRIORITY, RANKED
from penstock.core.queue.shares.arrival import SHARED
from penstock.core.queue.stages import Newcomers, Plan, Stage, plan_of
from penstock.records.chunks import Chunk, Now
from penstock.records.entries import Publishes

if TYPE_CHECKING:
    from penstock.core.queue.shares.staging import Told
    from penstock.core.queue.view import Queue

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
