"""What happens to a queue by time alone: leases end, delays end, messages expire."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.effects import Sink
from penstock.core.queue.attempts import spent
from penstock.core.queue.runs import NEVER, Run
from penstock.core.queue.settle import give_back, pairs_in
from penstock.records.chunks import Now, pack_pairs
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue


def end_leases(queue: Queue, now: Now, sink: Sink) -> None:
    queue.lease_due = NEVER
    in_order = queue.leases_in_order
    for consumer in list(queue.holders()):
        runs = consumer.leases.ended(now.mono, in_order)
        if runs:
            queue.expired_leases += sum(len(run.chunk) for run in runs)
            queue.freed(consumer, runs)
            give_back(queue, now, runs, sink, cause="lease", failed=True)
        deadline = consumer.leases.next_deadline(in_order)
        if deadline:
            queue.lease_due = min(queue.lease_due, deadline)
    if not queue.outstanding:
        queue.leases_in_order = True


def end_delays(queue: Queue, now: Now, sink: Sink) -> None:
    runs = queue.delays.pop_retries(now.wall)
    if runs:
        sink.record(Kind.DUE, queue.name, {"place": 0}, pack_pairs(queue.id, pairs_in(runs)))
        for run in runs:
            queue.delayed -= len(run.chunk)
            run.deadline = 0
            queue.put_back(run)
    for chunk in queue.delays.pop_scheduled(now.wall):
        run = Run(chunk, False)
        run.place = sink.record(Kind.DUE, queue.name, {"place": 1}, pack_pairs(queue.id, run.pairs()))
        queue.delayed -= len(chunk)
        queue.put_back(run)


def expire_due(queue: Queue, now: Now, sink: Sink) -> None:
    runs = [run for chunk in queue.expiry.come_due(now.wall) for run in queue.extract(chunk)]
    if runs:
        queue.expire(runs, "time_limit", sink)
    if queue.expiry.bulky():
        queue.expiry.trim(queue.floor())


def expire_overspent(queue: Queue, sink: Sink) -> None:
    queue.overspent = False
    for run in list(queue.returned.runs()):
        reasons = spent(run.tally, queue.settings)
        if reasons:
            queue.expire(queue.extract(run.chunk), ",".join(reasons), sink)
