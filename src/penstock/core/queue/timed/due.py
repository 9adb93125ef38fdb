"""What happens to a queue by time alone: leases end, delays end, messages expire.

What is due in the queue of an exchange at which messages wait goes on to the exchange and to nobody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.effects import Sink
from penstock.core.queue.agenda import ATTEMPTS, DISPATCH
from penstock.core.queue.figures import Figures
from penstock.core.queue.order.runs import NEVER, Run, pairs_body
from penstock.core.queue.places import AVAILABLE
from penstock.core.queue.settling.attempts import spent
from penstock.core.queue.settling.leases import STEP_MOST
from penstock.core.queue.settling.letters import Letter
from penstock.core.queue.settling.settle import give_back
from penstock.core.queue.timed.delays import apart, fallen_due, without_due
from penstock.records.causes import DUE, TIME_LIMIT
from penstock.records.chunks import Now
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue


def end_leases(queue: Queue, now: Now, sink: Sink) -> None:
    """Take what ended back, `STEP_MOST` at most; `lease_due` has passed while there is more."""
    queue.lease_due = NEVER
    in_order = queue.leases_in_order
    most = STEP_MOST
    for consumer in [one for one in queue.holders() if not one.leaving]:
        runs = consumer.leases.ended(now.mono, in_order, most) if most > 0 else []
        if runs:
            most -= sum(len(run.chunk) for run in runs)
            queue.counted(now.mono).expired_leases += sum(len(run.chunk) for run in runs)
            queue.freed(consumer, runs)
            give_back(queue, now, runs, sink, cause="lease", failed=True)
        deadline = consumer.leases.next_deadline(in_order)
        if deadline:
            queue.leased_until(deadline)
    if not queue.outstanding:
        queue.leases_in_order = True


def end_delays(queue: Queue, now: Now, sink: Sink) -> None:
    end_retries(queue, now, sink)
    end_scheduled(queue, now, sink)


def end_scheduled(queue: Queue, now: Now, sink: Sink) -> None:
    """Scheduled messages whose time has come stand behind all that came before; of very many the first."""
    chunks, over = fallen_due(queue, now, sink)
    for chunk in chunks:
        queue.barriers.wake(chunk)
    for chunk in chunks:
        for part, expired in apart(chunk, over):
            run = Run(part, False)
            if expired and queue.last_values is not None:
                queue.last_values.came_back(run)
                queue.expire([run], TIME_LIMIT, sink)
                continue
            run.place = sink.record(Kind.DUE, queue.name, {"place": 1}, pairs_body(queue.id, [run]))
            queue.put_back(run)


def end_retries(queue: Queue, now: Now, sink: Sink) -> None:
    """Back-offs that are over: what failed goes back to its place."""
    runs = queue.delays.pop_retries(now.wall)
    if runs:
        sink.record(Kind.DUE, queue.name, {"place": 0}, pairs_body(queue.id, runs))
        for run in runs:
            queue.barriers.delay(run.chunk, -1)
        queue.come_back(runs, sink)


def expire_due(queue: Queue, now: Now, sink: Sink) -> None:
    chunks = [without_due(queue, chunk) for chunk in queue.expiry.come_due(now.wall)]
    runs = [run for chunk in chunks if len(chunk) for run in queue.extract(chunk)]
    if runs:
        queue.expire(runs, TIME_LIMIT, sink)
    if not queue.expiry.busy and queue.expiry.bulky():
        queue.expiry.trim(queue.floor())


def expire_spent(queue: Queue, sink: Sink) -> None:
    queue.agenda &= ~ATTEMPTS
    waiting = [place.back() for place in queue.places(*AVAILABLE) if place.back is not None]
    for run in [run for runs in waiting for run in runs]:
        reasons = spent(run.tally, queue.settings)
        if reasons:
            queue.expire(queue.extract(run.chunk), ",".join(reasons), sink)


STEP = 4096
"""Messages that set out in one step."""


def depart(queue: Queue, sink: Sink) -> None:
    """What is ready leaves: its body is asked for, and it counts as dying until it is published."""
    runs = queue.take_ready(STEP)
    if queue.figures is None:
        queue.figures = Figures()
    queue.figures.expired(DUE, sum(len(run.chunk) for run in runs))
    queue.mourned().add(Letter(runs, DUE), sink)
    if queue.ready:
        queue.agenda |= DISPATCH
