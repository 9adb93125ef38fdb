"""Upkeep of the log beside the work: checkpoints by size, retention by age and size, compaction.

A checkpoint only saves time at the next start.  The core gives references to its immutable chunks on the loop; encoding
and writing happen in a thread.  What retention may delete is `retention`'s, what is worth rewriting `compaction`'s;
both run here, one step a beat, and only one of all these at a time.

While upkeep is behind publishers are slowed a little, so that no load outgrows the retention for ever (`Pace`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.config.settings import FOREVER, LogSection
from penstock.errors import PenstockError, Unavailable
from penstock.log.catalog import SegmentInfo
from penstock.log.rewrite_plan import Aims
from penstock.server.base.faults import Chore
from penstock.server.base.rounds import nap
from penstock.server.upkeep.compaction import Compaction, Elsewhere
from penstock.server.upkeep.retention import SHARE, Retirement, in_words, ruling, unsaid

if TYPE_CHECKING:
    from penstock.core.state.capture import Snapshot
    from penstock.core.state.durable import DurableState
    from penstock.server.base.runtime import Runtime


LAG_US, LAG_US_MOST = 5_000, 50_000


PACED_BYTES, PACED_RECORDS = 256 << 10, 4096
"""A batch of more counts as several; one read of a socket brings less."""

WAIT_US_MOST = 2_000_000
"""However much came at once, publishers wait no longer for it."""


def lag_us(behind: int, scale: int) -> int:
    """Microseconds of delay for `PACED_BYTES`: zero when nothing is behind, 5 ms for each `scale` bytes that are.

    50 ms at most.
    """
    return min(max(behind, 0) * LAG_US // scale, LAG_US_MOST)


class Pace:
    """The delay of an engine's publishers, by what they send: many small batches together, or one large one, wait
    alike.  For the loop's thread.
    """

    def __init__(self, runtime: Runtime, later: Callable[[float, Callable[[], None]], object]) -> None:
        """later: run something after so many seconds."""
        self.lag_us = 0
        self.slowed_us = 0  # since the start
        self._runtime = runtime
        self._later = later
        self._running = False
        self._before = (0, 0)  # bytes and records that the log had been given when publishers were let in

    def set(self, lag_us: int) -> None:
        """From now on a batch waits so long; with zero nobody waits any more."""
        self.lag_us = lag_us
        if not lag_us:
            self._let_in()
        elif not self._running:
            self._running = True
            self._before = self._given()
            self._shut()

    def _given(self) -> tuple[int, int]:
        log = self._runtime.log
        return log.bytes_written + log.pending.bytes, self._runtime.core.last_lsn

    def _shut(self) -> None:
        """Whoever published waits, by how much came; he is let in for one batch when it is over."""
        if self.lag_us:
            size, records = (now - before for now, before in zip(self._given(), self._before, strict=True))
            batches = max(1.0, size / PACED_BYTES, records / PACED_RECORDS)
            wait_us = int(min(self.lag_us * batches, WAIT_US_MOST))
            self._runtime.slowed = True
            self.slowed_us += wait_us
            self._later(wait_us / 1e6, self._open)
        else:
            self._running = False

    def _open(self) -> None:
        self._before = self._given()
        self._let_in()
        self._later(0, self._shut)  # after what they send now was read

    def _let_in(self) -> None:
        if self._runtime.slowed:
            self._runtime.slowed = False
            self._runtime.look_for_room()


logger = logging.getLogger("penstock.server")

RETENTION_BEATS = 10
"""Whether segments may go is looked at once in so many beats, and sooner when the log outgrows its retention."""

GROWTH_SEGMENTS = 2
GROWTH_PART = 8
"""Sooner: beyond `retention.bytes`, once the log has grown by so many segments, and by this part of what the last look
left.  A look costs about as much as there is to look at: a log that nothing can leave is not looked at all the time."""

BEHIND_SEGMENTS = 8
"""Publishers are slowed by 5 ms a batch for so much that has come since the log was last tended, see `pacing`."""

FLOORS_AT_ONCE = 2048
"""Queues asked for their oldest message before others have their turn."""

REWRITINGS_MOST = 16
"""Rewritings in one go, before retention has its turn; checkpoints have theirs between two."""

PATIENCE_S = 2.0
"""What runs when a server fails has so long to end, and a stop waits so long for other disks."""

LOOK_S = 0.05
"""Between two looks whether the own disk has it by now."""

FULL_REST = 4
"""A full disk is looked at as soon as something has come, but for a rest of so many times what the last look took."""

COMPACTION_LOOKS = 30
"""Without a segment that is new, rewritten or newly past retention, what is needed is counted once in so many looks."""


class Keeper:
    """Looks once a second whether something is due."""

    def __init__(
        self,
        runtime: Runtime,
        pool: Executor,
        settings: LogSection,
        loop: asyncio.AbstractEventLoop,
        elsewhere: Elsewhere | None = None,
        tidy: Callable[[], None] | None = None,
    ) -> None:
        """`elsewhere`: another process for large rewritings; a thread of the pool does them unless given.

        tidy: gives free memory back; called from the pool after a checkpoint, and when a burst is over.
        """
        self.runtime = runtime
        self.checkpoints = 0
        start = runtime.log.start_state()
        self.checkpointed = start.lsn if start is not None else 0  # LSN of the last record that a start needs not read
        self.retention = ruling(settings.retention, runtime.core.defaults)
        self.retirement = Retirement(runtime, self.retention)
        aims = Aims(segment=settings.segment, compress=settings.compress_cold)
        self.compaction = Compaction(runtime, self.retirement, pool, self._state, self._synced, aims, elsewhere)
        self._pool = pool
        self._settings = settings
        self._loop = loop
        self._bytes, self._records = runtime.log.bytes_written, runtime.core.last_lsn
        self._running: asyncio.Future[None] | None = None
        self._late: asyncio.Future[None] = loop.create_future()  # done when a stop waits for other disks no longer
        self._beats = 0  # since it last tended the log
        self._rest_until = 0  # mono microseconds: of looks at a full disk
        self._looked = (0, 0, 0)  # how far the log was then, and how many segments there were, and are archived
        self._tended = 0
        self.pace = Pace(runtime, loop.call_later)
        self._left = 0  # bytes that tending left of what the log had
        self._succeeded = 0  # how often it came to its end
        self._tidy = tidy
        self._seen = self._bytes  # bytes written as of the last beat
        self._untidy = False
        self._chore = Chore(runtime.faults, runtime.clock, self.beat)
        self._giving = Chore(runtime.faults, runtime.clock, self._tidy_up)

    @property
    def rule(self) -> str:
        """Which retention rules, in words."""
        return in_words(self.retention)

    def lines(self) -> list[str]:
        """What whoever starts the server has to know of retention."""
        if not unsaid(self._settings.retention):
            return []  # it is among the settings that are told
        if self.runtime.core.defaults:
            return [f"setting log.retention: {self.rule} (default)"]
        told = (
            "warning: this data folder was made by a version that kept the whole log by default, and goes on so until "
            f"its disk is full; set log.retention: {{ share = {SHARE} }} is the default of new folders, "
            f'"{FOREVER}" keeps everything without this line'
        )
        return [told]

    def told(self) -> dict[str, object]:
        """What rules retention, and how far the log is from it: bytes; None where nothing is said."""
        rule, log = self.retention, self.runtime.log
        return {
            "rule": self.rule, "age": rule.age, "bytes": rule.bytes, "share": rule.share,
            "from": "default" if unsaid(self._settings.retention) else "settings",
            "log_bytes": log.size, "most_bytes": self.retirement.most(),
        }  # fmt: skip

    def beat(self) -> None:
        """Start a checkpoint when enough was logged since the last one, or delete what may go."""
        runtime = self.runtime
        self._beats += 1
        self._tidy_up()
        outgrown = self._outgrown()
        self.pace.set(0 if runtime.broken is not None or self.stopping else self._lag_us())
        if runtime.broken is not None or self.stopping:
            return
        runtime.log.check_space()  # others may have filled the disk while the log wanted none of it
        if self._chore.rests or (self._running is not None and not self._running.done()):
            return
        # before checkpoints: under a load that makes one due each beat, too
        if self._beats >= RETENTION_BEATS or outgrown or self._may_get_out():
            self._beats = 0
            self._looked = self._seen_now()
            self._tended += 1
            self._running = asyncio.ensure_future(self._look_after(), loop=self._loop)
        elif self._checkpoint_due():
            self._running = asyncio.ensure_future(self._guarded(self.checkpoint()), loop=self._loop)

    def _tidy_up(self) -> None:
        """Once after something was written, when nothing more is."""
        written = self.runtime.log.bytes_written
        if written != self._seen:
            self._seen, self._untidy = written, True
        elif self._untidy and self._tidy is not None and not self._giving.rests:
            self._untidy = False
            self._giving.begun(self._loop.run_in_executor(self._pool, self._tidy))

    def _checkpoint_due(self) -> bool:
        """Whether enough was logged since the last one; none is while a fault keeps memory from being believed."""
        if self.runtime.core.stopped:
            return False
        rules, grown = self._settings, self.runtime.log.bytes_written - self._bytes
        if grown >= rules.checkpoint_bytes:
            return True
        return grown > 0 and self.runtime.core.last_lsn - self._records >= rules.checkpoint_records

    def _outgrown(self) -> bool:
        """Whether the log is beyond its retention, and has grown much since it was last tended."""
        most = self.retirement.most()
        if most is None:
            return False
        slack, size = GROWTH_SEGMENTS * self._settings.segment, self.runtime.log.size
        return size > most + slack and size - self._left > max(slack, self._left // GROWTH_PART)

    def _may_get_out(self) -> bool:
        """Whether the disk is full, and something has come since the log was last tended: a purge, acks, an archived
        segment.
        """
        if not (self.runtime.log.room.full and self.retirement.yields) or self.runtime.clock.mono() < self._rest_until:
            return False
        return self._looked != self._seen_now()

    def _seen_now(self) -> tuple[int, int, int]:
        log, archived = self.runtime.log, self.runtime.archived
        segments = log.segments()
        return log.durable, len(segments), 0 if archived is None else sum(map(archived, segments))

    def _lag_us(self) -> int:
        """How long a batch of publishes waits: the longer, the more has come since the log was last tended."""
        most = self.retirement.most()
        if most is None:
            return 0
        slack = GROWTH_SEGMENTS * self._settings.segment
        return lag_us(self.runtime.log.size - max(most, self._left) - slack, BEHIND_SEGMENTS * self._settings.segment)

    async def _guarded(self, work: Coroutine[None, None, None]) -> None:
        """Upkeep that fails is told and tried again later; the server goes on without it."""
        try:
            await work
        except Unavailable as error:
            if not self.stopping:  # then the other process was ended on purpose
                logger.warning("upkeep of the log: %s", error)
        except (OSError, PenstockError) as error:
            logger.warning("upkeep of the log: %s", error)
        except Exception as error:  # noqa: BLE001 - the border of one step
            self._chore.failed(error)
        else:
            self._chore.succeeded()

    async def checkpoint(self) -> None:
        """Take the state now; write it once the disk has everything it stands for."""
        runtime = self.runtime
        self._bytes, self._records = runtime.log.bytes_written, runtime.core.last_lsn
        snapshot = await self._snapshot()
        await self._loop.run_in_executor(self._pool, self._write, snapshot)
        runtime.core.captured(snapshot)

    async def _snapshot(self) -> Snapshot:
        """The state now, on disk with everything it stands for.  Raises LogBroken, and what `snapshot` does."""
        runtime = self.runtime
        for hook in runtime.on_checkpoint:
            hook()
        runtime.finish_turn()  # what is journalled belongs to the state and must reach the log
        snapshot = runtime.core.snapshot()
        for _ in runtime.core.capture(snapshot):
            await asyncio.sleep(0)  # many queues: the others have their turn between two steps
        runtime.finish_turn()
        await self._synced(runtime.core.last_lsn)
        return snapshot

    async def _state(self) -> DurableState:
        """What the log has settled: nothing that this leaves out of the queues is needed again.  Raises LogBroken."""
        snapshot = await self._snapshot()
        state = await self._loop.run_in_executor(self._pool, snapshot.state, nap)
        self.runtime.core.captured(snapshot)
        return state

    def _write(self, snapshot: Snapshot) -> None:
        try:
            self.runtime.log.write_checkpoint(snapshot.encode(nap), snapshot.cut)
        except OSError as error:  # a full disk, say; the next start takes longer, nothing else
            logger.warning("no checkpoint at LSN %d: %s", snapshot.cut, error)
        else:
            self.checkpoints += 1
            self.checkpointed = snapshot.cut
        finally:
            snapshot.captured.clear()
            if self._tidy is not None:
                self._tidy()

    async def _look_after(self) -> None:
        """Tend the log.  Nobody is slowed for what it leaves, but for what came meanwhile, if it took long.

        When it fails nobody is slowed for anything: nothing says that there is less to come.
        """
        log, before, tended = self.runtime.log, self.runtime.log.bytes_written, self._succeeded
        mono = self.runtime.clock.mono
        began = mono()
        try:
            await self._guarded(self._tend())
        finally:
            came = log.bytes_written - before if self._succeeded > tended else 0
            self._left = max(0, log.size - came)
            self._rest_until = mono() + FULL_REST * (mono() - began)
            self.pace.set(0 if self.stopping else self._lag_us())

    async def _tend(self) -> None:
        """Delete what may go, rewrite what is worth it, and give back what the system caches of what was delivered."""
        for _ in iter(lambda: self.runtime.core.look_for_floor(FLOORS_AT_ONCE), False):
            await asyncio.sleep(0)
        if self.stopping:
            return
        log = self.runtime.log
        makes_room = log.room.full and self.retirement.yields
        if makes_room and (lent := log.room.lend()):
            logger.info("the disk is full: %d bytes of the reserve are free for work that frees more", lent)
        if self.retirement.wants_a_new_segment():
            log.roll()  # with a thread that writes it is closed at the next look
        await self._retire()
        compaction = self.compaction
        looks = compaction.news() or self._tended % COMPACTION_LOOKS == 0 or makes_room
        if looks and not self.runtime.core.stopped:  # what is needed only memory says
            await self._rewrite(REWRITINGS_MOST)
        if log.room.full:
            log.check_space()  # what has gone counts at once
        await compaction.index(self._give_way)
        await self._loop.run_in_executor(self._pool, log.give_back, self.runtime.floor())
        self._succeeded += 1

    async def compact(self, *, dry_run: bool = False) -> dict[str, object]:
        """Delete and rewrite all that is worth it at once, or say what that would be.

        "planned": the tasks as found first; "done": how many segments were rewritten, "deleted"; "freed" bytes and
        "dropped" rows of both.  Raises LogBroken, LogDamaged, OSError, and Unavailable when the server stops.
        """
        await self._rest()
        if self.stopping:
            raise Unavailable("the server stops")
        ended = self._running = self._loop.create_future()
        try:
            compaction, log = self.compaction, self.runtime.log
            planned = [task.plain() for task in (await compaction.look()).tasks]
            before, totals = log.first_lsn, replace(compaction.totals)
            segments, gone = log.segments(), list[SegmentInfo]()
            if not dry_run:
                await self._retire()
                if log.first_lsn != before:
                    gone = [one for one in segments if one.last < log.first_lsn]
                await self._rewrite(2 * len(segments))
                await compaction.index(self._give_way)
            now = compaction.totals
            return {
                "planned": planned, "deleted": len(gone), "done": now.rewritten - totals.rewritten,
                "freed": now.freed - totals.freed + sum(one.bytes for one in gone),
                "dropped": now.dropped - totals.dropped + sum(one.rows for one in gone),
            }  # fmt: skip
        finally:
            ended.set_result(None)

    async def _rewrite(self, most: int) -> None:
        """Rewrite what is worth it, so many times at most."""
        for _ in range(most):
            await self._give_way()
            if await self.compaction.step() is None:
                break

    async def _give_way(self) -> None:
        """Between two files: a checkpoint that is due does not wait for the rest of them."""
        if not self.stopping and self._checkpoint_due():
            await self.checkpoint()

    async def _retire(self) -> None:
        """One look at what retention may delete.  Nothing goes before the disk has that nobody needs it any more."""
        runtime, log = self.runtime, self.runtime.log
        due = await self._loop.run_in_executor(self._pool, self.retirement.due, runtime.floor())
        if due is None:
            return
        if log.base_floor < due:
            state = await self._loop.run_in_executor(self._pool, self.retirement.state_below, due)
            if not self.retirement.room_for(state):
                return
            lsn = self.retirement.write_base(due, state)
        else:  # it was written for a look that came too early
            runtime.finish_turn()
            lsn = runtime.core.last_lsn
        await self._synced(lsn)
        if runtime.floor() < due:
            return  # a read began meanwhile; the base stands, and the segments go at a later look
        for name in await self._loop.run_in_executor(self._pool, log.remove, log.detach(due)):
            logger.info("%s is past retention and was deleted", name)

    async def _synced(self, lsn: int) -> None:
        """Wait until the log has written everything up to `lsn`, and ask for its sync.

        LogBroken; Unavailable where the server stops, and no other member of its cluster is there that has to have it.
        """
        log = self.runtime.log
        if self.runtime.broken is None:
            log.request_sync()
        durable = asyncio.ensure_future(self.runtime.until_durable(lsn))
        try:
            await asyncio.wait((durable, self._late), return_when=asyncio.FIRST_COMPLETED)
            while not durable.done() and log.synced < lsn:
                await asyncio.wait((durable,), timeout=LOOK_S)
            if not durable.done():
                raise Unavailable("the server stops, and other members of its cluster do not take what it has")
            await durable
        finally:
            durable.cancel()

    # -- the end

    @property
    def stopping(self) -> bool:
        """Whether nothing new is begun."""
        return self.compaction.stopping

    def stop(self) -> None:
        """Begin nothing more; what runs ends at its next step."""
        self.compaction.stopping = True
        self.pace.set(0)
        self._loop.call_later(PATIENCE_S, self._late.cancel)

    async def last_checkpoint(self) -> None:
        """After `stop`, at a clean stop: wait for what runs, then write the final state.

        Of a cluster's leader only if other disks have it soon: it may be the last of all members that stop.
        """
        await self._rest()
        if self.runtime.broken is None:
            await self._guarded(self.checkpoint())

    async def give_up(self) -> None:
        """After `stop`, when the server failed: what runs has a moment, for it may wait for what never comes."""
        if self._running is not None:
            await asyncio.wait([self._running], timeout=PATIENCE_S)

    async def _rest(self) -> None:
        while self._running is not None and not self._running.done():
            await asyncio.wait([self._running])
