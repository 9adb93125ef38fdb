"""The client about what waits in queues, which it withdraws, moves and explains, and about records of topics."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Literal, cast

import orjson
import pyarrow as pa

from penstock.client.admin import Administration, add_moved
from penstock.client.arguments import arguments_checked, encoded
from penstock.client.link import chunks, said, understood
from penstock.client.messages import Message, Rows
from penstock.errors import InvalidArgument
from penstock.units import FOR_EVER_S, Duration, format_duration, moment, span
from penstock.wire.flight.commands import RECORDS_DEFAULT, of_messages

STEP = 1000
"""Messages of one call that moves."""


@arguments_checked
class Contents(Administration):
    """Calls about messages that wait, and about the records of topics."""

    def pause(self, queue: str, until: datetime | Duration | None = None) -> dict[str, Any]:
        """Deliver nothing from a queue, to nobody, until then: a time, or a duration from now; None: until `resume`.

        Publishes and acks go on, and time does too: what expires meanwhile expires.  It outlives a restart.
        """
        at, wait = moment(until, "until", 1)
        return self.action("pause", queue=queue, until=at, wait=wait)

    def resume(self, queue: str) -> bool:
        """Deliver again; whether the queue was paused."""
        return cast("bool", self.action("resume", queue=queue)["was_paused"])

    def cancel(self, bookmark: str | int, *, queue: str | None = None) -> dict[str, Any]:
        """Withdraw a message wherever it waits, or in one queue; `queues` are those it was taken from.

        bookmark    or its LSN
        No dead letter comes of it.  Errors: NotFound without such a message; PreconditionFailed when it waits nowhere,
        with a sentence for each queue that had it.
        """
        return self.action("cancel", bookmark=str(bookmark), queue=queue)

    def reschedule(self, bookmark: str | int, when: datetime | Duration, *, queue: str | None = None) -> dict[str, Any]:
        """Let a message wait until then, a time or a duration from now, whatever it waits for: errors as of `cancel`.

        A message that is ready goes away until then; one that was delayed longer comes earlier.
        """
        at, wait = moment(when, "when")
        return self.action("reschedule", bookmark=str(bookmark), queue=queue, when=at, wait=wait)

    def explain(self, queue: str | None = None, *, bookmark: str | int | None = None) -> dict[str, Any]:
        """Why a queue delivers nothing, or nothing more, now: `reasons`, each with a `code` and a sentence, `text`.

        bookmark    or an LSN: why that message is not delivered; `queues` has the reasons of each that has or had it
        No reasons: the next message goes out at once.
        """
        return self.action("explain", queue=queue, bookmark=None if bookmark is None else str(bookmark))

    def story(self, bookmark: str | int) -> dict[str, Any]:
        """What happened to one message, oldest first, in `events`, and how far the log reaches.  Errors: NotFound."""
        return self.action("story", bookmark=str(bookmark))

    def redrive(
        self,
        queue: str,
        *,
        filter: str | None = None,
        count: int | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        progress: Callable[[int], object] | None = None,
    ) -> dict[str, Any]:
        """Dead letters of a queue back to where they died first, oldest first; each is in one place at any moment.

        filter     only those that match
        count      so many at most
        rate       messages a second at most
        dry_run    count alone: nothing is moved
        progress   is told how many were moved so far
        They begin anew there: at the end, without history and attempts.  `targets` counts them by queue, `strays` those
        that stay, by the reason why.
        """
        return self._move("redrive", queue, None, filter, count, rate, dry_run, progress)

    def move(
        self,
        queue: str,
        to: str,
        *,
        filter: str | None = None,
        count: int | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        progress: Callable[[int], object] | None = None,
    ) -> dict[str, Any]:
        """What waits in a queue to the end of another; as `redrive`."""
        return self._move("move", queue, to, filter, count, rate, dry_run, progress)

    def _move(
        self, what: str, queue: str, to: str | None, filter: str | None, count: int | None, rate: float | None,
        dry: bool, progress: Callable[[int], object] | None,
    ) -> dict[str, Any]:  # fmt: skip
        if count is not None and count < 1:
            raise InvalidArgument(f"count is {count}; at least one message is moved")
        if rate is not None and not rate > 0:
            raise InvalidArgument(f"rate is {rate}, not a number of messages a second")
        total: dict[str, Any] = {"moved": 0, "matched": 0, "targets": {}, "strays": {}}
        for portion in _portions(count, None if dry else rate):
            after = total.pop("next", None)
            told = self.action(what, queue=queue, to=to, filter=filter, count=portion(total), after=after, dry=dry)
            add_moved(total, told)
            total["next"] = told["next"]
            if progress is not None:
                progress(total["moved"])
            if told["next"] is None or (count is not None and total["matched"] >= count):
                break
        total.pop("next", None)
        return total

    # -- records

    def sow(
        self,
        topic: str,
        *,
        exchange: str = "",
        filter: str | None = None,
        order_by: str | Sequence[str] | None = None,
        top_n: int | None = None,
        skip_n: int | None = None,
        projection: str | Sequence[str] | None = None,
        grouping: str | Sequence[str] | None = None,
        select: str | Sequence[str] | None = None,
        stats: Callable[[dict[str, int]], object] | None = None,
    ) -> Iterator[Message]:
        """The records of a SOW topic, the rows of a view, or what is available in a queue: as of one moment.

        filter      an expression
        order_by    `/total DESC, /id`, or a list of such parts; NULL first when ascending
        top_n       the first so many of them, after `skip_n`
        projection, grouping    `/region, SUM(/total) AS /total` and `/region`: rows as a view with these would have;
                    the filter is about messages then, and the order about rows
        select      which fields of a JSON body are sent: `-/, +/id` the id alone, `-/notes` all but the notes
        stats       called after the last: `topic_matches` (compared), `matches`, `records_returned`
        Nothing is leased.  Each has its `sow_key`, None in a queue.  Errors come with the first: NotFound,
        InvalidArgument for a topic without a key, ExpressionError.
        """
        batches = self.sow_batches(
            topic, exchange=exchange, filter=filter, order_by=order_by, top_n=top_n, skip_n=skip_n,
            columns=of_messages(RECORDS_DEFAULT), projection=projection, grouping=grouping, select=select, stats=stats,
        )  # fmt: skip
        return messages_of(batches)

    def sow_batches(
        self,
        topic: str,
        *,
        exchange: str = "",
        filter: str | None = None,
        order_by: str | Sequence[str] | None = None,
        top_n: int | None = None,
        skip_n: int | None = None,
        batch_size: int | None = None,
        columns: str | Sequence[str] | None = None,
        projection: str | Sequence[str] | None = None,
        grouping: str | Sequence[str] | None = None,
        select: str | Sequence[str] | None = None,
        stats: Callable[[dict[str, int]], object] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The same as Arrow batches of at most `batch_size` rows."""
        asked = self._ticket(
            "sow",
            topic=topic,
            exchange=exchange or None,
            filter=filter,
            order_by=texts(order_by),
            top_n=top_n,
            skip_n=skip_n,
            batch_size=batch_size,
            columns=texts(columns),
            projection=texts(projection),
            grouping=texts(grouping),
            select=texts(select),
            stats=True if stats is not None else None,
        )
        return self._batches(asked, None if stats is None else partial(tell_stats, stats))

    def sow_delete(
        self,
        topic: str,
        *,
        filter: str | None = None,
        keys: str | Sequence[str] | None = None,
        data: bytes | str | None = None,
        exchange: str = "",
    ) -> int:
        """Remove records: those a filter matches (`1=1` is all), those of some keys, or that of a message; how many.

        What waits in queues stays.
        """
        body = data if data is None or isinstance(data, bytes) else encoded(data, "sow_delete: data")
        answer = self.action(
            "sow_delete",
            topic=topic,
            exchange=exchange,
            filter=filter,
            keys=texts(keys),
            data64=None if body is None else b64encode(body).decode(),  # of many types it is no text
        )
        return cast("int", answer["removed"])

    def declare_topic(
        self,
        topic: str,
        exchange: str = "",
        *,
        key: str | Sequence[str] | None = None,
        key_from: str | None = None,
        key_domain: str | None = None,
        expiration: Duration | None = None,
        index: Literal["memory", "file"] | None = None,
        schema: str | None = None,
        message_type: str | None = None,
        json_schema: str | Mapping[str, object] | None = None,
        json_schema_check: Literal["off", "warn", "reject"] | None = None,
    ) -> None:
        """Keep what is published to a topic also when no queue takes it; with a key also the last message of each.

        key          fields of the body, `["/id"]`; or `key_from="publisher"`: the header `x-sow-key` of each message
        key_domain   topics that share it have the same `sow_key` for equal values of their key fields
        expiration   how long after its publish a record goes, unless the message says otherwise
        index        where the index of the records is: in memory, or paged to a file of the server
        schema       columns of its bodies, "id bigint, total double", for readers; nothing is refused
        message_type what its bodies are read as: json, nvfix, fix, xml, msgpack, bson, binary
        json_schema  a JSON Schema that bodies are held to as they are published
        json_schema_check  what becomes of one that does not fit; "reject" without it
        Without any of these a topic that is there stays as it is.  Another key begins without records.
        """
        life = None if expiration is None else format_duration(span(expiration, "expiration"))
        given = {
            "key": texts(key), "key_from": key_from, "key_domain": key_domain, "expiration": life, "index": index,
            "schema": schema, "message_type": message_type, "json_schema_check": json_schema_check,
            "json_schema": json_schema if json_schema is None or isinstance(json_schema, str)
            else orjson.dumps(json_schema).decode(),
        }  # fmt: skip
        settings = {name: value for name, value in given.items() if value is not None}
        self.action("declare_topic", topic=topic, exchange=exchange, settings=settings or None)

    def register_schema(self, topic: str, schema: str, exchange: str = "", *, unless: bool = False) -> int:
        """The next version of a topic's schema, for readers; its other settings stay.  The number that it has then.

        unless   a topic that has a schema keeps it
        """
        told = self.action("register_schema", topic=topic, exchange=exchange, schema=schema, unless=unless)
        return int(told["version"])

    def delete_topic(self, topic: str, exchange: str = "") -> None:
        """A declared topic keeps nothing more and forgets its records; one that is not there is no error."""
        self.action("delete_topic", topic=topic, exchange=exchange)

    def topics(self) -> list[dict[str, Any]]:
        """Every declared topic with its key and its counts."""
        return self._listed("topics")

    def topic(self, name: str, exchange: str = "") -> dict[str, Any]:
        """One declared topic.  NotFound when it is not declared."""
        return self.action("topic", topic=name, exchange=exchange)

    def _batches(self, ticket: bytes, told: Callable[[bytes], object] | None = None) -> Iterator[pa.RecordBatch]:
        """The answer of a DoGet.  told: takes what stands beside a batch."""
        yield from chunks(self._link.get(ticket), told)


def _portions(count: int | None, rate: float | None) -> Iterator[Callable[[dict[str, Any]], int]]:
    """How many the next call takes, as long as somebody asks; with a rate it waits in between."""
    started = time.monotonic()

    def portion(total: dict[str, Any]) -> int:
        most = STEP if count is None else min(STEP, count - cast("int", total["matched"]))
        if rate is not None:
            most = min(most, max(1, round(rate / 10)))
            wait = started + cast("int", total["moved"]) / rate - time.monotonic()
            if wait > 0:
                time.sleep(min(wait, FOR_EVER_S))
        return max(most, 1)

    while True:
        yield portion


# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false


def messages_of(batches: Iterator[pa.RecordBatch]) -> Iterator[Message]:
    """Each row as a message that cannot be settled."""
    for batch in batches:
        rows = Rows(batch)
        yield from (Message(rows, row) for row in range(len(rows)))


def tell_stats(stats: Callable[[dict[str, int]], object], data: bytes) -> None:
    """Call the caller's function, whose errors are its own."""
    with understood():
        told = said(data)["stats"]
    stats(told)


def texts(value: str | Sequence[str] | None) -> list[str] | None:
    """One text or several, as commands have them."""
    return [value] if isinstance(value, str) else None if value is None else list(value)
