"""Upkeep of the log beside the work: checkpoints by size, retention by age and size.

A checkpoint only saves time at the next start.  The core gives references to its immutable chunks on the loop; encoding
and writing happen in a thread.  What retention may delete is `retention`'s; it runs here, one step a beat.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from penstock.errors import LogBroken, PenstockError
from penstock.server.retention import Retirement

if TYPE_CHECKING:
    from penstock.config.settings import LogSection
    from penstock.core.state.durable import DurableState
    from penstock.server.engine import Engine

logger = logging.getLogger("penstock.server")

RETENTION_BEATS = 10
"""Whether segments may go is looked at once in so many beats."""


class Keeper:
    """Looks once a second whether something is due."""

    def __init__(self, engine: Engine, pool: Executor, settings: LogSection, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = engine
        self.checkpoints = 0
        self.retirement = Retirement(engine, settings.retention)
        self._pool = pool
        self._settings = settings
        self._loop = loop
        self._bytes, self._records = engine.log.bytes_written, engine.core.last_lsn
        self._running: asyncio.Future[None] | None = None
        self._beats = 0

    def beat(self) -> None:
        """Start a checkpoint when enough was logged since the last one, or delete what may go."""
        engine = self.engine
        self._beats += 1
        if engine.broken is not None or (self._running is not None and not self._running.done()):
            return
        grown = engine.log.bytes_written - self._bytes
        if grown >= self._settings.checkpoint_bytes or (
            engine.core.last_lsn - self._records >= self._settings.checkpoint_records and grown
        ):
            self._running = asyncio.ensure_future(self._guarded(self.checkpoint()), loop=self._loop)
        elif self._beats % RETENTION_BEATS == 0:
            self._running = asyncio.ensure_future(self._guarded(self._retire()), loop=self._loop)

    @staticmethod
    async def _guarded(work: Coroutine[None, None, None]) -> None:
        """Upkeep that fails is told and tried again later; the server goes on without it."""
        try:
            await work
        except (OSError, PenstockError) as error:
            logger.warning("upkeep of the log: %s", error)

    async def checkpoint(self) -> None:
        """Take the state now; write it once the disk has everything it stands for."""
        engine = self.engine
        self._bytes, self._records = engine.log.bytes_written, engine.core.last_lsn
        engine.finish_turn()  # what is journalled belongs to the state and must reach the log
        state, lsn = engine.core.durable_state(), engine.core.last_lsn
        await self._synced(lsn)
        await self._loop.run_in_executor(self._pool, self._write, state, lsn)

    def _write(self, state: DurableState, lsn: int) -> None:
        try:
            self.engine.log.write_checkpoint(state.encode(), lsn)
        except OSError as error:  # a full disk, say; the next start takes longer, nothing else
            logger.warning("no checkpoint at LSN %d: %s", lsn, error)
        else:
            self.checkpoints += 1

    async def _retire(self) -> None:
        """One look at what retention may delete."""
        due = await self._loop.run_in_executor(self._pool, self.retirement.due, self.engine.floor())
        if due is None:
            return
        state = await self._loop.run_in_executor(self._pool, self.retirement.state_below, due)
        lsn = self.retirement.write_base(due, state)
        await self._synced(lsn)
        if self.engine.floor() < due:
            return  # a read began meanwhile; the base stands, and the segments go at a later look
        for name in self.engine.log.retire(due):
            logger.info("%s is past retention and was deleted", name)

    async def _synced(self, lsn: int) -> None:
        """Wait until the log has written everything up to `lsn`, and ask for its sync.  Raises LogBroken."""
        engine = self.engine
        if engine.broken is not None:
            raise LogBroken(engine.broken)
        durable: asyncio.Future[None] = self._loop.create_future()

        def broken(reason: str) -> None:
            if not durable.done():
                durable.set_exception(LogBroken(reason))

        engine.on_broken.append(broken)
        try:
            engine.log.request_sync()
            engine.when_durable(lsn, lambda: durable.set_result(None))
            await durable
        finally:
            engine.on_broken.remove(broken)

    async def last_checkpoint(self) -> None:
        """At a clean stop: wait for what runs, then write the final state."""
        if self._running is not None:
            await self._running
        if self.engine.broken is None:
            await self._guarded(self.checkpoint())
