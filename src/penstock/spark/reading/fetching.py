"""What an executor does for one partition: fetch its rows, parse bodies, put bad ones aside.

A part is a plain value that Spark pickles to the task that reads it.  Reading a part twice gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from penstock.errors import NotFound
from penstock.records.dataclass import dataclass
from penstock.spark.arrow import batch_of, by_name, column, values
from penstock.spark.reading.columns import ERROR, Layout
from penstock.spark.reading.options import ReadOptions
from penstock.spark.reading.parsing import BodyParser
from penstock.spark.remote import Remote, remote

compute: Any = pyarrow.compute

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


@dataclass
class ReplayPart(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """Messages of the topics with start <= lsn < end."""

    origin: int
    start: int
    end: int
    part: int = 0
    held: str = ""


@dataclass
class PlanPart(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """One part of a planned batch of a stream."""

    stream: str
    batch: int
    part: int
    parts: int


@dataclass
class ContentPart(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """Messages that were in a queue when the read was planned, by runs of neighbouring LSNs."""

    origin: int
    exchange: str
    runs: list[tuple[int, int, int, str]] = field(default_factory=list[tuple[int, int, int, str]])
    """(first LSN, one past the last, attempt, state)"""
    held: str = ""

    @property
    def start(self) -> int:
        """The first LSN."""
        return self.runs[0][0]


def parts_for(rows: int, least: int | None) -> int:
    """How many parts so many rows are read in; it depends on nothing else, so that a replay has the same parts."""
    wanted = max(least or 1, min(PARTS_MAX, -(-rows // PART_ROWS)))
    return max(1, min(wanted, rows))


def fetch(options: ReadOptions, layout: Layout, part: object) -> Iterator[pa.RecordBatch]:
    """The rows of a part, as Spark wants them."""
    server = remote(options.where)
    if isinstance(part, LogPart | ReplayPart | ContentPart) and part.held:
        server.act("hold", read=part.held, start=part.start)
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


def _rows(server: Remote, options: ReadOptions, layout: Layout, part: object) -> Iterator[pa.RecordBatch]:
    columns = list(layout.fetched)
    match part:
        case LogPart():
            yield from server.rows("log", **{"from": part.start, "to": part.end}, columns=columns)
        case ReplayPart():
            yield from server.rows(
                "replay",
                vhost=server.vhost,
                bookmark=span(part.origin, part.start, part.end),
                columns=columns,
                **options.replay(),
            )
        case PlanPart():
            try:
                yield from server.rows(
                    "plan", stream=part.stream, batch=part.batch, part=part.part, parts=part.parts, columns=columns
                )
            except NotFound:
                if options.fail_on_data_loss:
                    raise
        case ContentPart():
            yield from _content(server, options, layout, part)
        case _:
            raise TypeError(f"not a part of this source: {part!r}")


def span(origin: int, start: int, end: int) -> str:
    """The bookmark of start <= lsn < end."""
    return f"[{origin}|{start}|:{origin}|{end}|)"


def _content(server: Remote, options: ReadOptions, layout: Layout, part: ContentPart) -> Iterator[pa.RecordBatch]:
    """Rows of the runs, from a replay of the range they lie in: the queue itself may hold others by now."""
    starts = np.array([run[0] for run in part.runs], np.int64)
    ends = np.array([run[1] for run in part.runs], np.int64)
    given = [name for name in layout.fetched if name not in ("attempt", "state")]
    asked = given if "lsn" in given else [*given, "lsn"]
    found = 0
    for batch in server.rows(
        "replay",
        vhost=server.vhost,
        exchange=part.exchange,
        pattern=".*",
        bookmark=span(part.origin, part.runs[0][0], part.runs[-1][1]),
        columns=asked,
    ):
        lsns = cast("npt.NDArray[np.int64]", column(batch, "lsn").to_numpy())
        place = np.searchsorted(starts, lsns, side="right") - 1
        hit = (place >= 0) & (lsns < ends[np.maximum(place, 0)])
        if not hit.any():
            continue
        mine = batch.filter(pa.array(hit))
        runs = [part.runs[i] for i in cast("list[int]", place[hit].tolist())]
        found += mine.num_rows
        columns = by_name(mine)
        columns["attempt"] = pa.array([run[2] for run in runs], pa.int32())
        columns["state"] = pa.array([run[3] for run in runs], pa.string())
        yield batch_of([columns[name] for name in layout.fetched], layout.fetched)
    wanted = int((ends - starts).sum())
    if found < wanted and options.fail_on_data_loss:
        raise NotFound(
            f"queue {options.queue!r}: the log holds {found} of the {wanted} messages that were there when the read "
            "was planned; retention has passed the others"
        )


class Aside:
    """Bad bodies of one part of one batch of a query, published once however often the part is read."""

    def __init__(self, server: Remote, options: ReadOptions, part: object) -> None:
        self._server = server
        self._topic = options.bad_records_topic
        if isinstance(part, PlanPart):
            name = f"{part.stream}/{part.part}/{part.parts}"
        elif isinstance(part, ReplayPart):
            name = f"{options.stream}/{part.part}"
        else:
            raise TypeError("only streams put bad bodies aside")
        self._publisher = Publisher(server, f"bad/{name}")

    def put(self, bodies: Sequence[bytes | None], errors: Sequence[str | None]) -> None:
        """Publish the bodies whose error is not None."""
        bad = [(body or b"", error) for body, error in zip(bodies, errors, strict=True) if error is not None]
        self._publisher.publish(str(self._topic), [body for body, _ in bad], [{"x-error": str(e)} for _, e in bad])


class Publisher:
    """Messages from a task of a streaming query, stored once: the same task of the same batch numbers them alike."""

    def __init__(self, server: Remote, name: str) -> None:
        context: Any = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
        if query is None or batch is None:
            raise TypeError("only a task of a streaming query may publish")
        self._server = server
        self._name = f"spark/{query}/{name}"
        self._next = (int(batch) << SEQUENCE_BITS) + 1

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
            self._server.put(
                "publish",
                [piece],
                topic=topic,
                exchange=exchange,
                vhost=self._server.vhost,
                publisher=self._name,
                sequence=self._next,
            )
            self._next += piece.num_rows
