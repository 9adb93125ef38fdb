"""The reading half of the client: queue contents, replay, log ranges, planned batches, SQL.  It leases nothing."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from importlib import import_module
from itertools import chain
from typing import Any, cast

import pyarrow as pa

from penstock.client.arguments import arguments_checked
from penstock.client.forks import OfThisProcess
from penstock.client.link import PATIENCE, chunks, patience, translated
from penstock.client.messages import Message
from penstock.client.queue_contents import Contents, messages_of, texts
from penstock.client.replay import Bookmarks, Replay
from penstock.client.showing import ROWS, counted, facts, table
from penstock.client.waiting import attended, check_threads
from penstock.errors import InvalidArgument, PreconditionFailed
from penstock.units import Duration, span
from penstock.wire.flight.bookmarks import resumed
from penstock.wire.flight.commands import CONTENT_DEFAULT, EVENTS_DEFAULT, REPLAY_DEFAULT, of_messages
from penstock.wire.flight.tickets import command


@arguments_checked
class Reading(Contents):
    """Calls that look at messages."""

    def peek(
        self, queue: str, count: int = 10, *, states: str | Sequence[str] = ("ready",), filter: str | None = None
    ) -> list[Message]:
        """Messages that wait in a queue, oldest first.  Takes and changes nothing."""
        columns = of_messages(CONTENT_DEFAULT)
        batches = self.queue_batches(queue, states=states, limit=count, filter=filter, columns=columns)
        return list(messages_of(batches))

    def queue_batches(
        self,
        queue: str,
        *,
        states: str | Sequence[str] = ("ready",),
        limit: int | None = None,
        filter: str | None = None,
        columns: str | Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """What waits in a queue, as Arrow batches."""
        asked = self._ticket(
            "queue", name=queue, states=texts(states), limit=limit, filter=filter, columns=texts(columns)
        )
        return self._batches(asked)

    def replay(
        self,
        topic: str | None = None,
        bookmark: str | datetime = "EPOCH",
        *,
        pattern: str | None = None,
        exchange: str = "",
        filter: str | None = None,
        limit: int | None = None,
        follow: bool = False,
        rate: str | None = None,
        rate_max_gap: Duration | None = None,
        bookmark_not_found: str = "now",
        stream: str | None = None,
        name: str | None = None,
        bookmarks: Bookmarks | None = None,
        select: str | Sequence[str] | None = None,
        live: bool = False,
        fully_durable: bool = False,
        timeout: Duration | None = None,
        reconnect: Duration | None = PATIENCE,
    ) -> Replay:
        """Messages of a topic after a bookmark, settled or not.  Leases nothing; nothing can be settled.

        topic       the name of a queue stands for what the queue is a view of
        bookmark    of a message, EPOCH, NOW, an ISO time or a datetime, a list with commas, or a range `[a:b)`;
                    MOST_RECENT with the name of a `stream`, or with a `name` and `bookmarks`
        pattern     a regular expression for topics, in place of one topic
        follow      go on with what is published; without, it ends with what is there now
        rate        `1000` messages or `500KB` a second, or `2X` the speed they came with, gaps up to `rate_max_gap`
        bookmark_not_found   what an unknown bookmark is: `epoch`, `now`, or `fail`
        name, bookmarks      remember under this name how far it has got
        select      which fields of a JSON body are sent: `-/, +/id` the id alone, `-/notes` all but the notes
        live, fully_durable  all that comes is durable: the first is refused, the second always so
        timeout     the iterator ends when nothing came for so long, and may be asked again; None waits for ever
        reconnect   how long the server may be away: until then it is tried again when the connection breaks, and the
                    replay goes on after the last message that came.  0: not at all; None: for ever
        """
        text = bookmark.isoformat() if isinstance(bookmark, datetime) else bookmark
        done = saved = None
        if (name is None) != (bookmarks is None):
            raise InvalidArgument("replay: name and bookmarks belong together; one of them is missing")
        if name is not None and bookmarks is not None:
            done, saved = partial(bookmarks.store, name), bookmarks.save
            text = bookmarks.begin(name, text)
        if follow:
            check_threads()
        id = secrets.token_hex(8) if follow or rate is not None else None
        fields = {
            "topic": topic,
            "pattern": pattern,
            "exchange": exchange or None,
            "filter": filter,
            "follow": follow or None,
            "rate_max_gap": None if rate_max_gap is None else span(rate_max_gap, "rate_max_gap") / 1e6,
            "bookmark_not_found": bookmark_not_found,
            "stream": stream,
            "select": texts(select),
            "columns": of_messages(REPLAY_DEFAULT),
            "live": live or None,
            "fully_durable": fully_durable or None,
        }

        def again(after: str | None, came: int, id: str | None, other: str | None) -> bytes:
            return self._ticket(
                "replay",
                bookmark=text if after is None else resumed(text, after),
                limit=None if limit is None else limit - came,
                id=id,
                rate=other or rate,
                **fields,
            )

        return Replay(
            self._link, again(None, 0, id, None), id=id, timeout=timeout, done=done, saved=saved, again=again,
            reconnect=patience(reconnect),
        )  # fmt: skip

    def sow_and_subscribe(
        self,
        topic: str,
        *,
        exchange: str = "",
        filter: str | None = None,
        sow: bool = True,
        delta: bool = False,
        no_empties: bool = False,
        oof: bool = False,
        order_by: str | Sequence[str] | None = None,
        top_n: int | None = None,
        skip_n: int | None = None,
        conflation: Duration | None = None,
        conflation_key: str | Sequence[str] | None = None,
        projection: str | Sequence[str] | None = None,
        grouping: str | Sequence[str] | None = None,
        select: str | Sequence[str] | None = None,
        live: bool = False,
        fully_durable: bool = False,
        timeout: Duration | None = None,
        reconnect: Duration | None = 0,
    ) -> Replay:
        """The records of a SOW topic, or rows of a view, as they are, then what becomes of them, without a gap.

        sow          first the records there are; `completed` of the iterator says when these have come
        delta        changed fields and the key only; with no_empties nothing for a publish that changed nothing
        oof          also tell (`event` is "oof") of records that are deleted, expire or match no more: their `reason`
        order_by     of the records there are
        top_n, skip_n    subscribe to a page of the records: what comes to it is told, with `oof` also what leaves it
        conflation   of the changes of a key within this time (at least 100 ms) tell only the last, when it is over
        conflation_key    expressions that tell keys apart for that, instead of the record's own key
        projection, grouping    rows as a view with these would have, of a queue, which is not leased, or a topic
        select       which fields of a JSON body are sent, as of `replay`; a delta always has the key
        live, fully_durable     as of `replay`
        timeout      the iterator ends when nothing came for so long, and may be asked again; None waits for ever
        reconnect    how long the server may be away: then it is tried again when the connection breaks, and all records
                     come anew, before which the iterator's `restarts` has risen and `completed` is false: what is not
                     among them is gone.  0: not at all; None: for ever.  Needs `sow`
        """
        if reconnect != 0 and not sow:
            raise InvalidArgument("sow_and_subscribe: reconnect needs sow: nobody could tell what went meanwhile")
        check_threads()
        asked = self._ticket(
            "subscribe",
            topic=topic,
            exchange=exchange or None,
            filter=filter,
            sow=sow,
            delta=delta,
            no_empties=no_empties,
            oof=oof,
            order_by=texts(order_by),
            top_n=top_n,
            skip_n=skip_n,
            conflation=None if conflation is None else f"{span(conflation, 'conflation')}us",
            conflation_key=texts(conflation_key),
            projection=texts(projection),
            grouping=texts(grouping),
            select=texts(select),
            columns=of_messages(EVENTS_DEFAULT),
            live=live or None,
            fully_durable=fully_durable or None,
        )
        if reconnect == 0:
            return Replay(self._link, asked, timeout=timeout)

        def anew(after: str | None, came: int, id: str | None, rate: str | None) -> bytes:
            return asked

        return Replay(self._link, asked, timeout=timeout, again=anew, reconnect=patience(reconnect))

    def delta_subscribe(
        self,
        topic: str,
        *,
        exchange: str = "",
        filter: str | None = None,
        no_empties: bool = False,
        oof: bool = False,
        select: str | Sequence[str] | None = None,
        timeout: Duration | None = None,
    ) -> Replay:
        """What changes in the records of a SOW topic from now on: `sow_and_subscribe` with `delta`, without `sow`."""
        return self.sow_and_subscribe(
            topic, exchange=exchange, filter=filter, sow=False, delta=True, no_empties=no_empties, oof=oof,
            select=select, timeout=timeout,
        )  # fmt: skip

    def last_sequence(self, publisher: str) -> int:
        """The sequence up to which all of a publisher in the vhost is stored, durably; 0 for one that nobody knows.

        Whoever publishes under that name sends again what is above it.  What a full queue refused is not stored.
        """
        return cast("int", self._link.act("publisher", {"publisher": publisher, "vhost": self._vhost})["sequence"])

    def replay_batches(
        self,
        topic: str | None = None,
        bookmark: str | datetime = "EPOCH",
        *,
        pattern: str | None = None,
        exchange: str = "",
        filter: str | None = None,
        limit: int | None = None,
        columns: str | Sequence[str] | None = None,
        select: str | Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """What there is now of the same, as Arrow batches.  Errors come with the first batch."""
        asked = self._ticket(
            "replay",
            topic=topic,
            pattern=pattern,
            exchange=exchange or None,
            bookmark=bookmark.isoformat() if isinstance(bookmark, datetime) else bookmark,
            filter=filter,
            limit=limit,
            columns=texts(columns),
            select=texts(select),
        )
        return self._batches(asked)

    def log_batches(
        self, start: int = 1, end: int | None = None, columns: str | Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Records of the log with start <= lsn < end, as they are stored."""
        return self._batches(command("log", **{"from": start, "to": end, "columns": texts(columns)}))

    def plan_batches(
        self, stream: str, batch: int, part: int = 0, parts: int = 1, columns: str | Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """One part of the rows of a planned batch of a durable stream."""
        asked = command("plan", stream=stream, batch=batch, part=part, parts=parts, columns=texts(columns))
        return self._batches(asked)


class Result(OfThisProcess):
    """The rows of a SELECT.  They come while they are read, and once.

    schema   of Arrow
    """

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self.schema = schema
        self._batches: Iterator[pa.RecordBatch] | None = batches

    @property
    def _instead(self) -> str:
        return "pass on its rows(), or to_arrow()"

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in the order of the SELECT."""
        return list(self.schema.names)

    def __repr__(self) -> str:
        read = ", read" if self._batches is None else ""
        return f"Result({', '.join(self.columns)}{read}: rows(), to_arrow(), to_pandas(), to_polars())"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow batches.  PreconditionFailed when they have been read."""
        batches, self._batches = self._batches, None
        if batches is None:
            raise PreconditionFailed("the rows of this result have been read: run the query again, or keep to_arrow()")
        return batches

    def held(self) -> Result:
        """The same with all rows in memory."""
        return Result(self.schema, iter(list(self.batches())))

    def _repr_html_(self) -> str:
        """The first rows, for notebooks; they can be read all the same."""
        if self._batches is None:
            return facts({"columns": ", ".join(self.columns), "rows": "have been read"})
        first = list[pa.RecordBatch]()
        while sum(batch.num_rows for batch in first) <= ROWS and (more := next(self._batches, None)) is not None:
            first.append(more)
        self._batches = chain(first, self._batches)
        some = pa.Table.from_batches(first, self.schema)
        rows = (list(row.values()) for row in some.slice(0, ROWS).to_pylist())
        return table(self.columns, rows, counted(min(some.num_rows, ROWS), some.num_rows > ROWS))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Each row as a dict by column."""
        for batch in self.batches():
            yield from batch.to_pylist()

    def to_arrow(self) -> pa.Table:
        """All rows as an Arrow table."""
        return pa.Table.from_batches(list(self.batches()), self.schema)

    def to_pandas(self) -> Any:
        """All rows as a pandas DataFrame.  ImportError without pandas."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """All rows as a polars DataFrame.  ImportError without polars."""
        polars: Any = import_module("polars")
        return polars.from_arrow(self.to_arrow())

    def rows(self) -> list[dict[str, Any]]:
        """All rows, each as a dict by column."""
        return list(self)

    def scalar(self) -> Any:
        """The value of a result of one row and one column.  PreconditionFailed for any other."""
        table = self.to_arrow()
        if table.num_rows != 1 or table.num_columns != 1:
            raise PreconditionFailed(
                f"the result has {table.num_rows} rows of {table.num_columns} columns, not one of one"
            )
        return table.column(0)[0].as_py()


@arguments_checked
class Querying(Reading):
    """Calls about all messages at once."""

    def query(self, sql: str) -> Result:
        """The result of a SELECT in DuckDB's SQL, in which each queue, topic and view is a table.

        Columns are those of a message, and the fields of JSON bodies.  Nothing is taken and nothing changes.
        Errors: InvalidArgument for what cannot be read, NotFound for a table that is not there, AccessRefused,
        Unavailable when it takes longer than the server allows.
        """
        reader = self._link.get(self._ticket("sql", statement=sql))
        try:
            with translated():
                schema = cast("pa.Schema", attended(lambda: reader.schema))
        except BaseException:
            reader.cancel()
            raise
        return Result(schema, chunks(reader))
