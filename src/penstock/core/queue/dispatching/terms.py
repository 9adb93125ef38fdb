"""Other terms for a consumer that stays: another filter, another backlog, or open again after it was closed.

What it holds it keeps, also where its new filter does not match it, and that counts in its new backlog: it may hold
more than it is allowed to, and then it gets nothing until it holds less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.effects import Sink
from penstock.core.queue.dispatching.attendance import muster
from penstock.core.queue.dispatching.filtering import Matcher
from penstock.records.chunks import Now

if TYPE_CHECKING:
    from penstock.core.queue.dispatching.consumers import Consumer
    from penstock.core.queue.view import Queue


def replace(
    queue: Queue, now: Now, consumer: Consumer, sink: Sink, *, filter: Matcher | None, max_backlog: int | None
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
            consumer.targets = queue.sieved().join(consumer, filter, queue.main, queue.returned)
        queue.roster.sift()
    if max_backlog != consumer.max_backlog:
        consumer.max_backlog = max_backlog
        consumer.set_limit()
    _serve(queue, now, consumer, sink)


def reopen(queue: Queue, now: Now, consumer: Consumer, sink: Sink, *, filter: Matcher | None) -> None:
    """A closed consumer that still holds something gets messages again."""
    if queue.is_due(now):
        queue.tick(now, sink)
    consumer.closed = False
    consumer.mixed = _text(filter) != _text(consumer.filter)
    consumer.filter = filter
    consumer.targets = None
    if filter is not None:
        consumer.targets = queue.sieved().join(consumer, filter, queue.main, queue.returned)
    queue.enlist(consumer)
    if queue.settings.attended:
        muster(queue, now)
    _serve(queue, now, consumer, sink)


def _serve(queue: Queue, now: Now, consumer: Consumer, sink: Sink) -> None:
    if consumer.targets is not None:
        consumer.targets.wake(consumer)
    queue.serve(now, sink)


def _text(filter: Matcher | None) -> str | None:
    return None if filter is None else filter.text
