"""Transactions of a broker in this process: settle these and publish those, all or nothing.

with broker.transaction() as transaction:
    transaction.publish("invoices", b"...")
    transaction.ack(message)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from penstock.core.commands.transactions import Ending
from penstock.core.commands.transactions import Transaction as Decided
from penstock.core.effects import Verb
from penstock.errors import Fenced, InvalidArgument, PreconditionFailed
from penstock.records.entries import Publishes, joined
from penstock.records.field_tables import FieldValue
from penstock.server.committing import Charge, Committing
from penstock.testing.instance import Instance
from penstock.testing.message import Message
from penstock.testing.publishing import Publishing, check_message
from penstock.testing.subscription import Subscription
from penstock.wire.flight.bookmarks import format_bookmark

if TYPE_CHECKING:
    from penstock.core.commands.transactions import Transacted

Make = Callable[[Instance], Publishes]


class Transaction:
    """Made by `Broker.transaction`.  An exception in its block forgets it; messages are held as before then."""

    def __init__(self, broker: Transactions) -> None:
        self._broker = broker
        self._makes: list[Make] = []
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
        check_message(body, priority, headers, None, None)
        self._makes.append(self._broker.outgoing(topic, body, priority, expiration, delay, headers))

    def ack(self, message: Message) -> None:
        """Done."""
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
        self.bookmarks = self._broker.commit(self._makes, self._ends)
        return self.bookmarks

    def rollback(self) -> None:
        """Forget it."""
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


class Transactions(Publishing):
    def transaction(self) -> Transaction:
        """Settle some messages and publish others, all or nothing."""
        return Transaction(self)

    def commit(self, makes: list[Make], ends: list[tuple[Message, Verb, float | None]]) -> tuple[str, ...]:

        def work(instance: Instance) -> tuple[str, ...]:
            engine = instance.engine
            batches = [make(instance) for make in makes]
            batch = None
            if batches:
                batch = joined(batches, sum(one.size for one in batches))
            charge = Charge(engine)
            committing = Committing(engine, Decided(batch, [_ending(instance, *end) for end in ends]), charge)
            try:
                done: Transacted | None = None
                while done is None:
                    done = committing.step(_nothing)
                    if done is None:
                        instance.run_turns()
            finally:
                charge.close()
            instance.make_durable()
            return _bookmarks(instance, len(batches), done)

        return self.command(work)


def _nothing() -> None:
    """Whoever waits looks again by itself."""


def _ending(instance: Instance, message: Message, verb: Verb, delay: float | None) -> Ending:
    holder = message.holder
    if not isinstance(holder, Subscription):
        raise InvalidArgument(f"{message!r} is not leased: there is nothing to settle")
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
