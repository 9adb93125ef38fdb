"""What a publisher does with a broker in this process: single messages, and transactions, all or nothing.

with broker.transaction() as transaction:
    transaction.publish("invoices", b"...")
    transaction.ack(message)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from penstock.client.texts import texts_checked
from penstock.core.commands.transactions import Ending
from penstock.core.commands.transactions import Transaction as Decided
from penstock.core.effects import Verb
from penstock.errors import Fenced, InvalidArgument, PreconditionFailed
from penstock.records import properties as header_codec
from penstock.records.entries import joined
from penstock.records.field_tables import FieldValue
from penstock.server.committing import Committing
from penstock.server.flight.publish import to_publishes
from penstock.server.transaction_memory import Charge
from penstock.testing.broker_life import VHOST, Running
from penstock.testing.inbox import Message
from penstock.testing.instance import Instance
from penstock.testing.link import Link
from penstock.units import span
from penstock.wire.flight.bookmarks import format_bookmark
from penstock.wire.flight.codec import LONGEST, Upload

if TYPE_CHECKING:
    from penstock.core.commands.transactions import Transacted


NO_END = 253_370_764_800_000_000
"""When a message that must never expire expires: the year 9999, in microseconds."""


@texts_checked
class Publishing(Running):
    def publish(
        self,
        topic: str,
        body: bytes | str,
        priority: int | None = None,
        expiration: float | None = None,
        delay: float | None = None,
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
        expiration: float | None = None,
        delay: float | None = None,
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
        expiration: float | None,
        delay: float | None,
        headers: Mapping[str, FieldValue] | None,
    ) -> Outgoing:
        """One message, whose exchange is looked up when it is published; InvalidArgument for what is none."""
        check_message(body, priority, headers)
        data = body.encode() if isinstance(body, str) else body
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
            return exchange, Upload(
                [data], header, [key], None, not_before=None, expires_at=[NO_END] if life == 0 else None,
                delay=[wait] if wait else None, expiration=[life] if life else None, size=len(header) + len(data),
            )  # fmt: skip

        return made

    def last_sequence(self, publisher: str) -> int:
        """The highest sequence that is stored of a publisher; 0 for one that nobody knows."""
        return self.command(lambda instance: instance.core.publishers.get(publisher, 0))

    def transaction(self) -> Transaction:
        """Settle some messages and publish others, all or nothing."""
        return Transaction(self)

    def commit(self, messages: list[Outgoing], ends: list[tuple[Message, Verb, float | None]]) -> tuple[str, ...]:

        def work(instance: Instance) -> tuple[str, ...]:
            engine = instance.engine
            made = [one(self.link) for one in messages]
            batches = [to_publishes(engine, upload, VHOST, exchange) for exchange, upload in made]
            batch = joined(batches, sum(one.size for one in batches)) if batches else None
            charge = Charge(engine.charges, "", "the transaction", lambda _: None)
            endings = [_ending(instance, *end) for end in ends]
            try:
                done = self.link.commit(Committing(engine, Decided(batch, endings), charge))
            finally:
                charge.close()
            return _bookmarks(instance, len(batches), done)

        return self.command(work)


def _micros(what: str, seconds: float | None) -> int | None:
    micros = None if seconds is None else span(seconds, what)
    if micros is not None and micros > LONGEST:
        raise InvalidArgument(f"publish: {what} is {seconds} s, which is not between 0 and 1,000 years")
    return micros


def check_message(body: object, priority: object, headers: object) -> None:
    """InvalidArgument for what no door would let through."""
    whole = priority is None or (isinstance(priority, int) and not isinstance(priority, bool))
    for what, value, good, wanted in (
        ("body is", body, isinstance(body, bytes | str), "bytes or text"),
        ("priority is", priority, whole, "a whole number in 0..255"),
        ("headers are", headers, headers is None or isinstance(headers, Mapping), "names with their values"),
    ):
        if not good:
            raise InvalidArgument(f"{what} {value!r}, not {wanted}")


Outgoing = Callable[[Link], tuple[str, Upload]]
"""A message with the exchange it goes to."""


class Transaction:
    """Made by `Broker.transaction`.  An exception in its block forgets it; messages are held as before then."""

    def __init__(self, broker: Publishing) -> None:
        self._broker = broker
        self._messages: list[Outgoing] = []
        self._ends: list[tuple[Message, Verb, float | None]] = []
        self._over = False
        self.bookmarks: tuple[str, ...] = ()
        """Of each message that was published, in order, once it is committed; empty text for what nobody wanted."""

    def publish(
        self,
        topic: str,
        body: bytes | str,
        priority: int | None = None,
        expiration: float | None = None,
        delay: float | None = None,
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

    def cancel(self, message: Message, delay: float | None = None) -> None:
        """Back, as a failure; delay: seconds that it stays away, instead of the queue's back-off."""
        self._end(message, Verb.CANCEL, delay)

    def expire(self, message: Message) -> None:
        """Refused for good: a dead letter, which is part of the transaction."""
        self._end(message, Verb.EXPIRE)

    retry = cancel
    reject = expire

    def _end(self, message: Message, verb: Verb, delay: float | None = None) -> None:
        self._check()
        if any(one is message for one, *_ in self._ends):
            raise PreconditionFailed(f"{message!r} is settled twice in one transaction")
        self._ends.append((message, verb, delay))

    def _check(self) -> None:
        if self._over:
            raise PreconditionFailed("the transaction is over; begin another one")

    def commit(self) -> tuple[str, ...]:
        """Do all of it, durably; the bookmarks of what was published.

        Raises Fenced for a message that its subscription no longer holds, and Refused for one that would be refused;
        nothing is done then.
        """
        self._check()
        self._over = True
        self.bookmarks = self._broker.commit(self._messages, self._ends)
        return self.bookmarks

    def rollback(self) -> None:
        """Forget all of it: messages are held as before."""
        self._check()
        self._over = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._over:
            if error is None:
                self.commit()
            else:
                self.rollback()


def _ending(instance: Instance, message: Message, verb: Verb, delay: float | None) -> Ending:
    holder = message.holder
    queue = next((one for one in instance.core.queues() if one.id == message.queue_id), None)
    if queue is None:
        raise Fenced(f"nothing of the transaction is done: the queue of {message!r} is gone")
    chunk = range(message.lsn, message.lsn + 1)
    consumers = holder.consumers(message)
    by = next((one for one in consumers if len(one.leases.holding(chunk, attempt=message.attempt))), None)
    return Ending(
        queue, [chunk], verb, by=by, client=holder.name, delay=None if delay is None else round(delay * 1e6),
        attempt=message.attempt,
    )  # fmt: skip


def _bookmarks(instance: Instance, count: int, done: Transacted) -> tuple[str, ...]:
    published = done.published
    if published is None:
        return ("",) * count
    out = list[str]()
    lsn, unwanted = published.first, set(published.unroutable)
    for row in range(count):
        out.append("" if row in unwanted else format_bookmark(instance.log.origin, lsn))
        lsn += row not in unwanted
    return tuple(out)
