"""A view of a log folder that no server speaks for: the files themselves say what there is."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from penstock.errors import LogDamaged
from penstock.history.view import Listing, Place, View
from penstock.log import checkpoints
from penstock.log.archive import Shown
from penstock.log.catalog import Catalog, Segment, whole_from
from penstock.log.checkpoints import Base
from penstock.log.mending import Recovery
from penstock.log.name_index import Indexes
from penstock.log.reader import decode
from penstock.log.record_batches import column
from penstock.log.recover import newest_base, open_segments
from penstock.ports import Disk
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from penstock.log.archive.row_groups import Archive

BASE_ROWS = 4096
"""A batch with a part of a base has no more rows."""


def stand_alone(disk: Disk, archive: Archive | None = None) -> View:
    """A view of a folder that no server speaks for: up to the last whole batch, and of its archive if it is given.

    LogDamaged where the files do not fit together.  Beside a running server the last batches may not be synced yet, and
    files come and go; so what does not fit is believed when it is the same twice.  (`log.verify` is exact there.)
    """
    said = ""
    while True:
        catalog = Catalog()
        try:
            recovery = open_segments(disk, catalog, origin=0, new_first=1, repair=False)
            return _stand_alone(disk, catalog, recovery, archive)
        except (LogDamaged, FileNotFoundError) as error:
            for segment in catalog.segments:
                segment.file.close()
            if str(error) == said:
                raise
            said = str(error)


def _stand_alone(disk: Disk, catalog: Catalog, recovery: Recovery, archive: Archive | None) -> View:
    segments = catalog.segments
    base = newest_base(segments[0], recovery)
    last = segments[-1]
    places = [
        Place(
            one.name,
            one.header.first,
            one.last,
            one.rows,
            len(one.lsns),
            one.end,
            one is not last,
            one.header.generation,
        )
        for one in segments
    ]
    shown: Shown | None = None
    if archive is not None and archive.manifest.spans:
        if archive.manifest.origin != recovery.origin:
            raise LogDamaged(
                f"the archive belongs to another data folder (origin {archive.manifest.origin}, not {recovery.origin})"
            )
        shown = Shown("", archive.manifest.number, whole_from(segments))
    listed = Listing(recovery.origin, last.last, base.vias if base is not None else {}, places, shown)
    view = View(listed, segments, Indexes(disk), archive if shown is not None else None)
    checkpoint = checkpoints.newest(disk, recovery.origin, recovery.warnings)
    after = 0
    if checkpoint is not None and checkpoint.lsn <= last.last:
        view.vias.load(checkpoint.vias)
        after = checkpoint.lsn
    for batch in view.batches(after + 1, last.last + 1):
        for row in np.flatnonzero(column(batch, "kind", "<i1") == int(Kind.VIA)).tolist():
            via, header = (cast("Any", batch.column(name))[row].as_py() for name in ("via", "properties"))
            view.vias.learn(via, header)
    return view


def base_of(view: View) -> Base | None:
    """The base that the listed segments need; None when they need none.  LogDamaged when that is missing."""
    oldest = view.catalog.segments[0]
    neediest = max((segment.header for segment in view.catalog.segments), key=attrgetter("floor"))
    if not oldest.header.previous and not neediest.floor:
        return None
    found = list[tuple[Segment, int]]()
    for segment, number in view.catalog.batches(0, view.durable + 1):
        data = segment.file.pread(segment.lengths[number], segment.offsets[number])
        batch = decode(segment, number, data)
        if batch.num_rows <= BASE_ROWS and (column(batch, "kind", "<i1") == int(Kind.BASE)).any():
            found.append((segment, number))
    return newest_base(oldest, Recovery(base_batches=found, neediest=neediest))
