"""The archive of a running server: closed segments become Parquet files, in the bulk child; retention waits for it.

    look    closed segments that are not archived yet, oldest first          on the loop, cheap
    write   their rows into files under `.new/`                              the bulk child
    commit  the manifest, then the files into their places                   a thread of the pool
    merge   small files of a folder into one, in the same two steps
    prune   whole days that the archive's own retention has passed leave the manifest, then the disk

One of these runs at a time, beside checkpoints and compaction.  What makes room comes first, and what has no room to
be merged stays as it is.  Whatever fails is told and tried again; a crash leaves files that nobody names, which the
next start removes.  Without a retention what the archive has never goes from it, and
with one nothing goes that a stream or a running read may still ask for.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from penstock.errors import DiskFull, LogDamaged, PenstockError, PreconditionFailed, Unavailable
from penstock.history.view import listing
from penstock.log.archive import Shown, archive_disk
from penstock.log.archive.manifest import AGAIN, Manifest, Part, Pruned, Run, commit, prunable, read, runs, tidy
from penstock.log.archive.repairing import has_files
from penstock.log.disk import OsDisk
from penstock.records.chunks import LSN_LIMIT
from penstock.server.base.faults import reports
from penstock.server.bulk.process import asked_of
from penstock.server.upkeep.remembered import Known, known_in, refuse_older, remember
from penstock.units import format_size

if TYPE_CHECKING:
    from penstock.config.settings import ArchiveSection
    from penstock.log.catalog import SegmentInfo
    from penstock.log.log import Log
    from penstock.server.cluster.shared_archive import SharedArchive


logger = logging.getLogger("penstock.server")

_T = TypeVar("_T")

ROOM = 64 << 20
"""Bytes of the disk that archiving leaves to publishes, beside what the log holds back for itself."""

NUMBER = re.compile(r"[0-9.]+ ?[A-Za-z]*")
"""In what a failure says, which is the same failure with another one."""

RETRY_BEATS = 60
"""After a failure it is tried again in so many beats at most: after the first in one, then later each time."""

PRUNE_BEATS = 600
"""Whether a day may go is looked at so often."""


class Jobs(Protocol):
    """Who does the work: the bulk child."""

    async def run(
        self, job: str, *, progress: Callable[[int, int], object] | None = None, **values: object
    ) -> dict[str, Any]:
        """The result of a job.  Raises what the job raises, and Unavailable."""
        ...


class Archiving:
    """The archive of one log.  Belongs to the loop, but for what says otherwise."""

    def __init__(
        self, log: Log, settings: ArchiveSection, data: Path, bulk: Jobs, pool: Executor,
        floor: Callable[[], int], wall: Callable[[], int], shared: SharedArchive | None = None,
    ) -> None:  # fmt: skip
        """`data`: the data folder.  What is wrong with the archive is told in `why`; then nothing is archived.

        floor: nobody may still ask for what is below this LSN.  wall: microseconds.  Both are asked on the loop.
        shared: by members of a cluster, of which this one leads
        """
        self.folder = str((data / settings.folder).absolute())
        self.why: str | None = None  # it does not work at the moment
        self.archived = self.merged = self.pruned = 0  # segments, and files, since the start
        self.failures = 0
        self.stopping = False
        self._log, self._settings, self._bulk, self._pool = log, settings, bulk, pool
        self._floor, self._wall = floor, wall
        self._shared, self._lead = shared, ""
        self._cut = 0  # all below this LSN goes at the moment: nobody begins to read it
        self._since = 0  # beats since the last look
        self._disk: OsDisk
        self._running: asyncio.Future[None] | None = None
        self._paused = 0  # by so many who read it as it is
        self._wait = 0  # beats until the next try
        self._tries = 0  # that failed, one after the other
        self._failed = set[int]()  # first LSNs of segments that cannot be read
        self._unmerged = frozenset[str]()  # files that could not be merged
        self._seen: tuple[int, int, int] = (0, 0, 0)
        self._beside = OsDisk(data)
        self._shares_disk = False
        self.broken = False  # it cannot be used; a cluster's is looked at again by the next leader
        self._counts = self.manifest = Manifest(log.origin)  # `_counts`: what retention may rely on
        self._look()

    def _look(self) -> None:
        """Open what is in the folder, or say why not.  On a thread of the pool, but for the first time."""
        try:
            self._disk = archive_disk(self.folder)
            self._open()
        except (OSError, LogDamaged, PreconditionFailed) as error:
            why = f"the archive in {self.folder} cannot be used: {error}"
            if why != self.why:
                logger.error("%s; nothing is archived, and retention waits", why)
            self.why, self.broken, self._wait = why, True, RETRY_BEATS
            return
        if self.broken:
            logger.warning("the archive in %s can be used again", self.folder)
        self._counts = self.manifest
        self.why, self.broken = None, False

    def _open(self) -> None:
        if self._shared is not None:
            self._lead = self._shared.take(self.folder)
        found = read(self._disk)
        if found is not None and found.origin != self._log.origin:
            raise LogDamaged(
                f"it belongs to the data folder with origin {found.origin}, and this one has {self._log.origin}; name "
                "another folder in [log] archive"
            )
        if found is None and has_files(self.folder):
            raise LogDamaged(f"it has files and no manifest; {AGAIN}")
        refuse_older(self._beside, found)
        if self._shared is not None:
            found = found and self._without_lost(found)
        self.manifest = found or self.manifest
        for name in tidy(self._disk, found):
            logger.info("the archive's unfinished file %s was removed", name)
        self.manifest = self.manifest._replace(gone=())
        self._remember()
        self._shares_disk = self._beside.shares_with(self._disk)

    def _remember(self) -> None:
        """Have the data folder know which manifest counts; of a shared one the members do."""
        number = self.manifest.number
        if self._shared is not None or not number:
            return
        try:
            known = known_in(self._beside)
            if known is None or known.number < number:
                remember(self._beside, Known("", number))
        except OSError as error:  # the next one that is committed, and the next start, try again
            logger.warning("which manifest of the archive counts is not written beside the log: %s", error)

    def _without_lost(self, found: Manifest) -> Manifest:
        """What counts of it, as it is on the disk then."""
        assert self._shared is not None
        kept = self._shared.going_on(found)
        if kept is not found:
            commit(self._disk, kept, self._lead)
            left_out = len(found.files) - len(kept.files)
            logger.warning("the archive had %d files of records that were set aside; they are left out", left_out)
        return kept

    # -- any thread

    @property
    def first_lsn(self) -> int | None:
        """The first LSN that is archived; None: nothing is.

        While it cannot be used, nobody knows: whoever asks for the beginning is refused by `shown`, rather than given
        less than there is.
        """
        if self.broken:
            return 1
        manifest = self.manifest
        return max(manifest.first, self._cut) if manifest.first else None

    def has(self, segment: SegmentInfo) -> bool:
        """Whether all of a segment is archived, and it may go as far as the archive is concerned."""
        return not self.broken and self._counts.has(segment.first, segment.last)

    def keeps(self, start: int, end: int = LSN_LIMIT) -> bool:
        """Whether log and archive together have every row that the log ever had with an LSN in [start, end)."""
        manifest = self.manifest
        gone = max(manifest.pruned, self._cut)
        return not self.broken and start >= gone and manifest.has(start, min(end, self._log.whole_from) - 1)

    def shown(self) -> Shown | None:
        """For readers; None when there is nothing to read.  LogDamaged when what is there cannot be used."""
        if self.broken:
            raise LogDamaged(self.why or "the archive cannot be used")
        manifest = self.manifest
        return Shown(self.folder, manifest.number, self._log.whole_from) if manifest.spans else None

    def behind(self) -> int:
        """Closed segments that are not archived yet."""
        return sum(not self.manifest.has(one.first, one.last) for one in self._log.segments()[:-1])

    def told(self) -> dict[str, object]:
        """For people: what is archived."""
        manifest = self.manifest
        return {
            "folder": self.folder, "spans": [list(span) for span in manifest.spans], "files": len(manifest.files),
            "rows": manifest.rows, "bytes": manifest.size, "behind": self.behind(), "why": self.why,
        }  # fmt: skip

    # -- the loop

    def beat(self) -> None:
        """Once a second: begin what is due."""
        if self.stopping or self._paused or self.running:
            return
        if self._wait:
            self._wait -= 1
            return
        if self.broken:
            if self._shared is None:
                self._running = asyncio.ensure_future(self._off(self._look))
            return
        log = self._log
        segments = log.segments()
        seen = (len(segments), segments[-1].first, self.manifest.number)
        self._since += 1
        if seen != self._seen or (self._since >= PRUNE_BEATS and self._prunable() is not None):
            self._seen, self._since = seen, 0
            self._running = asyncio.ensure_future(self._guarded())

    @property
    def running(self) -> bool:
        """Whether a step is under way."""
        return self._running is not None and not self._running.done()

    def pause(self) -> None:
        """Begin no step until `resume`, which may be as often."""
        self._paused += 1

    def resume(self) -> None:
        self._paused -= 1

    def stop(self) -> None:
        """Begin nothing more; what runs ends with the bulk child."""
        self.stopping = True
        if self._shared is not None:
            self._shared.stop()

    async def rest(self) -> None:
        while self._running is not None and self.running:
            await asyncio.wait([self._running])

    async def _guarded(self) -> None:
        try:
            self._spare()
            while await self.step():
                self._tries = 0
                self._spare()
            self.why, self._tries = None, 0
        except Unavailable as error:
            if not self.stopping:
                self._failure(error)
        except (OSError, PenstockError) as error:
            self._failure(error)
        except Exception as error:  # noqa: BLE001 - the border of one step: files that nobody else writes
            reports.tell(error, "upkeep")
            self._failure(error)

    def _failure(self, error: Exception) -> None:
        self.failures += 1
        self._wait = min(1 << self._tries, RETRY_BEATS)
        self._tries = min(self._tries + 1, RETRY_BEATS)
        self._seen = (0, 0, 0)
        text = str(error)
        if self.why is None or NUMBER.sub("", text) != NUMBER.sub("", self.why):  # what is free changes all the time
            logger.warning("the archive: %s; retention waits, and it is tried again within a minute", text)
        self.why = text

    def planned(self) -> list[Run]:
        """What is to be archived, oldest first."""
        segments = self._log.segments()
        if self._shared is not None:  # what is not on every disk that counts may still be cut
            durable, may_have = self._log.durable, self._shared.may_have
            kept = (n for n, one in enumerate(segments) if one.last > durable or not may_have(one))
            closed = min(next(kept, len(segments)), len(segments) - 1)
            segments = segments[: closed + 1]
        return runs(segments, self.manifest, self._failed)

    async def run_now(self, *, dry_run: bool = False) -> dict[str, object]:
        """The next step at once, for who asks again until nothing is `left`; with `dry_run`, what there is to do.

        Raises LogDamaged, DiskFull, OSError, Unavailable.
        """
        if self.broken:
            raise LogDamaged(self.why or "the archive cannot be used")
        planned = self.planned()
        told: dict[str, object] = {
            "planned": [run.plain() for run in planned], "done": 0, "left": sum(run.segments for run in planned),
        }  # fmt: skip
        if not dry_run:
            before = self.archived
            async with self._turn():
                worked = await self.step()
            left = sum(run.segments for run in self.planned())
            told |= {"done": self.archived - before, "left": left, "worked": worked}
        return {**told, **self.told()}

    async def step(self) -> bool:
        """Let go what is past the archive's retention, or archive the oldest that is due, or merge files once.

        Whether there was something to do.
        """
        if self.stopping or self._paused:
            return False
        if self._shared is None and self.manifest.number:
            await self._off(self._check_there)
        if not await self._prune(self._prunable()):
            if due := self.planned():
                await self._archive(due[0])
            elif not await self._merge():
                return False
        self.why = None
        return True

    def _prunable(self) -> Pruned | None:
        """What the archive's retention has passed."""
        kept = self._settings.retention
        return None if kept is None else prunable(self.manifest, self._wall(), kept.age, kept.bytes, self._floor())

    async def _prune(self, due: Pruned | None) -> bool:
        if due is None:
            return False
        self._cut = due.cut
        await self._commit(self.manifest.without(due.cut))
        self.pruned += due.files
        logger.info("the archive's days up to %s are gone: %d files, %d records", due.day, due.files, due.rows)
        return True

    async def prune_now(self, age: int, *, dry_run: bool = False) -> dict[str, object]:
        """Remove the days that are older than this, or say which ones that would be.  age: microseconds.

        Raises LogDamaged, OSError, Unavailable.
        """
        if self.broken:
            raise LogDamaged(self.why or "the archive cannot be used")
        async with self._turn():
            due = prunable(self.manifest, self._wall(), age, None, self._floor())
            if not dry_run:
                if self._paused:  # somebody reads the archive as it is
                    raise Unavailable("a backup reads the archive; try again when it is done")
                await self._prune(due)
        return {"pruned": None if due is None else due.plain(), **self.told()}

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None]:
        """No step begins meanwhile.  Unavailable when the server stops."""
        await self.rest()
        if self.stopping:
            raise Unavailable("the server stops")
        ended = asyncio.get_running_loop().create_future()
        self._running = ended
        try:
            yield
        finally:
            ended.set_result(None)

    async def _archive(self, run: Run) -> None:
        if run.segments > 1 and self._disk.free() < self._room_for(run.bytes):
            run = run.first_alone()  # what is short of room gets out of that one by one, as retention follows
        self._check_room(run.bytes)
        values: dict[str, Any] = {
            "folder": self.folder, "start": run.start, "end": run.end, "token": secrets.token_hex(4),
            "compression": self._settings.compression, "topics": self._settings.topics,
        }  # fmt: skip

        async def ask() -> dict[str, Any]:
            listed = await self._off(lambda: listing(self._log, run.start, run.end).plain())
            return await self._bulk.run("archive", log=listed, **values)

        try:
            made = await asked_of(ask)
        except LogDamaged as error:
            if run.segments > 1:
                await self._archive(run.first_alone())  # the others are not held up by one that is damaged
                return
            self._failed.add(run.start)
            logger.error("the archive: %s; retention stays behind it", error)
            return
        parts = [Part(*one) for one in made["parts"]]
        await self._commit(self.manifest.with_files(run.start, run.end, parts, self._log.vias.table()))
        self.archived += run.segments
        logger.info("LSNs %d to %d archived: %d files", run.start, run.end - 1, len(parts))

    async def _merge(self) -> bool:
        from penstock.log.archive.file_writer import plan

        manifest = self.manifest
        mergeable = manifest._replace(files=tuple(one for one in manifest.files if one.path not in self._unmerged))
        old = await self._off(partial(plan, mergeable, self._settings.file_bytes))
        if old is None or self._disk.free() < self._room_for(sum(part.bytes for part in old)):
            return False
        try:
            made = await self._bulk.run(
                "archive_merge", folder=self.folder, parts=[list(part) for part in old], token=secrets.token_hex(4),
                compression=self._settings.compression,
            )  # fmt: skip
        except DiskFull:
            return False  # who took the room meanwhile had to have it
        except LogDamaged as error:
            logger.error("the archive: %s", error)
            self._unmerged |= {part.path for part in old}
            return True
        await self._commit(self.manifest.replaced(old, Part(*made["part"])))
        self.merged += len(old)
        return True

    async def _commit(self, manifest: Manifest) -> None:
        def work() -> None:
            commit(self._disk, manifest, self._lead)
            self.manifest = manifest  # before files move: who lists it finds them under either name
            tidy(self._disk, manifest)
            self._remember()

        await self._off(work)
        self.manifest = manifest._replace(gone=())
        if self._shared is not None:
            await self._shared.told(manifest.number)
        self._counts = self.manifest

    def _check_there(self) -> None:
        """LogDamaged, before anything is written, where the folder is another one than it was."""
        found = read(self._disk)
        if found is None or found.number != self.manifest.number:
            has = "no manifest" if found is None else f"manifest number {found.number}"
            raise LogDamaged(
                f"{self.folder} has {has}, and number {self.manifest.number} was committed to it: is its disk mounted?"
            )

    def _check_room(self, size: int) -> None:
        """DiskFull rather than take what the log may need: where it takes no publishes that is the room for acks."""
        need, free = self._room_for(size) - self._log.room.full * ROOM, self._disk.free()
        if free < need:
            raise DiskFull(
                f"the archive waits: {self.folder} has {format_size(free)} free, and {format_size(need)} are asked for"
            )

    def _spare(self) -> None:
        """Have publishes leave the room that the next segment takes; the log adds what comes before the next look."""
        if self._shares_disk:
            due = self.planned()
            self._log.room.spare(due[0].first_bytes if due else 0, ROOM + self._log.settings.reserve)

    def _room_for(self, size: int) -> int:
        settings = self._log.settings
        return size + ROOM + settings.low_space + settings.reserve

    async def _off(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)
