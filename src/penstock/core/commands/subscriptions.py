"""Subscriptions: one client's wish for messages of a queue, or of every queue whose name a pattern matches.

A subscription to a pattern has a consumer at each queue that matches, now or later, and one backlog for all of them.
Replacing one changes its terms in one step: leases stay, and what is outstanding counts in the new backlog.

    effective backlog = min(max_per_subscription_backlog of each queue it matches, its own max_backlog)

It knows no wire; who takes the deliveries is the `holder` of every consumer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from penstock.core.commands.deliveries import DeliveryCommands
from penstock.core.commands.life import NOWHERE
from penstock.core.commands.subscription import STAYS, Stays, Subscription
from penstock.core.queue.dispatching.consumers import UNLIMITED, Consumer, Credit
from penstock.core.queue.dispatching.joining import reopen, replace
from penstock.core.queue.queue import Queue, queue_of
from penstock.core.topology.declaring import NO_TABLE
from penstock.errors import AccessRefused, InvalidArgument, NotFound
from penstock.expr import Filter, TopicPattern
from penstock.records.chunks import Now
from penstock.records.queue_settings import QueueSettings, Ruling


class SubscriptionCommands(DeliveryCommands):
    """Subscribing, replacing, closing; and the queues that come and go under a pattern."""

    def open(self, now: Now, subscription: Subscription) -> None:
        """Begin a subscription, served at once.

        A queue of exactly that name is meant before a pattern is.
        Errors: NotFound for a name that is neither; AccessRefused when somebody has the queue for himself;
        InvalidArgument for a pattern that cannot be used; Draining while the server runs empty.
        """
        self._refuse_consumers(subscription.topic)
        self._name(subscription, subscription.topic)
        self._join_all(self._at(now), subscription)

    def close(self, now: Now, subscription: Subscription, *, requeue: bool = True, lost: bool = False) -> None:
        """End a subscription.  requeue: what it holds goes back; lost: as its connection did."""
        subscription.closed = True
        self._patterns.pop(subscription, None)
        consumers = [*subscription.all()]
        for consumer in consumers:
            self.choke(consumer)  # what one gives back is not for the next one that goes
        for consumer in consumers:
            self.unsubscribe(now, consumer, requeue=requeue, lost=lost)
        if requeue:
            subscription.consumers.clear()
            subscription.former.clear()

    def replace(
        self,
        now: Now,
        subscription: Subscription,
        *,
        filter: Filter | Stays | None = STAYS,
        max_backlog: int | Stays | None = STAYS,
        topic: str | Stays = STAYS,
    ) -> None:
        """Other terms, in one step: what is granted from now on is granted by them, and what is held stays held.

        Errors: those of `open`, and nothing is changed then.
        """
        if subscription.closed:
            raise InvalidArgument(f"subscription {subscription.tag!r} is closed")
        now = self._at(now)
        if topic is not STAYS and topic != subscription.topic:
            self._move(now, subscription, topic)
        if filter is not STAYS:
            subscription.filter = filter
        if max_backlog is not STAYS:
            subscription.max_backlog = max_backlog
        own = None if subscription.credit is not None else subscription.max_backlog
        self._set_credit(subscription)
        for consumer in list(subscription.consumers.values()):
            queue = queue_of(consumer)
            replace(queue, now, consumer, self._out, filter=subscription.filter_at(queue), max_backlog=own)
            self._touch(queue, consumer.shared)
        self._join_all(now, subscription)

    def hold(self, subscription: Subscription) -> None:
        """Its connection takes no more bytes now."""
        subscription.choked = True
        for consumer in subscription.consumers.values():
            self.choke(consumer)

    def go_on(self, now: Now, subscription: Subscription) -> None:
        """Its connection takes bytes again."""
        subscription.choked = False
        for consumer in list(subscription.consumers.values()):
            self.unchoke(now, consumer)

    # -- which queues

    def _name(self, subscription: Subscription, topic: str) -> None:
        """Set what the subscription names; raises, and changes nothing, for what cannot be named."""
        pattern: TopicPattern | None = None
        if self._admin.queues.find(subscription.vhost, topic) is not None:
            queue = self._admin.queue(subscription.vhost, topic, subscription.by)
            others = [one for one in queue.consumers if subscription.consumers.get(queue.id) is not one]
            if any(one.exclusive or subscription.exclusive for one in others):
                raise AccessRefused(f"queue '{queue.name}' in vhost '{queue.vhost}' in exclusive use")
            subscription.filter_at(queue)
        else:
            try:
                pattern = TopicPattern(topic)
            except ValueError as error:
                raise InvalidArgument(f"the pattern {topic!r} of queues cannot be used: {error}") from error
            if pattern.literal:
                raise NotFound(f"no queue '{topic}' in vhost '{subscription.vhost}'")
        subscription.topic = topic
        subscription.pattern = pattern
        if pattern is not None and subscription.credit is None:
            self._share(subscription)

    def _share(self, subscription: Subscription) -> None:
        """Give it a counter for several queues; what is outstanding counts."""
        credit = subscription.credit = Credit(whole=True)
        for consumer in subscription.consumers.values():
            consumer.share(credit)
        self._patterns[subscription] = None

    def _set_credit(self, subscription: Subscription, joining: Sequence[Queue] = ()) -> None:
        """The backlog of all its queues, with those that it is about to join."""
        if subscription.credit is not None:
            own = subscription.effective_backlog
            limits = [queue.settings.max_per_subscription_backlog or UNLIMITED for queue in joining]
            subscription.credit.limit = min([UNLIMITED if own is None else own, *limits])

    def _matches(self, subscription: Subscription, queue: Queue) -> bool:
        if queue.vhost != subscription.vhost:
            return False
        if queue.exclusive_to is not None and queue.exclusive_to is not subscription.by:
            return False
        pattern = subscription.pattern
        return queue.name == subscription.topic if pattern is None else pattern.matches(queue.name)

    def _join_all(self, now: Now, subscription: Subscription) -> None:
        """A consumer at each queue that the subscription names and has none at."""
        if subscription.pattern is None:
            queues = [self._admin.queue(subscription.vhost, subscription.topic, subscription.by)]
        else:
            queues = [queue for queue in self.queues() if self._matches(subscription, queue)]
        missing = [queue for queue in queues if queue.id not in subscription.consumers]
        self._set_credit(subscription, missing)
        for queue in missing:
            self._join(now, subscription, queue)
        self._set_credit(subscription)

    def _join(self, now: Now, subscription: Subscription, queue: Queue) -> None:
        try:
            filter = subscription.filter_at(queue)
        except AccessRefused:
            if subscription.pattern is None:
                raise
            return
        back = next((one for one in subscription.former if one.queue is queue and one.outstanding), None)
        if back is not None:
            subscription.former.remove(back)
            subscription.consumers[queue.id] = back
            reopen(queue, now, back, self._out, filter=filter)
            self._touch(queue, back.shared)
            return
        try:
            subscription.consumers[queue.id] = self._attend(
                now, queue, tag=subscription.tag, holder=subscription.holder, client=subscription.client,
                no_ack=subscription.no_ack, exclusive=subscription.exclusive, filter=filter,
                max_backlog=None if subscription.credit is not None else subscription.max_backlog,
                shared=subscription.credit, priority=subscription.priority, choked=subscription.choked,
            )  # fmt: skip
        except AccessRefused:
            if subscription.pattern is None:
                raise  # of many it passes over those that somebody has for himself

    def _move(self, now: Now, subscription: Subscription, topic: str) -> None:
        """Other queues: at those that it leaves it keeps what it holds."""
        self._name(subscription, topic)
        if subscription.credit is None:
            self._share(subscription)
        for number, consumer in list(subscription.consumers.items()):
            if not self._matches(subscription, queue_of(consumer)):
                del subscription.consumers[number]
                subscription.former = [one for one in subscription.former if one.outstanding]
                subscription.former.append(consumer)
                self.unsubscribe(now, consumer, requeue=False)

    # -- queues that come, go and change

    def declare_queue(
        self, now: Now, vhost: str, name: str, settings: QueueSettings, *, durable: bool = True,
        exclusive_to: object | None = None, auto_delete: bool = False, arguments: Mapping[str, object] = NO_TABLE,
        passive: bool = False, by: object | None = None, server_named: bool = False, given: Iterable[str] | None = None,
    ) -> Queue:  # fmt: skip
        """As before; subscriptions whose pattern matches a new queue join it."""
        last = self._out.next_lsn
        queue = super().declare_queue(
            now, vhost, name, settings, durable=durable, exclusive_to=exclusive_to, auto_delete=auto_delete,
            arguments=arguments, passive=passive, by=by, server_named=server_named, given=given,
        )  # fmt: skip
        if self._patterns and queue.id >= last:
            self._look_around(self._at(now), queue)
        return queue

    def _rule(
        self,
        now: Now,
        queue: Queue,
        settings: QueueSettings,
        ruling: Ruling | None,
        places: Mapping[int, int] = NOWHERE,
    ) -> int:
        """As before; the backlog that a subscription has for several queues follows."""
        left = super()._rule(now, queue, settings, ruling, places)
        for subscription in self._patterns:
            if queue.id in subscription.consumers:
                self._set_credit(subscription)
                for consumer in list(subscription.consumers.values()):
                    if not consumer.choked:
                        self.unchoke(now, consumer)
        return left

    def unsubscribe(self, now: Now, consumer: Consumer, *, requeue: bool, lost: bool = False) -> None:
        """As before; where the queue was its own, those come that its pattern keeps waiting."""
        super().unsubscribe(now, consumer, requeue=requeue, lost=lost)
        queue = queue_of(consumer)
        if consumer.exclusive and self._patterns and self._by_id(queue.id) is queue:
            self._look_around(self._at(now), queue)

    def _look_around(self, now: Now, queue: Queue) -> None:
        for subscription in list(self._patterns):
            joined = queue.id in subscription.consumers
            if not joined and subscription.pattern is not None and self._matches(subscription, queue):
                self._set_credit(subscription, [queue])
                self._join(now, subscription, queue)

    def _ending(self, now: Now, queue: Queue) -> int:
        left = [one for one in self._patterns if queue.id in one.consumers or any(one.at(queue))]
        ready = super()._ending(now, queue)
        for subscription in left:
            subscription.consumers.pop(queue.id, None)
            subscription.former = [one for one in subscription.former if one.queue is not queue]
            self._set_credit(subscription)
            for consumer in list(subscription.consumers.values()):
                if not consumer.choked:
                    self.unchoke(now, consumer)
        return ready
