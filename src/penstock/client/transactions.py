"""Transactions of the client: settle these and publish those, all or nothing.

    with client.transaction() as transaction:
        transaction.publish("invoices", invoice)
        transaction.ack(message)

What is asked for is gathered here and sent with the commit, which the end of the block says; an exception in the block
sends nothing, and the messages are still held.  It is one step of the server: one group of its log.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from datetime import datetime
from typing import Any, Protocol, Self, TypeVar, cast

import orjson
import pyarrow as pa

from penstock.client import tracing
from penstock.client.arguments import arguments_checked
from penstock.client.arrays import array_of
from penstock.client.forks import OfThisProcess
from penstock.client.link import failure, said, understood
from penstock.client.messages import Message, Receipt
from penstock.client.outgoing import BATCH_BYTES, BATCH_ROWS, columns_of, is_mandatory, one_row
from penstock.client.urls import Address
from penstock.client.waiting import attended
from penstock.errors import InvalidArgument, PreconditionFailed, Unavailable
from penstock.units import Duration, wait_of
from penstock.wire.fields import nearest
from penstock.wire.flight.bookmarks import format_bookmark
from penstock.wire.flight.commands import PUBLISH
from penstock.wire.flight.received import Goal, check_sent
from penstock.wire.flight.tickets import command

T = TypeVar("T")


def check_options(given: Mapping[str, object]) -> None:
    """Refuse what is no option of a message that is published in one step with other things."""
    known = [name for name in Transaction.publish.__annotations__ if name not in ("topic", "body", "return")]
    for name in given:
        if name not in known:
            raise InvalidArgument(f"ack: publish: {name!r} is no option of a message{nearest(name, known)}")


class Opening(Protocol):
    """The client, as its transactions know it."""

    @property
    def vhost(self) -> str | None: ...

    @property
    def address(self) -> Address:
        """Where the server of this connection is."""
        ...

    @property
    def origin(self) -> int:
        """The number that begins every bookmark of its server."""
        ...

    def open_transaction(self, asked: bytes, schema: pa.Schema) -> tuple[Any, Any]:
        """Writer and reader of a commit."""
        ...

    def heard(self, call: Callable[[], T]) -> T:
        """What a call gives, made again where the server had no thread for it."""
        ...


class Once:
    """What is committed or rolled back, and once."""

    _over = False

    def _check(self) -> None:
        if self._over:
            raise PreconditionFailed("the transaction is over; begin another one")

    def _finish(self) -> None:
        self._check()
        self._over = True


class Block(Once, ABC):
    """The same with a block, whose end commits it; an exception in the block rolls it back."""

    @abstractmethod
    def commit(self) -> object:
        """Do all of it, or nothing."""

    def rollback(self) -> None:
        """Forget it: messages are held as before."""
        self._finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._over:
            if error is None:
                self.commit()
            else:
                self.rollback()


@arguments_checked
class Transaction(Block, OfThisProcess):
    """Made by `Client.transaction`.  Of one thread, and used once."""

    def __init__(self, client: Opening) -> None:
        self._client = client
        self._rows: list[tuple[Goal, dict[str, object]]] = []  # where each message goes, and its columns
        self._settles: list[tuple[Message, str, int | None, str | None]] = []
        self._places = set[tuple[int, int]]()  # of these: the batch, which they keep, and the row
        self.receipts: tuple[Receipt, ...] = ()
        """One for each message that was published, in order, once it is committed."""

    # -- what is to be done

    def publish(
        self,
        topic: str,
        body: object,
        *,
        exchange: str = "",
        headers: Mapping[str, object] | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        not_before: datetime | int | None = None,
        expiration: Duration | None = None,
        expires_at: datetime | int | None = None,
        content_type: str | None = None,
        message_id: str | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        mandatory: bool | None = None,
    ) -> None:
        """Publish a message with the commit, from which durations count.  Arguments as those of `Client.publish`."""
        self._check()
        columns = columns_of(
            body, headers, priority, delay, not_before, expiration, expires_at, content_type, message_id,
            correlation_id, reply_to,
        ) | {"topic": topic}  # fmt: skip
        one_row(columns)  # what is wrong is told here, not at the commit
        self._rows.append((Goal(exchange, mandatory=is_mandatory(mandatory, exchange)), columns))

    def ack(self, message: Message) -> None:
        """Done: it will not come again."""
        self._settle(message, "ack")

    def release(self, message: Message) -> None:
        """Back to its place at once, not counted as a failure."""
        self._settle(message, "release")

    def retry(self, message: Message, *, delay: Duration | None = None, error: str | None = None) -> None:
        """Back, counted as a failure: after the queue's back-off, or after `delay`."""
        self._settle(message, "retry", None if delay is None else wait_of(delay, "delay"), error)

    def reject(self, message: Message, reason: str | None = None) -> None:
        """Refused for good: a dead letter, which is part of the transaction."""
        self._settle(message, "reject", None, reason)

    cancel = retry
    expire = reject

    def _settle(self, message: Message, verb: str, delay: int | None = None, reason: str | None = None) -> None:
        self._check()
        holder = message.holder
        message.check_unsettled()
        if holder.client is not self._client:
            raise PreconditionFailed(f"{message!r} is held by a consumer of another client")
        batch, row = message.place
        if (place := (id(batch), row)) in self._places:
            raise PreconditionFailed(f"{message!r} is settled twice in one transaction")
        self._places.add(place)
        self._settles.append((message, verb, delay, reason))

    # -- how it ends

    def commit(self) -> tuple[Receipt, ...]:
        """Do all of it, and wait until it is durable.

        Errors, after which nothing of it is done and every message is still held as before: Fenced when a message is no
        longer held by its consumer, naming it; Unroutable for messages that nobody takes, naming them;
        PreconditionFailed and others for a message that would be refused.
        Unavailable and LogBroken leave open whether it was done.
        """
        self._finish()
        if not self._rows and not self._settles:
            return ()
        if tracing.active is None:
            return self._commit()
        with ExitStack() as stack:
            self._trace(tracing.active, stack)
            return self._commit()

    def _trace(self, tracer: tracing.Tracing, stack: ExitStack) -> None:
        """Begin a span for each verb and one for all publishes, whose messages carry it."""
        for verb in sorted({verb for _, verb, _, _ in self._settles}):
            some = [message for message, said, _, _ in self._settles if said == verb]
            queue = some[0].queue or some[0].holder.source
            stack.enter_context(tracer.settle(verb, queue, [one.headers for one in some]))
        places = {str(columns["topic"]) for _, columns in self._rows}
        if places:
            place = places.pop() if len(places) == 1 else "several topics"
            span = stack.enter_context(tracer.publish(self._client.address, place, len(self._rows)))
            for _, columns in self._rows:
                given = dict(cast("list[tuple[str, str]]", columns["headers"] or []))
                columns["headers"] = list({**span.carried, **given}.items()) or None

    def _commit(self) -> tuple[Receipt, ...]:
        told = self._client.heard(lambda: attended(self._sent))
        for message, verb, _, _ in self._settles:
            message.outcome = verb
        self.receipts = self._told(told)
        return self.receipts

    def _sent(self) -> dict[str, Any]:
        """What the server answers to the commit."""
        writer, reader = self._client.open_transaction(command("transact", vhost=self._client.vhost), PUBLISH)
        try:
            for goal, batch in self._batches():
                check_sent(batch, "transact")
                told = {"exchange": goal.exchange, **({"mandatory": True} if goal.mandatory else {})}
                writer.write_with_metadata(batch, orjson.dumps(told))
            settles = [
                [message.holder.tag, message.queue, message.lsn, message.attempt, verb, delay, reason]
                for message, verb, delay, reason in self._settles
            ]
            writer.write_metadata(orjson.dumps({"commit": {"rows": len(self._rows), "settles": settles}}))
            writer.done_writing()
            answer = reader.read()
            if answer is None:
                writer.close()  # raises what the server refused, if it did
                raise Unavailable("the server ended the transaction without an answer")
            return said(answer.to_pybytes())
        except pa.ArrowException as error:
            raise failure(writer, error) from None
        finally:
            with suppress(pa.ArrowException):  # it was told before
                writer.close()

    def _batches(self) -> list[tuple[Goal, pa.RecordBatch]]:
        """Neighbours that go alike together."""
        out: list[tuple[Goal, pa.RecordBatch]] = []
        start = size = 0
        rows = self._rows
        for at, (goal, columns) in enumerate(rows):
            if at > start and (goal != rows[start][0] or at - start >= BATCH_ROWS or size >= BATCH_BYTES):
                out.append((rows[start][0], _batch(rows[start:at])))
                start, size = at, 0
            size += len(cast("bytes", columns["body"]))
        if rows:
            out.append((rows[start][0], _batch(rows[start:])))
        return out

    @understood()
    def _told(self, told: Mapping[str, Any]) -> tuple[Receipt, ...]:
        lsns = told.get("lsns") or range(told["first"], told["first"] + len(self._rows))
        lost = dict.fromkeys(told["unroutable"], "unroutable") | dict.fromkeys(told.get("duplicates", ()), "duplicate")
        lost |= dict.fromkeys(told.get("replies", ()), "replied")
        return tuple(
            Receipt("stored", lsn, format_bookmark(self._client.origin, lsn))
            if lsn
            else Receipt(lost.get(row, "dropped"))
            for row, lsn in enumerate(lsns)
        )


def _batch(rows: list[tuple[Goal, dict[str, object]]]) -> pa.RecordBatch:
    arrays = [array_of([columns[field.name] for _, columns in rows], field.type) for field in PUBLISH]
    return pa.RecordBatch.from_arrays(arrays, schema=PUBLISH)
