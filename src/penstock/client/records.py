"""The part of the client about topics and their records: queries, removal, what topics there are."""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, cast

import orjson
import pyarrow as pa

from penstock.client.admin import Administration
from penstock.client.durations import Duration, span
from penstock.client.link import translated
from penstock.client.messages import Message, Rows
from penstock.errors import InvalidArgument
from penstock.units import format_duration
from penstock.wire.flight.tickets import command


class Records(Administration):
    """Calls about SOW topics."""

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
            projection=projection, grouping=grouping, select=select, stats=stats,
        )  # fmt: skip
        for batch in batches:
            rows = Rows(batch)
            for row in range(len(rows)):
                yield Message(rows, row)

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
        columns: Sequence[str] | None = None,
        projection: str | Sequence[str] | None = None,
        grouping: str | Sequence[str] | None = None,
        select: str | Sequence[str] | None = None,
        stats: Callable[[dict[str, int]], object] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The same as Arrow batches of at most `batch_size` rows."""
        return self._batches(
            command(
                "sow",
                topic=topic,
                exchange=exchange or None,
                vhost=self._vhost,
                filter=filter,
                order_by=[order_by] if isinstance(order_by, str) else None if order_by is None else list(order_by),
                top_n=top_n,
                skip_n=skip_n,
                batch_size=batch_size,
                columns=None if columns is None else list(columns),
                projection=texts(projection),
                grouping=texts(grouping),
                select=texts(select),
                stats=True if stats is not None else None,
            ),
            None if stats is None else partial(_told, stats),
        )

    def sow_delete(
        self,
        topic: str,
        *,
        filter: str | None = None,
        keys: Sequence[str] | None = None,
        data: bytes | str | None = None,
        exchange: str = "",
    ) -> int:
        """Remove records: those a filter matches (`1=1` is all), those of some keys, or that of a message; how many.

        What waits in queues stays.
        """
        answer = self.action(
            "sow_delete",
            topic=topic,
            exchange=exchange,
            filter=filter,
            keys=None if keys is None else list(keys),
            data=data.decode() if isinstance(data, bytes) else data,
        )
        return cast("int", answer["removed"])

    def declare_topic(
        self,
        topic: str,
        exchange: str = "",
        *,
        key: Sequence[str] | None = None,
        key_from: str | None = None,
        key_domain: str | None = None,
        expiration: Duration | None = None,
        index: Literal["memory", "file"] | None = None,
        schema: str | None = None,
    ) -> None:
        """Keep what is published to a topic also when no queue takes it; with a key also the last message of each.

        key          fields of the body, `["/id"]`; or `key_from="publisher"`: the header `x-sow-key` of each message
        key_domain   topics that share it have the same `sow_key` for equal values of their key fields
        expiration   how long after its publish a record goes, unless the message says otherwise
        index        where the index of the records is: in memory, or paged to a file of the server
        schema       columns of its JSON bodies, "id bigint, total double", for readers; nothing is refused
        Without any of these a topic that is there stays as it is.  Another key begins without records.
        """
        if isinstance(key, str):
            raise InvalidArgument(f'key is a list of paths: write key=["{key}"]')
        settings: dict[str, object] = {}
        if key is not None:
            settings["key"] = list(key)
        if key_from is not None:
            settings["key_from"] = key_from
        if key_domain is not None:
            settings["key_domain"] = key_domain
        if expiration is not None:
            settings["expiration"] = format_duration(span(expiration, "expiration"))
        if index is not None:
            settings["index"] = index
        if schema is not None:
            settings["schema"] = schema
        self.action("declare_topic", topic=topic, exchange=exchange, settings=settings or None)

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


def chunks(reader: Any, told: Callable[[bytes], object] | None = None) -> Iterator[pa.RecordBatch]:
    """The batches of a stream, which ends however the reading does.  told: takes what stands beside a batch."""
    try:
        while True:
            with translated():
                try:
                    chunk = reader.read_chunk()
                except StopIteration:
                    return
            if told is not None and chunk.app_metadata is not None:
                told(chunk.app_metadata.to_pybytes())
            elif chunk.data is not None:
                yield chunk.data
    finally:
        reader.cancel()  # does nothing to a stream that has ended


def _told(stats: Callable[[dict[str, int]], object], data: bytes) -> None:
    stats(orjson.loads(data)["stats"])


def texts(value: str | Sequence[str] | None) -> list[str] | None:
    """One text or several, as commands have them."""
    return [value] if isinstance(value, str) else None if value is None else list(value)
