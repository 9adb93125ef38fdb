"""Compaction and the archive of a data folder that no server holds, and a look at what compaction would do.

The plan and the rewriting are those of a running server; here there are no readers and no deliveries, so what the log
itself has settled decides alone.

The archive's runs, files and manifest are the same, too; old days are let go, and a lost manifest is made again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import orjson
import pyarrow as pa

from penstock.core.state.capture import held_from, needed_pairs
from penstock.core.state.durable import DurableState
from penstock.core.state.fold import Fold
from penstock.core.state.lsns import count
from penstock.errors import InvalidArgument, LogBroken, LogDamaged, told_as
from penstock.log.archive import file_writer as merging
from penstock.log.archive.file_writer import Form, Writing
from penstock.log.archive.manifest import AGAIN, Manifest, commit, prunable, read, runs, tidy
from penstock.log.archive.repairing import rebuilt
from penstock.log.catalog import Catalog, SegmentInfo, describe
from penstock.log.log import Log
from penstock.log.reader import Reader, Vias
from penstock.log.recover import Start, choose_start, open_segments, replayed_after, tables
from penstock.log.rewrite import Made, Old, Order, rewrite
from penstock.log.rewrite_plan import Aims, Facts, Task, plan
from penstock.log.writer import LogSettings
from penstock.records.chunks import LSN_LIMIT
from penstock.records.entries import Control
from penstock.records.kinds import Kind
from penstock.records.schema import LOG_VERSION
from penstock.server.bulk import NO_DATA_FOLDER
from penstock.server.upkeep.remembered import Known, forget, is_older, known_in, refuse_older, remember

if TYPE_CHECKING:
    from penstock.ports import Clock, Disk


SETTINGS = LogSettings(ahead=0, reserve=0, low_space=0)


class Limits(NamedTuple):
    """What is past retention; None: nothing by that measure."""

    age: int | None = None  # microseconds
    bytes: int | None = None  # of the whole log
    archive: Manifest | None = None  # then what is not archived stays


Told = Callable[[Task, Made], object]
"""Called after each rewriting."""


class ReadOnly:
    """The log of a folder that another process may have: as far as it goes now, and where its fold begins."""

    def __init__(self, disk: Disk) -> None:
        """Changes nothing.  LogDamaged where the log cannot be read, OSError."""
        self.catalog, self.vias = Catalog(), Vias()
        try:
            self.recovery = open_segments(disk, self.catalog, origin=0, new_first=1, repair=False)
            self.start = choose_start(disk, self.catalog, self.recovery, self.vias)
        except BaseException:
            self.close()
            raise

    @property
    def after(self) -> int:
        """The LSN behind which the fold begins."""
        return replayed_after(self.start)

    def close(self) -> None:
        for segment in self.catalog.segments:
            segment.file.close()


def look(disk: Disk, clock: Clock, limits: Limits, aims: Aims) -> list[Task]:
    """What is worth doing.  Changes nothing.  LogDamaged where the log cannot be read."""
    with closing(ReadOnly(disk)) as log:
        state = folded(log.start, tables(log.catalog, log.vias, log.after))
        last = log.catalog.segments[-1]
        segments = [describe(segment, segment is not last) for segment in log.catalog.segments]
        past = past_retention(segments, Reader(log.catalog, log.vias, 0), limits, clock.wall())
        return _plan(segments, past, state, disk.free(), aims)


@contextmanager
def _opened(disk: Disk, clock: Clock) -> Generator[Log]:
    """The log; where nothing is appended it is left as cleanly as it was found.

    DataFolderInUse when somebody has the folder, InvalidArgument for a backup, and what is left of one or of a restore.
    """
    there = disk.list()
    for mark, why in NO_DATA_FOLDER.items():
        if mark in there:
            raise InvalidArgument(f"the folder {why}")
    log = Log.open(disk, clock, SETTINGS, mends=False)
    clean, found = log.recovery.clean, log.appended
    try:
        yield log
    finally:
        log.close(clean=(clean or log.appended > found) and not log.broken)


def compact(disk: Disk, clock: Clock, limits: Limits, aims: Aims, told: Told) -> list[str]:
    """Do what is worth doing; names of segments of which nothing was needed, and which were deleted.

    A base is written at the log's end where rows are left out; otherwise nothing is appended.
    DataFolderInUse when somebody has the folder, LogDamaged, OSError.
    """
    with _opened(disk, clock) as log:
        state = folded(log.start_state(), log.replay())
        log.mend()
        past = past_retention(log.segments(), log, limits, clock.wall())
        gone = _delete(log, clock, state, past)
        for task in _plan(log.segments(), past, state, disk.free(), aims):
            olds = tuple(Old(one.first, one.last, one.generation, one.rows) for one in task.segments)
            order = Order(olds, compress=task.why == "cold" or all(one.compressed for one in task.segments))
            if task.drops:
                if log.base_floor <= order.last:
                    _write_base(log, clock, max(past) + 1)
                keep = needed_pairs(state, order.first, order.last).tobytes()
                order = replace(order, keep=keep, floor=log.base_floor)
            made = rewrite(disk, order)
            swap = log.swap(made)
            swap.prepare()
            swap.enter()
            swap.finish()
            told(task, made)
        return gone


def _delete(log: Log, clock: Clock, state: DurableState, past: set[int]) -> list[str]:
    """Delete from the front what is past retention and of no use to anybody."""
    held, floor = held_from(state), 0
    for one in log.segments()[:-1]:
        if one.last not in past or one.last >= held or len(needed_pairs(state, one.first, one.last)):
            break
        floor = one.last + 1
    if floor and log.base_floor < floor:
        _write_base(log, clock, max(past) + 1)
    return log.retire(floor)


def folded(start: Start | None, rows: Iterable[pa.Table]) -> DurableState:
    """The durable state at the end of the log."""
    fold = Fold(DurableState.decode(start.state)) if start is not None else Fold()
    for table in rows:
        fold.feed(table)
    return fold.finish()


def past_retention(segments: Sequence[SegmentInfo], log: Reader | Log, limits: Limits, now: int) -> set[int]:
    """The last LSNs of closed segments past retention."""
    total = sum(one.bytes for one in segments)
    found = set[int]()
    for one, following in pairwise(segments):
        too_large = limits.bytes is not None and total > limits.bytes
        if not too_large and (limits.age is None or _time_at(log, following.first) >= now - limits.age):
            break
        if limits.archive is not None and not limits.archive.has(one.first, one.last):
            break
        found.add(one.last)
        total -= one.bytes
    return found


def _time_at(log: Reader | Log, first: int) -> int:
    """Time of the first row at or after an LSN: nothing before it is younger."""
    for batch in log.batches(first, LSN_LIMIT, ["time"]):
        time: int = batch.column(0).cast(pa.int64())[0].as_py()
        return time
    return LSN_LIMIT


def _plan(segments: Sequence[SegmentInfo], past: set[int], state: DurableState, room: int, aims: Aims) -> list[Task]:
    closed = list[Facts]()
    for one in segments[:-1]:
        facts = Facts(one.first, one.last, one.rows, one.batches, one.bytes, one.generation, one.compressed)
        if one.last in past:
            needed = min(one.rows, count(needed_pairs(state, one.first, one.last)))
            facts = replace(facts, past=True, needed=needed)
        closed.append(facts)
    return plan(closed, held_from(state), room, aims)


def _write_base(log: Log, clock: Clock, floor: int) -> None:
    """A durable base as of `floor`, folded from the base before it and the records since."""
    before = log.base_state()
    fold = Fold(DurableState.decode(before[1])) if before is not None else Fold()
    for batch in log.batches(0 if before is None else before[0], floor):
        fold.feed(batch)
    state = fold.finish().encode()
    now = clock.wall()
    if log.appended < log.recovery.next_lsn - 1:  # after an unclean stop: a run begins, as it does in a server
        boot = orjson.dumps({"clean": False, "instance": "penstock log compact", "version": LOG_VERSION})
        log.append([Control(Kind.BOOT, "", boot, b"", log.recovery.next_lsn, now)])
    log.append([log.base_group(log.appended + 1, now, floor, state)], sync=True)
    log.flush()
    if log.broken:
        raise LogBroken(log.broken)


def archive(
    disk: Disk, target: Disk, clock: Clock, form: Form, told: Callable[[int, int], object], *, dry_run: bool = False,
    others: bool = False,
) -> dict[str, object]:  # fmt: skip
    """Archive every closed segment of a log into `target`, and merge small files there.

    Result: "planned" runs, "done" segments, "merged" files, and what the archive has then.  `told`: LSNs done, in all.
    others: there are files of an archive, so that there must be a manifest.
    Errors: DataFolderInUse, LogDamaged, OSError; what was archived until then stays.
    """
    with _opened(disk, clock) as log:
        for _ in log.replay():
            pass  # ids of exchanges are read on the way
        known = read(target)
        _refuse_other(known, log.origin)
        if known is None and others:
            raise LogDamaged(f"the archive has files and no manifest; {AGAIN}")
        _refuse_older(disk, known)
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
                manifest = _committed(disk, target, manifest.with_files(run.start, run.end, parts, log.vias.table()))
                done += run.segments
                walked += run.end - run.start
            while (old := merging.plan(manifest, form.file)) is not None:
                new = merging.merge(target, old, form, secrets.token_hex(4))
                manifest = _committed(disk, target, manifest.replaced(old, new))
                merged += len(old)
        return {
            "planned": [run.plain() for run in planned], "done": done, "merged": merged,
            "left": sum(run.segments for run in planned) - done, "spans": [list(span) for span in manifest.spans],
            "files": len(manifest.files), "rows": manifest.rows, "bytes": manifest.size,
        }  # fmt: skip


def prune(disk: Disk, target: Disk, clock: Clock, age: int, *, dry_run: bool = False) -> dict[str, object] | None:
    """Remove archived days that are older, microseconds; what went, or would.

    What a stream may still ask for stays.  Errors: DataFolderInUse, LogDamaged, OSError.
    """
    with _opened(disk, clock) as log:
        manifest = read(target)
        _refuse_other(manifest, log.origin)
        state = folded(log.start_state(), log.replay())
        if manifest is None:
            return None
        streams = (one.holds_from for one in state.streams.values())
        floor = min([held_from(state), *(low for low in streams if low is not None)])
        due = prunable(manifest, clock.wall(), age, None, floor)
        if due is not None and not dry_run:
            _committed(disk, target, manifest.without(due.cut))
        return None if due is None else due.plain()


def repair(
    disk: Disk, target: Disk, paths: Sequence[str], clock: Clock, told: Callable[[int, int], object],
    *, dry_run: bool = False, before: Collection[int] = (),
) -> Manifest | None:  # fmt: skip
    """Make a damaged or lost manifest anew from the files at these paths; None when it is as it was written.

    before: origins of logs that this one was restored from backups of.
    Errors: DataFolderInUse, LogDamaged, OSError; then nothing is changed.
    """
    with _opened(disk, clock) as log:
        for _ in log.replay():
            pass  # it is a log
        try:
            found = read(target)
            if not paths or (found is not None and not is_older(disk, found)):
                return None
        except LogDamaged:
            pass  # which is why we are here
        manifest = rebuilt(target, paths, log.origin, clock.wall() // 1_000_000, told, before)
        if not dry_run:
            _committed(disk, target, manifest)
        return manifest


def _refuse_other(manifest: Manifest | None, origin: int) -> None:
    if manifest is not None and manifest.origin != origin:
        raise LogDamaged(f"the archive belongs to the data folder with origin {manifest.origin}, not {origin}")


def _refuse_older(disk: Disk, manifest: Manifest | None) -> None:
    with told_as(LogDamaged, "the archive cannot be used: ", instead=LogDamaged):
        refuse_older(disk, manifest)


def anew(disk: Disk, clock: Clock) -> bool:
    """Have the next archive begin without what an earlier one had; whether one is known.  DataFolderInUse, OSError."""
    with _opened(disk, clock):
        return forget(disk)


def _committed(disk: Disk, target: Disk, manifest: Manifest) -> Manifest:
    """disk: the data folder, which knows from then on that this one counts."""
    commit(target, manifest)
    tidy(target, manifest)
    known = known_in(disk)
    if known is None or known.number < manifest.number:
        remember(disk, Known("" if known is None else known.token, manifest.number))
    return manifest._replace(gone=())
