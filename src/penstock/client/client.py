"""The synchronous client: one connection, and every call of the Python surface on it.

    with penstock.connect("penstock://localhost") as client:
        client.publish("orders", {"id": 1})

Thread-safe but for consumers, each of which belongs to one thread.  Every error is a `penstock.PenstockError`.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar, cast

import pyarrow as pa

from penstock.client import tracing
from penstock.client.arguments import arguments_checked
from penstock.client.bodies import plain, reader_of
from penstock.client.consumer import Consumer
from penstock.client.kept_uploads import Kept
from penstock.client.link import PATIENCE, Link, patience
from penstock.client.messages import UNTYPED, B, Receipt, Refusal, TableReceipt
from penstock.client.outgoing import Upload, batches_of, carrying_all, columns_of, is_mandatory, one_row, unroutable
from penstock.client.reading import Querying
from penstock.client.results import RESULTS, Task, submitted
from penstock.client.transactions import Transaction
from penstock.client.urls import parse_urls, reason_of
from penstock.errors import InvalidArgument, NotLeading, PenstockError, Unavailable
from penstock.units import Duration, seconds_of
from penstock.wire.flight.bookmarks import format_bookmark
from penstock.wire.flight.failures import AWAY, error_from

T = TypeVar("T")

CONNECT_TIMEOUT: Duration = "10s"
HEARTBEAT_LEAST_S = 1.0
"""Seconds that a consumer may be silent at least, as the server has it."""
BACKLOG = 32
"""Messages of a consumer that are unsettled at once, unless it says another number."""


@arguments_checked
def connect(
    url: str = "penstock://localhost",
    *,
    user: str | None = None,
    password: str | None = None,
    timeout: Duration | None = CONNECT_TIMEOUT,
    ca: str | None = None,
    cert: str | None = None,
    key: str | None = None,
    verify: bool | None = None,
) -> Client:
    """Connect to a server; `guest`/`guest` unless the address or the arguments say otherwise.

    url        of a cluster of servers all of them, `penstock://a,b,c`: the client is connected to the one that serves,
               and goes on with another one after a takeover
    ca         with `penstocks://`: file of the CA certificates by which the server's is checked; the system's if absent
    cert, key  files of this client's certificate and its key, where the server asks for one
    verify     False: whoever answers is believed to be the server, after a warning
    timeout    how long connecting and each single command may take; None waits for ever
    Errors: Unavailable when no server answers, AccessRefused for a wrong user, InvalidArgument for the address.
    """
    seconds = None if timeout is None else seconds_of(timeout, "timeout")
    addresses = parse_urls(url, user, password, ca=ca, cert=cert, key=key, verify=verify)
    address = addresses[0]
    link = Link(address, seconds, *addresses[1:])
    client = Client(link)
    try:
        link.going_on(partial(link.act, "health", {}), again=True, seconds=seconds)
    except Unavailable as error:
        client.close()
        if len(addresses) > 1 or isinstance(error, NotLeading):
            raise
        why = reason_of(str(error), address.host, tls=address.tls) or _reason(str(error), seconds)
        raise Unavailable(f"no Penstock server answers at {address}: {why}") from None
    except BaseException:
        client.close()
        raise
    return client


def _reason(text: str, seconds: float | None) -> str:
    """What gRPC found in the end, without the words that it wraps around it."""
    if "Deadline Exceeded" in text and seconds is not None:
        return f"nothing was heard from there for {seconds:g} s"
    last = text.removeprefix(AWAY).rpartition("with message: ")[2].rpartition("last error: ")[2]
    return re.sub(r"^[A-Z]+: ", "", last)


def _most(backlog: int, prefetch: int | None) -> int:
    """What a consumer asks for under either of two names."""
    if prefetch is not None and backlog not in (BACKLOG, prefetch):
        raise InvalidArgument(f"backlog is {backlog} and prefetch {prefetch}: they are two names for one number")
    return backlog if prefetch is None else prefetch


Rows: TypeAlias = "Callable[[], tuple[pa.Schema, Iterator[pa.RecordBatch]]]"
"""Gives what is sent, once more each time it is called."""


class _Wish(NamedTuple):
    """What an upload asks for beside its rows."""

    topic: str | None
    exchange: str
    publisher: str | None
    sequence: int | None
    delta: bool
    mandatory: bool


@arguments_checked
class Client(Querying):
    """An open connection.  Made by `connect`."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self._consumers = weakref.WeakSet[Consumer[Any]]()
        self._kept = Kept()
        self._origin: int | None = None

    # -- publishing

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
        publisher: str | None = None,
        sequence: int | None = None,
        delta: bool = False,
        mandatory: bool | None = None,
    ) -> Receipt:
        """Publish one message and wait until it is durable.

        body         bytes and text as they are; anything else becomes JSON
        delay, not_before        how long from when the server takes it, or when (datetime, or microseconds), it may be
                                 delivered first
        expiration, expires_at   the same for when it ends undelivered
        publisher, sequence      a name and a rising number: a number that was stored before is a duplicate
        delta        the body holds the fields of a record that change: the message is the record with them merged in
        mandatory    whether it is an error that no queue and no declared topic takes it, so that it is not stored; by
                     default over the default exchange alone
        Errors: Unroutable; what else the server refused it for (QueueFull, NotFound for the exchange, DiskFull ...).
        """
        batch = one_row(
            columns_of(
                body, headers, priority, delay, not_before, expiration, expires_at, content_type, message_id,
                correlation_id, reply_to,
            )
        )  # fmt: skip
        wish = _Wish(topic, exchange, publisher, sequence, delta, is_mandatory(mandatory, exchange))
        total, refused = self._put(wish, lambda: (batch.schema, iter([batch])), count=1)
        if refused:
            raise error_from({"code": refused[0].code, "message": refused[0].message, "reason": refused[0].reason})
        if total.stored:
            return Receipt("stored", total.first, format_bookmark(self.origin, total.first))
        ends = {"duplicate": total.duplicates, "unroutable": total.unroutable, "replied": total.replies}
        return Receipt(next((outcome for outcome, rows in ends.items() if rows), "dropped"))

    def delta_publish(
        self,
        topic: str,
        body: object,
        *,
        exchange: str = "",
        headers: Mapping[str, object] | None = None,
        expiration: Duration | None = None,
        publisher: str | None = None,
        sequence: int | None = None,
        mandatory: bool | None = None,
    ) -> Receipt:
        """Publish the fields of a record that change, with its key; `publish` with `delta`."""
        return self.publish(
            topic, body, exchange=exchange, headers=headers, expiration=expiration, publisher=publisher,
            sequence=sequence, delta=True, mandatory=mandatory,
        )  # fmt: skip

    def publish_table(
        self,
        topic: str | None,
        table: object,
        *,
        exchange: str = "",
        publisher: str | None = None,
        sequence: int | None = None,
        delta: bool = False,
        mandatory: bool | None = None,
    ) -> TableReceipt:
        """Publish each row of a table (pyarrow, pandas, polars) as a message, and wait until all are durable.

        A column `body` (binary or text) is the body, beside it there may be `topic priority not_before expires_at
        headers content_type message_id correlation_id reply_to`; without it each row becomes a JSON object.
        `topic` may be None when every row has its own.  Batches of 10,000 rows are stored as they arrive, so an error
        on the way leaves the ones before it; with `publisher` and `sequence` (of the first row) it can be sent again.
        Rows that the server refuses are in the receipt.  delta, mandatory: as for `publish`; Unroutable comes at the
        end, when all others are stored, and has the receipt.  With `publisher` it comes at the first batch with such a
        topic, of which nothing is stored, so that it can be sent again.
        """
        wish = _Wish(topic, exchange, publisher, sequence, delta, is_mandatory(mandatory, exchange))
        return self._put(wish, partial(batches_of, table), once=isinstance(table, pa.RecordBatchReader))[0]

    def _put(
        self, wish: _Wish, rows: Rows, *, once: bool = False, count: int | None = None
    ) -> tuple[TableReceipt, list[Refusal]]:
        """once: `rows` can be called once alone.  count: of messages, where that is known before."""
        if tracing.active is None:
            return self._send(wish, rows, once=once, alone=count == 1)
        place = f"{wish.exchange}/{wish.topic or ''}" if wish.exchange else wish.topic or ""
        with tracing.active.publish(self._link.address, place, count) as span:
            receipt, refused = self._send(
                wish, lambda: carrying_all(*rows(), span.carried), once=once, alone=count == 1
            )
            first = format_bookmark(self.origin, receipt.first) if receipt.stored else ""
            span.stored("stored" if receipt.stored == receipt.rows else "not all stored", first)
            return receipt, refused

    def _send(self, wish: _Wish, rows: Rows, *, once: bool, alone: bool) -> tuple[TableReceipt, list[Refusal]]:
        """alone: it is one batch of one message."""
        numbered = wish.publisher is not None and wish.sequence is not None

        def asked(sequence: int | None) -> bytes:
            return self._ticket(
                "publish",
                topic=wish.topic,
                exchange=wish.exchange or None,
                publisher=wish.publisher,
                sequence=sequence,
                delta=wish.delta or None,
                mandatory=(wish.mandatory and wish.publisher is not None) or None,  # else its sequence would count
            )

        def opened(schema: pa.Schema) -> tuple[Any, Any]:
            return self._link.put(asked(wish.sequence), schema)

        by_row = False  # whether rows say where they go

        def put() -> tuple[TableReceipt, list[Refusal]]:
            nonlocal by_row
            schema, batches = rows()
            by_row = "topic" in schema.names
            if alone:
                way = asked(None), *schema.names
                return self._kept.send(way, wish.sequence, next(batches), partial(opened, schema))
            with Upload(*opened(schema)) as upload:
                for batch in batches:
                    upload.send(batch)
                return upload.finish()

        receipt, refused = put() if once else self._link.going_on(put, again=numbered)
        if wish.mandatory and receipt.unroutable:
            raise unroutable(None if by_row else wish.topic, wish.exchange, receipt)
        return receipt, refused

    @property
    def origin(self) -> int:
        """The number that begins every bookmark of this server."""
        if self._origin is None:
            self._origin = cast("int", self.health()["origin"])
        return self._origin

    def stage(
        self,
        query: str,
        batch: int,
        partition: int,
        attempt: int,
        batches: Iterable[pa.RecordBatch],
        *,
        topic: str | None = None,
        exchange: str = "",
        schema: pa.Schema | None = None,
        delta: bool = False,
        ordered: bool = False,
    ) -> tuple[str, int] | None:
        """Keep rows invisibly for a `sink_commit`; the id of the stage and its rows, None when there are no rows.

        delta: bodies are merged into the present records of their keys.  ordered: a column `order` (int64) rises, and
        the stages of a batch become visible in its order.
        """
        waiting = iter(batches)
        first = next(waiting, None)
        if first is None:
            return None
        asked = self._ticket(
            "stage",
            query=query,
            batch=batch,
            partition=partition,
            attempt=attempt,
            topic=topic,
            exchange=exchange or None,
            delta=delta or None,
            ordered=ordered or None,
        )
        with Upload(*self._link.put(asked, schema or first.schema), answers=False) as upload:
            for rows in chain([first], waiting):
                upload.send(rows)
            said = upload.end()
        return cast("str", said["stage"]), cast("int", said["rows"])

    def submit(self, queue: str, body: object, *, results: str = RESULTS, **options: Any) -> Task:
        """Publish a message to a queue, and be able to wait for what its worker comes to: `client.submit(...).get()`.

        results    the topic in which the workers' app keeps results, `penstock.App(results=)`
        options    of `publish`; `message_id` is the task's id, which is made where none is given
        Errors: as for `publish`.
        """
        return submitted(self, queue, body, results, options)

    def task(self, id: str, *, results: str = RESULTS) -> Task:
        """One that was submitted by somebody, by its id."""
        return Task(self, id, results)

    def transaction(self) -> Transaction:
        """Settle some messages and publish others, all or nothing: see `Transaction`.

        with client.transaction() as transaction:
            transaction.publish("invoices", invoice)
            transaction.ack(message)
        """
        return Transaction(self)

    def open_transaction(self, asked: bytes, schema: pa.Schema) -> tuple[Any, Any]:
        """Writer and reader of a commit.  (Transactions call this.)"""
        return self._link.put(asked, schema)

    def heard(self, call: Callable[[], T]) -> T:
        """What a call gives, made again where the server had no thread for it.  (Transactions call this.)"""
        return self._link.heard(call)

    # -- consuming

    def consume(
        self,
        queue: str,
        *,
        backlog: int = BACKLOG,
        prefetch: int | None = None,
        filter: str | None = None,
        name: str = "",
        no_ack: bool = False,
        priority: int = 0,
        timeout: Duration | None = None,
        heartbeat: Duration = "30s",
        max_backlog: int | None = None,
        reconnect: Duration | None = PATIENCE,
        type: type[B] = UNTYPED,
    ) -> Consumer[B]:
        """Messages of a queue, leased to this consumer as they come.

        queue        or a pattern of names: every queue that matches, now or later, with one backlog for all of them
        backlog, prefetch    how many may be unsettled at once; 0: no limit of its own
        max_backlog  the same, instead, and 0 is none: such a consumer sees barriers alone
        filter       an expression: others get what it does not match
        name         of this consumer, for people
        timeout      the iterator ends when nothing came for so long, and may be asked again; None waits for ever
        heartbeat    the server takes the leases back when nothing was heard for so long
        reconnect    how long the server may be away: until then it is tried again when the connection breaks, and the
                     iterator goes on; what was leased and is not settled comes again.  0: not at all; None: for ever
        type         what the `value` of each message is: a dataclass, a pydantic model or a msgspec struct made of the
                     JSON body, bytes, str ...; without it parsed JSON where the body is said to be that, else bytes
        Errors, when iterating: NotFound, AccessRefused, ExpressionError; Unavailable when no server answers at first,
        when it is away for longer than `reconnect`, and when it is away at the end of `timeout`.
        """
        count = _most(backlog, prefetch)
        seconds = max(seconds_of(heartbeat, "heartbeat"), HEARTBEAT_LEAST_S)
        asked = self._ticket(
            "consume",
            queue=queue,
            filter=filter,
            backlog=count,
            name=name or None,
            no_ack=no_ack or None,
            priority=priority or None,
            heartbeat=seconds,
            max_backlog=max_backlog,
        )
        consumer: Consumer[B] = Consumer(  # a call of Consumer[B] imports, which nobody can while Python ends
            self,
            self._link,
            asked,
            backlog=count if max_backlog is None else max_backlog,
            heartbeat=seconds,
            timeout=None if timeout is None else seconds_of(timeout, "timeout"),
            reconnect=patience(reconnect),
            read=plain if type is UNTYPED else reader_of(type, f"consume {queue!r}"),
        )
        self._consumers.add(consumer)
        return consumer

    def forget(self, consumer: Consumer[Any]) -> None:
        """A consumer is closed.  (Consumers call this.)"""
        self._consumers.discard(consumer)

    # -- life

    def close(self) -> None:
        """Close the consumers, which waits until what they settled is durable, then the connection."""
        failure: PenstockError | None = None
        for consumer in list(self._consumers):
            try:
                consumer.close()
            except PenstockError as error:
                failure = failure or error
        self._kept.close()
        self._link.close()
        if failure is not None:
            raise failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
