"""Batch reads: what is read is fixed when the read is planned, so a DataFrame is a stable snapshot."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.errors import InvalidArgument, PreconditionFailed
from penstock.records.schema import UNCLEAN_GAP
from penstock.spark.executor import spare_modules
from penstock.spark.reading.parts import ContentPart, LogPart, RecordPart, ReplayPart, RowsPart
from penstock.spark.record_batches import values
from penstock.spark.remote import Remote, remote
from penstock.wire.fields import LSN_MAX

if TYPE_CHECKING:
    from penstock.records.message_types import MessageType
    from penstock.spark.options import ReadOptions
    from penstock.spark.reading.columns import Layout

PART_ROWS = 100_000
"""About how many rows a part has, as far as there are processors."""


VIEW_BYTES = 64 * 2**20
"""Bytes of rows of a view or of records that are fixed by taking them along; of records beyond that their places."""


class SnapshotReader(DataSourceReader):  # type: ignore[misc]  # pyspark is untyped here
    """A topic, a queue's content, a view, or the log itself, as it is now."""

    def __init__(self, options: ReadOptions, layout: Layout) -> None:
        self.options = options
        self.layout = layout
        self._kind: MessageType | None = None  # what its bodies are, where they are read

    def partitions(self) -> Sequence[InputPartition]:
        """Fix what is read: Spark asks once for each `load()`."""
        spare_modules()
        options = self.options
        server = remote(options.where)
        if options.log:
            return self._log(server)
        if self.layout.reads_bodies:
            from penstock.spark.reading.bodies import type_of  # who reads no bodies need not load it

            self._kind = type_of(server, options)
        if options.topic is not None:
            return self._topic(server)
        if options.view is not None:
            return self._view(server, options.view)
        return self._queue_content(server)

    def _log(self, server: Remote) -> list[InputPartition]:
        options = self.options
        with still(server):
            where = server.act("position")
            first, asked = int(where["first"]), options.starting_lsn or 0
            if 1 < asked < first and options.fail_on_data_loss:
                raise PreconditionFailed(
                    f"startingLsn is {asked}, and retention has removed what lies before LSN {first}; start later, or "
                    "set failOnDataLoss to false"
                )
            start = max(asked, first)
            held = hold(server, start)
        end = min(LSN_MAX if options.ending_lsn is None else options.ending_lsn, int(where["durable"]) + 1)
        ranges = _split(start, max(start, end), options, lambda: _log(server, start, end))
        return [LogPart(a, b, held, i) for i, (a, b) in enumerate(ranges)]

    def _topic(self, server: Remote) -> list[InputPartition]:
        options = self.options
        with still(server):
            origin, start, end = self._topic_range(server)
            held = hold(server, start)
        if start >= end:
            return []
        chosen = {name: value for name, value in options.replay().items() if name != "filter"}
        told = server.act(
            "cuts", vhost=server.vhost, **chosen, **{"from": start, "to": end}, parts=options.min_partitions,
            most=_cores(), each=PART_ROWS,
        )  # fmt: skip
        ranges = cut_evenly(start, end, told["cuts"])
        return [ReplayPart(origin, a, b, i, held, kind=self._kind) for i, (a, b) in enumerate(ranges)]

    def _topic_range(self, server: Remote) -> tuple[int, int, int]:
        options = self.options
        where = server.act("position", bookmark=options.starting or "EPOCH")
        start, end = int(where["start"]), int(where["end"])
        if start < int(where["first"]) and options.fail_on_data_loss:
            raise PreconditionFailed(
                f"startingBookmark is LSN {start}, and retention has removed what lies before LSN {where['first']}; "
                "start later, or set failOnDataLoss to false"
            )
        if options.ending is not None:
            end = min(end, int(server.act("position", bookmark=options.ending)["start"]))
            if int(where["first"]) <= end < start:  # of what retention has passed nobody knows
                raise InvalidArgument(
                    f"option {options.named('starting')} is {options.starting!r}, which is LSN {start}, and "
                    f"{options.named('ending')} {options.ending!r}, LSN {end}: that ends before it begins"
                )
        start = max(start, int(where["first"]))
        return int(where["origin"]), start, max(start, end)

    # -- views

    def _view(self, server: Remote, view: str) -> list[InputPartition]:
        """Its rows go along with the parts, so that they are of one moment; many records of a topic by their places."""
        options = self.options
        told = server.act("topic", topic=view, exchange=options.exchange or None, vhost=server.vhost)
        keyed = told["kind"] == "topic"
        if keyed and not (told["key"] or told["key_from"]):
            raise InvalidArgument(
                f"topic {view!r} has no key, so there are no records of it: read its messages with option topic"
            )
        where = server.act("position")
        held = hold(server, int(where["first"]))
        batches = self._sow(server, view, self._columns(), VIEW_BYTES)
        if batches is None and keyed:
            return self._records(server, view, int(where["origin"]), held)
        if batches is None:
            raise PreconditionFailed(
                f"view {view!r} has more than {VIEW_BYTES >> 20} MiB of rows, which is what a read of a view may have: "
                "choose some with option filter, or columns with .schema(...)"
            )
        return self._taken_along(batches, held)

    def _taken_along(self, batches: list[pa.RecordBatch], held: str) -> list[InputPartition]:
        """Parts that have their rows with them."""
        rows = sum(batch.num_rows for batch in batches)
        if not rows:
            return []
        parts = self.options.min_partitions or max(1, min(_cores(), rows // PART_ROWS))
        table: Any = pa.Table.from_batches(batches)
        cuts = [rows * i // parts for i in range(parts + 1)]
        return [
            RowsPart(_packed(table.slice(a, b - a)), held, i, self._kind)
            for i, (a, b) in enumerate(pairwise(cuts))
            if a < b
        ]

    def _columns(self) -> list[str]:
        """What rows that are taken along have."""
        if self._kind is None:
            return list(self.layout.fetched)
        from penstock.spark.reading.bodies import with_all_needed

        return list(with_all_needed(self.layout, self._kind).fetched)

    def _sow(self, server: Remote, view: str, columns: list[str], most: int) -> list[pa.RecordBatch] | None:
        options = self.options
        return server.gathered(
            "sow", most, topic=view, exchange=options.exchange or None, vhost=server.vhost, filter=options.filter,
            columns=columns,
        )  # fmt: skip

    def _records(self, server: Remote, topic: str, origin: int, held: str) -> list[InputPartition]:
        options = self.options
        gathered: Any = pa.Table.from_batches(self._sow(server, topic, ["lsn", "sow_key"], 1 << 62) or [])
        table: Any = gathered.sort_by("lsn").combine_chunks()
        rows = table.num_rows
        lsns, keys = table.column("lsn").to_numpy(), table.column("sow_key").combine_chunks()
        wanted = options.min_partitions or max(_cores(), rows // PART_ROWS)
        cuts = [rows * i // wanted for i in range(wanted + 1)]
        return [
            RecordPart(
                origin,
                options.exchange,
                lsns[a:b].tobytes(),
                pa.concat_arrays([keys.slice(a, b - a)]),
                held,
                i,
                self._kind,
            )
            for i, (a, b) in enumerate(pairwise(cuts))
            if a < b
        ]

    # -- queues

    def _queue_content(self, server: Remote) -> list[InputPartition]:
        """Positions of what the queue holds: messages that are settled before they are read are read all the same.

        A user with limited rights may read the queue and not its topics, so his rows are taken along, if they are few.
        """
        options = self.options
        where = server.act("position")
        origin = int(where["origin"])
        planning = hold(server, int(where["first"]))
        if server.act("locate", queue=options.queue, vhost=server.vhost, **{"from": int(where["first"])})["limited"]:
            rows_there = self._content(server, self._columns(), VIEW_BYTES)
            if rows_there is not None:
                return self._taken_along(rows_there, planning)
        batches = self._content(server, ["lsn", "exchange", "attempt", "state"], 1 << 62)
        if not batches:
            release(server, planning)
            return []
        table: Any = pa.Table.from_batches(batches)
        rows: pa.RecordBatch = table.sort_by("lsn").combine_chunks().to_batches()[0]
        parts: list[InputPartition] = []
        runs = _runs(rows)
        held = hold(server, min(run[1] for run in runs))
        release(server, planning)
        wanted = options.min_partitions or max(1, min(_cores(), rows.num_rows // 50_000))
        for exchange in dict.fromkeys(run[0] for run in runs):
            mine = [run[1:] for run in runs if run[0] == exchange]
            total = sum(b - a for a, b, _, _ in mine)
            for piece in _cut(mine, -(-total // wanted)):
                parts.append(ContentPart(origin, exchange, piece, held, len(parts), self._kind))
        return parts

    def _content(self, server: Remote, columns: list[str], most: int) -> list[pa.RecordBatch] | None:
        options = self.options
        return server.gathered(
            "queue", most, name=options.queue, vhost=server.vhost, states=list(options.states), filter=options.filter,
            columns=columns,
        )  # fmt: skip

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from penstock.spark.reading.fetching import fetch  # for tasks: who plans a read need not load it

        return fetch(self.options, self.layout, partition)


def _packed(table: Any) -> bytes:
    """A table as an Arrow stream."""
    sink: Any = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table, max_chunksize=10_000)
    return cast("bytes", sink.getvalue().to_pybytes())


def hold(server: Remote, start: int) -> str:
    """Have the server keep the log from an LSN on until the parts are read, or ten minutes; the name of the hold."""
    name = uuid4().hex
    server.act("hold", read=name, start=start)
    return name


def release(server: Remote, name: str) -> None:
    server.act("hold", read=name, release=True)


@contextmanager
def still(server: Remote) -> Generator[None]:
    """Nothing of the log goes between a look at where it begins and the hold of what was found."""
    name = hold(server, 0)
    try:
        yield
    finally:
        release(server, name)


def _cores() -> int:
    return os.cpu_count() or 1


def _log(server: Remote, start: int, end: int) -> Iterator[pa.RecordBatch]:
    return server.rows("log", **{"from": start, "to": end}, columns=["lsn"])


def _split(start: int, end: int, options: ReadOptions, lsns: Any) -> list[tuple[int, int]]:
    """Parts of [start, end) of about equal numbers of rows; `lsns` are asked for only where there are gaps."""
    if start >= end:
        return []
    if end - start < UNCLEAN_GAP:  # a wider range has gaps
        parts = options.min_partitions or max(1, min(_cores(), (end - start) // PART_ROWS))
        return cut_evenly(start, end, [start + (end - start) * i // parts for i in range(1, parts)])
    found = [batch.column("lsn").to_numpy() for batch in lsns()]
    return by_rows(start, end, np.concatenate(found) if found else np.zeros(0, np.int64), options.min_partitions)


def by_rows(start: int, end: int, lsns: Any, least: int | None) -> list[tuple[int, int]]:
    """Parts of [start, end) in which the given LSNs lie evenly."""
    if not len(lsns):
        return []
    parts = least or max(1, min(_cores(), len(lsns) // PART_ROWS))
    parts = min(parts, len(lsns))
    return cut_evenly(start, end, [int(lsns[len(lsns) * i // parts]) for i in range(1, parts)])


def cut_evenly(start: int, end: int, cuts: list[int]) -> list[tuple[int, int]]:
    """[start, end) cut at these places."""
    edges = [start, *cuts, end]
    return [(a, b) for a, b in pairwise(edges) if a < b]


def _runs(rows: pa.RecordBatch) -> list[tuple[str, int, int, int, str]]:
    """Neighbouring LSNs that agree in exchange, attempt and state."""
    lsns = rows.column("lsn").to_numpy()
    breaks = np.diff(lsns) != 1
    out: list[tuple[str, int, int, int, str]] = []
    start = 0
    keys = list(zip(values(rows, "exchange"), values(rows, "attempt"), values(rows, "state"), strict=True))
    for i in range(1, len(keys) + 1):
        if i == len(keys) or breaks[i - 1] or keys[i] != keys[start]:
            exchange, attempt, state = keys[start]
            out.append((exchange or "", int(lsns[start]), int(lsns[i - 1]) + 1, int(attempt or 0), str(state)))
            start = i
    return out


def _cut(runs: list[tuple[int, int, int, str]], size: int) -> Iterator[list[tuple[int, int, int, str]]]:
    """Runs in pieces of about `size` messages."""
    piece: list[tuple[int, int, int, str]] = []
    room = size
    for first, end, attempt, state in runs:
        a = first
        while a < end:
            b = min(end, a + room)
            piece.append((a, b, attempt, state))
            room -= b - a
            a = b
            if room == 0:
                yield piece
                piece, room = [], size
    if piece:
        yield piece
