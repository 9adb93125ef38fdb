"""The audit of a large log by Spark: the verdict of `penstock audit`, made in parallel.

    read   segments and archived files, a slice a task, on whatever machine sees the folder
    part   each row to the shares that need it (`shares`)
    sort   by share and LSN, in Spark's own shuffle, which spills to disk
    judge  a share a task, by the same rules as the local audit; the rest of the records is one more share
    tell   the verdict of all parts together, on the driver

A message belongs to one share, by its LSN, and all that happens to it goes there.
"""

# what comes out of a pickle has no type
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, cast

import pyarrow as pa

from penstock.core.audit.verdict import Report, shares, verdict
from penstock.history.alone import base_of, stand_alone
from penstock.history.view import Folder, Listing, View
from penstock.log import OsDisk
from penstock.log.archive import Shown, archive_disk
from penstock.log.archive.manifest import NAME
from penstock.log.archive.row_groups import Archive
from penstock.spark.jobs.shares import Ints, judged, parted

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
    Errors: InvalidArgument, LogDamaged for bytes that are not what was written (inside Spark's own error, if a task
    meets them).
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
    """As JSON."""
    return asdict(report)


def planned(folder: str, archive: str | Path | None, parts: int) -> Plan:
    """Slices of about SLICE bytes, and borders between shares of about as many messages."""
    view, place = _view(folder, archive)
    try:
        base = None if view.complete else base_of(view)
        shown = None
        if view.archive is not None and view.listed.archive is not None:
            shown = Shown(place, view.archive.manifest.number, view.listed.archive.seam)
        listed = view.listed._replace(archive=shown)
        seam = shown.seam if shown is not None else 0
        slices, marks = list[Slice](), list[int]()
        files = view.archive.manifest.files if view.archive is not None else ()
        archived = [part for part in files if part.first < seam]
        at, size = 0, 0
        for part in archived:
            if size and size + part.bytes > SLICE // 4 and part.first > at:  # Parquet is a quarter as large
                slices.append(_slice(listed, at, part.first))
                at, size = part.first, 0
            size += part.bytes
            marks += _spread(part.first, min(part.last, seam), part.rows)
        if archived:
            slices.append(_slice(listed, at, seam))
            at, size = seam, 0
        for segment in view.catalog.segments:
            if segment.last < seam:
                continue
            marks += _spread(segment.first, segment.last, segment.rows)
            for number in range(len(segment.lsns)):
                if size >= SLICE:  # between two batches: groups stay whole
                    slices.append(_slice(listed, at, segment.lsns[number]))
                    at, size = segment.lsns[number], 0
                size += segment.lengths[number]
        slices.append(_slice(listed, at, view.durable + 1))
        rows = sum(part.rows for part in archived) + sum(segment.rows for segment in view.catalog.segments)
        count = parts or max(1, rows // SHARE_ROWS)
        marks.sort()
        borders = sorted({marks[len(marks) * n // count] for n in range(1, count)}) if marks else []
        return Plan(
            slices, borders, None if base is None else base.state, 0 if base is None else base.floor,
            len(view.catalog.segments), sum(segment.end for segment in view.catalog.segments),
        )  # fmt: skip
    finally:
        view.close()


def _view(folder: str, archive: str | Path | None) -> tuple[View, str]:
    """The log, and its archive where both together go back to the beginning; and where that is."""
    disk, place = OsDisk(folder), Path(archive) if archive is not None else Path(folder) / "archive"
    if (place / NAME).is_file():
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
