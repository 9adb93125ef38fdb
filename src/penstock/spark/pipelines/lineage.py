"""Lineage: which output of a pipeline came of which input, batch by batch.

The commit of a batch writes it down in the log, in one group with the rows: a `LINEAGE` record cannot disagree with
what became of the batch, and can be read for as long as the log is.  Of a queue it names the planned batches, whose
messages the `PLAN` records say one by one; of a topic it has the range.  Outputs are exact: all messages of that topic
between the two LSNs are the batch's, as a group's LSNs are its own.

Owns what a commit tells and how it is read back; it knows neither Spark nor a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, cast

import numpy as np
import orjson

from penstock.records.dataclass import dataclass
from penstock.records.kinds import Kind
from penstock.spark.checkpoint import Checkpoint
from penstock.spark.pipelines.definition import Definition
from penstock.spark.record_batches import values
from penstock.spark.remote import Remote

Pair = tuple[int, int]
"""LSNs [a, b)."""


@dataclass(frozen=True, slots=True)
class Source:
    """One stream that a pipeline reads."""

    stream: str
    mode: str  # queue, log, changes
    name: str  # of the queue or topic
    exchange: str = ""
    vhost: str = "/"
    filter: str | None = None

    def told(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> dict[str, object]:
        """What a batch read of it, by Spark's offsets."""
        told: dict[str, object] = {"stream": self.stream, "vhost": self.vhost}
        if self.mode == "log":
            told |= {"topic": self.name, "exchange": self.exchange, "from": start.get("lsn"), "to": end.get("lsn")}
            return told if self.filter is None else {**told, "filter": self.filter}
        first, last = int(start.get("batch") or 0), int(end.get("batch") or 0)
        # A query's first batch starts "wherever the stream stands", and one batch is planned at a time.
        wherever = self.mode == "queue" and not first and last
        return {**told, "queue": self.name, "batches": [last] if wherever else list(range(first + 1, last + 1))}


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a pipeline reads, as the commit of a batch tells it."""

    pipeline: str
    sources: tuple[Source, ...]  # in the order of the offsets in the checkpoint
    tables: tuple[str, ...] = ()  # what is read as it was when the query started
    backfill: str | None = None  # the id of a backfill; None: the live stream

    @classmethod
    def of(cls, definition: Definition) -> Lineage:
        """Of the batches of a pipeline."""
        streams = tuple(
            Source(
                definition.stream_of(one), one.mode, str(one.queue or one.topic), one.exchange, one.vhost, one.filter
            )
            for one in definition.streams
        )
        return cls(definition.name, streams, tuple(one.text for one in definition.inputs if not one.is_stream))

    def told(self, checkpoint: Checkpoint, batch: int, written: Sequence[str]) -> dict[str, object]:
        """`of` of the batch: its inputs and, where they are no messages, its outputs.

        PreconditionFailed when the checkpoint does not have the batch's offsets.
        """
        ends = checkpoint.offsets(batch)
        starts = checkpoint.offsets(batch - 1) if batch else [dict[str, Any]() for _ in ends]
        inputs = [one.told(start, end) for one, start, end in zip(self.sources, starts, ends, strict=False)]
        out: dict[str, object] = {"pipeline": self.pipeline, "inputs": inputs}
        more = {"tables": list(written), "read": list(self.tables), "backfill": self.backfill}
        return out | {name: value for name, value in more.items() if value}


@dataclass(frozen=True, slots=True)
class Input:
    """What one source gave to a batch."""

    kind: str  # queue, topic
    name: str
    stream: str
    pairs: tuple[Pair, ...]  # of a queue exactly its messages, of a topic the range that was read
    exchange: str = ""
    vhost: str = "/"
    filter: str | None = None
    known: bool = True  # False: the log has lost the plan, so `pairs` are empty

    @property
    def rows(self) -> int | None:
        """Messages of a queue; None where that is not what the pairs count."""
        return sum(b - a for a, b in self.pairs) if self.kind == "queue" and self.known else None


@dataclass(frozen=True, slots=True)
class Output:
    """What a batch gave to one topic or queue: its messages with first <= lsn <= last."""

    vhost: str
    exchange: str
    topic: str
    first: int
    last: int
    rows: int


@dataclass(slots=True)
class Batch:
    """A finished batch: which messages it read, and what they became."""

    pipeline: str
    query: str
    batch: int
    lsn: int  # of the record
    time_us: int
    inputs: list[Input] = field(default_factory=list[Input])
    outputs: list[Output] = field(default_factory=list[Output])
    tables: list[str] = field(default_factory=list[str])
    backfill: str | None = None

    def plain(self) -> dict[str, object]:
        return {
            "pipeline": self.pipeline, "query": self.query, "batch": self.batch, "lsn": self.lsn,
            "time_us": self.time_us, "backfill": self.backfill, "tables": self.tables,
            "inputs": [
                {
                    one.kind: one.name, "exchange": one.exchange, "vhost": one.vhost, "stream": one.stream,
                    "ranges": [list(pair) for pair in one.pairs], "rows": one.rows, "known": one.known,
                }
                for one in self.inputs
            ],
            "outputs": [
                {
                    "topic": one.topic, "exchange": one.exchange, "vhost": one.vhost, "first": one.first,
                    "last": one.last, "rows": one.rows,
                }
                for one in self.outputs
            ],
        }  # fmt: skip


def read(server: Remote, pipeline: str | None = None) -> list[Batch]:
    """The finished batches that the log tells of, oldest first; `pipeline`: of this one alone."""
    plans: dict[tuple[str, int], tuple[Pair, ...]] = {}  # (stream, batch) of a queue's plans
    ranges: dict[tuple[str, int], int] = {}  # (stream, end) -> start of a range of the log
    found: dict[tuple[str, int], Batch] = {}
    for kind, lsn, name, time_us, header, body in _records(server):
        if kind == "plan":
            pairs = _pairs(body)
            plans[name, int(header["batch"])] = pairs
            if pairs:  # in parts, where it is a range of the log
                ranges[name, pairs[-1][1]] = pairs[0][0]
            continue
        key = name, int(header["batch"])
        if "of" in header:
            of = cast("Mapping[str, Any]", header["of"])
            found[key] = _batch(key, lsn, time_us, of, plans, ranges)
        if key in found:  # else its beginning has left the log
            found[key].outputs += [Output(*one) for one in header.get("outputs") or ()]
    return [one for one in found.values() if pipeline in (None, one.pipeline)]


def _records(server: Remote) -> Iterator[tuple[str, int, str, int, dict[str, Any], bytes]]:
    columns = ["lsn", "kind", "name", "time", "properties", "body"]
    for rows in server.rows("log", columns=columns, kinds=["plan", "lineage"]):
        times = rows.column("time").to_numpy(zero_copy_only=False).astype("datetime64[us]").astype(np.int64).tolist()
        lists = [values(rows, name) for name in ("lsn", "kind", "name", "properties", "body")]
        for lsn, kind, name, header, body, time_us in zip(*lists, times, strict=True):
            told = "plan" if kind == Kind.PLAN else "lineage"
            yield told, int(lsn), str(name), int(time_us), orjson.loads(header), bytes(body or b"")


def _pairs(body: bytes) -> tuple[Pair, ...]:
    flat = np.frombuffer(body, dtype="<i8")[1:].tolist()
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def _batch(
    key: tuple[str, int],
    lsn: int,
    time_us: int,
    of: Mapping[str, Any],
    plans: Mapping[tuple[str, int], tuple[Pair, ...]],
    ranges: Mapping[tuple[str, int], int],
) -> Batch:
    out = Batch(str(of.get("pipeline") or ""), *key, lsn, time_us)
    out.tables = [str(one) for one in of.get("tables") or ()]
    out.backfill = of.get("backfill")
    for told in cast("Sequence[Mapping[str, Any]]", of.get("inputs") or ()):
        if "queue" in told:
            out.inputs.append(_of_queue(told, plans))
        elif told.get("to") is not None:  # else it brought nothing yet
            out.inputs.append(_of_topic(told, ranges))
    return out


def _of_queue(told: Mapping[str, Any], plans: Mapping[tuple[str, int], tuple[Pair, ...]]) -> Input:
    stream = str(told["stream"])
    parts = [plans.get((stream, int(batch))) for batch in told["batches"]]
    pairs = tuple(sorted(pair for part in parts for pair in part or ()))
    known = all(part is not None for part in parts)
    return Input("queue", str(told["queue"]), stream, pairs, vhost=str(told.get("vhost") or "/"), known=known)


def _of_topic(told: Mapping[str, Any], ranges: Mapping[tuple[str, int], int]) -> Input:
    stream, end = str(told["stream"]), int(told["to"])
    start = told["from"] if told["from"] is not None else ranges.get((stream, end))
    return Input(
        "topic",
        str(told["topic"]),
        stream,
        ((int(start), end),) if start is not None and start < end else (),
        str(told.get("exchange") or ""),
        str(told.get("vhost") or "/"),
        told.get("filter"),
        start is not None,
    )


def about(server: Remote, batches: Sequence[Batch], lsn: int) -> list[tuple[Batch, str]]:
    """The batches that a message has to do with, and what it is of each: `input` or `output`."""
    out: list[tuple[Batch, str]] = []
    names: dict[tuple[str, str, str], bool] = {}

    def is_of(vhost: str, exchange: str, topic: str, filter: str | None = None) -> bool:
        """Whether the message is one of this topic, and passes."""
        key = topic, exchange, filter or ""
        if key not in names:
            names[key] = _is_of(server, lsn, vhost, exchange, topic, filter)
        return names[key]

    for one in batches:
        for given in one.inputs:
            within = any(a <= lsn < b for a, b in given.pairs)
            if within and (given.kind == "queue" or is_of(given.vhost, given.exchange, given.name, given.filter)):
                out.append((one, "input"))
        for made in one.outputs:
            if made.first <= lsn <= made.last and is_of(made.vhost, made.exchange, made.topic):
                out.append((one, "output"))
    return out


def _is_of(server: Remote, lsn: int, vhost: str, exchange: str, topic: str, filter: str | None) -> bool:
    from penstock.spark.options import PATTERN_LETTERS

    origin = int(server.act("position")["origin"])
    name = "topic" if PATTERN_LETTERS.isdisjoint(topic) else "pattern"
    fields = {name: topic, "exchange": exchange, "filter": filter, "columns": ["lsn"]}
    rows = server.rows("replay", vhost=vhost, bookmark=f"[{origin}|{lsn}|:{origin}|{lsn + 1}|)", **fields)
    return any(batch.num_rows for batch in rows)
