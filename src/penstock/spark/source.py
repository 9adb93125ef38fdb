"""`format("penstock")`: what Spark is given for a read, a stream, a write and a stream's write.

There is no `pushFilters` here on purpose: Spark 4.3 keeps filters that one query pushed and applies them to the next
query on the same DataFrame.  A filter goes in by option, is run by the server, and belongs to one `load()`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from penstock.errors import InvalidArgument, NotFound, PenstockError, told_as
from penstock.records.ddl import for_spark
from penstock.records.message_types import needed_of
from penstock.spark.executor import spare_modules
from penstock.spark.options import LOG, PATTERN_LETTERS, QUEUE, TOPIC, VIEW, ReadOptions, read_options, refuse_idle
from penstock.spark.record_batches import values
from penstock.spark.remote import BATCH_PATIENCE_S, remote
from penstock.spark.sink import BatchWriter, StreamWriter, write_options

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.reading.batch import SnapshotReader
    from penstock.spark.reading.columns import Layout
    from penstock.spark.reading.stream import RefusedReader, StreamReader

EXAMPLES = 1_000
"""Messages that columns are inferred from."""


class PenstockSource(DataSource):  # type: ignore[misc]  # pyspark is untyped here
    """Reads and writes a Penstock server.  Options: see the documentation of `format("penstock")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        spare_modules()
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "penstock"

    def schema(self) -> str:
        """All columns there are, as DDL; `.schema(...)` asks for some of them."""
        from penstock.spark.reading.columns import declared

        options = read_options(self._given, BATCH_PATIENCE_S)
        if options.mode is None and options.queue is not None and options.stream is not None:
            options = replace(options, mode="queue")
        ddl = options.ddl
        if options.parse and ddl is None:
            ddl = registered(options)
            if ddl is None:
                ddl = kept(options, examined(options)) if options.keep_schema else examined(options)
        return declared(options, ddl, rows=options.view is not None and not has_messages(options))

    def _layout(self, options: ReadOptions, schema: Any) -> Layout:
        from penstock.spark.reading.columns import layout

        return layout(options, schema, registered(options) if options.registered else options.ddl)

    def reader(self, schema: Any) -> SnapshotReader:
        from penstock.spark.reading.batch import SnapshotReader

        options = read_options(self._given, BATCH_PATIENCE_S)
        if options.mode in ("queue", "changes"):
            raise InvalidArgument(
                f"mode {options.mode} is for streams; a batch read of a queue looks at what waits and takes nothing"
            )
        refuse_idle(options, LOG if options.log else VIEW if options.view else QUEUE if options.queue else TOPIC)
        return SnapshotReader(options, self._layout(options, schema))

    def streamReader(self, schema: Any) -> StreamReader | RefusedReader:  # noqa: N802 - Spark's name
        """A stream, in mode `queue` when a queue is read and in mode `log` when a topic is."""
        from penstock.spark.reading.stream import RefusedReader

        try:
            return self._stream_reader(schema)
        except PenstockError as error:
            return RefusedReader(error)

    def _stream_reader(self, schema: Any) -> StreamReader:
        from penstock.spark.reading.queue_stream import ChangesStreamReader, QueueStreamReader
        from penstock.spark.reading.stream import LogStreamReader

        options = read_options(self._given)
        if options.log:
            raise InvalidArgument("log = true is for batch reads; a stream reads a topic or a queue")
        if options.view is not None:
            raise InvalidArgument(
                f"view {options.view!r}: views are for batch reads; a queue whose underlying_topic is the view's name "
                "gets each row that changes, and can be streamed"
            )
        if options.stream is None:
            raise InvalidArgument(
                "option stream is missing: a stream needs a name that lasts, under which the server knows how far it is"
            )
        mode = options.mode or ("queue" if options.queue is not None else "log")
        options = replace(options, mode=mode)
        readers = {"queue": QueueStreamReader, "changes": ChangesStreamReader, "log": LogStreamReader}
        made: type[StreamReader] = readers[mode]
        reader = made(options, self._layout(options, schema))
        refuse_idle(options, f"a stream in mode {mode}")
        return reader

    def writer(self, schema: Any, overwrite: bool) -> BatchWriter:
        """A batch write: all its rows become visible at once."""
        if overwrite:
            raise InvalidArgument('messages are added, never replaced: write with mode("append")')
        return BatchWriter(write_options(self._given, BATCH_PATIENCE_S), schema)

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        """A stream's write: each batch of a query becomes visible once."""
        if overwrite:
            raise InvalidArgument(
                'messages are added, never replaced, as outputMode("complete") would: use outputMode("append"), or a '
                "pipeline, whose outputs take complete results"
            )
        options = write_options(self._given)
        if options.transaction is not None:
            raise InvalidArgument(
                "options txnAppId and txnVersion are for df.write, as in foreachBatch: a stream's own writes are known "
                "by the query of its checkpoint and the number of the batch"
            )
        return StreamWriter(options, schema)


class DefaultSource(PenstockSource):
    """The name under which Spark looks for a source in `pyspark_penstock`."""


def has_messages(options: ReadOptions) -> bool:
    """Whether what option `view` names has messages for its rows, as a topic has.  NotFound when it is not there."""
    server = remote(options.where)
    with told_as(NotFound, f"option view: there is no view {options.view!r}, and ", instead=NotFound):
        told = server.act("topic", topic=options.view, exchange=options.exchange or None, vhost=server.vhost)
    return bool(told["kind"] == "topic")


def _topic_of(options: ReadOptions) -> tuple[str, str] | None:
    """The topic that is read, and its exchange; of a queue the one that it shows.  None: it is many."""
    topic, exchange = options.view or options.topic, options.exchange
    if options.queue is not None:
        server = remote(options.where)
        settings = server.act("stats", queue=options.queue, vhost=server.vhost)["settings"]
        topic = str(settings.get("underlying_topic", {}).get("value") or options.queue)
        exchange = str(settings.get("exchange", {}).get("value") or "")
    if topic is None or (options.view is None and not PATTERN_LETTERS.isdisjoint(topic)):
        return None
    return topic, exchange


def registered(options: ReadOptions) -> str | None:
    """The declared schema of the topic that is read; of a queue, the one of the topic that it shows.

    None where none is declared and none was asked for; NotFound where `schema = registered` asked for one.
    """
    server, found = remote(options.where), _topic_of(options)
    why = f"{options.what} shows many topics"
    if found is not None:
        topic, exchange = found
        why = f"topic {topic!r} has no declared schema"
        try:
            told = server.act("topic", topic=topic, exchange=exchange or None, vhost=server.vhost)
            if (number := options.schema_version) is not None:
                return _version(topic, told.get("schemas") or {}, number)
            if told.get("schema") is not None:
                return for_spark(str(told["schema"]))
        except NotFound:
            if options.schema_version is not None:
                raise
            # most topics are not declared
    if not options.registered:
        return None
    raise NotFound(
        f"option schema is registered, and {why}: declare one (schema of [[topic]]), or name the columns with option "
        "schema"
    )


def _version(topic: str, schemas: Mapping[str, str], number: int) -> str:
    if str(number) not in schemas:
        there = f"there are {', '.join(schemas)}" if schemas else "there is none"
        raise NotFound(f"option schemaVersion: topic {topic!r} has no version {number} of its schema; {there}")
    return for_spark(schemas[str(number)])


def kept(options: ReadOptions, ddl: str) -> str:
    """What was found in messages, as the topic's schema from now on; the one that it has got meanwhile stays."""
    server, found = remote(options.where), _topic_of(options)
    if found is None:
        raise InvalidArgument(f"option keepSchema: {options.what} shows many topics, and a schema is one topic's")
    topic, exchange = found
    told = server.act("register_schema", topic=topic, exchange=exchange, vhost=server.vhost, schema=ddl, unless=True)
    return str(told["schema"])


def examined(options: ReadOptions) -> str:
    """DDL of the body's columns, from the first messages there are.

    NotFound, with the reason `inference.NO_MESSAGE`, when they say nothing.
    """
    from penstock.spark.reading.bodies import type_of
    from penstock.spark.reading.inference import NO_MESSAGE, infer

    server = remote(options.where)
    kind = type_of(server, options)
    columns = sorted(needed_of(kind))
    if options.queue is not None:
        rows: Iterable[pa.RecordBatch] = server.rows(
            "queue", name=options.queue, vhost=server.vhost, limit=EXAMPLES, columns=columns
        )
    elif options.view is not None:
        rows = server.rows(
            "sow", topic=options.view, exchange=options.exchange or None, vhost=server.vhost, top_n=EXAMPLES,
            columns=columns,
        )  # fmt: skip
    else:
        rows = server.rows("replay", vhost=server.vhost, limit=EXAMPLES, columns=columns, **options.replay())
    examples = list(rows)
    bodies, heads = ([one for batch in examples for one in values(batch, name)] if name in columns else None
                     for name in ("body", "properties"))  # fmt: skip
    ddl = infer(bodies or (), kind, heads)
    if ddl is None:
        told = f"{options.what} has no message yet whose JSON could tell its columns: name them with option schema"
        raise NotFound(told, reason=NO_MESSAGE)
    return ddl
