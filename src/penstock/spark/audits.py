"""What Spark does to a whole log or a whole queue: the verdict of `penstock audit`, and redriving of many dead letters.

An audit, by the same rules as the local one:

    read   segments and archived files, a slice a task, on whatever machine sees the folder
    part   each row to the shares that need it
    sort   by share and LSN, in Spark's own shuffle, which spills to disk
    judge  a share a task, by the same rules as the local audit; the rest of the records is one more share
    tell   the verdict of all parts together, on the driver

A message belongs to one share, by its LSN, and all that happens to it goes there: a publish to the share of its LSN
and, without its body, to the rest; a record about messages to the shares of the LSNs it names and to the rest; all
other records to everybody.  Bodies of records alone travel.

A redrive:

    read   the queue's content in partitions, with the filter; of what matches only the LSNs reach the driver
    move   oldest first, some thousand a call; each step is one group of the log, and what is gone by then is left out

So a task that runs again, or a job that is started again after a crash, moves nothing twice, and the messages are in
the same order at their origin as if `penstock queue redrive` had moved them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.client import connect
from penstock.client.admin import add_moved
from penstock.core.audit_histories import Part, Report, Share, shares, verdict
from penstock.core.audit_log import Audit
from penstock.core.state.durable import DurableState
from penstock.core.state.fold import Fold
from penstock.core.state.lsns import flat
from penstock.errors import InvalidArgument
from penstock.history import archive_place, open_folder
from penstock.history.view import Folder, Listing, View, base_of, stand_alone
from penstock.log.archive import Shown, archive_disk
from penstock.log.archive.manifest import Part as Archived
from penstock.log.archive.row_groups import Archive
from penstock.log.catalog import Segment
from penstock.log.disk import OsDisk
from penstock.log.record_batches import cells, column
from penstock.records.kinds import MOVES, PUBLISHES
from penstock.records.schema import COLUMNS

# what comes out of a pickle has no type, and pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false


Ints = npt.NDArray[np.int64]

ROWS = pa.schema([pa.field("share", pa.int32()), pa.field("batch", pa.int64()), *COLUMNS])
"""What travels: the number of a share, the record batch that the row was written in, and the row."""

AT_ONCE = 100_000
"""Rows that an audit is given in one go."""


def parted(batch: pa.RecordBatch, groups: Ints, borders: Sequence[int]) -> pa.RecordBatch:
    """Rows of the log as the shares need them; `borders` as of `core.audit_histories.shares`."""
    kinds, lsns = column(batch, "kind", "<i1"), column(batch, "lsn", "<i8")
    rest = len(borders) + 1
    publishes = np.isin(kinds, [int(kind) for kind in PUBLISHES])
    events = np.isin(kinds, [int(kind) for kind in MOVES])
    edges = np.asarray(borders, dtype=np.int64)
    low = np.where(publishes, np.searchsorted(edges, lsns, side="right"), 0)
    high = np.where(publishes, low, rest - 1)
    bodies = cells(batch, "body") if (~publishes).any() else []
    for event in np.flatnonzero(events).tolist():
        body: bytes | None = bodies[event]
        if body is None or len(body) < 24 or len(body) % 16 != 8:
            continue  # it cannot be read, which any of them may tell
        pairs = np.frombuffer(body, np.int64, -1, 8)
        first, last = np.searchsorted(edges, (int(pairs.min()), int(pairs.max()) - 1), side="right")
        low[event], high[event] = first, max(int(first), int(last))
    count = high - low + 1
    row = np.repeat(np.arange(len(kinds)), count)
    share = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(low, count)
    row, share = np.concatenate((row, np.arange(len(kinds)))), np.concatenate((share, np.full(len(kinds), rest)))
    slim = _without_bodies(batch, publishes)
    taken = cast("Any", slim).take(pa.array(row))
    arrays: list[Any] = [pa.array(share.astype(np.int32)), pa.array(groups[row]), *taken.columns]
    return cast("pa.RecordBatch", cast("Any", pa.RecordBatch).from_arrays(arrays, schema=ROWS))


def _without_bodies(batch: pa.RecordBatch, publishes: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    """Messages without what nobody asks: an audit does not look into them."""
    mask: Any = pa.array(publishes)
    columns: list[Any] = []
    for name in COLUMNS.names:
        one: Any = batch.column(name)
        if name in ("properties", "body"):
            one = cast("Any", pa).compute.if_else(mask, pa.scalar(b"", pa.binary()), one)
        columns.append(one)
    return cast("pa.RecordBatch", cast("Any", pa.RecordBatch).from_arrays(columns, schema=COLUMNS))


def judged(
    rows: Iterable[pa.RecordBatch], shares: Sequence[Share], state: bytes | None
) -> Iterator[tuple[int, Part, dict[int, Ints] | None]]:
    """What each share finds, of rows sorted by share and LSN; and of the rest what waits as the fold has it.

    state: of the base that the log begins at.
    """
    start = DurableState.decode(state) if state is not None else None
    number, audit, fold = -1, Audit(), Fold()
    for share, batch, groups in _whole_groups(rows):
        if share != number:
            if number >= 0:
                yield number, audit.part(), _waiting(fold) if shares[number].rest else None
            number, audit, fold = share, Audit(start, shares[share]), Fold(start)
        audit.feed(batch, groups)
        if shares[share].rest:
            fold.feed(pa.Table.from_batches([batch]))
    if number >= 0:
        yield number, audit.part(), _waiting(fold) if shares[number].rest else None


def _waiting(fold: Fold) -> dict[int, Ints]:
    return {number: flat(queue.waiting) for number, queue in fold.finish().queues.items()}


def _whole_groups(rows: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch, Ints]]:
    """The rows of one share at a time, so that no group goes on with the next."""
    held, count = list[pa.RecordBatch](), 0
    for batch in rows:
        if not batch.num_rows:
            continue
        held.append(batch)
        count += batch.num_rows
        if count >= AT_ONCE:
            *whole, rest = _cut(held)
            yield from map(_columns, whole)
            held, count = [rest], rest.num_rows
    if held:
        yield from map(_columns, _cut(held))


def _cut(held: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The rows a share at a time; the last group of all apart, for it may go on."""
    whole: Any = cast("Any", pa).concat_batches(held)
    share, group = whole.column("share").to_numpy(), whole.column("batch").to_numpy()
    starts = [0, *(np.flatnonzero(np.diff(share)) + 1).tolist()]
    last = np.flatnonzero((group != group[-1]) | (share != share[-1]))
    cut = int(last[-1]) + 1 if len(last) else 0
    edges = sorted({*starts, cut, whole.num_rows})
    return [whole.slice(a, b - a) for a, b in pairwise(edges)]


def _columns(batch: pa.RecordBatch) -> tuple[int, pa.RecordBatch, Ints]:
    share = int(cast("Any", batch.column("share"))[0].as_py())
    rows = cast("pa.RecordBatch", cast("Any", batch.select(COLUMNS.names)).cast(COLUMNS))
    return share, rows, np.asarray(batch.column("batch").to_numpy(), dtype=np.int64)


SLICE = 64 << 20
"""Bytes of the log that a task reads, about."""

SHARE_ROWS = 2_000_000
"""Messages of a share, about."""

PARTED = (
    "share int, batch long, lsn long, kind tinyint, name string, via int, route int, time timestamp, "
    "expires_at timestamp, not_before timestamp, priority smallint, properties binary, body binary"
)


class Slice(NamedTuple):
    """What one task reads: LSNs [start, end)."""

    start: int
    end: int
    listed: dict[str, object]


class Plan(NamedTuple):
    """What there is to audit."""

    slices: list[Slice]
    borders: list[int]
    state: bytes | None  # of the base that the log begins at
    floor: int
    segments: int
    bytes: int


def audit(spark: Any, data: str | Path, *, archive: str | Path | None = None, parts: int = 0) -> Report:
    """Counts and findings of a data folder's log, as `penstock audit` tells them.

    data      the folder, as every executor sees it
    archive   of its archive; by default `archive` in it, if that is there
    parts     shares of the messages; by default one for two million of them
    Errors: InvalidArgument where one of them is not there, LogDamaged for bytes that are not what was written (inside
    Spark's own error, if a task meets them).
    """
    folder = str(Path(data).absolute())
    plan = planned(folder, archive, parts)
    shared = shares(plan.borders)
    tasks = spark.createDataFrame([(pickle.dumps(one),) for one in plan.slices], "slice binary")
    tasks = tasks.repartition(len(plan.slices))
    borders, state = plan.borders, plan.state

    def read(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            for one in cast("list[bytes]", batch.column(0).to_pylist()):
                yield from _read(folder, pickle.loads(one), borders)

    def judge(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for found in judged(rows, shared, state):
            yield pa.RecordBatch.from_pydict({"part": pa.array([pickle.dumps(found)], pa.binary())})

    rows = tasks.mapInArrow(read, PARTED).repartition(len(shared), "share").sortWithinPartitions("share", "lsn")
    found = [pickle.loads(bytes(row[0])) for row in rows.mapInArrow(judge, "part binary").collect()]
    found.sort(key=lambda one: one[0])
    folded: dict[int, Ints] = next((waiting for *_, waiting in found if waiting is not None), {})
    report = verdict([part for _, part, _ in found], folded)
    report.counts["segments"] = plan.segments
    report.counts["bytes"] = plan.bytes
    if plan.floor:
        report.counts["audited from LSN"] = plan.floor
    return report


def plain(report: Report) -> dict[str, Any]:
    return asdict(report)


def _archived(view: View, place: str) -> tuple[Listing, int, list[Archived]]:
    """The listing with its archive as tasks open it, the LSN where the log's segments begin, and files before it."""
    if view.archive is None or view.listed.archive is None:
        return view.listed._replace(archive=None), 0, []
    manifest, seam = view.archive.manifest, view.listed.archive.seam
    shown = Shown(place, manifest.number, seam)
    return view.listed._replace(archive=shown), seam, [part for part in manifest.files if part.first < seam]


def planned(folder: str, archive: str | Path | None, parts: int) -> Plan:
    """Slices of about SLICE bytes, and borders between shares of about as many messages."""
    view, place = _view(folder, archive)
    try:
        base = None if view.complete else base_of(view)
        listed, seam, archived = _archived(view, place)
        segments = [segment for segment in view.catalog.segments if segment.last >= seam]
        cuts = [*_cuts_of_archive(archived), *([seam] if archived else []), *_cuts_of_segments(segments)]
        slices = [_slice(listed, start, end) for start, end in pairwise([0, *cuts, view.durable + 1])]
        rows = sum(part.rows for part in archived) + sum(segment.rows for segment in view.catalog.segments)
        spans = [(part.first, min(part.last, seam), part.rows) for part in archived]
        spans += [(one.first, one.last, one.rows) for one in segments]
        borders = _borders(spans, parts or max(1, rows // SHARE_ROWS))
        return Plan(
            slices, borders, None if base is None else base.state, 0 if base is None else base.floor,
            len(view.catalog.segments), sum(segment.end for segment in view.catalog.segments),
        )  # fmt: skip
    finally:
        view.close()


def _borders(spans: Iterable[tuple[int, int, int]], count: int) -> list[int]:
    """LSNs between `count` shares of about as many rows each, of files given as (first LSN, last LSN, rows)."""
    marks = sorted(mark for span in spans for mark in _spread(*span))
    return sorted({marks[len(marks) * n // count] for n in range(1, count)}) if marks else []


def _cuts_of_archive(files: Iterable[Archived]) -> Iterator[int]:
    """LSNs between slices, none within a file."""
    at, size = 0, 0
    for file in files:
        if size and size + file.bytes > SLICE // 4 and file.first > at:  # Parquet is a quarter as large
            yield file.first
            at, size = file.first, 0
        size += file.bytes


def _cuts_of_segments(segments: Iterable[Segment]) -> Iterator[int]:
    """LSNs between slices and between two batches: groups stay whole."""
    size = 0
    for segment in segments:
        for lsn, length in zip(segment.lsns, segment.lengths, strict=False):
            if size >= SLICE:
                yield lsn
                size = 0
            size += length


def _view(folder: str, archive: str | Path | None) -> tuple[View, str]:
    """The log, and its archive where both together go back to the beginning; and where that is."""
    disk, place = open_folder(folder), archive_place(folder, archive)
    if place is not None:
        view = stand_alone(disk, Archive(archive_disk(str(place))))
        if view.complete:
            return view, str(place.absolute())
        view.close()
    return stand_alone(disk), ""


def _slice(listed: Listing, start: int, end: int) -> Slice:
    some = [one for one in listed.segments if one.last >= start and one.first < end] or listed.segments[-1:]
    return Slice(start, end, listed._replace(segments=some).plain())


def _spread(first: int, last: int, rows: int) -> list[int]:
    """LSNs at about even distances, one for some thousand rows."""
    steps = max(1, min(1000, rows // 1000))
    return [first + (last - first) * n // steps for n in range(steps)]


def _read(folder: str, one: Slice, borders: list[int]) -> Iterator[pa.RecordBatch]:
    view = Folder(OsDisk(folder)).view(Listing.of(one.listed))
    for batch, groups in view.groups(one.start, one.end):
        yield parted(batch, groups, borders)


# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false


STEP = 5000
"""LSNs of a call."""


def redrive(
    spark: Any,
    url: str,
    queue: str,
    *,
    filter: str | None = None,
    count: int | None = None,
    parts: int = 0,
    dry_run: bool = False,
    progress: Callable[[int], object] | None = None,
) -> dict[str, Any]:
    """Dead letters of a queue back to where they died first, as `Client.redrive` does it, with its answer.

    filter     only those that match; a delayed one may go, a leased one does not
    count      so many at most, the oldest
    parts      partitions that look at the queue; by default what the source finds right
    dry_run    count alone
    progress   is told how many were moved so far
    """
    if count is not None and count < 1:
        raise InvalidArgument(f"count is {count}; at least one message is moved")
    reader = spark.read.format("penstock").schema("lsn long").option("url", url).option("queue", queue)
    reader = reader.option("states", "ready,delayed")
    for name, value in (("filter", filter), ("minPartitions", parts or None)):
        if value is not None:
            reader = reader.option(name, value)
    rows: Any = reader.load().toArrow()
    lsns = np.sort(rows.column("lsn").to_numpy())[:count].tolist()
    total: dict[str, Any] = {"moved": 0, "matched": 0, "targets": {}, "strays": {}}
    with connect(url) as client:
        for start in range(0, len(lsns), STEP):
            told = client.action("redrive", queue=queue, lsns=lsns[start : start + STEP], dry=dry_run)
            add_moved(total, told)
            if progress is not None:
                progress(total["moved"])
    return total
