"""`penstock log verify`: every batch of every segment, without the lock and without changing a byte.

It reads what `recover` would believe and more: the CRC of all batches, not only of the last segment's.  Of a folder
that a server is writing to, the last segment ends where the last whole batch ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.errors import LogDamaged
from penstock.log.index import Catalog, Segment
from penstock.log.listing import SegmentInfo, describe
from penstock.log.reader import decode
from penstock.log.recover import newest_base, open_segments
from penstock.log.segment import FOLDER, first_lsn
from penstock.ports import Disk


@dataclass(slots=True)
class Report:
    """What was read, and all that is wrong with it."""

    origin: int = 0
    batches: int = 0
    rows: int = 0
    bytes: int = 0
    last_lsn: int = 0
    clean: bool = False  # the last process closed the log
    segments: list[SegmentInfo] = field(default_factory=list[SegmentInfo])
    damage: list[str] = field(default_factory=list[str])  # one sentence each
    warnings: list[str] = field(default_factory=list[str])

    @property
    def good(self) -> bool:
        """Whether all is as it was written."""
        return not self.damage


def verify(disk: Disk) -> Report:
    """Check all of a data folder.  OSError when it cannot be read; damage is told, not raised."""
    report = Report()
    if not any(first_lsn(name) is not None for name in disk.list(FOLDER)):
        report.damage.append(f"{FOLDER}/ holds no segment")
        return report
    catalog = Catalog()
    try:
        recovery = open_segments(disk, catalog, origin=0, new_first=1, repair=False)
        report.origin, report.clean, report.last_lsn = recovery.origin, recovery.clean, recovery.last_lsn
        report.warnings = recovery.warnings
        newest_base(catalog.segments[0], recovery)
    except LogDamaged as error:
        report.damage.append(str(error))
    for at, segment in enumerate(catalog.segments):
        report.segments.append(describe(segment, at < len(catalog.segments) - 1))
        _check(segment, report)
    for segment in catalog.segments:
        segment.file.close()
    return report


def _check(segment: Segment, report: Report) -> None:
    for number in range(len(segment.lsns)):
        data = segment.file.pread(segment.lengths[number], segment.offsets[number])
        report.batches += 1
        report.bytes += len(data)
        try:
            segment.checked[number] = 0
            batch = decode(segment, number, data)
            report.rows += batch.num_rows
        except LogDamaged as error:
            report.damage.append(str(error))


def segments(disk: Disk) -> list[SegmentInfo]:
    """The lines of `penstock log ls`, from the files themselves; LogDamaged when they cannot be read in order."""
    if not any(first_lsn(name) is not None for name in disk.list(FOLDER)):
        return []
    catalog = Catalog()
    open_segments(disk, catalog, origin=0, new_first=1, repair=False)
    out = [describe(segment, at < len(catalog.segments) - 1) for at, segment in enumerate(catalog.segments)]
    for segment in catalog.segments:
        segment.file.close()
    return out
