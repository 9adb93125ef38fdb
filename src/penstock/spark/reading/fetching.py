"""What an executor does for one partition: fetch its rows, parse bodies, put bad ones aside.

A part is a plain value that Spark pickles to the task that reads it.  Reading a part twice gives the same rows, whether
they come from the server or from the log's own files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from penstock.errors import AccessRefused, LogDamaged, NotFound, PreconditionFailed
from penstock.records.dataclass import dataclass
from penstock.spark.arrow import batch_of, by_name, column, values
from penstock.spark.reading import direct
from penstock.spark.reading.columns import ERROR, Layout
from penstock.spark.reading.keyed import of_part, with_needed
from penstock.spark.reading.options import ReadOptions
from penstock.spark.reading.parsing import BodyParser
from penstock.spark.remote import Remote, remote

Lsns = npt.NDArray[np.int64]

PART_ROWS = 50_000
"""About how many rows a partition of a stream's batch has."""

PARTS_MAX = 8
"""More parts only when `minPartitions` asks for them."""

SEQUENCE_BITS = 24
"""Rows that a part of one batch may put aside: the publisher's sequence is batch and row in one number."""


@dataclass
class LogPart(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """Records of the log, of all kinds."""

    start: int
    end: int
    held: str = ""  # name of the hold on the log that lasts as long as parts are read
    part: int = 0


@dataclass
class ReplayPart(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """Messages of the topics with start <= lsn < end."""

    origin: int
    start: int
    end: int
    part: int = 0
    held: str = ""
    asked: dict[str, object] | None = None  # which messages, where it is not what the options say


@dataclass
class PlanPart(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """One part of a planned batch of a stream."""

    stream: str
    batch: int
    part: int
    parts: int
    revision: int = 0  # how often the batch was narrowed
    order_by: str | None = None  # an expression: a part has the rows of its keys, instead of its share of the rows
    epoch: int | None = None  # of the reader


@dataclass
class ChangePart(PlanPart):
    """The same of a stream in mode changes, where all messages of a batch came, or all went."""

    change: int = 1  # -1: they went


@dataclass
class ContentPart(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """Messages that were in a queue when the read was planned, by runs of neighbouring LSNs."""

    origin: int
    exchange: str
    runs: list[tuple[int, int, int, str]] = field(default_factory=list[tuple[int, int, int, str]])
    """(first LSN, one past the last, attempt, state)"""
    held: str = ""
    part: int = 0

    @property
    def start(self) -> int:
        """The first LSN."""
        return self.runs[0][0]

    def lsns(self) -> Lsns:
        """Of its messages, ascending."""
        return np.concatenate([np.arange(run[0], run[1], dtype=np.int64) for run in self.runs])

    def extra(self) -> dict[str, pa.Array[Any]]:
        """Columns that the log does not have, a row for each LSN."""
        sizes = [run[1] - run[0] for run in self.runs]
        attempts = np.repeat(np.array([run[2] for run in self.runs], np.int32), sizes)
        states = np.repeat(np.arange(len(sizes)), sizes)
        names: Any = pa.array([run[3] for run in self.runs], pa.string())
        return {"attempt": cast("pa.Array[Any]", pa.array(attempts)), "state": names.take(pa.array(states))}


@dataclass
class RecordPart(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """Records of a topic with a key as they were when the read was planned."""

    origin: int
    exchange: str
    packed: bytes  # LSNs, ascending
    keys: pa.Array[Any]
    held: str = ""
    part: int = 0

    @property
    def start(self) -> int:
        """The first LSN."""
        return int(self.lsns()[0])

    def lsns(self) -> Lsns:
        """Of its records, ascending."""
        return np.frombuffer(self.packed, np.int64)

    def extra(self) -> dict[str, pa.Array[Any]]:
        """Columns that the log does not have, a row for each LSN."""
        return {"sow_key": self.keys}


@dataclass
class RowsPart(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """Rows of a view, as they were when the read was planned."""

    packed: bytes  # an Arrow stream
    held: str = ""
    part: int = 0


def parts_for(rows: int, least: int | None) -> int:
    """How many parts so many rows are read in; it depends on nothing else, so that a replay has the same parts."""
    wanted = max(least or 1, min(PARTS_MAX, -(-rows // PART_ROWS)))
    return max(1, min(wanted, rows))


def fetch(options: ReadOptions, layout: Layout, part: object) -> Iterator[pa.RecordBatch]:
    """The rows of a part, as Spark wants them."""
    server = remote(options.where)
    if isinstance(part, LogPart | ReplayPart | ContentPart | RecordPart) and part.held:
        keep(server, options, part.held, part.start)
    rows = _rows(server, options, layout, part)
    if not layout.parsed and not layout.error:
        for batch in rows:
            yield layout.fitted(by_name(batch))
        return
    parser = BodyParser(layout.schema, layout.parsed)
    aside = Aside(server, options, part) if layout.strict else None
    for batch in rows:
        columns = by_name(batch)
        found, errors = parser.parse(columns["body"])
        columns |= found
        if layout.error:
            columns[ERROR] = pa.array(errors, pa.string())
        fitted = layout.fitted(columns)
        if aside is not None and any(error is not None for error in errors):
            aside.put(values(batch, "body"), errors)
            fitted = fitted.filter(pa.array([error is None for error in errors]))
        yield fitted


def keep(server: Remote, options: ReadOptions, held: str, start: int) -> None:
    """Have the log kept from `start` on.  PreconditionFailed when something of it may have gone meanwhile."""
    told = server.act("hold", read=held, start=start)
    if options.fail_on_data_loss and not told["kept"] and start < max(int(told["first"]), int(told["floor"])):
        raise PreconditionFailed(
            f"{options.what}: a part of this read begins at LSN {start}, the server has kept it no longer since the "
            f"read was planned, and retention has come to LSN {max(int(told['first']), int(told['floor']))}; plan it "
            "anew with a new load(), or set failOnDataLoss to false"
        )


def _rows(server: Remote, options: ReadOptions, layout: Layout, part: object) -> Iterator[pa.RecordBatch]:
    columns = list(layout.fetched)
    match part:
        case LogPart():
            a, b = part.start, part.end
            yield from either(
                options,
                lambda: direct.records(server, a, b, columns),
                lambda skip: server.rows("log", skip, **{"from": a, "to": b}, columns=columns),
            )
        case ReplayPart():
            where, missing = span(part.origin, part.start, part.end), "epoch"
            if options.fail_on_data_loss and not part.held:
                missing = "fail"
            chosen, a, b = options.replay() if part.asked is None else part.asked, part.start, part.end
            yield from either(
                options,
                lambda: direct.messages(server, chosen, a, b, columns),
                lambda skip: server.rows(
                    "replay",
                    skip,
                    vhost=server.vhost,
                    bookmark=where,
                    columns=columns,
                    bookmark_not_found=missing,
                    **chosen,
                ),
            )
        case ChangePart():
            asked = [name for name in columns if name != "change"] or ["lsn"]
            rows = server.rows("plan", stream=part.stream, batch=part.batch, part=part.part, parts=part.parts,
                               columns=asked)  # fmt: skip
            for batch in rows:
                found = by_name(batch)
                found["change"] = pa.array(np.full(batch.num_rows, part.change, np.int32))
                yield batch_of([found[name] for name in columns], columns)
        case PlanPart():
            yield from _planned(server, options, part, layout.fetched)
        case ContentPart() | RecordPart():
            yield from _content(server, options, layout, part)
        case RowsPart():
            with pa.ipc.open_stream(pa.py_buffer(part.packed)) as stream:
                yield from stream
        case _ if type(part) is InputPartition:
            return  # Spark's own, where `partitions` gave none
        case _:
            raise TypeError(f"not a part of this source: {part!r}")


def either(
    options: ReadOptions,
    files: Callable[[], Iterator[pa.RecordBatch]],
    asked: Callable[[int], Iterator[pa.RecordBatch]],
) -> Iterator[pa.RecordBatch]:
    """Rows from the log's files where option `direct` and this machine allow it, else from the server.

    asked: the same rows from the server without the first so many.
    """
    given = 0
    if options.direct != "false":
        try:
            for batch in files():
                yield batch
                given += batch.num_rows
            return
        except (direct.NotHere, LogDamaged, OSError) as why:
            if options.direct == "true":
                raise direct.refuse(why) from why
    yield from asked(given)


def _planned(
    server: Remote, options: ReadOptions, part: PlanPart, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Rows of a planned batch.  Never from the files: the server must hear who has it (`core.streams.poison`)."""
    keyed = part.order_by is not None
    asked: dict[str, object] = {
        "stream": part.stream,
        "batch": part.batch,
        "revision": part.revision,
        "columns": with_needed(columns) if keyed else list(columns),
        "part": None if keyed else part.part,
        "parts": None if keyed else part.parts,
        "epoch": part.epoch,
    }
    task = task_of()
    if task is not None:
        asked |= {"query": task[0], "query_batch": task[1]}
    try:
        rows = server.rows("plan", **asked)
        yield from rows if part.order_by is None else of_part(rows, part.order_by, part.part, part.parts)
    except NotFound:
        if options.fail_on_data_loss:
            raise


def task_of() -> tuple[str, int] | None:
    """The query and its batch that this task belongs to; None outside a streaming query."""
    context: Any = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
    return None if query is None or batch is None else (str(query), int(batch))


def span(origin: int, start: int, end: int) -> str:
    """The bookmark of start <= lsn < end."""
    return f"[{origin}|{start}|:{origin}|{end}|)"


def _content(
    server: Remote, options: ReadOptions, layout: Layout, part: ContentPart | RecordPart
) -> Iterator[pa.RecordBatch]:
    """Rows at the LSNs of the part, from the log: the queue, or the index of the records, may have others by now."""
    lsns, extra = part.lsns(), part.extra()
    given = [name for name in layout.fetched if name not in extra]
    asked = given if "lsn" in given else [*given, "lsn"]
    chosen: dict[str, object] = {"topic": options.view} if isinstance(part, RecordPart) else {"pattern": ".*"}
    named: dict[str, object] = chosen if isinstance(part, RecordPart) else {"queue": options.queue}
    rows = either(
        options,
        lambda: direct.at(server, named, part.exchange, lsns, asked),
        lambda skip: _at(server, chosen, part, lsns, asked, skip),
    )
    found = 0
    for batch in rows:
        places: Any = pa.array(np.searchsorted(lsns, cast("Lsns", column(batch, "lsn").to_numpy())))
        found += batch.num_rows
        columns = by_name(batch)
        for name, whole in extra.items():
            if name in layout.fetched:
                columns[name] = cast("Any", whole).take(places)
        yield batch_of([columns[name] for name in layout.fetched], layout.fetched)
    if found < len(lsns) and options.fail_on_data_loss:
        raise NotFound(
            f"{options.what}: the log gives {found} of the {len(lsns)} messages that were there when the read was "
            "planned; retention has passed the others, or this user may not read their topics"
        )


def _at(
    server: Remote, chosen: dict[str, object], part: ContentPart | RecordPart, lsns: Lsns, columns: list[str], skip: int
) -> Iterator[pa.RecordBatch]:
    """The rows at these LSNs of a replay of the range they lie in, without the first so many of them."""
    where = span(part.origin, int(lsns[0]), int(lsns[-1]) + 1)
    for batch in server.rows(
        "replay", vhost=server.vhost, exchange=part.exchange, bookmark=where, columns=columns, **chosen
    ):
        there = cast("Lsns", column(batch, "lsn").to_numpy())
        hit = np.isin(there, lsns, assume_unique=True)
        mine = batch if hit.all() else batch.filter(pa.array(hit))
        if skip >= mine.num_rows:
            skip -= mine.num_rows
            continue
        yield mine.slice(skip)
        skip = 0


class Aside:
    """Bad bodies of one part of one batch of a query, or of one `load()`, published once however often it is read."""

    def __init__(self, server: Remote, options: ReadOptions, part: object) -> None:
        self._topic = options.bad_records_topic
        self._server: Remote | None = server  # until the topic is known to keep what it gets
        if isinstance(part, PlanPart):
            self._publisher = Publisher(server, f"bad/{part.stream}/{part.part}/{part.parts}")
        elif isinstance(part, ReplayPart) and options.stream is not None:
            self._publisher = Publisher(server, f"bad/{options.stream}/{part.part}")
        elif isinstance(part, LogPart | ReplayPart | ContentPart | RecordPart | RowsPart) and part.held:
            self._publisher = Publisher(server, f"spark/read/{part.held}/{part.part}", 1)
        else:
            raise TypeError(f"no part whose bad bodies could be told apart: {part!r}")

    def put(self, bodies: Sequence[bytes | None], errors: Sequence[str | None]) -> None:
        """Publish the bodies whose error is not None."""
        if self._server is not None:
            try:
                self._server.act("declare_topic", topic=self._topic, vhost=self._server.vhost)
            except AccessRefused:
                pass  # who may not declare it relies on who did; what is not kept is told below
            self._server = None
        bad = [(body or b"", error) for body, error in zip(bodies, errors, strict=True) if error is not None]
        self._publisher.publish(str(self._topic), [body for body, _ in bad], [{"x-error": str(e)} for _, e in bad])


class Publisher:
    """Messages from a task, stored once: whoever repeats it gives them the same numbers."""

    def __init__(self, server: Remote, name: str, first: int | None = None) -> None:
        """`name`: of the publisher, the same each time the task runs.

        first: the number of its first message; None: this is a task of a streaming query, whose number says it.
        """
        self._server = server
        if first is not None:
            self._name, self._next = name, first
            return
        task = task_of()
        if task is None:
            raise TypeError("only a task of a streaming query may publish")
        self._name = f"spark/{task[0]}/{name}"
        self._next = (task[1] << SEQUENCE_BITS) + 1

    def publish(
        self, topic: str, bodies: Sequence[bytes], headers: Sequence[dict[str, str]], exchange: str = ""
    ) -> None:
        """Publish in order; what an earlier try has stored is not stored again."""
        batch = pa.record_batch(
            {
                "body": pa.array(bodies, pa.binary()),
                "headers": pa.array([list(one.items()) for one in headers], pa.map_(pa.string(), pa.string())),
            }
        )
        for start in range(0, len(bodies), 10_000):
            piece = batch.slice(start, 10_000)
            told = self._server.put(
                "publish",
                [piece],
                topic=topic,
                exchange=exchange,
                vhost=self._server.vhost,
                publisher=self._name,
                sequence=self._next,
                mandatory=True,  # else the next try would take what was not kept for a duplicate
            )
            if told["stored"] + told["duplicates"] < piece.num_rows:
                raise PreconditionFailed(
                    f"topic {topic!r} took {told['stored']} of {piece.num_rows} messages: declare it, or a queue that "
                    "takes them, and see that the queue is not full"
                )
            self._next += piece.num_rows
