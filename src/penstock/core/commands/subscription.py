"""One client's wish for messages of a queue, or of every queue whose name a pattern matches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, field
from enum import Enum
from typing import Final

from penstock.core.queue.dispatching.consumers import UNLIMITED, Consumer, Credit
from penstock.core.queue.queue import Queue, queue_of
from penstock.expr import Filter, TopicPattern
from penstock.records.dataclass import dataclass


class Stays(Enum):
    """What is not named in a replacement stays as it is."""

    STAYS = "stays"


STAYS: Final = Stays.STAYS

Narrow = Callable[[Queue, "Filter | None"], "Filter | None"]
"""What of a queue may be read with a filter, as a filter.  AccessRefused: nothing may be."""


@dataclass(slots=True, eq=False)
class Subscription:
    """One subscription.  `consumers` are those that may get more; `former` those that still hold something."""

    vhost: str
    topic: str
    _: KW_ONLY
    tag: str
    holder: object  # takes the deliveries
    by: object | None = None  # the connection that asked
    client: str = ""
    arguments: Mapping[str, object] | None = None
    no_ack: bool = False
    exclusive: bool = False
    filter: Filter | None = None
    max_backlog: int | None = None  # as it was asked for; None: no limit of its own
    priority: int = 0
    choked: bool = False
    narrow: Narrow | None = None
    pattern: TopicPattern | None = field(default=None, init=False)  # None: it names one queue
    closed: bool = field(default=False, init=False)
    credit: Credit | None = field(default=None, init=False)  # what several consumers share; None: there is but one
    consumers: dict[int, Consumer] = field(default_factory=dict[int, Consumer], init=False)  # by queue id
    former: list[Consumer] = field(default_factory=list[Consumer], init=False)  # of queues that it no longer names

    @classmethod
    def around(
        cls, consumer: Consumer, by: object, filter: Filter | None = None, narrow: Narrow | None = None
    ) -> Subscription:
        """What a single consumer is, as a subscription that can be replaced.  filter: as it was asked for."""
        queue = queue_of(consumer)
        wish = cls(
            queue.vhost, queue.name, tag=consumer.tag, holder=consumer.holder, by=by, client=consumer.client,
            arguments=consumer.arguments, no_ack=consumer.no_ack, exclusive=consumer.exclusive, filter=filter,
            max_backlog=consumer.max_backlog, priority=consumer.priority, choked=consumer.choked, narrow=narrow,
        )  # fmt: skip
        wish.consumers[queue.id] = consumer
        return wish

    def ask(self, arguments: Mapping[str, object] | None) -> None:
        """It was replaced by who asked with these."""
        self.arguments = arguments
        for consumer in self.consumers.values():
            consumer.arguments = arguments

    @property
    def effective_backlog(self) -> int | None:
        """How many messages may be outstanding at once; None: no limit."""
        limit = UNLIMITED if self.max_backlog is None else self.max_backlog
        for consumer in self.consumers.values():
            limit = min(limit, consumer.queue.settings.max_per_subscription_backlog or UNLIMITED)
        return None if limit >= UNLIMITED else limit

    @property
    def outstanding(self) -> int:
        """Delivered and not settled, in all its queues."""
        return sum(consumer.outstanding for consumer in self.all())

    def all(self) -> Iterator[Consumer]:
        """Every consumer that holds something, or may."""
        yield from self.consumers.values()
        yield from self.former

    def filter_at(self, queue: Queue) -> Filter | None:
        """What it may have of one queue.  AccessRefused: nothing; InvalidArgument: its filter reads other bodies."""
        chosen = self.filter if self.narrow is None else self.narrow(queue, self.filter)
        return None if chosen is None else chosen.reading(queue.settings.message_type)

    def at(self, queue: Queue) -> list[Consumer]:
        """Its consumers at one queue; two when it left the queue, came back, and still holds what it had before."""
        return [consumer for consumer in self.all() if consumer.queue is queue]
