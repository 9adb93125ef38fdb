"""One AMQP channel: its consumers, delivery tags, confirms, prefetch, and the order of its answers.

What a channel is told leaves in the order of what it asked, also when an answer has to wait.  What comes of a request
without being its answer (a consumer's end, a returned message, the close for a refusal) goes behind the answers that
are owed: clients match answers with questions by their order.  Deliveries are no answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from penstock.core.effects import Verb
from penstock.errors import LogBroken, NotFound, PenstockError, PreconditionFailed, ProtocolError
from penstock.records.chunks import Chunk, Now, as_chunk
from penstock.records.entries import Topic, fence_of
from penstock.records.one_or_each import value_at
from penstock.server.amqp.consumer_arguments import Values, informed
from penstock.server.amqp.session import Session, unsendable
from penstock.server.amqp.tags import Tags
from penstock.server.amqp.transaction import Answer, Answers, Open
from penstock.server.counters import Look, MessageCounts
from penstock.server.gates import Receiver
from penstock.wire.amqp import methods
from penstock.wire.amqp.deliver import Contents, DeliveryEncoder, encode_each, get_ok
from penstock.wire.amqp.pieces import header_too_large, too_large
from penstock.wire.flight.bookmarks import format_bookmark

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.commands.deliveries import Deliveries, Delivery
    from penstock.core.commands.subscription import Subscription
    from penstock.core.queue.dispatching.consumers import Consumer, Credit
    from penstock.core.queue.queue import Queue
    from penstock.expr import Filter
    from penstock.memory.slab import Piece
    from penstock.server.base.faults import Asker


class Reader(Protocol):
    """A consumer of topics, from a bookmark on."""

    def go_on(self) -> None:
        """The connection takes bytes again."""

    def close(self) -> None:
        """Deliver nothing more."""


class ReplyReader(Protocol):
    """What the pseudo queue of replies leads to."""

    tag: str
    address: str

    def close(self) -> None:
        """Nobody waits any more; the address leads nowhere, for ever."""


class _Nothing(dict[Any, Any]):
    """An empty dict that stays so."""

    def __setitem__(self, key: object, value: object) -> None:
        raise AssertionError("it is everybody's, and stays empty")

    def update(self, *some: Any, **more: Any) -> None:
        raise AssertionError("it is everybody's, and stays empty")

    def setdefault(self, *some: Any) -> Any:
        raise AssertionError("it is everybody's, and stays empty")


_NONE = _Nothing()

K = TypeVar("K")
V = TypeVar("V")


def own(some: dict[K, V]) -> dict[K, V]:
    """A dict that may be written, in place of the empty one of all."""
    return {} if some is _NONE else some


_NO_TAGS = Tags()
"""Of channels that take no messages: nothing is outstanding."""


class Channel(Receiver):
    """State of an open channel.  It is the holder of its consumers, and so takes their deliveries."""

    __slots__ = (
        "_contents", "_outgoing", "answers", "cancelled_consumers", "confirming", "consumers", "counts",
        "encoders", "filters", "followings", "getters", "getting", "informed", "last_queue", "looked", "number", "open",
        "prefetch", "published", "replies", "session", "shared", "subscriptions", "tags", "tx", "unannounced",
        "unconfirmed", "values",
    )  # fmt: skip

    def __init__(self, session: Session, number: int) -> None:
        self.session = session
        self.counts = MessageCounts()  # of its vhost once it is closed
        self.looked: Look | None = None  # at these
        self._outgoing = session.outgoing
        self.number = number
        self.open = True
        self.tags = _NO_TAGS
        self.consumers: dict[str, Consumer] = _NONE  # by consumer tag
        self.followings: dict[str, Reader] = _NONE  # those with a bookmark
        self.subscriptions: dict[str, Subscription] = _NONE  # by consumer tag: of several queues, or replaced
        self.replies: ReplyReader | None = None
        self.filters: dict[str, Filter] = _NONE  # by consumer tag: as they were asked for
        self.informed: dict[str, bool] = _NONE  # tags of consumers told more of each delivery; True: of leases, too
        self.encoders: dict[Consumer, DeliveryEncoder] = _NONE
        self.values: dict[Consumer, Values] = _NONE  # readers of streams that do not ask for everything
        self._contents: Contents | None = None  # of all encoders
        self.getters: dict[object, Consumer] = _NONE  # by queue: the passive consumer of basic.get
        self.cancelled_consumers: Sequence[Consumer] = ()  # cancelled by the client, still holding leases
        self.last_queue = ""  # what an empty queue name means
        self.prefetch = 0  # of consumers started from now on; 0: no limit
        self.shared: Credit | None = None  # qos global
        self.tx: Open | None = None  # after tx.select
        self.confirming = False
        self.published = 0  # sequence number of the last publish
        self.unconfirmed = 0
        self.answers = Answers(session, number)
        self.getting: dict[Consumer, deque[Answer]] = _NONE  # basic.gets whose message is on its way
        self.unannounced: dict[Consumer, list[tuple[Delivery, Piece]]] = _NONE  # consume-ok waits: what came before it

    @property
    def asker(self) -> Asker:
        return self.session

    @property
    def user(self) -> str:
        return self.session.user

    @property
    def connection(self) -> str:
        return self.session.name

    def attend(self) -> None:
        """It takes messages from now on; one that does not, as most that publish, keeps no room for what they need."""
        if self.tags is not _NO_TAGS:
            return
        self.tags = Tags()
        self.consumers, self.followings, self.subscriptions, self.filters = {}, {}, {}, {}
        self.encoders, self.getters, self.getting = {}, {}, {}

    def queue_name(self, name: str) -> str:
        """The named queue, or the last one declared on the channel when the name is empty.  Raises NotFound."""
        if name:
            return name
        if not self.last_queue:
            raise NotFound("no previously declared queue")
        return self.last_queue

    def queue(self, name: str) -> Queue:
        """The queue of that name, in the same sense.  Raises NotFound, ResourceLocked."""
        return self.session.core.queue(self.session.vhost, self.queue_name(name), by=self.session)

    def has_consumer(self, tag: str) -> bool:
        """Whether a consumer of any kind has this tag."""
        own = self.replies is not None and self.replies.tag == tag
        return own or any(tag in some for some in (self.consumers, self.followings, self.subscriptions))

    def encoder(self, tag: str) -> DeliveryEncoder:
        """One for a consumer of the channel."""
        if self._contents is None:
            self._contents = Contents(self.number, self.session.machine.frame_max)
        return DeliveryEncoder(self.number, tag, self.session.machine.frame_max, self._contents)

    def announce(self, consumer: Consumer) -> None:
        """The client knows the consumer's tag now: what was granted meanwhile may follow."""
        for effect, piece in self.unannounced.pop(consumer, ()):
            self.session.engine.gates.deliver_again(effect, piece.chunk, piece)

    def answer(self, asked: Any, method: methods.Method, *, durable: bool = False, needs: int = 0) -> None:
        """`reply` to a method that has `nowait`, where the client waits."""
        if not asked.nowait:
            self.reply(method, durable=durable, needs=needs)

    def reply(
        self, method: methods.Method, *, durable: bool = False, needs: int = 0, then: Callable[[], None] | None = None
    ) -> None:
        """Answer a method; when it promises something durable, after the sync.  Replies keep their order.

        needs: the LSN of an older record that the answer rests on.  then: run when the answer is on its way.
        Raises LogBroken when the sync will never come.
        """
        session, answers = self.session, self.answers
        last = session.core.last_lsn
        lsn = max(needs, last if last > session.began_after else 0) if durable else 0
        waits = lsn > session.engine.log.durable or (durable and session.engine.publishes(session.began_after))
        if waits and session.engine.broken is not None:
            raise LogBroken(f"{session.engine.broken}; whether this will last is unknown")
        answer = answers.add(method, then)
        answer.promise = waits
        if waits:
            session.engine.when_answerable(session.began_after, lsn, partial(answers.ready, answer))
        else:
            answers.ready(answer)

    def notify_cancel(self, tag: str) -> None:
        """basic.cancel to a client that announced that it understands one."""
        if self.open and "consumer_cancel_notify" in self.session.machine.client_capabilities:
            self.answers.tell(partial(self.session.send, self.number, methods.BasicCancel(tag, True)))

    @property
    def gate(self) -> object:
        """Cold reads hold back the whole connection, so that the order within it is kept."""
        return self.session

    @property
    def full(self) -> bool:
        """Whether the connection holds as much for its peer as it may."""
        return self.session.outgoing.full

    def deliver(self, effect: Delivery, piece: Piece) -> None:
        """Send neighbouring rows, or keep them for the basic.get that asked for them."""
        if not self.open:
            return
        encoder = self.encoders.get(effect.consumer)
        if encoder is None and self.subscriptions:
            encoder = self._joined(effect.consumer)
        if encoder is None:
            if effect.consumer in self.getting:
                self._answer_get(effect, piece)
            return  # else its queue is gone
        if effect.consumer in self.unannounced:
            self.unannounced[effect.consumer].append((effect, piece))
            return
        if self.values and effect.consumer in self.values:
            piece = self._sieved(effect.consumer, piece)
            if not len(piece.chunk):
                return
        properties = piece.properties
        if self.informed or effect.attempt > 1:
            properties = self._told(effect, piece)
        if too_large(properties, self.session.machine.frame_max) is not None:
            self._not_sendable(effect, piece, properties)
            return
        if effect.attempt > 1:
            self.tags.supersede(effect.consumer, piece.chunk)
        first = self.tags.give(effect.consumer, piece.chunk, not effect.consumer.no_ack)
        assert piece.bodies is not None
        frames = encoder.encode(first, effect.redelivered, piece.topics, properties, piece.bodies)
        self.session.outgoing.deliver(self.number, frames, piece.size)
        self.counts.deliver(len(piece.chunk), no_ack=effect.consumer.no_ack, again=effect.redelivered)

    def deliver_one(self, effect: Delivery, topic: Topic, properties: bytes, body: bytes) -> None:
        """Send one row, as `deliver` would."""
        consumer = effect.consumer
        encoder = self.encoders.get(consumer)
        if (
            encoder is None or effect.attempt > 1 or self.unannounced or self.values or self.informed or not self.open
            or len(properties) > encoder.properties_most
        ):  # fmt: skip
            super().deliver_one(effect, topic, properties, body)
            return
        no_ack, again, counts = consumer.no_ack, effect.redelivered, self.counts
        tag = self.tags.give(consumer, effect.chunk, not no_ack)
        self._outgoing.deliver_one(self.number, encoder, tag, again, topic, properties, body)
        if no_ack:
            counts.delivered_consume_auto_ack += 1
        else:
            counts.delivered_consume_manual_ack += 1
        if again:
            counts.redelivered += 1

    def _not_sendable(self, effect: Delivery, piece: Piece, properties: bytes | list[bytes]) -> None:
        """Headers that no frame of the connection carries: their deliveries have failed, and the channel ends.

        The other rows are sent.  What becomes of these says `unsendable`.
        """
        frame_max = self.session.machine.frame_max
        fits = [too_large(value_at(properties, row), frame_max) is None for row in range(len(piece.chunk))]
        if any(fits):
            self.deliver(effect, piece.rows([row for row, one in enumerate(fits) if one]))
        rows = [row for row, one in enumerate(fits) if not one]
        where = f"message {piece.chunk[rows[0]]} of queue '{effect.queue.name}' in vhost '{effect.queue.vhost}'"
        error = header_too_large(where, len(value_at(properties, rows[0])), frame_max)
        chunk = as_chunk([piece.chunk[row] for row in rows])
        self.session.engine.call_soon(partial(self._end_for, error, effect, chunk))

    def _end_for(self, error: ProtocolError, effect: Delivery, chunk: Chunk) -> None:
        if self.open:
            if not effect.consumer.no_ack:
                self.silence()  # nothing of it is granted to this channel again
                self.session.settling.settle([(effect.consumer, chunk)], unsendable(effect))
            self.session.fail_channel(self.number, error, methods.BasicDeliver)
            self.session.engine.arm()

    def _joined(self, consumer: Consumer) -> DeliveryEncoder | None:
        """The encoder of a consumer that joined a queue after its subscription began; None: it is over."""
        wish = self.subscriptions.get(consumer.tag)
        if wish is None or consumer not in wish.all():
            return None
        encoder = self.encoders[consumer] = self.encoder(consumer.tag)
        return encoder

    def _sieved(self, consumer: Consumer, piece: Piece) -> Piece:
        """What a reader of a stream asks for by values; the rest it has read when this turn is over."""
        wants = self.values[consumer].wants
        some, bodies = piece.properties, piece.bodies
        assert bodies is not None
        if isinstance(some, bytes):
            keep = list(range(len(bodies))) if wants(some) else []
        else:
            keep = [row for row, header in enumerate(some) if wants(header)]
        if len(keep) == len(bodies):
            return piece
        kept = set(keep)
        passed = as_chunk([lsn for row, lsn in enumerate(piece.chunk) if row not in kept])
        self.session.engine.call_soon(partial(self._passed_over, consumer, passed))
        return piece.rows(keep)

    def _passed_over(self, consumer: Consumer, chunk: Chunk) -> None:
        """A reader did not ask for these: they fill its credit no longer."""
        if self.open and not consumer.closed:
            self.session.settling.settle([(consumer, chunk)], Verb.ACK)
            self.session.engine.arm()

    def _told(self, effect: Delivery, piece: Piece) -> bytes | list[bytes]:
        """The headers of some rows, with what `x-info` asks for, and what the type of the queue tells of deliveries."""
        some, attempt = piece.properties, effect.attempt
        informs, kind = self.informed.get(effect.consumer.tag, False), effect.queue.settings.type
        if not (informs or kind.offsets or (attempt > 1 and kind.counts)):
            return some
        origin, until = self.session.engine.log.origin, effect.until if informs else 0
        reigns = self.session.core.terms
        fence = fence_of(reigns[-1].term, attempt) if informs and reigns else None
        return [
            informed(
                value_at(some, row),
                bookmark=format_bookmark(origin, lsn) if informs else None,
                attempt=attempt,
                until=until,
                offset=lsn if kind.offsets else None,
                fence=fence,
            )
            for row, lsn in enumerate(piece.chunk)
        ]

    def gets(self, getter: Consumer, answer: Answer) -> None:
        """A message for a basic.get is on its way."""
        self.getting.setdefault(getter, deque()).append(answer)

    def got(self, getter: Consumer, answer: Answer) -> None:
        """It has come, or will not; of a getter for which nothing is on its way nothing is kept."""
        waiting = self.getting[getter]
        waiting.remove(answer)
        if not waiting:
            del self.getting[getter]

    def _answer_get(self, effect: Delivery, piece: Piece) -> None:
        """basic.get-ok for the row that was asked for."""
        outgoing = self.session.outgoing
        properties = self._told(effect, piece) if effect.attempt > 1 else piece.properties
        self.got(effect.consumer, answer := self.getting[effect.consumer][0])
        answer.method, answer.lasts = None, False
        if too_large(properties, self.session.machine.frame_max) is not None:
            self.answers.ready(answer)
            self._not_sendable(effect, piece, properties)
            return
        first = self.tags.give(effect.consumer, piece.chunk, not effect.consumer.no_ack)
        self.counts.fetch(1, no_ack=effect.consumer.no_ack, again=effect.redelivered)
        assert piece.bodies is not None
        frames = get_ok(
            self.number, first, effect.redelivered, piece.topic_of(0), answer.left, value_at(properties, 0),
            piece.bodies[0], self.session.machine.frame_max,
        )  # fmt: skip

        def write() -> None:
            outgoing.deliver(self.number, frames, 0)

        answer.then = write
        self.answers.ready(answer)

    def deliver_each(self, effect: Deliveries, piece: Piece) -> None:
        """Send each row to its consumer, as `deliver` would one after the other."""
        if not self.open:
            return
        consumers, bodies = effect.consumers, piece.bodies
        assert bodies is not None
        encoders = [encoder for encoder in map(self.encoders.get, consumers) if encoder is not None]
        if (
            len(encoders) < len(consumers) or self.unannounced or self.informed
            or too_large(piece.properties, self.session.machine.frame_max) is not None
        ):  # fmt: skip
            super().deliver_each(effect, piece)
            return
        first = self.tags.give_each(consumers, piece.chunk)
        frames = encode_each(encoders, first, piece.topics, piece.properties, bodies)
        self.session.outgoing.deliver(self.number, frames, piece.size)
        self.counts.deliver(len(bodies), no_ack=False, again=False)

    def cancelled(self, consumer: Consumer, why: PenstockError) -> None:
        """The queue went away or was stopped: tell a client that understands it, and forget the consumer.

        Its deliveries stay known: a client that settles them now is late, not wrong.
        """
        self.encoders.pop(consumer, None)
        self.values.pop(consumer, None)
        for queue, getter in list(self.getters.items()):
            if getter is consumer:
                del self.getters[queue]
        tag, wish = consumer.tag, self.subscriptions.get(consumer.tag)
        if wish is not None and wish.pattern is None:
            del self.subscriptions[tag]
        elif self.consumers.get(tag) is consumer:
            del self.consumers[tag]
        else:
            return
        self.filters.pop(tag, None)
        self.informed.pop(tag, None)
        self.notify_cancel(tag)

    def overdue(self, timeout: int) -> None:
        """A delivery was not settled within so many microseconds: the channel ends, and all it holds goes back."""
        if self.open:
            text = (
                f"delivery acknowledgement on channel {self.number} timed out. "
                f"Timeout value used: {timeout // 1000} ms. It can be configured, see x-consumer-timeout"
            )
            self.session.fail_channel(self.number, PreconditionFailed(text), methods.Method, lost=True)

    # -- all of its consumers

    def silence(self) -> None:
        """Its consumers get nothing more for now."""
        core = self.session.core
        for consumer in self.consumers.values():
            core.choke(consumer)
        for wish in self.subscriptions.values():
            core.hold(wish)

    def go_on_following(self) -> None:
        """There is room again for those with a bookmark."""
        for following in list(self.followings.values()):
            following.go_on()

    def let_go(self) -> None:
        """It is over, and its consumers have ended.  Of what leads back to it nothing stays, so that it is freed with
        whoever knows it.
        """
        for following in self.followings.values():
            following.close()
        if self.replies is not None:
            self.replies.close()
            self.replies = None
        for some in (
            self.subscriptions, self.followings, self.consumers, self.getters, self.encoders, self.values, self.getting,
            self.unannounced,
        ):  # fmt: skip
            some.clear()
        self.cancelled_consumers, self.tags, self.shared = (), _NO_TAGS, None
        if self._contents is not None:
            self._contents.forget()


def go_on(core: Core, now: Now, channels: Collection[Channel]) -> None:
    """The consumers of channels of one connection may get something again."""
    core.unchoke_all(now, [one for channel in channels for one in channel.consumers.values()])
    core.go_on(now, *(wish for channel in channels for wish in channel.subscriptions.values()))
