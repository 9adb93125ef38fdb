"""Archiving the log of a data folder that no server holds: the same runs, files and manifest."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import LogDamaged
from penstock.log import Log, LogSettings
from penstock.log.archive import merging
from penstock.log.archive.manifest import Manifest, commit, read, tidy
from penstock.log.archive.planning import runs
from penstock.log.archive.writing import Form, Writing

if TYPE_CHECKING:
    from penstock.ports import Clock, Disk

SETTINGS = LogSettings(ahead=0, reserve=0, low_space=0)


def archive(
    disk: Disk, target: Disk, clock: Clock, form: Form, told: Callable[[int, int], object], *, dry_run: bool = False
) -> dict[str, object]:
    """Archive every closed segment of a log into `target`, and merge small files there.

    Result: "planned" runs, "done" segments, "merged" files, and what the archive has then.  `told`: LSNs done, in all.
    Errors: DataFolderInUse, LogDamaged, OSError; what was archived until then stays.
    """
    log = Log.open(disk, clock, SETTINGS, mends=False)
    clean, found = log.recovery.clean, log.appended
    try:
        for _ in log.replay():
            pass  # ids of exchanges are read on the way
        known = read(target)
        if known is not None and known.origin != log.origin:
            raise LogDamaged(f"the archive belongs to the data folder with origin {known.origin}, not {log.origin}")
        manifest = known or Manifest(log.origin)
        planned = runs(log.segments(), manifest)
        done = merged = 0
        if not dry_run:
            tidy(target, known)
            manifest = manifest._replace(gone=())
            total, walked = sum(run.end - run.start for run in planned), 0
            for run in planned:
                before, start = walked, run.start

                def progress(lsn: int, before: int = before, start: int = start) -> None:
                    told(before + lsn + 1 - start, total)

                writing = Writing(target, form, secrets.token_hex(4), log.vias.known)
                parts = writing.run(log.batches(run.start, run.end), progress)
                manifest = _committed(target, manifest.with_files(run.start, run.end, parts, log.vias.table()))
                done += run.segments
                walked += run.end - run.start
            while (old := merging.plan(manifest, form.file)) is not None:
                new = merging.merge(target, old, form, secrets.token_hex(4))
                manifest = _committed(target, manifest.replaced(old, new))
                merged += len(old)
        return {
            "planned": [run.plain() for run in planned], "done": done, "merged": merged,
            "left": sum(run.segments for run in planned) - done, "spans": [list(span) for span in manifest.spans],
            "files": len(manifest.files), "rows": manifest.rows, "bytes": manifest.size,
        }  # fmt: skip
    finally:
        log.close(clean=(clean or log.appended > found) and not log.broken)


def _committed(disk: Disk, manifest: Manifest) -> Manifest:
    commit(disk, manifest)
    tidy(disk, manifest)
    return manifest._replace(gone=())
