"""A subscription: what a client has been sent and not yet looked at, and what it holds; and a message of it.

It takes deliveries from the engine as a connection does.  What was sent stays in the inbox even when the lease ends
meanwhile, for the client has it; what a closed subscription had not taken is gone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.client.arguments import arguments_checked
from penstock.client.bodies import parsed
from penstock.core.commands.subscription import STAYS
from penstock.core.commands.subscription import Subscription as Wish
from penstock.core.effects import Verb
from penstock.core.queue.queue import queue_of
from penstock.core.queue.settling.settle import extend
from penstock.errors import InvalidArgument, PenstockError
from penstock.expr import compile_filter
from penstock.records import properties as header_codec
from penstock.records.causes import death_reason
from penstock.records.chunks import as_chunk
from penstock.records.field_tables import FieldValue
from penstock.server.follow import ENDLESS
from penstock.server.gates import Receiver
from penstock.testing.link import replaced
from penstock.units import Duration, span, wait_of
from penstock.wire.flight.bookmarks import format_bookmark

if TYPE_CHECKING:
    from penstock.core.commands.deliveries import Delivery
    from penstock.core.queue.dispatching.consumers import Consumer
    from penstock.core.queue.queue import Queue
    from penstock.core.sow.select import SelectList
    from penstock.memory.slab import Piece
    from penstock.records.chunks import Chunk
    from penstock.records.entries import Topic
    from penstock.server.follow import Follow
    from penstock.testing.broker_life import Running
    from penstock.testing.instance import Instance


@arguments_checked
class Message:
    """A delivered message.  `ack`, `cancel` and `expire` end the delivery; it can be settled later, or not at all."""

    def __init__(
        self,
        holder: Subscription,
        *,
        queue: str,
        topic: str,
        body: bytes,
        properties: bytes,
        lsn: int,
        bookmark: str,
        queue_id: int = 0,  # of the queue that leased it
        attempt: int = 1,
        redelivered: bool = False,
        lease_until: float | None = None,
        time: float | None = None,
    ) -> None:
        self.queue = queue
        self.queue_id = queue_id
        self.topic = topic  # as people write it: `K`, or `E/K` for another exchange than the default one
        self.body = body
        self.lsn = lsn
        self.bookmark = bookmark
        self.attempt = attempt  # which delivery of this message it is, from 1
        self.redelivered = redelivered  # whether somebody may have seen it before
        self.lease_until = lease_until  # seconds since the epoch; None: the lease does not end by time
        self.time = time  # seconds since the epoch when it was stored, where `timestamp` was asked for
        self._properties = properties
        self._holder = holder

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, {self.body[:40]!r}, {self.bookmark!r}, attempt {self.attempt})"

    @property
    def holder(self) -> Subscription:
        """The subscription that it was delivered to."""
        return self._holder

    @property
    def properties(self) -> header_codec.Properties:
        """The publisher's properties, and what the server added to a dead letter."""
        return header_codec.decode(self._properties)

    @property
    def headers(self) -> Mapping[str, FieldValue]:
        """The publisher's headers; empty without any."""
        return self.properties.headers or {}

    @property
    def reason(self) -> str | None:
        """Of a dead letter why it died: what its consumer said (`reject(reason=)`), else RabbitMQ's word."""
        return death_reason(self.headers)

    @property
    def priority(self) -> int:
        """The publisher's priority, 0 to 255; 0 without one."""
        return self.properties.priority or 0

    def json(self) -> Any:
        """The body parsed as JSON.  Raises InvalidBody, a ValueError too, when it is none."""
        return parsed(self.body, lambda: f" of {self.bookmark!r} in queue {self.queue!r}")

    def ack(self) -> bool:
        """Done.  True if it had effect, False if the delivery was over already.  Durable when this returns."""
        return self._holder.settle(self, Verb.ACK)

    def cancel(self) -> bool:
        """Back to the queue, as a failure: after its back-off if it has one, or out if a limit is reached."""
        return self._holder.settle(self, Verb.CANCEL)

    def retry(self, delay: Duration | None = None, error: str | None = None) -> bool:
        """As `cancel`, after `delay` seconds instead of the queue's back-off; `error` is in the message's story."""
        wait = None if delay is None else wait_of(delay, "delay")
        return self._holder.settle(self, Verb.CANCEL, wait, error)

    def release(self) -> bool:
        """Back to its place at once, uncounted."""
        return self._holder.settle(self, Verb.RELEASE)

    def reject(self, reason: str | None = None) -> bool:
        """As `expire`; `reason` is in the message's story."""
        return self._holder.settle(self, Verb.EXPIRE, None, reason)

    def expire(self) -> bool:
        """Refused for good: a dead letter, where the queue has a place for those."""
        return self._holder.settle(self, Verb.EXPIRE)

    def extend(self, seconds: Duration) -> bool:
        """Have the lease end so many seconds from now, at the earliest.  True if it was still held.

        `lease_until` says the new end then; a lease that never ends by time stays so.
        """
        return self._holder.extend(self, seconds)


@arguments_checked
class Subscription(Receiver):
    """What one client gets of a queue, or a pattern of queues.  Made by `Broker.subscribe`."""

    def __init__(self, broker: Running, instance: Instance, queue: str, name: str) -> None:
        """For the broker alone, which sets `wish`."""
        self.queue = queue  # or the pattern of queues
        self.name = name  # of the client; several subscriptions may share it
        self.wish: Wish | None = None  # None: closed, or not yet open
        self.beside: Subscription | None = None  # to the topics that its pattern matches
        self.follow_beside: Callable[[str | None, str | None], None] | None = None  # with this filter, this pattern
        self._broker = broker
        self._instance = instance
        self._inbox: deque[Message] = deque()
        self._attempts = dict[tuple[int, int], int]()  # by queue id and LSN: the newest delivery of what came here

    def __repr__(self) -> str:
        return f"Subscription({self.queue!r}, {self.name!r}, {len(self._inbox)} to take)"

    # -- for tests

    @property
    def effective_backlog(self) -> int | None:
        """How many may be outstanding here: its own limit or that of a queue it matches, the smallest; None without."""
        return self._broker.aside(self._limit)

    @property
    def outstanding(self) -> int:
        """Delivered here and not settled."""
        return self._broker.aside(lambda: self.wish.outstanding if self.wish is not None and self.is_open else 0)

    def take(self) -> list[Message]:
        """What was delivered and not yet taken, in order of delivery.  Never waits."""
        return self._broker.aside(self._take)

    def replace(self, filter: str | None = None, max_backlog: int | None = None, topic: str | None = None) -> None:
        """Change the terms in one step; what is not named stays, and so does what it holds.

        filter        empty text: none any more
        max_backlog   what is outstanding counts, and may be more than this
        topic         another queue, or a pattern of queues and topics
        Raises as `Broker.subscribe`; nothing is changed then.
        """
        replaced(filter, max_backlog, topic)
        compiled = STAYS if filter is None else compile_filter(filter) if filter else None

        def work() -> None:
            wish = self.wish
            if wish is None or not self.is_open:
                raise InvalidArgument("the subscription is closed: there is nothing to replace")
            self._instance.core.replace(
                self._instance.engine.now(),
                wish,
                filter=compiled,
                max_backlog=STAYS if max_backlog is None else max_backlog,
                topic=STAYS if topic is None else topic,
            )
            self.queue = wish.topic
            if self.follow_beside is not None:
                self.follow_beside(filter, topic)

        self._broker.aside(work)

    def close(self) -> None:
        """Unsubscribe: what is held goes back, uncounted; what was not taken was not delivered.  Twice does no harm."""
        self._broker.aside(lambda: self.end(lost=False))

    # -- for the engine: a receiver

    def deliver(self, effect: Delivery, piece: Piece) -> None:
        origin = self._instance.log.origin
        bodies: Sequence[bytes] = piece.bodies or ()
        queue = effect.queue
        for row, (lsn, body) in enumerate(zip(piece.chunk, bodies, strict=True)):
            topic = piece.topic_of(row)
            self._attempts[queue.id, lsn] = effect.attempt
            self._inbox.append(
                Message(
                    self,
                    queue=queue.name,
                    queue_id=queue.id,
                    topic=written(topic),
                    body=body,
                    properties=piece.properties_of(row),
                    lsn=lsn,
                    bookmark=format_bookmark(origin, lsn),
                    attempt=effect.attempt,
                    redelivered=effect.redelivered,
                    lease_until=effect.until / 1e6 if effect.until else None,
                )
            )

    def cancelled(self, consumer: Consumer, why: PenstockError) -> None:
        """A queue was deleted or stopped; one that names several goes on with the others."""
        if self.wish is not None and self.wish.pattern is None:
            self.wish = None

    # -- for the broker: inside a command

    @property
    def is_open(self) -> bool:
        """Whether it may get more: not closed, and the broker has not been started anew."""
        return self.wish is not None and self._instance is self._broker.instance

    def end(self, *, lost: bool) -> None:
        """Close, or break off with the connection."""
        was_open, wish = self.is_open, self.wish
        self.wish = None
        untaken = self._take()
        if self.beside is not None:
            self.beside.end(lost=lost)
        if was_open and wish is not None:
            if not lost:
                self._give_back(wish, untaken)
            self._instance.core.close(self._instance.engine.now(), wish, lost=lost)

    def _give_back(self, wish: Wish, untaken: Sequence[Message]) -> None:
        """Say that nobody has seen these, as the client does; nothing comes instead of them."""
        core, now = self._instance.core, self._instance.engine.now()
        core.hold(wish)
        by_queue = dict[int, set[int]]()
        for message in untaken:
            by_queue.setdefault(message.queue_id, set()).add(message.lsn)
        for consumer in wish.all():
            lsns = sorted(by_queue.get(consumer.queue.id, ()))
            core.settle(now, queue_of(consumer), [as_chunk(lsns)], Verb.UNSEEN, by=consumer)

    def put(self, message: Message) -> None:
        """Something that was not delivered, for `take`."""
        self._inbox.append(message)

    def _take(self) -> list[Message]:
        taken = list(self._inbox)
        self._inbox.clear()
        return taken

    def _limit(self) -> int | None:
        return self.wish.effective_backlog if self.wish is not None and self.is_open else 0

    def consumers(self, message: Message) -> list[Consumer]:
        """Who of it may hold this delivery: empty unless it is the last that it has had of the message."""
        if not self.is_open or self.wish is None:
            return []
        if self._attempts.get((message.queue_id, message.lsn)) != message.attempt:
            return []
        return [consumer for consumer in self.wish.all() if consumer.queue.id == message.queue_id]

    # -- for its messages

    def settle(self, message: Message, verb: Verb, delay: int | None = None, reason: str | None = None) -> bool:
        """End a delivery; whether that had effect."""

        def work(instance: Instance) -> bool:
            core, now = instance.core, instance.engine.now()
            chunk: Chunk = range(message.lsn, message.lsn + 1)
            affected = 0
            consumers = self.consumers(message)
            for consumer in consumers:
                affected = affected or core.settle(
                    now, queue_of(consumer), [chunk], verb, by=consumer, delay=delay, reason=reason
                )
            if not consumers:
                if verb in (Verb.CANCEL, Verb.RELEASE):
                    return False  # a former holder has nothing to give back
                queue = _find(instance, message.queue)
                if queue is None or queue.id != message.queue_id:
                    return False
                client = "" if queue.settings.leasing == "strict" else self.name
                affected = core.settle(now, queue, [chunk], verb, client=client, reason=reason)
            instance.make_durable()
            return affected > 0

        return self._broker.command(work)

    def extend(self, message: Message, seconds: Duration) -> bool:
        """Have the lease of a delivery end so long from now; whether it was still held."""
        micros = span(seconds, "seconds")

        def work(instance: Instance) -> bool:
            now = instance.engine.now()
            chunk: Chunk = range(message.lsn, message.lsn + 1)
            for consumer in self.consumers(message):
                if extend(queue_of(consumer), consumer, chunk, now.mono + micros):
                    if message.lease_until is not None:
                        message.lease_until = max(message.lease_until, (now.wall + micros) / 1e6)
                    return True
            return False

        return self._broker.command(work)


T = TypeVar("T")


class Unleased(Subscription, ABC, Generic[T]):
    """A subscription to messages, records or rows: nothing is leased, and there is nothing to settle."""

    def __init__(
        self, broker: Running, instance: Instance, topic: str, name: str, select: SelectList | None = None
    ) -> None:
        """For the broker alone, which sets `follow`.  select: the fields that are sent."""
        super().__init__(broker, instance, topic, name)
        self.follow: Follow[T] | None = None  # None: closed, or not yet open
        self.select = select
        self.is_complete = False  # what there was has come: it is level, or at the end of its range
        self.error: PenstockError | None = None  # why nothing more comes
        self.inbox: Inbox[T] = Inbox(self)

    @abstractmethod
    def receive(self, portion: T) -> None:
        """Put what came into the inbox."""

    @property
    def is_open(self) -> bool:
        """Whether it may get more."""
        return self.follow is not None and not self.follow.closed and self._instance is self._broker.instance

    def end(self, *, lost: bool) -> None:
        follow, self.follow = self.follow, None
        self._inbox.clear()
        if follow is not None:
            follow.close()

    def _limit(self) -> int | None:
        return None if self.is_open else 0

    def settle(self, message: Message, verb: Verb, delay: int | None = None, reason: str | None = None) -> bool:
        """There is nothing to settle."""
        return False

    def extend(self, message: Message, seconds: Duration) -> bool:
        return False


class Inbox(Generic[T]):
    """An unleased subscription as a taker; its own `take` is the test's."""

    def __init__(self, subscription: Unleased[T]) -> None:
        self._subscription = subscription

    def room(self) -> int:
        """A test takes what it likes."""
        return ENDLESS

    def take(self, portion: T, /) -> None:
        self._subscription.receive(portion)

    def level(self) -> None:
        """What there was has come."""
        self._subscription.is_complete = True

    def ended(self, error: PenstockError | None) -> None:
        self._subscription.error = error
        self._subscription.is_complete = self._subscription.is_complete or error is None


def written(topic: Topic) -> str:
    """A topic as people write it."""
    return f"{topic.exchange}/{topic.name}" if topic.exchange else topic.name


def _find(instance: Instance, name: str) -> Queue | None:
    try:
        return instance.core.queue("/", name)
    except PenstockError:
        return None  # deleted, or another connection's own by now
