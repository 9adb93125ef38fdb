"""The threads beside the loop of a server: a pool for each kind of work, so that no kind waits for another.

    loop    hand_over(pool, work, done) -> thread: work() -> loop: done(result)
    close   from now on nothing is handed over and no result comes; `end` waits for what runs

What is dropped after `close` has nobody who waits for it: the doors have told their clients before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.server.runtime import Off


logger = logging.getLogger("penstock.server")

T = TypeVar("T")

Make = Callable[[int, str], Executor]
"""A pool of at most so many threads with this name."""


def threads(most: int, name: str) -> Executor:
    """A pool of real threads."""
    return ThreadPoolExecutor(most, thread_name_prefix=name)


class Pools:
    """The pools of one server.  All methods belong to the loop's thread."""

    def __init__(self, make: Make = threads) -> None:
        self.reading = make(4, "penstock-read")  # cold rows, and upkeep of the log
        self.scanning = make(1, "penstock-scan")  # few threads evaluate filters: they share one core with the loop
        self.judging = make(2, "penstock-judge")
        self.acting = make(1, "penstock-action")
        self.replaying = make(2, "penstock-replay")
        self.querying = make(128, "penstock-query")  # SQL over HTTP: those that run (`sql.at_once`) and those that wait
        self.closed = False
        self._at_work = 0

    def at_work(self) -> int:
        """How many pieces of work have been handed over and are not done, queries apart, which wait for others."""
        return self._at_work

    def off(self, pool: Executor) -> Off:
        """`hand_over` to this pool."""

        def off(work: Callable[[], T], done: Callable[[T], None]) -> None:
            self.hand_over(pool, work, done)

        return off

    def hand_over(self, pool: Executor, work: Callable[[], T], done: Callable[[T], None]) -> None:
        """Run `work` in a thread, then `done` on the loop with what it gave; neither once the pools are closed."""
        if self.closed:
            return
        future = asyncio.get_running_loop().run_in_executor(pool, work)
        weight = int(pool is not self.querying)
        self._at_work += weight
        future.add_done_callback(partial(self._finished, done, weight))

    def _finished(self, done: Callable[[T], None], weight: int, finished: asyncio.Future[T]) -> None:
        self._at_work -= weight
        if finished.cancelled():
            return
        if self.closed:
            if isinstance(error := finished.exception(), PenstockError | OSError):
                logger.debug("dropped at the end: %s", error)
            elif error is not None:
                raise error
            return
        done(finished.result())

    def close(self) -> None:
        """Take nothing more, and let no result reach the loop."""
        self.closed = True

    async def end(self, *pools: Executor) -> None:
        """Wait for what runs in these pools; what has not begun never will."""
        assert self.closed, "what is handed over now would fail"
        loop = asyncio.get_running_loop()
        for pool in pools:
            await loop.run_in_executor(None, partial(pool.shutdown, wait=True, cancel_futures=True))

    def abandon(self) -> None:
        """The start failed: nobody waits for anything."""
        self.close()
        for pool in (self.reading, self.scanning, self.judging, self.acting, self.replaying, self.querying):
            pool.shutdown(wait=False, cancel_futures=True)
