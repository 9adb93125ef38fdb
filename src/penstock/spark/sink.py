"""Writes: tasks stage their rows on the server, and one commit of the driver makes exactly the named stages visible.

The options of `format("penstock")` say where rows go, in which order, and which write this is.  The commit's key is
(query id, batch id).  A batch that Spark runs again after a crash is answered "already", so its rows are there once; a
try that lost leaves stages that nobody names, which the server sweeps.  A batch write has a key of its own each time,
or the one that `txnAppId` and `txnVersion` make.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from hashlib import sha256
from typing import Any, TypeAlias, TypeVar, cast

import orjson
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.errors import AccessRefused, DiskFull, InvalidArgument, NotFound, PreconditionFailed, QueueFull
from penstock.records.dataclass import dataclass
from penstock.spark.checkpoint import Checkpoint, local_folder
from penstock.spark.executor import spare_modules
from penstock.spark.options import NO_STREAM, WRITE
from penstock.spark.remote import DEFAULT_PATIENCE_S, Tries, Where, remote
from penstock.spark.sink_rows import Outgoing, outgoing, pieces
from penstock.spark.taker import Taker
from penstock.wire.flight.commands import DEFAULT_VHOST

APP_MOST = 255
"""Bytes of the id that a server knows an application by."""

VERSION_MOST = 2**63 - 1

NO_ROWS: pa.RecordBatch = cast("Any", pa.RecordBatch).from_arrays([pa.nulls(0, pa.binary())], names=["body"])
"""What publishes nothing, where it may be published; made so that nothing loads pandas."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """A batch write that may come again: one application's version of what it brings to a target."""

    app: str
    version: int

    def query(self, vhost: str, exchange: str, topic: str | None) -> str:
        """What the server knows these writes by, as it does a query of a stream: the application and the target."""
        text = f"txn:{orjson.dumps([self.app, vhost, exchange, topic]).decode()}"
        return text if len(text.encode()) <= APP_MOST else f"txn:{sha256(text.encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where the rows of a DataFrame go, as the options of a write say."""

    where: Where
    topic: str | None  # for rows without one of their own
    exchange: str = ""
    settle_stream: str | None = None  # None: the stream that the checkpoint names; `NO_STREAM`: none
    checkpoint: str | None = None
    name: str = ""  # of the query, for people
    queue: bool = False  # `topic` is a queue, and all rows go there
    order: str | None = None  # the column whose order rows become visible in; None: partition by partition
    delta: bool = False  # bodies are merged into the present records of their keys
    mandatory: bool = True  # a topic that nobody keeps is an error
    transaction: Transaction | None = None  # of a batch write: what makes it the same as an earlier one

    def check(self) -> None:
        """NotFound for a vhost or exchange that is missing, and where all rows go to a queue and there is none: a topic
        of its name would take them.
        """
        server = remote(self.where)
        if self.exchange or server.vhost != DEFAULT_VHOST:
            try:
                server.put("publish", [NO_ROWS], topic=self.topic, exchange=self.exchange, vhost=server.vhost)
            except (AccessRefused, NotFound) as error:
                name = "exchange" if f"exchange '{self.exchange}'" in str(error) else "url"
                raise type(error)(f"option {name}: {error}", reason=error.reason) from None
        if self.queue and self.mandatory:
            refuse_missing(self.where, str(self.topic), server.vhost)

    @property
    def target(self) -> str:
        """Where all rows go, for a person; nothing where rows may say it themselves."""
        vhost = remote(self.where).vhost
        kind = f"topic '{self.topic}' of exchange '{self.exchange}'" if self.exchange else f"'{self.topic}'"
        return "" if self.topic is None else f"{kind} in vhost '{vhost}'"


def refuse_missing(where: Where, queue: str, vhost: str) -> None:
    """NotFound where there is no such queue, as far as this user may know."""
    with suppress(AccessRefused):
        try:
            remote(where).act("stats", queue=queue, vhost=vhost)
        except NotFound as error:
            raise NotFound(f"{error}; what is no queue is written to with option topic") from None


def write_options(given: Mapping[str, str], patience_s: float = DEFAULT_PATIENCE_S) -> WriteOptions:
    """Options of a write; `patience_s` where they do not say.  Raises InvalidArgument."""
    if not given:  # the server that goes without saying may be another than the one that was named
        raise InvalidArgument(
            "a write without any option, which is all that Spark hands on of CREATE TABLE ... AS SELECT: name url, "
            "topic or queue with df.write, or in a CREATE TEMPORARY VIEW and INSERT INTO it"
        )
    take = Taker(given, WRITE)
    topic, queue, path = take.name("topic"), take.name("queue"), take.name("path")
    if sum(value is not None for value in (topic, queue, path)) > 1:
        raise InvalidArgument("options topic, queue and save(name) exclude each other: give one of them")
    if queue is not None and take.text("exchange"):
        raise InvalidArgument("option exchange goes with topic; a queue is written through the default exchange")
    delta = take.flag("delta")
    if delta and queue is not None:
        raise InvalidArgument("option delta is for records of a topic with a key; a queue has none: give option topic")
    return WriteOptions(
        take.where(patience_s),
        topic or queue or path,
        take.name("exchange") or "",
        take.name("settleStream"),
        take.text("checkpointLocation"),
        take.text("queryName") or "",
        queue is not None,
        _order(take.text("ordered")),
        delta,
        take.word("unroutable", "fail", "drop") != "drop",
        _transaction(take),
    )


def _transaction(take: Taker) -> Transaction | None:
    app, version = take.name("txnAppId"), take.count("txnVersion", most=VERSION_MOST)
    if app is None and version is None:
        return None
    if app is None or version is None:
        given, missing = ("txnAppId", "txnVersion") if version is None else ("txnVersion", "txnAppId")
        raise InvalidArgument(f"option {given} goes with {missing}: together they say which write this is")
    return Transaction(app, version)


def _order(given: str | None) -> str | None:
    """The column to order by.  `true` and `false` name none: rows keep the order of partitions and in them anyway."""
    return None if given is None or given.lower() in ("true", "false") else given


Settled: TypeAlias = "tuple[str, int] | tuple[str, int, int]"
"""An input that a commit settles: stream, batch, and perhaps the number of the server that has it."""


@dataclass
class Staged(WriterCommitMessage):  # type: ignore[misc]  # pyspark is untyped here
    """What one task has put on the server."""

    query: str
    batch: int
    stages: tuple[str, ...]
    rows: int


def stage(
    where: Where,
    query: str,
    batch: int,
    rows: Iterable[pa.RecordBatch],
    out: Outgoing,
    topic: str | None,
    exchange: str,
    vhost: str | None = None,
    *,
    delta: bool = False,
) -> tuple[tuple[str, ...], int]:
    """Put the rows of this task on the server; the stages' names in order, and how many rows there were.

    While there is no room for stages it waits, as long as `where` has patience.
    """
    server = remote(where)
    context: Any = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    names: list[str] = []
    total = 0
    for place, piece in enumerate(pieces(rows, out)):
        answer = put_stage(
            where,
            piece,
            query=query,
            batch=batch,
            partition=partition,
            attempt=place,  # a commit keeps the order of partition, then of this
            topic=topic,
            exchange=exchange,
            vhost=vhost or server.vhost,
            delta=delta or None,
            ordered=out.order is not None or None,
        )
        names.append(str(answer["stage"]))
        total += int(answer["rows"])
    spare_modules()
    return tuple(names), total


def put_stage(where: Where, piece: Sequence[pa.RecordBatch], **fields: object) -> dict[str, Any]:
    """One stage, as `wire.flight.commands.Stage` has its fields; while there is no room it waits, as `stage`."""
    return patiently(where, partial(remote(where).put, "stage", piece, **fields))


def staged(options: WriteOptions, out: Outgoing, query: str, batch: int, rows: Iterable[pa.RecordBatch]) -> Staged:
    """Put the rows of this task on the server, as the options of a write say."""
    stages, total = stage(options.where, query, batch, rows, out, options.topic, options.exchange, delta=options.delta)
    return Staged(query, batch, stages, total)


def stages_of(messages: Sequence[WriterCommitMessage | None]) -> list[str]:
    """Those of tasks that came to an end."""
    return [name for message in messages if isinstance(message, Staged) for name in message.stages]


def commit(
    where: Where,
    query: str,
    batch: int,
    stages: Sequence[str],
    settle: Sequence[Settled] = (),
    lineage: Mapping[str, object] | None = None,
    *,
    name: str = "",
    once: bool = False,
    mandatory: bool = False,
    skip_late: bool = False,
    target: str = "",
    drop: Mapping[str, object] | None = None,
    within: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> dict[str, Any]:
    """Make the stages visible, once and all of them; a full target is waited for, as long as `where` has patience.

    settle: (stream, batch) of each input, settled in the same step; with a third item, the number of the server that
    has the stream, only if it is this one.  once: the query has no other batch.  mandatory: a topic
    that nobody keeps is an error.  skip_late: a lower batch than the highest counts as committed.  target: where all
    rows go, in words: a batch that was committed to another one is refused.  lineage: what the batch was made of, for
    the log.  drop: records of a topic that go with it.  within: what is done around each try.
    """
    inner = [dict(zip(("stream", "batch", "origin"), one, strict=False)) for one in settle]

    def once_more() -> dict[str, Any]:
        with within():
            return remote(where).act(
                "sink_commit", query=query, batch=batch, stages=list(stages), settle=inner or None, lineage=lineage,
                query_name=name or None, once=once or None, mandatory=mandatory or None, skip_late=skip_late or None,
                target=target or None, drop=drop,
            )  # fmt: skip

    return patiently(where, once_more)


class StreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]  # pyspark is untyped here
    """The sink of a streaming query.  One instance a batch on the driver, pickled to its tasks."""

    def __init__(self, options: WriteOptions, schema: Any) -> None:
        self.options = options
        self.out = outgoing(schema, options.topic, queue=options.queue, order=options.order)
        options.check()
        if (stream := options.settle_stream) in (None, NO_STREAM):
            return
        folder = local_folder(options.checkpoint)
        if folder is None:
            raise InvalidArgument(
                "option settleStream reads the query's checkpoint and needs it in a local folder, "
                f"not {options.checkpoint or 'a default place'}"
            )
        if (newest := Checkpoint(folder).newest()) is not None:
            _settled_by_name(Checkpoint(folder), newest, stream)

    def write(self, iterator: Iterable[pa.RecordBatch]) -> Staged:
        context: Any = TaskContext.get()
        query = str(context.getLocalProperty("sql.streaming.queryId"))
        batch = int(context.getLocalProperty("streaming.sql.batchId"))
        return staged(self.options, self.out, query, batch, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """On the driver, when every task is done."""
        query = next((one.query for one in messages if isinstance(one, Staged)), None)
        stages, settled = stages_of(messages), self._settled(batchId)
        if query is not None and (stages or settled is not None):
            options = self.options
            commit(
                options.where, query, batchId, stages, [] if settled is None else [settled],
                name=options.name, mandatory=options.mandatory, target=options.target,
            )  # fmt: skip

    def _settled(self, batch: int) -> Settled | None:
        """The input of a batch: by name, or the one queue that the checkpoint says was read."""
        stream = self.options.settle_stream
        folder = local_folder(self.options.checkpoint)
        if stream is None:
            inputs = Checkpoint(folder).inputs(batch) if folder is not None and folder.is_dir() else []
            return inputs[0] if len(inputs) == 1 else None
        if stream == NO_STREAM:
            return None
        if folder is None:
            raise PreconditionFailed(f"the checkpoint {self.options.checkpoint!r} is no local folder any more")
        return _settled_by_name(Checkpoint(folder), batch, stream)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """On the driver, when a task has failed for good."""
        drop(self.options.where, messages)


def _settled_by_name(checkpoint: Checkpoint, batch: int, stream: str) -> Settled | None:
    """The batch of this stream that a batch of Spark's ends in; None where it has none yet.

    PreconditionFailed where the query reads no queue under this name: a batch of that number is another query's.
    """
    found = {one[0]: one for one in checkpoint.inputs(batch)}
    if stream in found or checkpoint.is_beginning(batch):
        return found.get(stream)
    read = " and ".join(map(repr, found)) or "no queue by a stream's name"
    raise PreconditionFailed(f"option settleStream is {stream!r}, and the query reads {read}")


class BatchWriter(DataSourceArrowWriter):  # type: ignore[misc]  # pyspark is untyped here
    """A batch write, visible once.  Its name is made up when it is planned, unless it is a version of an application's.

    A version that is not above the last one committed is skipped, whatever it brings: its rows are computed, as Spark
    has begun to, and go nowhere.
    """

    def __init__(self, options: WriteOptions, schema: Any) -> None:
        self.options = options
        self.out = outgoing(schema, options.topic, queue=options.queue, order=options.order)
        options.check()
        if options.settle_stream not in (None, NO_STREAM):
            raise InvalidArgument("option settleStream is for streams")
        self.query, self.batch = f"write-{uuid.uuid4()}", 0
        self.done = False  # as far as it is known here; the commit knows for certain
        if (made := options.transaction) is not None:
            server = remote(options.where)
            self.query, self.batch = made.query(server.vhost, options.exchange, options.topic), made.version
            highest = server.act("sink", query=self.query)["batch"]
            self.done = highest is not None and self.batch <= highest

    def write(self, iterator: Iterable[pa.RecordBatch]) -> Staged:
        if self.done:
            for _ in iterator:
                pass
            return Staged(self.query, self.batch, (), 0)
        return staged(self.options, self.out, self.query, self.batch, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver, when every task is done.  A version counts as committed without rows too."""
        stages = stages_of(messages)
        options, made = self.options, self.options.transaction
        if self.done or (made is None and not stages):
            return
        commit(
            options.where, self.query, self.batch, stages, name=options.name if made is None else made.app,
            once=made is None, mandatory=options.mandatory, skip_late=made is not None,
        )  # fmt: skip

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver, when a task has failed for good."""
        drop(self.options.where, messages)


def drop(where: Where, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Remove the stages of tasks whose write will not be committed."""
    if stages := stages_of(messages):
        remote(where).act("stage_drop", stages=stages)


T = TypeVar("T")


def patiently(where: Where, call: Callable[[], T]) -> T:
    """What the call gives.  QueueFull or DiskFull when there is no room after `where.patience` seconds."""
    tries = Tries(where.patience)
    while True:
        try:
            return call()
        except (QueueFull, DiskFull) as error:
            said = type(error)(
                f"{error}; this was tried for {where.patience:g} s{where.by}, and nothing of "
                f"the batch is visible. {type(error).to_do}",
                reason=error.reason,
            )
            tries.pause(said)
