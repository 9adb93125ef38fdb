"""The synchronous client: one connection, and every call of the Python surface on it.

    with penstock.connect("penstock://localhost") as client:
        client.publish("orders", {"id": 1})

Thread-safe but for consumers, each of which belongs to one thread.  Every error is a `penstock.PenstockError`.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self, cast

import orjson
import pyarrow as pa

from penstock.client.consumer import Consumer
from penstock.client.link import Link, rebuilt, translated
from penstock.client.messages import Duration, Message, Receipt, Refusal, Rows, TableReceipt
from penstock.client.outgoing import batches_of, body_of, moment, one_row
from penstock.client.urls import parse_url
from penstock.errors import InvalidArgument, PenstockError, Unavailable
from penstock.units import format_duration, to_micros
from penstock.wire.flight.bookmarks import format_bookmark
from penstock.wire.flight.failures import error_from
from penstock.wire.flight.tickets import command

CONNECT_TIMEOUT: Duration = "10s"
WINDOW = 4
"""Batches of a table that are sent before the first of their answers is read."""


def connect(
    url: str = "penstock://localhost",
    *,
    user: str | None = None,
    password: str | None = None,
    timeout: Duration | None = CONNECT_TIMEOUT,
) -> Client:
    """Connect to a server; `guest`/`guest` unless the address or the arguments say otherwise.

    timeout    how long connecting and each single command may take; None waits for ever
    Errors: Unavailable when no server answers, AccessRefused for a wrong user, InvalidArgument for the address.
    """
    seconds = None if timeout is None else to_micros(timeout) / 1e6
    address = parse_url(url, user, password)
    client = Client(Link(address, seconds))
    try:
        client.health()
    except Unavailable as error:
        client.close()
        raise Unavailable(f"no Penstock server answers at {address}: {error}") from None
    except BaseException:
        client.close()
        raise
    return client


class Client:
    """An open connection.  Made by `connect`."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._vhost = link.address.vhost
        self._consumers = weakref.WeakSet[Consumer]()
        self._origin: int | None = None

    # -- topology

    def declare(
        self, queue: str, *, durable: bool = True, auto_delete: bool = False, passive: bool = False, **settings: object
    ) -> dict[str, Any]:
        """Make a queue, or find it as asked; its counts.

        settings    by their names in the settings file, as `lease_period="30s"`; durations also as seconds or timedelta
        Errors: InvalidArgument for a setting; PreconditionFailed when the queue is there with other settings; NotFound
        when `passive` and it is not there.
        """
        return self.action(
            "declare",
            queue=queue,
            durable=durable,
            auto_delete=auto_delete,
            passive=passive or None,
            settings=_plain(settings),
        )

    def alter(self, queue: str, **settings: object) -> None:
        """Change settings of a queue; those that are not named stay."""
        self.action("alter", queue=queue, settings=_plain(settings))

    def delete(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Remove a queue; how many messages were ready in it."""
        return cast("int", self.action("delete", queue=queue, if_unused=if_unused, if_empty=if_empty)["messages"])

    def purge(self, queue: str) -> int:
        """Remove what is ready in a queue; how many messages that were."""
        return cast("int", self.action("purge", queue=queue)["messages"])

    def declare_exchange(
        self,
        exchange: str,
        type: str = "direct",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, object] | None = None,
    ) -> None:
        """Make an exchange (direct, fanout, topic or headers), or find it as asked."""
        self.action(
            "declare_exchange",
            exchange=exchange,
            type=type,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=dict(arguments or {}),
        )

    def delete_exchange(self, exchange: str, *, if_unused: bool = False) -> None:
        """Remove an exchange and its bindings."""
        self.action("delete_exchange", exchange=exchange, if_unused=if_unused)

    def declare_topic(self, topic: str, exchange: str = "") -> None:
        """Keep what is published to a topic also when no queue takes it."""
        self.action("declare_topic", topic=topic, exchange=exchange)

    def bind(
        self, queue: str, exchange: str, key: str = "", arguments: Mapping[str, object] | None = None
    ) -> None:
        """Let a queue take what an exchange routes by this key."""
        self.action("bind", queue=queue, exchange=exchange, key=key, arguments=dict(arguments or {}))

    def unbind(
        self, queue: str, exchange: str, key: str = "", arguments: Mapping[str, object] | None = None
    ) -> None:
        """Remove a binding."""
        self.action("unbind", queue=queue, exchange=exchange, key=key, arguments=dict(arguments or {}))

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
    ) -> Receipt:
        """Publish one message and wait until it is durable.

        body         bytes and text as they are; anything else becomes JSON
        delay, not_before        how long from now, or when (datetime, or microseconds), it may be delivered first
        expiration, expires_at   how long from now, or when, it ends undelivered
        publisher, sequence      a name and a rising number: a number that was stored before is a duplicate
        Errors: what the server refused the message for (QueueFull, NotFound for the exchange, DiskFull ...).
        """
        data, kind = body_of(body)
        batch = one_row(
            {
                "body": data,
                "priority": priority,
                "not_before": moment(not_before, delay, "delay"),
                "expires_at": moment(expires_at, expiration, "expiration"),
                "headers": [(name, str(value)) for name, value in headers.items()] if headers else None,
                "content_type": content_type or kind,
                "message_id": message_id,
                "correlation_id": correlation_id,
                "reply_to": reply_to,
            }
        )
        total, refused = self._put(topic, exchange, publisher, sequence, batch.schema, iter([batch]))
        if refused:
            raise error_from({"code": refused[0].code, "message": refused[0].message, "reason": refused[0].reason})
        if total.stored:
            return Receipt("stored", total.first, format_bookmark(self.origin, total.first))
        return Receipt("duplicate" if total.duplicates else "unroutable")

    def publish_table(
        self,
        topic: str | None,
        table: object,
        *,
        exchange: str = "",
        publisher: str | None = None,
        sequence: int | None = None,
    ) -> TableReceipt:
        """Publish each row of a table (pyarrow, pandas, polars) as a message, and wait until all are durable.

        A column `body` (binary or text) is the body, beside it there may be `topic priority not_before expires_at
        headers content_type message_id correlation_id reply_to`; without it each row becomes a JSON object.
        `topic` may be None when every row has its own.  Batches of 10,000 rows are stored as they arrive, so an error
        on the way leaves the ones before it; with `publisher` and `sequence` (of the first row) it can be sent again.
        Rows that the server refuses are in the receipt.
        """
        schema, batches = batches_of(table)
        return self._put(topic, exchange, publisher, sequence, schema, batches)[0]

    def _put(
        self,
        topic: str | None,
        exchange: str,
        publisher: str | None,
        sequence: int | None,
        schema: pa.Schema,
        batches: Iterator[pa.RecordBatch],
    ) -> tuple[TableReceipt, list[Refusal]]:
        asked = command(
            "publish",
            topic=topic,
            exchange=exchange or None,
            vhost=self._vhost,
            publisher=publisher,
            sequence=sequence,
        )
        writer, reader = self._link.put(asked, schema)
        upload = _Upload(writer, reader)
        try:
            for batch in batches:
                upload.send(batch)
            return upload.finish()
        except pa.ArrowException as error:
            raise upload.failure(error) from None
        finally:
            upload.close()

    @property
    def origin(self) -> int:
        """The number that begins every bookmark of this server."""
        if self._origin is None:
            self._origin = cast("int", self.health()["origin"])
        return self._origin

    # -- consuming

    def consume(
        self,
        queue: str,
        *,
        backlog: int = 32,
        prefetch: int | None = None,
        filter: str | None = None,
        name: str = "",
        no_ack: bool = False,
        priority: int = 0,
        timeout: Duration | None = None,
        heartbeat: Duration = "30s",
    ) -> Consumer:
        """Messages of a queue, leased to this consumer as they come.

        backlog, prefetch    how many may be unsettled at once; 0: no limit of its own
        filter       an expression: others get what it does not match
        name         of this consumer, for people
        timeout      the iterator ends when nothing came for so long; None waits for ever
        heartbeat    the server takes the leases back when nothing was heard for so long
        Errors, when iterating: NotFound, AccessRefused, ExpressionError; Unavailable when the connection breaks.
        """
        count = backlog if prefetch is None else prefetch
        seconds = to_micros(heartbeat) / 1e6
        asked = command(
            "consume",
            queue=queue,
            vhost=self._vhost,
            filter=filter,
            backlog=count,
            name=name or None,
            no_ack=no_ack or None,
            priority=priority or None,
            heartbeat=seconds,
        )
        consumer = Consumer(
            self,
            self._link,
            asked,
            backlog=count,
            heartbeat=seconds,
            timeout=None if timeout is None else to_micros(timeout) / 1e6,
        )
        self._consumers.add(consumer)
        return consumer

    def forget(self, consumer: Consumer) -> None:
        """A consumer is closed.  (Consumers call this.)"""
        self._consumers.discard(consumer)

    # -- looking

    def health(self) -> dict[str, Any]:
        """Whether the server confirms, how far its log is durable, its origin."""
        return self.action("health", with_vhost=False)

    def queues(self) -> list[dict[str, Any]]:
        """Every queue with its counts."""
        return cast("list[dict[str, Any]]", self.action("list")["queues"])

    def queue(self, name: str) -> dict[str, Any]:
        """The counts of one queue."""
        return self.action("stats", queue=name)

    stats = queue

    def peek(
        self, queue: str, count: int = 10, *, states: Sequence[str] = ("ready",), filter: str | None = None
    ) -> list[Message]:
        """Messages that wait in a queue, oldest first.  Takes and changes nothing."""
        return list(_messages(self.queue_batches(queue, states=states, limit=count, filter=filter)))

    def queue_batches(
        self,
        queue: str,
        *,
        states: Sequence[str] = ("ready",),
        limit: int | None = None,
        filter: str | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """What waits in a queue, as Arrow batches."""
        return self._batches(
            command(
                "queue",
                name=queue,
                vhost=self._vhost,
                states=list(states),
                limit=limit,
                filter=filter,
                columns=_list(columns),
            )
        )

    def replay(
        self,
        topic: str | None = None,
        bookmark: str | datetime = "EPOCH",
        *,
        pattern: str | None = None,
        exchange: str = "",
        filter: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Message]:
        """Messages of a topic after a bookmark, settled or not, up to now.  Leases nothing; nothing can be settled.

        bookmark    of a message, EPOCH, NOW, an ISO time or a datetime, or a range `[a:b)`
        pattern     a regular expression for topics, in place of one topic
        """
        return _messages(
            self.replay_batches(
                topic, bookmark, pattern=pattern, exchange=exchange, filter=filter, limit=limit
            )
        )

    def replay_batches(
        self,
        topic: str | None = None,
        bookmark: str | datetime = "EPOCH",
        *,
        pattern: str | None = None,
        exchange: str = "",
        filter: str | None = None,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The same as Arrow batches.  Errors come with the first batch."""
        return self._batches(
            command(
                "replay",
                topic=topic,
                pattern=pattern,
                exchange=exchange or None,
                vhost=self._vhost,
                bookmark=bookmark.isoformat() if isinstance(bookmark, datetime) else bookmark,
                filter=filter,
                limit=limit,
                columns=_list(columns),
            )
        )

    def log_batches(
        self, start: int = 1, end: int | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Records of the log with start <= lsn < end, as they are stored."""
        return self._batches(command("log", **{"from": start, "to": end, "columns": _list(columns)}))

    def _batches(self, ticket: bytes) -> Iterator[pa.RecordBatch]:
        reader = self._link.get(ticket)
        try:
            while True:
                with translated():
                    try:
                        chunk = reader.read_chunk()
                    except StopIteration:
                        return
                if chunk.data is not None:
                    yield chunk.data
        finally:
            reader.cancel()

    # -- streams and sinks

    def plan_batches(
        self, stream: str, batch: int, part: int = 0, parts: int = 1, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """One part of the rows of a planned batch of a durable stream."""
        return self._batches(
            command("plan", stream=stream, batch=batch, part=part, parts=parts, columns=_list(columns))
        )

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
    ) -> tuple[str, int] | None:
        """Keep rows invisibly for a `sink_commit`; the id of the stage and its rows, None when there are no rows."""
        waiting = iter(batches)
        first = next(waiting, None)
        if first is None:
            return None
        asked = command(
            "stage",
            query=query,
            batch=batch,
            partition=partition,
            attempt=attempt,
            topic=topic,
            exchange=exchange or None,
            vhost=self._vhost,
        )
        writer, reader = self._link.put(asked, schema or first.schema)
        upload = _Upload(writer, reader, answers=False)
        try:
            upload.send(first)
            for rows in waiting:
                upload.send(rows)
            said = upload.end()
            return cast("str", said["stage"]), cast("int", said["rows"])
        except pa.ArrowException as error:
            raise upload.failure(error) from None
        finally:
            upload.close()

    def action(self, name: str, *, with_vhost: bool = True, **fields: object) -> dict[str, Any]:
        """The answer of a server action by its name; fields that are None are left out."""
        if with_vhost and name in _OF_A_VHOST:
            fields["vhost"] = self._vhost
        return self._link.act(name, fields)

    # -- life

    def close(self) -> None:
        """Close the consumers, which waits until what they settled is durable, then the connection."""
        failure: PenstockError | None = None
        for consumer in list(self._consumers):
            try:
                consumer.close()
            except PenstockError as error:
                failure = failure or error
        self._link.close()
        if failure is not None:
            raise failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_OF_A_VHOST = frozenset(
    {
        "declare", "alter", "delete", "purge", "declare_exchange", "delete_exchange", "declare_topic", "bind", "unbind",
        "stats", "list", "stream_open",
    }
)  # fmt: skip


class _Upload:
    """One DoPut: batches out, answers in, never more than `WINDOW` answers behind."""

    def __init__(self, writer: Any, reader: Any, *, answers: bool = True) -> None:
        self._writer = writer
        self._reader = reader
        self._answers = answers  # the server answers each batch
        self._rows = 0
        self._behind = 0
        self._offset = 0
        self._unroutable = 0
        self._refused: list[Refusal] = []

    def send(self, batch: pa.RecordBatch) -> None:
        """One batch."""
        self._writer.write_batch(batch)
        if not batch.num_rows:
            return
        self._rows += batch.num_rows
        self._behind += 1
        if self._answers and self._behind > WINDOW:
            self._hear()

    def _hear(self) -> None:
        said = self._read()
        self._behind -= 1
        self._unroutable += said["unroutable"]
        for one in said["refused"]:
            self._refused.append(Refusal(self._offset + one["row"], one["code"], one["reason"], one["message"]))
        self._offset += said["rows"]

    def _read(self) -> dict[str, Any]:
        buffer = self._reader.read()
        if buffer is None:
            self._writer.close()  # raises what the server refused, if it did
            raise Unavailable("the server ended the upload without an answer")
        return cast("dict[str, Any]", orjson.loads(buffer.to_pybytes()))

    def end(self) -> dict[str, Any]:
        """Say how many rows were sent; the server's last answer."""
        self._writer.write_metadata(orjson.dumps({"end": {"rows": self._rows}}))
        self._writer.done_writing()
        while self._answers and self._behind:
            self._hear()
        return self._read()

    def finish(self) -> tuple[TableReceipt, list[Refusal]]:
        """The whole upload's receipt."""
        said = self.end()
        receipt = TableReceipt(
            said["rows"],
            said["stored"],
            said["duplicates"],
            self._unroutable,
            said["refused_rows"],
            said["first"],
            said["last"],
            tuple(self._refused),
        )
        return receipt, self._refused

    def failure(self, error: BaseException) -> PenstockError:
        """Why the upload failed: what the server said at its end tells more than a broken write."""
        try:
            self._writer.close()
        except pa.ArrowException as better:
            return rebuilt(better)
        return rebuilt(error)

    def close(self) -> None:
        """End the stream; what went wrong was told before."""
        try:
            self._writer.close()
        except pa.ArrowException:
            pass


def _messages(batches: Iterator[pa.RecordBatch]) -> Iterator[Message]:
    for batch in batches:
        rows = Rows(batch)
        for row in range(len(rows)):
            yield Message(rows, row)


def _list(columns: Sequence[str] | None) -> list[str] | None:
    return None if columns is None else list(columns)


def _plain(values: Mapping[str, object]) -> dict[str, object]:
    """Settings as JSON holds them: a timedelta becomes text with its unit."""
    out: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, timedelta):
            if value < timedelta(0):
                raise InvalidArgument(f"{name} is {value}: a duration is not negative")
            value = format_duration(to_micros(value))
        elif isinstance(value, Mapping):
            value = _plain(cast("Mapping[str, object]", value))
        out[name] = value
    return out
