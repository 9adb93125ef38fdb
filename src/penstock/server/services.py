"""What a running server has: its settings, people, log, engine, doors and threads.

Whoever tells of a server or changes it, HTTP's management and Flight's administration for instance, knows this of it;
`App` starts and stops it.

Threads beside the loop: a pool for each kind of work, so that no kind waits for another.

    loop    hand_over(pool, work, done) -> thread: work() -> loop: done(result)
    close   from now on nothing is handed over and no result comes; `end` waits for what runs

What is dropped after `close` has nobody who waits for it: the doors have told their clients before.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from penstock.errors import PenstockError
from penstock.server.base.allowed import Pool
from penstock.server.base.clock import SystemClock
from penstock.server.base.faults import Faults, asker_behind
from penstock.server.base.progress import Progress
from penstock.server.base.rounds import Pulse
from penstock.server.counters import Counters
from penstock.server.people.access import Shares
from penstock.server.people.accounts import accounts_of
from penstock.server.people.users import Users

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.log.log import Log
    from penstock.server.alarms import Alarms
    from penstock.server.amqp.door import AmqpDoor
    from penstock.server.amqp.doors import AmqpDoors
    from penstock.server.base.runtime import Off
    from penstock.server.bulk.process import Bulk
    from penstock.server.cluster.leading import Cluster
    from penstock.server.doors.door_process import Spawned
    from penstock.server.engine import Engine
    from penstock.server.flight.door import FlightDoor
    from penstock.server.http.doorway import HttpDoors
    from penstock.server.links.links import Links
    from penstock.server.people.logins import Logins
    from penstock.server.scratch_pages import Pager, Scratch
    from penstock.server.sockets.certificates import Ends
    from penstock.server.sockets.listening import Entry
    from penstock.server.sockets.tls import Keeper as TlsKeeper
    from penstock.server.upkeep.keeper import Keeper, Pace


logger = logging.getLogger("penstock.server")

T = TypeVar("T")

Make = Callable[[int, str], Executor]
"""A pool of at most so many threads with this name."""


def threads(most: int, name: str) -> Executor:
    """A pool of real threads."""
    return Pool(most, thread_name_prefix=name)


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
        self.faults: Faults | None = None  # what is done with exceptions; without, the loop has them
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
        try:
            done(finished.result())
        except Exception as error:
            if self.faults is None:
                raise
            self.faults.contain(error, asker_behind(done))

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


Say = Callable[[str], None]


def say_aloud(text: str) -> None:
    """A line to standard output, at once: whoever waits for it may read from a pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Server:
    """One instance.  What has no value here comes while it starts."""

    def __init__(self, settings: Settings, say: Say, pulse: Pulse | None = None, pools: Pools | None = None) -> None:
        """pulse: of its loop; without one its pauses are not known.  pools: others than its own threads."""
        self.settings = settings
        self.say = say
        self.pulse = pulse or Pulse()
        self.clock = SystemClock()
        self.stopping = asyncio.Event()
        self.counters = Counters()
        self.accounts = accounts_of(settings)
        self.cluster: Cluster | None = None  # of which this server is a member
        self.links: Links | None = None  # with other sites
        self.users = Users(
            settings.users,
            settings.entitlement,
            settings.server.name,
            self.accounts,
            settings.permission,
            settings.topic_permission,
            settings.server.loopback_users,
        )
        self.shares = Shares()
        self.serving = False  # the doors are open
        self.failure: BaseException | None = None  # why the process must stop
        self.recovered_records = 0
        self.recovered_seconds = 0.0
        self.tls: TlsKeeper | None = None  # where a door has TLS
        self.ends: Ends | None = None  # where other servers are shown a certificate
        self.addresses = dict[str, str]()  # of the open doors, by name
        self.progress = Progress(self.clock.mono)
        self.pools = pools or Pools()
        self.doors: AmqpDoors | None = None  # of AMQP, where these are processes
        self.http_doors: HttpDoors | None = None  # the same of HTTP
        self.flight_process: Spawned | None = None  # of the Flight door, where it began before the server
        self.http_process: Spawned | None = None  # the same of HTTP
        self.loop: asyncio.AbstractEventLoop
        self.entry: Entry
        self.log: Log
        self.engine: Engine
        self.logins: Logins
        self.amqp: AmqpDoor
        self.bulk: Bulk
        self.flight: FlightDoor
        self.keeper: Keeper
        self.pace: Pace
        self.alarms: Alarms
        self.scratch: Scratch
        self.pager: Pager
