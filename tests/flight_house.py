"""A server with the Flight door alone, for tests: real core, log and engine on a loop in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Self, TypeVar, cast

from pydantic import SecretStr

import penstock
from penstock.config.settings import GUEST, LogSection, Retention, User
from penstock.config.vhost_sections import EntitlementSection
from penstock.core.broker import Core
from penstock.core.state.durable import DurableState
from penstock.core.state.fold import Fold
from penstock.log.disk import OsDisk
from penstock.log.log import Log
from penstock.log.writer import LogSettings
from penstock.memory.caches import Caches
from penstock.records.chunks import Now
from penstock.records.entries import Rows
from penstock.server.base.clock import SystemClock
from penstock.server.bulk.process import Bulk
from penstock.server.engine import Engine
from penstock.server.flight.decided import finishing
from penstock.server.flight.door import FlightDoor, FlightLimits
from penstock.server.flight.operation_actions import administration
from penstock.server.people.access import Who
from penstock.server.people.logins import Logins
from penstock.server.people.users import Users
from penstock.server.upkeep.keeper import Keeper
from penstock.server.upkeep.retention import Retirement
from progress import given

if TYPE_CHECKING:
    from penstock.server.services import Server

T = TypeVar("T")


READER = User(name="reader", password=SecretStr("reader"))
"""Has no tags."""


@contextmanager
def house_with_a_queue(folder: Path) -> Generator[FlightHouse]:
    """A house that has the queue `q`."""
    with FlightHouse(folder) as house:
        with penstock.connect(house.url) as client:
            client.declare("q")
        yield house


TICK_S = 0.05
"""Between looks at what is due; looking fifty times a second took five CPU seconds of the tests of Spark alone."""


class Everyone:
    """Users whoever they are."""

    def check(self, user: str, password: str, host: str) -> bool:
        return True

    def is_wrong(self, user: str, password: str) -> bool:
        return False

    def is_right(self, user: str, password: str) -> bool:
        return True

    def who(self, user: str) -> Who:
        return Who(user)


class ShiftedClock(SystemClock):
    """The machine's clocks, moved forward on demand."""

    def __init__(self) -> None:
        self.ahead = 0  # microseconds

    def wall(self) -> int:
        return super().wall() + self.ahead

    def mono(self) -> int:
        return super().mono() + self.ahead


class FlightHouse:
    """`with FlightHouse(folder) as house:` and `house.url`."""

    def __init__(
        self,
        folder: Path,
        limits: FlightLimits | None = None,
        memory: int = 64 * 2**20,
        segment: int = 8 * 2**20,
        bulk: Bulk | None = None,
        entitlements: Sequence[EntitlementSection] = (),
        people: Sequence[User] = (),
    ) -> None:
        """people: beside the guest, an administrator, and `READER`."""
        self.people = [GUEST, READER, *people]
        self.entitlements = entitlements
        self.folder = folder
        self.limits = limits
        self.memory = memory
        self.segment = segment
        self.bulk = bulk  # closed with the house
        self.clock = ShiftedClock()
        self.loop = asyncio.new_event_loop()
        self.engine: Engine
        self.log: Log
        self.door: FlightDoor
        self.port = 0
        self._pool = ThreadPoolExecutor(2)
        self._retirement: Retirement | None = None
        self._keeper: Keeper | None = None
        self._thread = threading.Thread(target=self.loop.run_forever, name="penstock-test-loop")

    @property
    def url(self) -> str:
        return f"penstock://guest:guest@127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self._open)
        return self

    def run(self, work: Callable[[], T]) -> T:
        """The result of `work` on the loop."""
        future: Future[T] = Future()

        def job() -> None:
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - goes to the test
                future.set_exception(error)

        self.loop.call_soon_threadsafe(job)
        return given(future)

    def retire(self, keep: int) -> int:
        """Delete what retention by so many bytes, always the same, allows; the first LSN that is left."""
        if self._retirement is None:
            self._retirement = Retirement(self.engine, Retention.model_validate({"bytes": f"{keep}B"}))
        retirement = self._retirement
        due = retirement.due(self.run(self.engine.floor))
        if due is not None:
            state = retirement.state_below(due)
            self.run(lambda: retirement.write_base(due, state))
            self.door.handover.call(lambda: None)  # durable
            self.log.remove(self.run(lambda: self.log.detach(due)))
        return self.log.first_lsn

    def thin(self) -> int:
        """Leave out what nobody needs of files that are closed, beside what has to stay in them; rows that went."""
        if self._keeper is None:
            section = LogSection.model_validate({"segment": f"{self.segment}B", "retention": {"bytes": "1B"}})
            self._keeper = Keeper(self.engine, self._pool, section, self.loop)
        told = given(asyncio.run_coroutine_threadsafe(self._keeper.compact(), self.loop))
        return cast("int", told["dropped"])

    def _open(self) -> None:
        disk = OsDisk(self.folder)
        self.log = Log.open(disk, self.clock, LogSettings(segment=self.segment))
        start = self.log.start_state()
        folding = Fold(DurableState.decode(start[2])) if start is not None else Fold()
        for table in self.log.replay():
            folding.feed(table)
        now = Now(self.clock.wall(), self.clock.mono())
        core = Core.restore(folding.finish(), origin=self.log.origin, now=now)
        clean = self.log.recovery.clean
        core.boot(now, clean=clean, next_lsn=core.last_lsn + (1 if clean else 2**32))
        self.engine = Engine(
            core,
            self.log,
            Caches(self.memory),
            self.clock,
            call_soon=self.loop.call_soon,
            read_cold=self._read_cold,
        )
        self.engine.walked.ahead.off = self._off_the_loop
        self.engine.judges.off = self.engine.scans.off = self.engine.backfills.off = self._off_the_loop
        if self.bulk is not None:
            self.engine.judges.ask = self.engine.scans.ask = self.bulk.call
        self.log.on_durable = self.engine.durable
        self.log.on_broken = lambda error: self.engine.break_down(str(error))
        self.log.start_thread(self.loop.call_soon_threadsafe, self.loop.call_later)
        self.engine.finish_turn()
        for _ in finishing(self.engine, disk, self.limits.group if self.limits is not None else None):
            pass
        users = Users(self.people, self.entitlements)
        users.accounts.vhosts["other"] = {}
        self.door = FlightDoor(
            self.engine,
            Logins(users),
            frozenset(["/", "other"]),
            disk,
            wake=self.loop.call_soon_threadsafe,
            limits=self.limits,
            bulk=self.bulk,
        )
        server = SimpleNamespace(engine=self.engine, accounts=users.accounts, users=users, serving=True)
        self.door.actions.table |= administration(cast("Server", server), self.door.handover)
        _, self.port = self.door.listen("127.0.0.1", self.port)
        self._ticking()

    def _ticking(self) -> None:
        self.engine.tick()
        self._timer = self.loop.call_later(TICK_S, self._ticking)

    def _read_cold(self, lsns: Sequence[int], answer: Callable[[Rows], None], most: int = 0) -> None:
        future = self._pool.submit(self.log.read, lsns, 0, most)

        def done() -> None:
            answer(future.result())
            self.engine.arm()

        future.add_done_callback(lambda _: self.loop.call_soon_threadsafe(done))

    def _off_the_loop(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        future = self._pool.submit(work)
        future.add_done_callback(lambda _: self.loop.call_soon_threadsafe(lambda: done(future.result())))

    def beat(self) -> None:
        """What the server does once a second."""
        self.run(self.door.beat)

    def __exit__(self, *exc: object) -> None:
        self.run(self.door.stop)
        if self.bulk is not None:
            self.bulk.close()
        self.door.close()
        self.run(self.door.shut)
        self.run(self._close)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(30)
        self.loop.close()
        self._pool.shutdown()

    def _close(self) -> None:
        self._timer.cancel()
        self.engine.finish_turn()
        self.log.close()
