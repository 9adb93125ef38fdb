"""The threads beside the loop of a server: a pool for each kind of work, so that no kind waits for another; and naps.

    loop    hand_over(pool, work, done) -> thread: work() -> loop: done(result)
    close   from now on nothing is handed over and no result comes; `end` waits for what runs

What is dropped after `close` has nobody who waits for it: the doors have told their clients before.  A loop that never
sleeps starves every other thread of the interpreter, so it naps: for these threads while they have work, for the log's
writer when its commit has waited long enough, and for Flight's threads while calls are made.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.log.log import Log
    from penstock.ports import Clock
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


STARVED_US = 500
"""A thread with work that has waited this long for the interpreter gets it: the loop sleeps for a moment."""

GUEST_STAYS_US = 1_000_000
"""A Flight call was made so recently: its thread, or the next one's, may be waiting for the interpreter."""

GUEST_US = 100
"""A Flight call takes the interpreter some eight times: with a guest in the house the loop naps this often."""

NAP_S = 20e-6
"""How long a nap is; any real sleep hands the interpreter over."""


def nap() -> None:
    """Let other threads have the interpreter; long work in pure Python does so now and then.

    Without, whoever else needs the interpreter waits five milliseconds for it, and the loop does each time that a call
    of the system has let it go: several times a turn.
    """
    time.sleep(NAP_S)


class Nap:
    """When the loop sleeps for a moment."""

    __slots__ = ("_clock", "_guest_at", "_log", "_napped", "at_work")

    def __init__(self, clock: Clock, log: Log) -> None:
        self.at_work: Callable[[], int] = int  # how many threads of pools have something to do
        self._clock = clock
        self._log = log
        self._guest_at = -GUEST_STAYS_US  # mono when another thread last had business
        self._napped = 0

    def announce_guest(self) -> None:
        """A thread of another door has business and will need the interpreter.  Any thread."""
        self._guest_at = self._clock.mono()

    def let_others_in(self) -> None:
        """At the end of a turn: sleep a moment when another thread has waited long enough."""
        now = self._clock.mono()
        awake = now - self._napped
        if awake < GUEST_US:
            return
        waiting = self._log.thread_since
        starved = awake > STARVED_US and ((waiting and now - waiting > STARVED_US) or self.at_work())
        if starved or now - self._guest_at < GUEST_STAYS_US:
            nap()
            self._napped = self._clock.mono()
