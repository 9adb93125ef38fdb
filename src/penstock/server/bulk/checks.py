"""Jobs of the bulk child on the log that a server writes to: `verify`, `audit`, what the archive reads and writes.

They see everything up to the listed durable LSN, nothing beyond.  Verify believes no index: each batch is read again
and its sum compared.  The audit reads the log once, through the audit and through the fold, which must agree; a log
whose oldest segments are gone begins at its newest base, or with its archive at its beginning.  What the archive's jobs
write are files that count for nothing yet.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import pyarrow as pa

from penstock.core.audit_histories import Report
from penstock.core.audit_log import Audit
from penstock.core.state.durable import DurableState
from penstock.core.state.fold import Fold
from penstock.errors import LogDamaged
from penstock.history.view import View, base_of, rows_of
from penstock.log.archive import archive_disk
from penstock.log.archive.manifest import Part
from penstock.log.catalog import Segment
from penstock.log.reader import decode
from penstock.log.room import told_of_disk
from penstock.log.segment import FOLDER, first_lsn
from penstock.ports import Disk
from penstock.records.compute import gathered
from penstock.server.bulk.requests import Request

FOLD_ROWS = 400_000
Progress = Callable[[int, int], object]


def _strays(request: Request, segments: Sequence[Segment]) -> Iterator[str]:
    """Files that look like segments and are none of the server's."""
    listed = {segment.name for segment in segments}
    for name in request.disk.list(FOLDER):
        first = first_lsn(name)
        if first is not None and f"{FOLDER}/{name}" not in listed and _stray(segments, first):
            yield f"{FOLDER}/{name} is not in use by the server"


def verify(request: Request, progress: Progress) -> dict[str, object]:
    """What `penstock log verify` tells: counts, segments, and a sentence for each damage."""
    view = request.view
    damage, warnings = list[str](), list[str]()
    rows = batches = size = 0
    segments = view.catalog.segments
    total = sum(segment.end for segment in segments)
    warnings += _strays(request, segments)
    for before, segment in pairwise(segments):
        if segment.header.previous != before.last:
            damage.append(
                f"{segment.name} follows LSN {segment.header.previous}, but {before.name} ends at {before.last}"
            )
    for segment in segments:
        for number in range(len(segment.lsns)):
            if segment.lsns[number] > view.durable:
                break
            data = segment.read(number)
            batches += 1
            size += len(data)
            segment.checked[number] = 0
            try:
                rows += decode(segment, number, data).num_rows
            except LogDamaged as error:
                damage.append(str(error))
            if batches % 256 == 0:
                progress(size, total)
    return {
        "origin": view.origin,
        "batches": batches,
        "rows": rows,
        "bytes": size,
        "last_lsn": view.durable,
        "clean": False,
        "segments": [place._asdict() for place in view.listed.segments],
        "damage": damage,
        "warnings": warnings,
    }


def _stray(segments: Sequence[Segment], first: int) -> bool:
    """Whether a file that is not listed has no business there.

    What is older than the log was retired, what is newer came since, and what lies within a rewritten file was replaced
    by it: such files may be on their way out or in.
    """
    before = bisect_right(segments, first, key=lambda segment: segment.first) - 1
    if before < 0 or first > segments[-1].first:
        return False
    return not (segments[before].header.generation and first <= segments[before].last)


def audit(request: Request, progress: Progress) -> dict[str, object]:
    """Counts and findings, as `Report` has them."""
    return asdict(audit_view(request.view, progress))


def audit_view(view: View, progress: Progress) -> Report:
    """The audit of what a view shows.  LogDamaged where bytes are not what was written."""
    base = None if view.complete else base_of(view)
    start = DurableState.decode(base.state) if base is not None else None
    auditor, fold = Audit(start), Fold(start)
    total, done = rows_of(view), 0

    def audited() -> Iterator[pa.RecordBatch]:
        for batch, groups in view.groups(0, view.durable + 1):
            auditor.feed(batch, groups)
            yield batch

    for table in gathered(audited(), FOLD_ROWS):
        fold.feed(table)
        done += table.num_rows
        progress(done, total)
    report = auditor.finish(fold.finish())
    report.counts["segments"] = len(view.catalog.segments)
    report.counts["bytes"] = sum(segment.end for segment in view.catalog.segments)
    if base is not None:
        report.counts["audited from LSN"] = base.floor
    return report


def run(
    request: Request, folder: str, start: int, end: int, token: str, compression: str, topics: int, progress: Progress
) -> dict[str, object]:
    """The rows of [start, end) as new files.  DiskFull, LogDamaged."""
    from penstock.log.archive.file_writer import Form, Writing

    view = request.view
    writing = Writing(
        archive_disk(folder), Form(compression, topics), token, view.vias.known, view.origin, (start, end)
    )
    with told_of_disk(f"the archive's folder {folder}"):
        parts = writing.run(view.batches(start, end), lambda lsn: progress(lsn + 1 - start, end - start))
    return {"parts": [list(part) for part in parts]}


def merge(
    disk: Disk, folder: str, parts: Sequence[Sequence[Any]], token: str, compression: str, progress: Progress
) -> dict[str, object]:
    """One file of several.  DiskFull, LogDamaged."""
    from penstock.log.archive.file_writer import Form
    from penstock.log.archive.file_writer import merge as merged

    old = [Part(*one) for one in parts]
    total = sum(part.rows for part in old)
    with told_of_disk(f"the archive's folder {folder}"):
        made = merged(archive_disk(folder), old, Form(compression), token, lambda rows: progress(rows, total))
    return {"part": list(made)}


def check(request: Request, folder: str, progress: Progress) -> dict[str, object]:
    """What `log verify` tells of an archive."""
    from penstock.log.archive.repairing import check as checked

    found = checked(archive_disk(folder), progress)
    return {} if found is None else {**found.told(), "damage": found.damage}
