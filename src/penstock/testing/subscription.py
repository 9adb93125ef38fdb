"""A subscription: what a client has been sent and not yet looked at, and what it holds.

It takes deliveries from the engine as a connection does.  What was sent stays in the inbox even when the lease ends
meanwhile, for the client has it; what a closed subscription had not taken is gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.core.effects import Verb
from penstock.core.queue.consumers import UNLIMITED
from penstock.testing.message import Message
from penstock.wire.flight.bookmarks import format_bookmark

if TYPE_CHECKING:
    from penstock.core.effects import Deliver
    from penstock.core.queue.consumers import Consumer
    from penstock.memory import Piece
    from penstock.records.entries import Topic
    from penstock.testing.broker import Broker
    from penstock.testing.instance import Instance


class Subscription:
    """Made by `Broker.subscribe`."""

    def __init__(self, broker: Broker, instance: Instance, queue: str, name: str) -> None:
        """For the broker alone, which sets `consumer`."""
        self.queue = queue
        self.name = name  # of the client; several subscriptions may share it
        self.consumer: Consumer | None = None  # None: closed, or not yet open
        self._broker = broker
        self._instance = instance
        self._inbox: deque[Message] = deque()
        self._attempts = dict[int, int]()  # by LSN: the newest delivery of what was delivered here

    def __repr__(self) -> str:
        return f"Subscription({self.queue!r}, {self.name!r}, {len(self._inbox)} to take)"

    # -- for tests

    @property
    def effective_backlog(self) -> int | None:
        """How many may be outstanding here: its own limit or the queue's, the smaller; None without any."""
        return self._broker.aside(self._limit)

    def take(self) -> list[Message]:
        """What was delivered and not yet taken, in order of delivery.  Never waits."""
        return self._broker.aside(self._take)

    def close(self) -> None:
        """Unsubscribe: what is held goes back, uncounted.  Twice does no harm."""
        self._broker.aside(lambda: self.end(lost=False))

    # -- for the engine: a receiver

    @property
    def gate(self) -> object:
        """Cold reads hold back this subscription alone."""
        return self

    @property
    def full(self) -> bool:
        """Never: a test takes what it likes."""
        return False

    def deliver(self, effect: Deliver, piece: Piece) -> None:
        """Take neighbouring rows."""
        settings = effect.queue.settings
        now = self._instance.engine.now()
        leased = settings.semantics == "at-least-once" and settings.lease_period
        origin = self._instance.log.origin
        bodies: Sequence[bytes] = piece.bodies or ()
        for row, (lsn, body) in enumerate(zip(piece.chunk, bodies, strict=True)):
            topic = piece.topics[row] if isinstance(piece.topics, list) else piece.topics
            self._attempts[lsn] = effect.attempt
            self._inbox.append(
                Message(
                    self._settle,
                    queue=effect.queue.name,
                    topic=written(topic),
                    body=body,
                    properties=piece.properties[row] if isinstance(piece.properties, list) else piece.properties,
                    lsn=lsn,
                    bookmark=format_bookmark(origin, lsn),
                    attempt=effect.attempt,
                    redelivered=effect.redelivered,
                    lease_until=(now.wall + settings.lease_period) / 1e6 if leased else None,
                )
            )

    def cancelled(self, consumer: Consumer) -> None:
        """The queue was deleted."""
        self.consumer = None

    # -- for the broker: inside a command

    @property
    def is_open(self) -> bool:
        """Whether it may get more: not closed, and the broker has not been started anew."""
        return self.consumer is not None and self._instance is self._broker.instance

    def end(self, *, lost: bool) -> None:
        """Close, or break off with the connection."""
        was_open, consumer, self.consumer = self.is_open, self.consumer, None
        self._inbox.clear()
        if was_open and consumer is not None:
            core, now = self._instance.core, self._instance.engine.now()
            core.unsubscribe(now, consumer, requeue=True, lost=lost)

    def holds(self, lsn: int) -> bool:
        """Whether the message fills a slot of this subscription's backlog."""
        consumer = self.consumer
        return consumer is not None and any(lsn in run.chunk for run in consumer.leases.held())

    def _take(self) -> list[Message]:
        taken = list(self._inbox)
        self._inbox.clear()
        return taken

    def _limit(self) -> int | None:
        consumer = self.consumer
        if consumer is None or not self.is_open:
            return 0
        return None if consumer.limit >= UNLIMITED else consumer.limit

    def _settle(self, message: Message, verb: Verb) -> bool:
        return self._broker.settle_one(self, message, verb)

    def is_newest(self, message: Message) -> bool:
        """Whether this delivery is the last that this open subscription has had of the message."""
        return self.is_open and self._attempts.get(message.lsn) == message.attempt


def written(topic: Topic) -> str:
    """A topic as people write it."""
    return f"{topic.exchange}/{topic.name}" if topic.exchange else topic.name
