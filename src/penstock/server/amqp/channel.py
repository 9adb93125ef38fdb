"""One AMQP channel: its consumers, delivery tags, confirms, prefetch, and the order of its replies."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.effects import Deliver
from penstock.memory import Piece
from penstock.server.amqp.subscribing import encoder_of, informed
from penstock.server.amqp.tags import Tags
from penstock.wire.amqp.deliver import DeliveryEncoder
from penstock.wire.amqp.methods import Method

if TYPE_CHECKING:
    from penstock.core.commands.subscriptions import Subscription
    from penstock.core.queue.consumers import Consumer, Credit
    from penstock.expr import Filter
    from penstock.server.amqp.following import Following
    from penstock.server.amqp.session import Session


@dataclass(slots=True, eq=False)
class Reply:
    """An answer that waits: for what it promises, or for the answers before it."""

    method: Method | None  # None: `then` writes it
    then: Callable[[], None] | None = None  # run once it is on its way
    promise: bool = False  # it waits for the disk
    ready: bool = False


class Channel:
    """State of an open channel.  It is the holder of its consumers, and so takes their deliveries."""

    def __init__(self, session: Session, number: int) -> None:
        self.session = session
        self.number = number
        self.open = True
        self.tags = Tags()
        self.consumers: dict[str, Consumer] = {}  # by consumer tag
        self.followings: dict[str, Following] = {}  # those with a bookmark
        self.subscriptions: dict[str, Subscription] = {}  # by consumer tag: of several queues, or replaced
        self.filters: dict[str, Filter] = {}  # by consumer tag: as they were asked for
        self.informed = set[str]()  # tags of consumers that want to know of their leases
        self.encoders: dict[Consumer, DeliveryEncoder] = {}
        self.getters: dict[object, Consumer] = {}  # by queue: the passive consumer of basic.get
        self.cancelled_consumers: list[Consumer] = []  # cancelled by the client, still holding leases
        self.last_queue = ""  # what an empty queue name means
        self.prefetch = 0  # of consumers started from now on; 0: no limit
        self.shared: Credit | None = None  # qos global
        self.confirming = False
        self.published = 0  # sequence number of the last publish
        self.unconfirmed = 0
        self.replies: deque[Reply] = deque()  # that could not be sent at once, in order
        self.getting: dict[Consumer, deque[Reply]] = {}  # basic.gets whose message is on its way
        self.unannounced: dict[Consumer, list[tuple[Deliver, Piece]]] = {}  # consume-ok waits: what came before it

    @property
    def gate(self) -> object:
        """Cold reads hold back the whole connection, so that the order within it is kept."""
        return self.session

    @property
    def full(self) -> bool:
        """Whether the connection holds as much for its peer as it may."""
        return self.session.full

    def deliver(self, effect: Deliver, piece: Piece) -> None:
        """Send neighbouring rows, or keep them for the basic.get that asked for them."""
        if not self.open:
            return
        encoder = self.encoders.get(effect.consumer)
        if encoder is None and self.subscriptions:
            encoder = encoder_of(self, effect.consumer)
        if encoder is None:
            if self.getting.get(effect.consumer):
                self.session.answer_get(self, effect, piece)
            return  # else its queue is gone
        if effect.consumer in self.unannounced:
            self.unannounced[effect.consumer].append((effect, piece))
            return
        first = self.tags.give(effect.consumer, piece.chunk, not effect.consumer.no_ack)
        assert piece.bodies is not None
        self.session.unsent += piece.size
        properties = piece.properties
        if effect.consumer.tag in self.informed:
            properties = informed(effect, piece, self.session.engine.log.origin)
        self.session.out += encoder.encode(first, effect.redelivered, piece.topics, properties, piece.bodies)
        counters, count = self.session.counters, len(piece.chunk)
        if effect.consumer.no_ack:
            counters.delivered_consume_auto_ack += count
        else:
            counters.delivered_consume_manual_ack += count
        if effect.redelivered:
            counters.redelivered += count
        self.session.mark_dirty()

    def cancelled(self, consumer: Consumer) -> None:
        """The queue went away: tell a client that understands it, and forget the consumer.

        Its deliveries stay known: a client that settles them now is late, not wrong.
        """
        self.encoders.pop(consumer, None)
        for queue, getter in list(self.getters.items()):
            if getter is consumer:
                del self.getters[queue]
        wish = self.subscriptions.get(consumer.tag)
        if wish is not None and wish.pattern is None:
            del self.subscriptions[consumer.tag]
            self.session.notify_cancel(self, consumer.tag)
        if self.consumers.get(consumer.tag) is consumer:
            del self.consumers[consumer.tag]
            self.session.notify_cancel(self, consumer.tag)
