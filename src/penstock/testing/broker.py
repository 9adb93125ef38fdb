"""The broker of a test: one server in this process, whose disk can crash and whose time moves when told.

It owns names, units and the life from start to crash to restart.  Every rule is the server's own: see `instance` for
how turns run, `link` for what is asked of the server as a client asks, `broker_life` for real ports.  Publishing
is here, and administration: the rows of `operations`; what subscribes is in `subscriber` and `topic_records`.

with broker.transaction() as transaction:
    transaction.publish("invoices", b"...")
    transaction.ack(message)

Seconds, on the outside, are floats since the Unix epoch or lengths; LSNs are bookmarks, `<origin>|<lsn>|`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from penstock.client.arguments import arguments_checked, encoded
from penstock.client.transactions import Block
from penstock.core.commands.transactions import Ending
from penstock.core.commands.transactions import Transaction as Decided
from penstock.core.effects import Verb
from penstock.core.queue.explaining import Reason
from penstock.errors import Fenced, InvalidArgument, NotFound, PreconditionFailed
from penstock.operations import OPERATIONS
from penstock.operations.messages import VERBS, known
from penstock.operations.story import Event, Record
from penstock.operations.story import tell as tell_story
from penstock.records import properties as header_codec
from penstock.records.entries import Control, Publishes, joined, singly
from penstock.records.field_tables import FieldValue
from penstock.records.kinds import Kind
from penstock.records.one_or_each import value_at
from penstock.server.committing import Committing
from penstock.server.flight.publish import to_publishes
from penstock.server.people.access import Who
from penstock.server.transaction_memory import Charge
from penstock.testing.broker_life import VHOST, Running
from penstock.testing.inbox import Message
from penstock.testing.instance import Instance, TellingLog
from penstock.testing.link import Link
from penstock.testing.subscriber import Subscribing
from penstock.units import Duration, wait_of
from penstock.wire.fields import Fields, short
from penstock.wire.flight.bookmarks import format_bookmark
from penstock.wire.flight.codec import Upload

if TYPE_CHECKING:
    from penstock.core.commands.transactions import Transacted


NO_END = 253_370_764_800_000_000
"""When a message that must never expire expires: the year 9999, in microseconds."""


@arguments_checked
class Publishing(Running):
    def publish(
        self,
        topic: str,
        body: bytes | str,
        priority: int | None = None,
        expiration: Duration | None = None,
        delay: Duration | None = None,
        headers: Mapping[str, FieldValue] | None = None,
        publisher: str | None = None,
        sequence: int | None = None,
    ) -> str:
        """Store a message, durably; its bookmark, or empty text when nothing was stored.

        topic        `K`, or `E/K` where an exchange E exists
        expiration   seconds from now after which it ends undelivered; 0: never, whatever the queue's own says
        delay        seconds from now before which it is not delivered
        publisher, sequence    a number at or below the publisher's highest is a duplicate, and not stored
        Nothing is stored either when no queue and no declared topic wants the message.
        Raises Refused with a code and a reason, QueueBlocked where a server would have the publisher wait for room,
        LogBroken when the outcome is unknown.
        """
        message = self.outgoing(topic, body, priority, expiration, delay, headers)
        return self._publish(message, publisher, sequence)

    def delta_publish(
        self,
        topic: str,
        body: bytes | str,
        priority: int | None = None,
        expiration: Duration | None = None,
        delay: Duration | None = None,
        headers: Mapping[str, FieldValue] | None = None,
        publisher: str | None = None,
        sequence: int | None = None,
    ) -> str:
        """Publish fields that change: the message is the present record of its key with these merged in.

        Without such a record the fields are the message; a topic without a key takes them as they are.  Parameters and
        errors as of `publish`.
        """
        message = self.outgoing(topic, body, priority, expiration, delay, headers)
        return self._publish(message, publisher, sequence, delta=True)

    def _publish(
        self, message: Outgoing, publisher: str | None, sequence: int | None, *, delta: bool | None = None
    ) -> str:
        def work(instance: Instance) -> str:
            first = self.link.publish(*message(self.link), publisher=publisher, sequence=sequence, delta=delta)
            return format_bookmark(instance.log.origin, first) if first else ""

        return self.command(work)

    def outgoing(
        self,
        topic: str,
        body: bytes | str,
        priority: int | None,
        expiration: Duration | None,
        delay: Duration | None,
        headers: Mapping[str, FieldValue] | None,
    ) -> Outgoing:
        """One message, whose exchange is looked up when it is published; InvalidArgument for what is none."""
        given = cast("object", headers)
        if given is not None and not isinstance(given, Mapping):
            raise InvalidArgument(f"headers are {given!r}, not names with their values")
        data = encoded(body, "publish: body") if isinstance(body, str) else body
        most = self._settings.amqp.message_max
        if len(data) > most:
            raise InvalidArgument(f"publish: the body has {len(data)} bytes; at most {most} are taken")
        life = _micros("expiration", expiration)
        wait = _micros("delay", delay)
        header = header_codec.encode(
            header_codec.Properties(
                headers=dict(headers) if headers else None,
                delivery_mode=header_codec.PERSISTENT,
                priority=priority,
                expiration=str(life // 1000) if life else None,
            )
        )

        def made(link: Link) -> tuple[str, Upload]:
            exchange, key = link.parted(topic)
            short(key, "publish: the topic")
            return exchange, Upload(
                [data], header, [key], None, not_before=None, expires_at=[NO_END] if life == 0 else None,
                delay=[wait] if wait else None, expiration=[life] if life else None, size=len(header) + len(data),
            )  # fmt: skip

        return made

    def last_sequence(self, publisher: str) -> int:
        """Up to where all of a publisher is stored, or refused for good; 0 for one that nobody knows."""
        return self.command(lambda instance: instance.core.settled_of("/", publisher))

    def transaction(self) -> Transaction:
        """Settle some messages and publish others, all or nothing."""
        return Transaction(self)

    def commit(self, messages: list[Outgoing], ends: list[tuple[Message, Verb, int | None]]) -> tuple[str, ...]:

        def work(instance: Instance) -> tuple[str, ...]:
            engine = instance.engine
            made = [one(self.link) for one in messages]
            batches = [to_publishes(engine, "", upload, VHOST, exchange) for exchange, upload in made]
            batch = joined(batches, sum(one.size for one in batches)) if batches else None
            charge = Charge(engine.charges, "", "the transaction", lambda _: None)
            endings = [_ending(instance, *end) for end in ends]
            try:
                done = self.link.commit(Committing(engine, Decided(batch, endings), charge))
            finally:
                charge.close()
            return _bookmarks(instance, len(batches), done)

        return self.command(work)


def _micros(what: str, seconds: Duration | None) -> int | None:
    return None if seconds is None else wait_of(seconds, f"publish: {what}")


Outgoing = Callable[[Link], tuple[str, Upload]]
"""A message with the exchange it goes to."""


@arguments_checked
class Transaction(Block):
    """Made by `Broker.transaction`.  An exception in its block forgets it; messages are held as before then."""

    def __init__(self, broker: Publishing) -> None:
        self._broker = broker
        self._messages: list[Outgoing] = []
        self._ends: list[tuple[Message, Verb, int | None]] = []
        self._ended = set[int]()  # of these messages, by `id`
        self.bookmarks: tuple[str, ...] = ()
        """Of each message that was published, in order, once it is committed; empty text for what nobody wanted."""

    def publish(
        self,
        topic: str,
        body: bytes | str,
        priority: int | None = None,
        expiration: Duration | None = None,
        delay: Duration | None = None,
        headers: Mapping[str, FieldValue] | None = None,
    ) -> None:
        """Publish a message with the commit; the arguments are those of `Broker.publish`."""
        self._check()
        self._messages.append(self._broker.outgoing(topic, body, priority, expiration, delay, headers))

    def ack(self, message: Message) -> None:
        """The message is done, with the commit."""
        self._end(message, Verb.ACK)

    def release(self, message: Message) -> None:
        """Back to its place at once, not counted as a failure."""
        self._end(message, Verb.RELEASE)

    def cancel(self, message: Message, delay: Duration | None = None) -> None:
        """Back, as a failure; delay: seconds that it stays away, instead of the queue's back-off."""
        self._end(message, Verb.CANCEL, None if delay is None else wait_of(delay, "delay"))

    def expire(self, message: Message) -> None:
        """Refused for good: a dead letter, which is part of the transaction."""
        self._end(message, Verb.EXPIRE)

    retry = cancel
    reject = expire

    def _end(self, message: Message, verb: Verb, delay: int | None = None) -> None:
        self._check()
        if id(message) in self._ended:
            raise PreconditionFailed(f"{message!r} is settled twice in one transaction")
        self._ended.add(id(message))
        self._ends.append((message, verb, delay))

    def commit(self) -> tuple[str, ...]:
        """Do all of it, durably; the bookmarks of what was published.

        Raises Fenced for a message that its subscription no longer holds, and Refused for one that would be refused;
        nothing is done then.
        """
        self._finish()
        self.bookmarks = self._broker.commit(self._messages, self._ends)
        return self.bookmarks


def _ending(instance: Instance, message: Message, verb: Verb, delay: int | None) -> Ending:
    holder = message.holder
    queue = next((one for one in instance.core.queues() if one.id == message.queue_id), None)
    if queue is None:
        raise Fenced(f"nothing of the transaction is done: the queue of {message!r} is gone")
    chunk = range(message.lsn, message.lsn + 1)
    consumers = holder.consumers(message)
    by = next((one for one in consumers if len(one.leases.holding(chunk, attempt=message.attempt))), None)
    return Ending(
        queue, [chunk], verb, by=by, client=holder.name, delay=delay,
        attempt=message.attempt,
    )  # fmt: skip


def _bookmarks(instance: Instance, count: int, done: Transacted) -> tuple[str, ...]:
    lsns = () if done.published is None else done.published.lsns_by_row(count)
    return tuple(format_bookmark(instance.log.origin, lsn) if lsn else "" for lsn in lsns)


__all__ = ["NO_END", "VHOST", "Broker", "Event"]

TEST = Who("test")
"""Who does it all, for records that name him."""


@arguments_checked
class Broker(Publishing, Subscribing):
    """A running broker; `with` closes it.  Safe to use from one thread at a time."""

    def act(self, name: str, **fields: object) -> Mapping[str, Any]:
        """What an operation of the core answers; fields that are None are left out."""
        operation = OPERATIONS[name]
        given = Fields(name, {key: value for key, value in fields.items() if value is not None})
        arguments = given.read(operation.fields)

        def work(instance: Instance) -> Mapping[str, Any]:
            aside = self.link.aside()
            do = partial(operation.run, aside, TEST, **arguments)
            return cast("Mapping[str, Any]", aside.decide(do) if operation.manner == "decide" else do())

        return self.command(work)

    def alter(self, queue: str, **settings: object) -> int:
        """Change settings of a queue: durations as text, seconds or timedelta; None for a key's default.

        How many messages left it, because a `recovery_point` that is given here is later than they are.
        """
        return cast("int", self.act("alter", queue=queue, settings=settings)["left"])

    def stats(self, queue: str) -> dict[str, object]:
        """Figures of a queue: ready, leased, delayed, consumers ...; counts are since the last start."""
        return self.command(
            lambda instance: instance.core.stats(instance.core.queue(VHOST, queue), instance.engine.now())
        )

    def story(self, bookmark: str) -> list[Event]:
        """Every event of one message in the log, oldest first; NotFound when the log has no such message."""

        def work(instance: Instance) -> list[Event]:
            log, knows, lsn = instance.log, known(instance.core), self._lsn(instance, bookmark)
            told = tell_story(log, lsn, knows.names, knows.routes, more=_gathered(log), anew=knows.anew)
            if not told.events:
                raise NotFound(f"the log has no message {format_bookmark(log.origin, lsn)!r}")
            return told.events

        return self.command(work)

    # -- settling by name

    def ack(self, queue: str, bookmarks: Sequence[str] | str, by: str = "", option: str | None = None) -> int:
        """Settle messages wherever they are, as the queue's `leasing` allows to the client `by`; how many it affected.

        bookmarks   a sequence, or text with commas between them
        option      "cancel" or "expire" instead of an ack
        What is not there and may still come is remembered.  Durable when this returns.
        Raises InvalidArgument for a bookmark that was not given out, QueueFull when too much is remembered.
        """
        marks = bookmarks.split(",") if isinstance(bookmarks, str) else list(bookmarks)
        return self._settled("ack", queue=queue, bookmarks=marks, by=by, option=option)

    def ack_filter(self, queue: str, filter: str, by: str = "", option: str | None = None) -> int:
        """Settle whatever matches of what is in the queue, whoever holds it, as `leasing` allows; how many it affected.

        option    "cancel" or "expire" instead of an ack
        Durable when this returns.
        """
        return self._settled("ack_filter", queue=queue, filter=filter, by=by, option=option)

    def _settled(self, act: str, *, option: str | None, **fields: object) -> int:
        if option not in (None, *VERBS):
            raise InvalidArgument(f"option is {option!r}: there is 'cancel' and 'expire'")
        return cast("int", self.act(act, option=option, **fields)["affected"])

    # -- what waits

    def pause(self, queue: str, seconds: Duration | None = None) -> None:
        """Deliver nothing from a queue for so long; None: until `resume`.  Durable when this returns."""
        wait = None if seconds is None else wait_of(seconds, "seconds", 1)
        self.act("pause", queue=queue, wait=wait)

    def resume(self, queue: str) -> bool:
        """Deliver again; whether the queue was paused."""
        return bool(self.act("resume", queue=queue)["was_paused"])

    def cancel_message(self, bookmark: str, queue: str | None = None) -> list[str]:
        """Withdraw a message wherever it waits; the queues that it was taken from.  PreconditionFailed for none."""
        return list(self.act("cancel", bookmark=bookmark, queue=queue)["queues"])

    def reschedule_message(self, bookmark: str, delay: Duration, queue: str | None = None) -> list[str]:
        """Let a message wait until `delay` seconds from now; the queues where it does.  PreconditionFailed for none."""
        wait = wait_of(delay, "delay")
        return list(self.act("reschedule", bookmark=bookmark, queue=queue, wait=wait)["queues"])

    def explain(self, queue: str, bookmark: str | None = None) -> list[Reason]:
        """Why a queue, or one message of it, is not delivered now: each reason with a code and a sentence."""
        self.command(lambda instance: instance.core.queue(VHOST, queue))  # NotFound, if it is not there
        try:
            told = self.act("explain", queue=queue, bookmark=bookmark)
        except NotFound as error:
            return [Reason("unknown", str(error))]
        reasons = told["reasons"] if bookmark is None else told["queues"][0]["reasons"]
        return [Reason(**one) for one in reasons]

    def redrive(
        self, queue: str, filter: str | None = None, count: int | None = None, dry_run: bool = False
    ) -> dict[str, object]:
        """Dead letters back to where they died first; `moved`, `matched`, `targets` and `strays` as the SDK tells."""
        return self._moved("redrive", queue, None, filter, count, dry_run)

    def move(
        self, queue: str, to: str, filter: str | None = None, count: int | None = None, dry_run: bool = False
    ) -> dict[str, object]:
        """What waits in a queue to the end of another."""
        return self._moved("move", queue, to, filter, count, dry_run)

    def _moved(
        self, act: str, queue: str, to: str | None, filter: str | None, count: int | None, dry: bool
    ) -> dict[str, object]:
        self.command(lambda instance: instance.make_durable())  # what is not on the disk is not read
        told = dict(self.act(act, queue=queue, to=to, filter=filter, count=count, dry=dry))
        del told["next"]
        return told


# -- what a story has of what is not durable yet


def _gathered(log: TellingLog) -> Iterator[Record]:
    """Messages never wait without an answer, so these are decisions."""
    for part in singly(log.gathered()):
        if isinstance(part, Control):
            yield Record(
                part.lsn, part.kind, part.name, part.time, part.route, part.header, part.body, 0, 0, 0, part.via
            )
        else:
            yield from _messages(part)


def _messages(batch: Publishes) -> Iterator[Record]:
    for row in range(len(batch)):
        topic = batch.topic_of(row)
        yield Record(
            batch.first + row,
            Kind.PUBLISH,
            topic.name,
            batch.time,
            value_at(batch.routes, row),
            b"",
            b"",
            batch.not_before[row] if batch.not_before is not None else 0,
            batch.expires_at[row] if batch.expires_at is not None else 0,
            batch.priority[row] if batch.priority is not None else 0,
            topic.via,
        )
