"""A view of a log folder that no server speaks for: the files themselves say what there is."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from penstock.errors import LogDamaged
from penstock.history.view import Listing, Place, View
from penstock.log import checkpoints
from penstock.log.arrow import column
from penstock.log.index import Catalog
from penstock.log.mending import Recovery
from penstock.log.recover import newest_base, open_segments
from penstock.log.upkeep.names import Indexes
from penstock.ports import Disk
from penstock.records.kinds import Kind


def stand_alone(disk: Disk) -> View:
    """A view of a folder that no server speaks for: up to the last whole batch.

    LogDamaged where the files do not fit together.  Beside a running server the last batches may not be synced yet, and
    files come and go; so what does not fit is believed when it is the same twice.  (`log.verify` is exact there.)
    """
    said = ""
    while True:
        catalog = Catalog()
        try:
            recovery = open_segments(disk, catalog, origin=0, new_first=1, repair=False)
            return _stand_alone(disk, catalog, recovery)
        except (LogDamaged, FileNotFoundError) as error:
            for segment in catalog.segments:
                segment.file.close()
            if str(error) == said:
                raise
            said = str(error)


def _stand_alone(disk: Disk, catalog: Catalog, recovery: Recovery) -> View:
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
    listed = Listing(recovery.origin, last.last, base.vias if base is not None else {}, places)
    view = View(listed, segments, Indexes(disk))
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
