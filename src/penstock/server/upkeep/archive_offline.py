"""The archive of a data folder that no server holds: the same runs, files and manifest; old days; a lost manifest."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from penstock.core.state.capture import held_from
from penstock.errors import LogDamaged
from penstock.log import Log, LogSettings
from penstock.log.archive import file_writer as merging
from penstock.log.archive.file_writer import Form, Writing
from penstock.log.archive.manifest import AGAIN, Manifest, commit, prunable, read, runs, tidy
from penstock.log.archive.repairing import rebuilt
from penstock.server.upkeep.offline import folded

if TYPE_CHECKING:
    from penstock.ports import Clock, Disk

SETTINGS = LogSettings(ahead=0, reserve=0, low_space=0)


def archive(
    disk: Disk, target: Disk, clock: Clock, form: Form, told: Callable[[int, int], object], *, dry_run: bool = False,
    others: bool = False,
) -> dict[str, object]:  # fmt: skip
    """Archive every closed segment of a log into `target`, and merge small files there.

    Result: "planned" runs, "done" segments, "merged" files, and what the archive has then.  `told`: LSNs done, in all.
    others: there are files of an archive, so that there must be a manifest.
    Errors: DataFolderInUse, LogDamaged, OSError; what was archived until then stays.
    """
    log = Log.open(disk, clock, SETTINGS, mends=False)
    clean, found = log.recovery.clean, log.appended
    try:
        for _ in log.replay():
            pass  # ids of exchanges are read on the way
        known = read(target)
        _refuse_other(known, log.origin)
        if known is None and others:
            raise LogDamaged(f"the archive has files and no manifest; {AGAIN}")
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

                token = secrets.token_hex(4)
                writing = Writing(target, form, token, log.vias.known, log.origin, (run.start, run.end))
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


def prune(disk: Disk, target: Disk, clock: Clock, age: int, *, dry_run: bool = False) -> dict[str, object] | None:
    """Remove archived days that are older, microseconds; what went, or would.

    What a stream may still ask for stays.  Errors: DataFolderInUse, LogDamaged, OSError.
    """
    log = Log.open(disk, clock, SETTINGS, mends=False)
    clean, found = log.recovery.clean, log.appended
    try:
        manifest = read(target)
        _refuse_other(manifest, log.origin)
        state = folded(log.start_state(), log.replay())
        if manifest is None:
            return None
        streams = (one.holds_from for one in state.streams.values())
        floor = min([held_from(state), *(low for low in streams if low is not None)])
        due = prunable(manifest, clock.wall(), age, None, floor)
        if due is not None and not dry_run:
            _committed(target, manifest.without(due.cut))
        return None if due is None else due.plain()
    finally:
        log.close(clean=(clean or log.appended > found) and not log.broken)


def repair(
    disk: Disk, target: Disk, paths: Sequence[str], clock: Clock, told: Callable[[int, int], object],
    *, dry_run: bool = False, before: Collection[int] = (),
) -> Manifest | None:  # fmt: skip
    """Make a damaged or lost manifest anew from the files at these paths; None when it is as it was written.

    before: origins of logs that this one was restored from backups of.
    Errors: DataFolderInUse, LogDamaged, OSError; then nothing is changed.
    """
    log = Log.open(disk, clock, SETTINGS, mends=False)
    clean, found = log.recovery.clean, log.appended
    try:
        for _ in log.replay():
            pass  # it is a log
        try:
            if read(target) is not None or not paths:
                return None
        except LogDamaged:
            pass  # which is why we are here
        manifest = rebuilt(target, paths, log.origin, clock.wall() // 1_000_000, told, before)
        if not dry_run:
            _committed(target, manifest)
        return manifest
    finally:
        log.close(clean=(clean or log.appended > found) and not log.broken)


def _refuse_other(manifest: Manifest | None, origin: int) -> None:
    if manifest is not None and manifest.origin != origin:
        raise LogDamaged(f"the archive belongs to the data folder with origin {manifest.origin}, not {origin}")


def _committed(disk: Disk, manifest: Manifest) -> Manifest:
    commit(disk, manifest)
    tidy(disk, manifest)
    return manifest._replace(gone=())
