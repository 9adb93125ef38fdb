"""One life of the server, from its recovery to its stop or crash, without an event loop, on a clock that is moved."""

from __future__ import annotations

import errno
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from penstock.errors import LogBroken
from penstock.log.log import Log
from penstock.log.writer import LogSettings, last_of
from penstock.memory.caches import Caches
from penstock.server.engine import Engine
from penstock.server.opening import apply_or_leave_out, declare_views, finish_decided, open_core
from penstock.server.scratch_pages import Scratch

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.log.simdisk import SimDisk
    from penstock.records.entries import Entry, Rows
    from penstock.server.base.rounds import Soon


BOOTED_US = 1_000_000_000
"""What the monotonic clock shows when the machine has just started: its zero means nothing, so it is not zero."""


class FakeClock:
    """Wall and monotonic time in microseconds, moved together by `advance`."""

    def __init__(self, wall: int | None = None) -> None:
        """wall: microseconds since the epoch to begin with.

        Without it, the next whole second of the real time, so that times which real clients name make sense here.
        """
        self._wall = -(-time.time_ns() // 1_000_000_000) * 1_000_000 if wall is None else wall
        self._mono = BOOTED_US

    def wall(self) -> int:
        """Microseconds since the Unix epoch."""
        return self._wall

    def mono(self) -> int:
        """Microseconds on a clock that never goes back, except in `reboot`."""
        return self._mono

    def advance(self, micros: int) -> None:
        """Let time pass.  ValueError for a negative amount."""
        if micros < 0:
            raise ValueError(f"time does not go back by {-micros} us")
        self._wall += micros
        self._mono += micros

    def reboot(self) -> None:
        """The machine has started anew: the monotonic clock begins again, as it does for a server after a crash."""
        self._mono = BOOTED_US


class NoFile:
    """`ports.Backing` in memory.  Beyond `capacity` bytes its disk is full."""

    def __init__(self, capacity: int = 1 << 62) -> None:
        self.capacity = capacity
        self.size = 0
        self.given_back = 0
        self.closed = False
        self._starts: list[int] = []
        self._mappings: list[mmap] = []

    def extend(self, size: int) -> mmap:
        if self.size + size > self.capacity:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._starts.append(self.size)
        self._mappings.append(mmap(-1, size))
        self.size += size
        return self._mappings[-1]

    def write(self, data: memoryview, offset: int) -> None:
        at = bisect_right(self._starts, offset) - 1
        place = offset - self._starts[at]
        self._mappings[at][place : place + len(data)] = data

    def give_back(self) -> None:
        self.given_back += 1

    def close(self) -> None:
        self.closed = True


T = TypeVar("T")

PAGED_MOST = 1024
"""Arrays that leave the heap at once."""


class TellingLog(Log):
    """A log that also shows what it has gathered and not yet made durable."""

    _untold: list[Entry]

    def append(self, entries: Sequence[Entry], *, urgent: bool = True, sync: bool = False) -> None:
        if self.durable >= self.appended:
            self._untold = []  # all of it is told
        self._untold += entries
        super().append(entries, urgent=urgent, sync=sync)

    def gathered(self) -> list[Entry]:
        """Entries above `durable`, in LSN order."""
        return [] if self.durable >= self.appended else [one for one in self._untold if last_of(one) > self.durable]


class Instance:
    """Recovers from the disk at birth; `stop` or `crash` ends it."""

    def __init__(self, disk: SimDisk, clock: FakeClock, settings: Settings) -> None:
        self.clock = clock
        self.settings = settings
        self.loop_soon: Soon | None = None  # set while real ports are open
        self.loop_end: Soon | None = None  # the same of the end of a round
        self._jobs: deque[Callable[[], None]] = deque()
        self._inside = False  # a command runs: its turns are run by it, not by the loop
        section = settings.log
        log = TellingLog.open(
            disk,
            clock,
            LogSettings(
                segment=section.segment,
                sync=settings.server.sync,
                sync_interval=section.sync_interval,
                ack_sync=section.ack_sync,
                ahead=0,
                reserve=0,
                low_space=0,
            ),
        )
        assert isinstance(log, TellingLog)
        self.log = log
        self.scratch = Scratch(Path(), lambda _: NoFile())
        try:
            recovered = open_core(self.log, clock, settings)
            self.core = recovered.core
            self.recovered_records, self.recovered_seconds = recovered.records, recovered.seconds
            self.engine = Engine(
                self.core,
                self.log,
                Caches(settings.server.memory),
                clock,
                call_soon=self._soon,
                read_cold=self._read_cold,
                at_round_end=self._at_round_end,
            )
            self.engine.acts.steps.allow_execute = settings.server.allow_execute
            self.log.on_durable = self.engine.durable
            self.log.on_broken = self.engine.break_down
            self.engine.on_turn = self._turn_ended
            self.engine.left_out = apply_or_leave_out(self.core, settings, self.engine.now)[1]
            declare_views(self.engine.views, settings)
            self.engine.acts.resuming.start()
            self.run_turns()
            finish_decided(self.engine, disk)
        except BaseException:
            self.log.close(clean=False)
            raise

    # -- turns

    def run(self, work: Callable[[], T]) -> T:
        """The result of a command, or what it raises, once the turn it began has come to its end."""
        self._inside = True
        try:
            return work()
        finally:
            try:
                self.run_turns()
            finally:
                self._inside = False

    def run_turns(self) -> None:
        """Finish the turn, and those that follow from it."""
        inside, self._inside = self._inside, True
        try:
            self.engine.finish_turn()
            while self._jobs:
                self._jobs.popleft()()
        finally:
            self._inside = inside

    def commit(self) -> None:
        """Commit all that was decided, and let what follows from it happen."""
        self.engine.finish_turn()
        self.log.flush()
        self.run_turns()

    def make_durable(self) -> None:
        """The same for an answer that names it.  LogBroken when that failed."""
        self.commit()
        if self.engine.broken is not None:
            raise LogBroken(f"{self.engine.broken}; whether this was stored is unknown")

    def _soon(self, job: Callable[[], None]) -> None:
        if self._inside or self.loop_soon is None:
            self._jobs.append(job)
        else:
            self.loop_soon(job)

    def _at_round_end(self, job: Callable[[], None]) -> None:
        if self._inside or self.loop_end is None:
            self._jobs.append(job)
        else:
            self.loop_end(job)

    def _read_cold(self, lsns: Sequence[int], answer: Callable[[Rows], None], most: int = 0) -> None:
        """Rows from the log; never answered at once, for the engine closes a gate until the answer."""

        def read() -> None:
            answer(self.log.read(lsns, most=most))
            self.engine.arm()

        self._soon(read)

    def _turn_ended(self) -> None:
        self.log.tick()
        while self.core.page(self.scratch, PAGED_MOST):
            pass
        due = self._due(log=False)
        if due is not None and due <= 0:
            self.engine.tick()

    # -- time

    def _due(self, *, log: bool) -> int | None:
        """Microseconds until the core, or the log where it is asked, have something to do; None: never."""
        wall, mono = self.engine.next_deadline()
        waits = [] if wall is None else [wall - self.engine.clock.wall()]
        for moment in (mono, self.log.next_deadline() if log else None):
            if moment is not None:
                waits.append(moment - self.clock.mono())
        return min(waits, default=None)

    def advance(self, micros: int) -> None:
        """Let time pass, stopping wherever something is due, in order of time."""
        left, due = micros, self._due(log=True)
        while due is not None and due <= left:
            step = max(due, 0)
            before = self.core.last_lsn, self.log.durable
            self.clock.advance(step)
            left -= step
            self.engine.tick()
            self.run_turns()
            again = self._due(log=True)
            stuck = step == 0 and again == due and before == (self.core.last_lsn, self.log.durable)
            assert not stuck, f"something is due now, and a tick does nothing about it: {self.core.next_deadline()}"
            due = again
        self.clock.advance(left)
        self.engine.tick()
        self.run_turns()

    # -- the end

    def stop(self) -> None:
        """A clean stop: everything is durable, and a checkpoint makes the next start quick."""
        self.run_turns()
        self.log.flush()
        if self.engine.broken is None and self.log.synced == self.core.last_lsn and not self.core.stopped:
            self.log.write_checkpoint(self.core.durable_state().encode(), self.core.last_lsn)
        self.log.close(clean=self.engine.broken is None)

    def crash(self) -> None:
        """The process is gone.  What was gathered and not committed goes with it; the disk is the caller's to crash."""
        self.engine.broken = "the process is gone"
        self._jobs.clear()
        self.log.close(clean=False)
