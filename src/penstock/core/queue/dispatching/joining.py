"""Consumers come, take something, and go.

Who leaves gives back what it holds: of very much the newest in later ticks.

Who stays may be given other terms: another filter, another backlog, or it is open again after it was closed.  What it
holds it keeps, also where its new filter does not match it, and that counts in its new backlog: it may hold more than
it is allowed to, and then it gets nothing until it holds less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from penstock.core.effects import Sink
from penstock.core.queue.dispatching.attendance import muster, note_use
from penstock.core.queue.dispatching.browsing import browse
from penstock.core.queue.dispatching.consumers import Consumer, TargetList
from penstock.core.queue.dispatching.filtering import Matcher
from penstock.core.queue.dispatching.granting import grant
from penstock.core.queue.dispatching.roster import Terms
from penstock.core.queue.held import activate
from penstock.core.queue.order.runs import NEVER, Run
from penstock.core.queue.settling.leases import SLOT
from penstock.core.queue.settling.settle import give_back
from penstock.core.queue.whole import LEAVING
from penstock.errors import AccessRefused, InvalidArgument
from penstock.records.chunks import Now

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents


def subscribe(queue: Contents, now: Now, sink: Sink, *, starting: bool = False, **terms: Unpack[Terms]) -> Consumer:
    """A new consumer, served at once unless its connection takes nothing now.

    starting: before the boot record, when nothing may be written; what is due waits for it.
    Errors: AccessRefused when this or another consumer wants the queue for itself.
    """
    if queue.exchange is not None:
        raise AccessRefused(f"queue '{queue.name}' belongs to exchange '{queue.exchange}', and nobody consumes from it")
    passive, exclusive = terms.get("passive", False), terms.get("exclusive", False)
    if queue.settings.non_destructive and terms.get("filter") is not None:
        raise InvalidArgument(
            f"queue '{queue.name}' in vhost '{queue.vhost}' is not destructive: its consumers have no filter; "
            "read its topic with a bookmark and a filter"
        )
    if not passive:
        _admit(queue, exclusive=exclusive)
    if queue.shares is not None:
        queue.shares.refuse(queue, terms)
    if not starting and queue.is_due(now):
        queue.tick(now, sink)
    queue.serial += 1
    consumer = Consumer(queue, queue.serial, **terms)
    if consumer.shared is not None:
        queue.sharing += 1
    if consumer.filter is not None:
        consumer.targets = queue.ensure_targets().join(consumer, consumer.filter, queue.main, queue.returned)
    queue.enlist(consumer)
    if not passive and queue.settings.attended:
        muster(queue, now)
    if not passive:
        queue.roster.wake(consumer)
    if not starting:
        queue.carry_on(now, sink)
    return consumer


def _admit(queue: Contents, *, exclusive: bool) -> None:
    """Refuse one consumer too many."""
    settings = queue.settings
    if any(c.exclusive or exclusive for c in queue.roster.all):
        raise AccessRefused(f"queue '{queue.name}' in vhost '{queue.vhost}' in exclusive use")
    if exclusive and settings.single_active_consumer:
        raise AccessRefused(
            f"queue '{queue.name}' in vhost '{queue.vhost}' has a single active consumer: none of its consumers can "
            "be exclusive"
        )
    if 0 <= settings.max_consumers <= len(queue.roster.all):
        raise AccessRefused(
            f"queue '{queue.name}' in vhost '{queue.vhost}' has {len(queue.roster.all)} consumers, "
            f"max_consumers is {settings.max_consumers}"
        )


def unsubscribe(
    queue: Contents, now: Now, some: Sequence[Consumer], sink: Sink, *, requeue: bool, lost: bool = False
) -> None:
    """No more deliveries to these consumers; with `requeue` what they hold goes back to its places.

    `lost`: the connection broke.  The oldest unsettled delivery of each counts as a failure, for its work may have
    caused that; what was prefetched behind it is returned uncounted.  Of very much the newest goes back in later ticks;
    until then the consumer that is closed holds it.  Ten thousand that go at once cost little each: who stays is looked
    at once.
    """
    if queue.is_due(now):
        queue.tick(now, sink)
    attended = queue.settings.attended and any(not one.closed and not one.passive for one in some)
    for consumer in some:
        close(queue, consumer)
    if attended:
        muster(queue, now)
    if requeue:
        _return_all(queue, now, [one for one in some if one.leases.count and not one.leaving], sink, lost=lost)
    for consumer in some:
        queue.drop_if_done(consumer)
    queue.carry_on(now, sink)


def _return_all(queue: Contents, now: Now, some: Sequence[Consumer], sink: Sink, *, lost: bool) -> None:
    """What consumers hold goes back; if they were lost, the oldest of each as failed."""
    failed = list[tuple[Consumer, list[Run]]]()
    for consumer in some if lost else ():
        oldest = consumer.leases.oldest()
        if len(oldest) and (first := consumer.leases.take(oldest)[0]):
            failed.append((consumer, first))
    ring = queue.limits is not None and queue.limits.ring < NEVER  # takes the newest first
    if not ring:
        _fail(queue, now, failed, sink)
    for consumer in some:
        consumer.leaving = "lost" if lost else "closed"
    if some:
        leave(queue, now, sink, None if queue.agenda & LEAVING else some)
    if ring:
        _fail(queue, now, failed, sink)


def _fail(queue: Contents, now: Now, failed: Sequence[tuple[Consumer, list[Run]]], sink: Sink) -> None:
    for consumer, first in failed:
        hand_back(queue, now, consumer, first, sink, cause="lost", failed=True)


def leave(queue: Contents, now: Now, sink: Sink, some: Sequence[Consumer] | None = None) -> None:
    """One step of giving back what those hold who left; these are all of them, where that is known."""
    queue.agenda &= ~LEAVING
    most = queue.step_most
    for consumer in [one for one in queue.all_consumers if one.leaving] if some is None else some:
        if most <= 0:
            queue.agenda |= LEAVING
            break
        runs = consumer.leases.oldest_grants(most)
        most -= sum(len(run.chunk) for run in runs)
        hand_back(queue, now, consumer, runs, sink, cause=consumer.leaving, failed=False)
        if consumer.leases.count:
            queue.agenda |= LEAVING


def hand_back(
    queue: Contents, now: Now, consumer: Consumer, runs: list[Run], sink: Sink, *, cause: str, failed: bool
) -> None:
    """The consumer holds these no longer; what it does not merely fill its backlog with goes back."""
    queue.freed(consumer, runs)
    runs = [run for run in runs if run.place != SLOT]
    if runs:
        give_back(queue, now, runs, sink, cause=cause, failed=failed)


def close(queue: Contents, consumer: Consumer) -> None:
    if consumer.closed:
        return
    consumer.closed = True
    if not consumer.passive:
        queue.roster.remove(consumer)
    queue.targets.leave(consumer)


def pull(queue: Contents, now: Now, consumer: Consumer, count: int, sink: Sink) -> int:
    """Grant up to `count` of the oldest messages that the consumer wants; returns how many."""
    if count > 1 and queue.shares is not None and consumer.no_ack:  # each that goes lets another of its key come
        granted = 0
        while granted < count and pull(queue, now, consumer, 1, sink):
            granted += 1
        return granted
    if queue.is_due(now):
        queue.tick(now, sink)
    note_use(queue, now)
    if not _may_have(queue, consumer):
        return 0
    count = _allowed(queue, now, consumer, count)
    if queue.settings.non_destructive:
        return browse(queue, sink, consumer, count)
    granted = _grant_oldest(queue, now, sink, consumer, count)
    if queue.shares is not None and queue.shares.staging:
        queue.shares.ask(queue, sink, not granted)
    if queue.tail.count:
        activate(queue, now, sink)
    if queue.barriers.held:  # it may need no ack
        queue.serve(now, sink)
    elif queue.targets.lists:
        queue.targets.ask(queue.main, sink)
    return granted


def _may_have(queue: Contents, consumer: Consumer) -> bool:
    """Whether a consumer that asks may have anything."""
    return min(queue.room, consumer.room) > 0 and queue.ready > 0 and not queue.busy


def _grant_oldest(queue: Contents, now: Now, sink: Sink, consumer: Consumer, count: int) -> int:
    """Grant up to so many of the oldest that the consumer wants; how many."""
    if queue.shares is not None:
        queue.shares.mono = now.mono
    runs = queue.take_ready(count) if consumer.targets is None else _matching(queue, consumer.targets, count)
    granted = sum(len(run.chunk) for run in runs)  # a lease may join them, and they grow
    if runs:
        grant(queue, now, sink, consumer, runs)
    return granted


def _allowed(queue: Contents, now: Now, consumer: Consumer, count: int) -> int:
    """How many of so many a consumer that asks may have."""
    count = min(count, queue.offered, consumer.room)
    if queue.pace is not None:
        count = min(count, queue.pace.allowed(now.mono))
    return count if consumer.no_ack else min(count, queue.room)


def _matching(queue: Contents, targets: TargetList, count: int) -> list[Run]:
    """Take the oldest that a filter wants."""
    runs: list[Run] = []
    while len(runs) < count and (key := targets.head(queue.main)) is not None:
        runs.append(queue.take_one(key))
    return runs


def replace(
    queue: Contents, now: Now, consumer: Consumer, sink: Sink, *, filter: Matcher | None, max_backlog: int | None
) -> None:
    """New terms for an open consumer, at once: what is granted from now on is granted by them."""
    if queue.is_due(now):
        queue.tick(now, sink)
    if _text(filter) != _text(consumer.filter):
        queue.targets.leave(consumer)
        consumer.targets = None
        consumer.filter = filter
        consumer.mixed = consumer.leases.count > 0
        if filter is not None:
            consumer.targets = queue.ensure_targets().join(consumer, filter, queue.main, queue.returned)
        queue.roster.sift()
    if max_backlog != consumer.max_backlog:
        consumer.max_backlog = max_backlog
        consumer.set_limit()
    _serve(queue, now, consumer, sink)


def reopen(queue: Contents, now: Now, consumer: Consumer, sink: Sink, *, filter: Matcher | None) -> None:
    """A closed consumer that still holds something gets messages again."""
    if queue.is_due(now):
        queue.tick(now, sink)
    consumer.closed = False
    consumer.mixed = _text(filter) != _text(consumer.filter)
    consumer.filter = filter
    consumer.targets = None
    if filter is not None:
        consumer.targets = queue.ensure_targets().join(consumer, filter, queue.main, queue.returned)
    queue.enlist(consumer)
    if queue.settings.attended:
        muster(queue, now)
    _serve(queue, now, consumer, sink)


def _serve(queue: Contents, now: Now, consumer: Consumer, sink: Sink) -> None:
    queue.roster.wake(consumer)
    queue.serve(now, sink)


def _text(filter: Matcher | None) -> str | None:
    return None if filter is None else filter.text
