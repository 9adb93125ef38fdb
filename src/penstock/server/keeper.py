"""Upkeep of the log beside the work: checkpoints by size, retention by age and size.

A checkpoint only saves time at the next start.  The core gives references to its immutable chunks on the loop; encoding
and writing happen in a thread.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.config.settings import LogSection
    from penstock.core.state import DurableState
    from penstock.server.engine import Engine


class Keeper:
    """Looks once a second whether something is due."""

    def __init__(self, engine: Engine, pool: Executor, settings: LogSection, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = engine
        self.checkpoints = 0
        self._pool = pool
        self._settings = settings
        self._loop = loop
        self._bytes, self._records = engine.log.bytes_written, engine.core.last_lsn
        self._running: asyncio.Future[None] | None = None

    def beat(self) -> None:
        """Start a checkpoint when enough was logged since the last one."""
        engine = self.engine
        if engine.broken is not None or (self._running is not None and not self._running.done()):
            return
        grown = engine.log.bytes_written - self._bytes
        if grown >= self._settings.checkpoint_bytes or (
            engine.core.last_lsn - self._records >= self._settings.checkpoint_records and grown
        ):
            self._begin()

    def _begin(self) -> None:
        """Take the state now; write it once the log has everything it stands for."""
        engine = self.engine
        self._bytes, self._records = engine.log.bytes_written, engine.core.last_lsn
        engine.finish_turn()  # what is journalled belongs to the state and must reach the log
        state, lsn = engine.core.durable_state(), engine.core.last_lsn
        engine.when_durable(lsn, lambda: self._write(state, lsn))

    def _write(self, state: DurableState, lsn: int) -> None:
        self._running = self._loop.run_in_executor(self._pool, self._encode_and_write, state, lsn)

    def _encode_and_write(self, state: DurableState, lsn: int) -> None:
        self.engine.log.write_checkpoint(state.encode(), lsn)
        self.checkpoints += 1

    async def last_checkpoint(self) -> None:
        """At a clean stop: wait for a running one, then write the final state."""
        if self._running is not None:
            await self._running
        if self.engine.broken is None:
            self._begin()
            while self._running is None or not self._running.done():
                await asyncio.sleep(0.001)
