"""The core: every command of the server in one place, decided with the `now` it is handed.

    command + now  ->  entries in the journal, effects, and an answer or a refusal

Nothing here touches a clock, a disk or a socket.  LSNs are given and applied at once; the engine writes the journal and
performs the effects that the journal's durability allows.  The commands stand by noun in `core.commands`; publishing,
the busiest of them, subscriptions, which lead to all queues, and time, which concerns all parts, stand here.

A subscription to a pattern has a consumer at each queue that matches, now or later, and one backlog for all of them.
Replacing one changes its terms in one step: leases stay, and what is outstanding counts in the new backlog.

    effective backlog = min(max_per_subscription_backlog of each queue it matches, its own max_backlog)

It knows no wire; who takes the deliveries is the `holder` of every consumer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from penstock.core.commands.common_parts import Arenas
from penstock.core.commands.containing import Due, part_of
from penstock.core.commands.deliveries import AnswerCommands, DeliveryCommands, InterventionCommands
from penstock.core.commands.life import Life
from penstock.core.commands.linking import LinkingCommands
from penstock.core.commands.subscription import STAYS, Stays, Subscription
from penstock.core.commands.topology import PolicyCommands, TopologyCommands
from penstock.core.commands.transactions import SinkCommands, TransactionCommands
from penstock.core.effects import Part, Question
from penstock.core.publishing import Preflight
from penstock.core.publishing.admission import kept_as
from penstock.core.publishing.published import USUAL, Published, Refusal, Terms
from penstock.core.queue.dispatching.consumers import UNLIMITED, Consumer, Credit
from penstock.core.queue.dispatching.joining import reopen, replace
from penstock.core.queue.queue import Queue, queue_of
from penstock.core.queue.stopped import refuse_stopped
from penstock.core.state.durable import Reign
from penstock.core.state.lsns import Ints
from penstock.core.topology.register import no_exchange
from penstock.errors import AccessRefused, InvalidArgument, told_as
from penstock.expr import Filter, TopicPattern
from penstock.records.chunks import Now
from penstock.records.entries import Publishes, Topic
from penstock.records.schema import GROUP_BYTES_MAX


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
        if subscription.pattern is None:
            refuse_stopped(self._admin.queue(subscription.vhost, subscription.topic, subscription.by))
        self._join_all(self._at(now), subscription)

    def close(self, now: Now, subscription: Subscription, *, requeue: bool = True, lost: bool = False) -> None:
        """End a subscription.  requeue: what it holds goes back; lost: as its connection did."""
        self.close_all(now, (subscription,), requeue=requeue, lost=lost)

    def close_all(self, now: Now, some: Sequence[Subscription], *, requeue: bool = True, lost: bool = False) -> None:
        """The same of several."""
        self.unsubscribe_all(now, self.closing(some), requeue=requeue, lost=lost)
        for subscription in some if requeue else ():
            subscription.consumers.clear()
            subscription.former.clear()

    def closing(self, some: Iterable[Subscription]) -> list[Consumer]:
        """Nobody joins these any more; the consumers that they have, for whoever ends them."""
        for subscription in some:
            subscription.closed = True
            self._patterns.pop(subscription, None)
        return [consumer for subscription in some for consumer in subscription.all()]

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

    def bound(self, now: Now, consumers: Iterable[Consumer], max_backlog: int | None) -> None:
        """Another backlog for each of these, in one step: what they hold stays held.  None: no bound of their own."""
        now = self._at(now)
        for consumer in consumers:
            queue = queue_of(consumer)
            replace(queue, now, consumer, self._out, filter=consumer.filter, max_backlog=max_backlog)
            self._touch(queue, consumer.shared)

    def hold(self, subscription: Subscription) -> None:
        """Grant nothing: its connection takes no more bytes now."""
        subscription.choked = True
        for consumer in subscription.consumers.values():
            self.choke(consumer)

    def go_on(self, now: Now, *some: Subscription) -> None:
        """Grant again: their connection takes bytes."""
        for subscription in some:
            subscription.choked = False
        self.unchoke_all(now, [one for subscription in some for one in subscription.consumers.values()])

    # -- which queues

    def _name(self, subscription: Subscription, topic: str) -> None:
        """Set the queues that the subscription names; an error changes nothing."""
        pattern: TopicPattern | None = None
        if self._admin.queues.find(subscription.vhost, topic) is not None:
            queue = self._admin.queue(subscription.vhost, topic, subscription.by)
            others = [one for one in queue.consumers if subscription.consumers.get(queue.id) is not one]
            if any(one.exclusive or subscription.exclusive for one in others):
                raise AccessRefused(f"queue '{queue.name}' in vhost '{queue.vhost}' in exclusive use")
            subscription.filter_at(queue)
        else:
            with told_as(InvalidArgument, f"the pattern {topic!r} of queues cannot be used: "):
                pattern = TopicPattern(topic)
            if pattern.literal:
                raise self._admin.queues.missing(subscription.vhost, topic)
        subscription.topic = topic
        subscription.pattern = pattern
        if pattern is not None and subscription.credit is None:
            self._share(subscription)

    def _share(self, subscription: Subscription) -> None:
        """Give it one credit counter for several queues; what is outstanding counts."""
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
                arguments=subscription.arguments, no_ack=subscription.no_ack, exclusive=subscription.exclusive,
                filter=filter, max_backlog=None if subscription.credit is not None else subscription.max_backlog,
                shared=subscription.credit, priority=subscription.priority, choked=subscription.choked,
            )  # fmt: skip
        except AccessRefused:
            if subscription.pattern is None:
                raise  # of many it passes over those that somebody has for himself

    def _move(self, now: Now, subscription: Subscription, topic: str) -> None:
        """Join other queues; of those that it leaves it keeps what it holds."""
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

    def _appeared(self, now: Now, queue: Queue) -> None:
        """Subscriptions whose pattern matches a new queue join it."""
        if self._patterns:
            self._look_around(self._at(now), queue)

    def _ruled(self, now: Now, queue: Queue) -> None:
        """The backlog that a subscription has for several queues follows the settings of each."""
        for subscription in self._patterns:
            if queue.id in subscription.consumers:
                self._set_credit(subscription)
                self._offer_anew(now, subscription)

    def _offer_anew(self, now: Now, subscription: Subscription) -> None:
        """Its credit is another one now."""
        self.unchoke_all(now, [one for one in subscription.consumers.values() if not one.choked])

    def _leave(self, now: Now, queue: Queue, some: Sequence[Consumer], *, requeue: bool, lost: bool) -> None:
        """As before; where the queue was one's own, those come that its pattern keeps waiting."""
        super()._leave(now, queue, some, requeue=requeue, lost=lost)
        if self._patterns and any(one.exclusive for one in some) and self.queue_by_id(queue.id) is queue:
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
            self._offer_anew(now, subscription)
        return ready


class Core(
    Life, TopologyCommands, SubscriptionCommands, AnswerCommands, InterventionCommands, SinkCommands,
    TransactionCommands, PolicyCommands, LinkingCommands,
):  # fmt: skip
    """The rules of one instance."""

    def boot(self, now: Now, *, clean: bool, next_lsn: int, leads: Reign | None = None) -> None:
        """Begin a run: the BOOT record, what ends with a process, then whatever fell due meanwhile.

        next_lsn: after a clean stop the next one; after an unclean one the recovered end + 2**32; of a leader in a
        cluster the first of its term.
        """
        super().boot(now, clean=clean, next_lsn=next_lsn, leads=leads)
        self._go_on_ruling(now)
        self._number_publishes()
        self.twins.update(self.sequences.twins())
        for queue in self._admin.by_id.values() if self.peers.here else ():
            self._say_owner(now, queue)

    # -- time

    def tick(self, now: Now) -> None:
        """Leases and delays that end, expiry, unused queues, publishers and streams that nobody hears of, policies.

        Of very many queues at a time the first ones: then `next_deadline` is at once.
        """
        now = self._at(now)
        for number in self._timers.due(now):
            queue = self._admin.by_id.get(number)
            if queue is None:
                continue
            if queue.is_unused(now) and not self.streams.reads(number):
                self._do(Due(part_of(queue), partial(self._end_queue, now, queue), (queue,)))
                continue
            self._tick(now, queue)
            self._touch(queue)
        beside = (
            self._topics_due, self._publishers_due, self._streams_due, self._deferred_due, self.rulings_due,
        )  # fmt: skip
        for dues in beside:
            for due in dues(now):
                self._do(due)

    def _topics_due(self, now: Now) -> Iterator[Due]:
        for sow in self._keyed.overdue(now) if self._publisher.keyed is not None else ():
            part = Part("topic", sow.vhost, sow.name)
            yield Due(part, partial(self._keyed.expire, now, sow), stop=partial(self._keyed.lasting.add, sow.id))

    def _publishers_due(self, now: Now) -> Iterator[Due]:
        publishers = self._publisher.publishers
        if (due := publishers.due()) is not None and due <= now.wall:
            stop = partial(publishers.expire_after, now, None)
            yield Due(Part("publishers"), partial(publishers.tick, now), stop=stop)

    def _streams_due(self, now: Now) -> Iterator[Due]:
        for name in self.streams.keeping.overdue(now):
            queue = self.queue_by_id(self.streams.states[name].queue)
            release = partial(self.streams.release, now, name, abandoned=True)
            stop = partial(self.streams.stopped.add, name)
            yield Due(Part("stream", "", name), release, () if queue is None else (queue,), stop)

    def _deferred_due(self, now: Now) -> Iterator[Due]:
        deferred, out = self._deferred, self._out
        for number in deferred.overdue(now):
            queue = self._admin.by_id[number]
            work, stop = partial(deferred.expire, now, queue, out), partial(deferred.keep, number)
            yield Due(part_of(queue), work, (queue,), stop)

    def next_deadline(self) -> tuple[int | None, int | None]:
        """When to `tick` next: (wall, monotonic) microseconds, None for never; 0 is at once."""
        wall, mono = self._timers.next()
        if self._unruled:
            return 0, mono
        dues = [self._publisher.publishers.due()] if self._publisher.publishers.heard else []
        if self.streams.states:
            dues.append(self.streams.keeping.due())
        if self._publisher.keyed is not None:
            dues.append(self._keyed.due())
        if self._deferred.by_queue:
            dues.append(self._deferred.due)
        for due in dues:
            if due is not None and (wall is None or due < wall):
                wall = due
        return wall, mono

    def page(self, arenas: Arenas, most: int) -> bool:
        """Move state out of the heap that was there at the last look already: so many arrays at most.

        Whether there was more to do than that: then the next call goes on.  Asked once a second.
        """
        paging = self._paging
        if not paging.wanted:
            return False
        if paging.version != self._topology.version:
            paging.begin(self._topology.version, self._admin.by_id.values(), self._keyed.sows)
        return paging.look(arenas, most, self._out.next_lsn)

    # -- letters

    @property
    def dead_lettered(self) -> Mapping[str, int]:
        """Messages that became a dead letter since the start of this process, by AMQP's reason."""
        return self._letters.counts

    def is_letter(self, lsn: int) -> bool:
        """Whether a message is a dead letter that the server, or another site's, has written."""
        return self._letters.letters.has(lsn)

    def letters_among(self, lsns: Ints) -> Ints:
        """Those of ascending LSNs that this server wrote as dead letters."""
        return lsns[self._letters.letters.among(lsns)]

    @property
    def dead_letters_refused(self) -> int:
        """How often a target had no room for a dead letter, which then waits."""
        return self._letters.without_place

    # -- publishing

    def topic(self, vhost: str, exchange: str, key: str) -> Topic:
        """The interned topic that a client's publish goes to.

        Errors: as `check_exchange`.
        """
        self.check_exchange(vhost, exchange)
        return self.interned(vhost, *self._router.target_of(vhost, exchange, key))

    def check_exchange(self, vhost: str, exchange: str) -> None:
        """NotFound for a missing exchange that a client would publish to, AccessRefused for an internal one."""
        found = self._topology.exchange(vhost, exchange)
        if found is None:
            raise no_exchange(vhost, exchange)
        if found.internal:
            raise AccessRefused(f"cannot publish to internal exchange '{exchange}' in vhost '{vhost}'")

    def publish(
        self,
        now: Now,
        batch: Publishes,
        refuse: Refusal | None = None,
        *,
        publisher: str | None = None,
        sequence: int | None = None,
        persistent: bool | None = None,
        mandatory: bool = False,
    ) -> Published:
        """Store a batch and let it arrive.  Rows nobody wants, and refused ones, are not stored.

        refuse: refuse every row for this reason.
        publisher, sequence: the first row has this sequence, each further row the next; rows
            at or below the publisher's highest in their vhost are duplicates, confirmed and not stored again.
        persistent: overrides the delivery mode of the headers.
        mandatory: Unroutable for a topic that nobody keeps, before anything is written or a sequence counts.
        """
        size = len(batch.bodies)
        if refuse is not None:
            return Published(0, self._out.last_lsn, refused=[(row, refuse) for row in range(size)])
        if not size:
            return Published(0, self._out.last_lsn)
        now = self._out.at(now, True)
        if self._unruled:
            self._rule_takers(now, batch)
        if mandatory:
            Preflight(self._publisher, "this upload").refuse_unwanted(batch.distinct_topics)
        if publisher is None:
            terms = USUAL if persistent is None else Terms(persistent)
            published = self._publisher.publish(now, batch, terms)
            if self._publisher.raised:
                self._make_levels(now)
            return published
        if sequence is None:
            raise InvalidArgument(f"publisher '{publisher}' must say the sequence of its first message")
        if batch.size > GROUP_BYTES_MAX:  # its sequence and its rows are one group
            raise InvalidArgument(f"a batch has {batch.size} bytes, a group of the log at most {GROUP_BYTES_MAX}")
        self._out.begin()

        def store(rows: Publishes, skip: int) -> Published:
            return self._publisher.publish(now, rows, Terms(persistent, numbered=True), skip)

        published = self._publisher.publishers.follow(kept_as(batch.vhost, publisher), sequence, batch, store)
        self._out.end()
        if self._publisher.raised:
            self._make_levels(now)
        return published

    @property
    def at_once(self) -> int:
        """How many bytes of messages may be one batch whoever sent them, without asking `unjudged` first; 0: none may.

        Where a queue holds its publishers up each of them is let in alone; deltas to records may wait for their record.
        """
        if self._router.blocking or self._publisher.keyed is not None:
            return 0
        return self._publisher.at_once

    @property
    def blocking(self) -> bool:
        """Whether some queue holds its publishers up while it is full: ask `let_in` before `publish`."""
        return bool(self._router.blocking)

    def let_in(self, now: Now, batch: Publishes) -> tuple[int, Queue | None]:
        """How many rows of a batch, from its first on, may be published now, and which queue holds the next one up.

        None: nobody does; of rows that are left more is known once these are published.  Without this a publish to a
        full queue is refused as one of `reject-publish`.
        """
        return self._publisher.let_in(self._at(now, True), batch)

    def holds_up(self, queue: Queue, size: int) -> bool:
        """Whether a queue still has a message of so many bytes wait for room."""
        return queue.holds_up(size) and self._router.queues.find(queue.vhost, queue.name) is queue

    def unjudged(
        self, batch: Publishes, *, publisher: str | None = None, sequence: int | None = None
    ) -> list[Question]:
        """What content filters have to judge off the loop before this batch is published.

        The door has it evaluated, puts the answers on the batch (`Publishes.judged`), and asks again, for queues may
        have come meanwhile.  `publish` does without: then everything is evaluated in place.
        """
        skip = 0
        if publisher is not None and sequence is not None:
            skip = min(max(self.highest_of(batch.vhost, publisher) - sequence + 1, 0), len(batch.bodies))
        return self._publisher.unjudged(batch, skip=skip)
