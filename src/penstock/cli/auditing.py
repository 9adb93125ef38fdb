"""`penstock audit`: the whole log read once, by the audit and by the fold, which must agree.

Works on the files, without a lock and without changing a byte, so also beside a running server.  A log whose oldest
segments are gone is audited from its newest base on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pyarrow as pa

from penstock.core.audit.audit import Audit, Report
from penstock.core.state.durable import DurableState
from penstock.core.state.fold import Fold
from penstock.log.index import Catalog
from penstock.log.reader import Reader, Vias
from penstock.log.recover import newest_base, open_segments

FOLD_ROWS = 400_000

Progress = Callable[[int, int], None]
"""(rows done, rows in all)."""


def audit(data: str | os.PathLike[str], progress: Progress | None = None) -> Report:
    """Counts and findings of a data folder's log.

    InvalidArgument for a folder that is none, LogDamaged where bytes are not what was written.  Without `progress` a
    bar is drawn when a person looks on.
    """
    from penstock.cli.logfiles import open_folder

    disk = open_folder(data if isinstance(data, str) else os.fspath(data))
    catalog = Catalog()
    try:
        recovery = open_segments(disk, catalog, origin=0, new_first=1, repair=False)
        oldest = catalog.segments[0]
        base = newest_base(oldest, recovery) if oldest.header.previous else None
        start = DurableState.decode(base.state) if base is not None else None
        auditor, fold = Audit(start), Fold(start)
        with _bar(progress) as show:
            done = 0
            held = list[pa.RecordBatch]()
            rows = 0
            for batch in Reader(catalog, Vias(), 0).batches(0, recovery.last_lsn + 1):
                auditor.feed(batch)
                held.append(batch)
                rows += batch.num_rows
                done += batch.num_rows
                if rows >= FOLD_ROWS:
                    fold.feed(pa.Table.from_batches(held))
                    held, rows = [], 0
                    show(done, recovery.records)
            if held:
                fold.feed(pa.Table.from_batches(held))
            report = auditor.finish(fold.finish())
    finally:
        for segment in catalog.segments:
            segment.file.close()
    report.counts["segments"] = len(catalog.segments)
    report.counts["bytes"] = sum(segment.end for segment in catalog.segments)
    if base is not None:
        report.counts["audited from LSN"] = base.floor
    return report


@contextmanager
def _bar(progress: Progress | None) -> Generator[Progress]:
    if progress is not None or not sys.stderr.isatty():
        yield progress or _nobody
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("records", total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield show


def _nobody(done: int, total: int) -> None:
    """No one looks on."""
