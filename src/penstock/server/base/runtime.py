"""What every part of a running server rests on: core, log and memory, the clock, when something runs, and durability.

A part is made with a `Runtime` and asks nothing else of the server; `Engine` is one with its parts, and says what a
turn is.  Whoever reads the log registers what it may still need (`readers`), and retention asks here.  All methods
belong to the loop's thread.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from penstock.errors import DiskFull, Draining, LogBroken, PenstockError
from penstock.memory import ReadCold, Relief, merged
from penstock.memory.caches import Caches
from penstock.memory.loader import Loader
from penstock.records.chunks import LSN_LIMIT, Chunk, Now, as_chunk
from penstock.records.entries import Rows
from penstock.server.base.clock import LogClock
from penstock.server.base.faults import Faults, asker_behind
from penstock.server.base.rounds import Soon, Turns

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.effects import Answer
    from penstock.history.history import Spread
    from penstock.log.catalog import SegmentInfo
    from penstock.log.log import Log
    from penstock.ports import Clock
    from penstock.records.event_actions import DowngradeStep, UpgradeStep

T = TypeVar("T")

Lowest = Callable[[], "int | None"]
"""The lowest LSN that somebody may still need; None: he needs nothing."""

Underway = Callable[[], "Iterable[Chunk]"]
"""The very rows that somebody is about to read for consumers; none of the chunks is empty."""


class Copies(Protocol):
    """Other servers that may take over from this one, and must have a file of the data folder first."""

    def keep(self, names: Sequence[str], then: Callable[[], object]) -> None:
        """These are synced here: copy them, and call back when all have them.  A stage is copied once."""

    def forget(self, names: Sequence[str]) -> None:
        """These are needed no more."""

    def way_out(self) -> str:
        """What becomes of this server while its disk is full, and what an operator may do."""
        ...


class Off(Protocol):
    """Runs work off the loop, then `done` with its result on the loop.  What work raises stops the server."""

    def __call__(self, work: Callable[[], T], done: Callable[[T], None], /) -> None:
        """Start the work in a thread; `done` gets its result on the loop."""


class Runtime(ABC):
    """Core, log and memory under one roof."""

    def __init__(
        self,
        core: Core,
        log: Log,
        bodies: Caches,
        clock: Clock,
        *,
        call_soon: Soon,
        read_cold: ReadCold,
        at_round_end: Soon | None = None,
    ) -> None:
        """read_cold: reads rows of the log, off the loop where there is one.

        at_round_end: runs something once all that is ready was heard; `call_soon` without.
        """
        self.core = core
        self.log = log
        self.bodies = bodies
        self.loader = Loader(bodies, read_cold)
        self.clock = clock = LogClock(clock, core.time)
        self.faults = Faults(core, clock)
        self.relief = Relief(bodies, clock.mono)
        self._call_soon = call_soon
        self._at_round_end = at_round_end or call_soon
        self.turns = Turns(clock.mono, call_soon, self.faults.run)
        self.read_cold = read_cold
        self.past: Spread = log  # what can be read back: the log, and its archive where there is one
        self.archived: Callable[[SegmentInfo], bool] | None = (
            None  # whether the archive has a segment; None: there is none
        )
        self.copied: Callable[[SegmentInfo], bool] | None = None  # whether followers have a segment; None: no cluster
        self.broken: str | None = None  # why nothing is confirmed any more
        self.slowed = False  # publishers wait a moment: see `upkeep.pacing`
        self.on_flush: list[Callable[[], None]] = []  # run once at the end of a turn or commit, then forgotten
        self.on_durable: list[Callable[[], None]] = []  # run whenever more of the log is on the disk
        self.on_broken: list[Callable[[str], None]] = []
        self.on_room: list[Callable[[], None]] = []  # publishers waiting for room in the gathering commit
        self.burying: list[Callable[[], None]] = []  # those who wait for dead letters, at the end of each turn
        self.on_commit: list[Callable[[], None]] = []  # publishers paced until the running commit ends
        self.on_left_out: list[Callable[[int, int], None]] = []  # of files with LSNs a to b rows are gone since now
        self.on_checkpoint: list[Callable[[], None]] = []  # run before each checkpoint; they may write records
        self.before_turn: list[Callable[[], None]] = []  # run at the beginning of each: what was gathered is decided
        self.on_turn: Callable[[], None] | None = None  # run at the end of each turn
        self.readers: list[Lowest] = []  # of running reads
        self.row_readers: list[Lowest] = []  # the same; they need rows, whichever file has them
        self.deliverers: list[Underway] = []  # of messages on their way to consumers
        self.elsewhere: Callable[[int, Callable[[], None]], None] | None = None  # runs it when other sites have an LSN
        self.pace: Callable[[DowngradeStep | UpgradeStep], None] | None = None  # which links confirms wait for
        self._armed = False
        self._awaited = 0  # the highest LSN that anything waits for
        self._waiters: deque[tuple[int, Callable[[], None]]] = deque()
        bodies.arrivals.lacking, bodies.mono = log.durable, clock.mono
        bodies.budget.hold("commits", log.pending)  # beside the bodies that they were made from
        bodies.budget.hold("decoded", log.decoded)
        bodies.spare.append(log.decoded.give)

    # -- time and turns

    def call_soon(self, work: Callable[[], None]) -> object:
        """Have something run soon, on the loop; what fails ends who asked."""
        return self._call_soon(partial(self.faults.run, work))

    def now(self) -> Now:
        """The instant for commands of this turn."""
        return Now(self.clock.wall(), self.clock.mono())

    def arm(self) -> None:
        """Have `finish_turn` run once before the loop sleeps: at the end of this round, or of the next."""
        if not self._armed:
            self._armed = True
            self._at_round_end(self.finish_turn)

    def answer(self, answer: Answer) -> None:
        """Tell the core what it has asked for."""
        self.core.answered(self.now(), answer)
        self.arm()

    @abstractmethod
    def finish_turn(self) -> None:
        """Log what was decided, and send what may leave."""

    def flush(self) -> None:
        """Let sessions write what this turn brought them."""
        while self.on_flush:  # confirms that are flushed make their sessions dirty
            flushes, self.on_flush = self.on_flush, []
            for flush in flushes:
                try:
                    flush()
                except Exception as error:  # noqa: BLE001 - the border of each
                    self.faults.contain(error, asker_behind(flush))

    # -- durability

    def when_durable(self, lsn: int, callback: Callable[[], None]) -> None:
        """Run `callback` once everything up to `lsn` is durable; callbacks run in the order they came.

        Never runs once the log is broken: the outcome is unknown then, and `on_broken` says so.
        """
        if lsn <= self.log.durable and not self._waiters:
            callback()
        else:
            self._waiters.append((lsn, callback))
            if lsn > self._awaited:
                self._awaited = lsn

    async def until_durable(self, lsn: int) -> None:
        """Wait until everything up to `lsn` is durable.  LogBroken when it cannot be."""
        if self.broken is not None:
            raise LogBroken(self.broken)
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def broken(reason: str) -> None:
            if not durable.done():
                durable.set_exception(LogBroken(reason))

        def done() -> None:
            if not durable.done():  # whoever waited may have been stopped
                durable.set_result(None)

        self.on_broken.append(broken)
        try:
            self.when_durable(lsn, done)
            await durable
        finally:
            self.on_broken.remove(broken)

    def when_persisted(self, lsn: int, callback: Callable[[], None]) -> None:
        """`when_durable` for publishers: where a link is synchronous, their confirms wait for other sites, too."""
        if self.elsewhere is not None:
            callback = partial(self.elsewhere, lsn, callback)
        self.when_durable(lsn, callback)

    def when_answerable(self, since: int, lsn: int, callback: Callable[[], None]) -> None:
        """Answer a command that promises what it has decided: who has it store a message is a publisher.

        since: the last LSN before the command.
        """
        (self.when_persisted if self.publishes(since) else self.when_durable)(lsn, callback)

    def publishes(self, since: int) -> bool:
        """Whether what was decided behind this LSN concerns other sites that publishers wait for."""
        return self.elsewhere is not None and self.core.last_message > since

    def await_lsn(self, lsn: int) -> None:
        """Have the log commit up to this LSN at the end of the turn, without waiting for more."""
        self._awaited = max(self._awaited, lsn)

    # -- rows

    def read_rows(self, chunk: Chunk, answer: Callable[[Rows], None], queue: int | None = None) -> None:
        """Give `answer` the rows of a chunk, from memory or else from the log; it may run before this returns.

        The log is asked for nothing that memory has: what is not durable yet is in memory alone.
        """
        present, missing = self.bodies.rows(chunk, queue)
        if not missing:
            answer(present)
        elif not len(present):
            self.read_cold(chunk, answer)
        else:
            self.read_cold(as_chunk(missing), lambda rows: answer(merged(present, rows)))

    # -- what is refused

    def usable(self) -> None:
        """LogBroken where nothing that is decided would last."""
        if self.broken is not None:
            raise LogBroken(f"the log is broken: {self.broken}")

    def refusal(self, *, new: bool = False) -> PenstockError | None:
        """Why no message can be taken at present, if so.  new: it is no part of work that is under way."""
        if self.broken is not None:
            return LogBroken(f"the log is broken: {self.broken}")
        if self.log.room.full:
            return DiskFull(self.log.room.why_full())
        if new and self.core.draining:
            return Draining("the server drains: it takes no new messages")
        return None

    # -- publishers

    def has_room(self) -> bool:
        """Whether publishers may send: the gathering commit is below its bound, and they are not slowed down."""
        if self.broken is not None:
            return True  # what comes is refused, and whoever waited would wait for ever
        budget = self.bodies.budget
        most = budget.gather_least if self.bodies.tight else budget.gather_most
        return not self.slowed and self.log.pending.bytes < most

    def look_for_room(self) -> None:
        """Wake publishers that wait for room, if there is some."""
        if self.on_room and self.has_room():
            self.run_once(self.on_room)

    def run_once(self, hooks: list[Callable[[], None]]) -> None:
        """Run what waits, and forget it; what is added meanwhile waits for the next time."""
        run, hooks[:] = hooks[:], []
        self.faults.run_each(run)

    # -- what retention asks

    def floor(self) -> int:
        """The lowest LSN that a queue, a delivery, a read or a stream may still need."""
        return min(self.core.floor(), self.held())

    def promised(self) -> int:
        """The lowest LSN that a stream or a running read may still need, queues aside."""
        return min(self.core.promised(), self.held())

    def held(self) -> int:
        """The lowest LSN that a delivery or a running read may still need, queues aside."""
        return min([self.core.next_lsn, self.reading(), *(chunk[0] for chunk in self.underway())])

    def underway(self) -> list[Chunk]:
        """All that is on its way to consumers, or looked through for them; some of it is settled already."""
        return [*self.loader.reading, *(chunk for one in self.deliverers for chunk in one())]

    def reading(self) -> int:
        """The lowest LSN that a registered reader may still need."""
        return min(self.reading_files(), _lowest(self.row_readers))

    def reading_files(self) -> int:
        """The lowest LSN that a registered reader may still need from the file that has it now."""
        return _lowest(self.readers)


def _lowest(readers: Sequence[Lowest]) -> int:
    return min((low for low in (reader() for reader in readers) if low is not None), default=LSN_LIMIT)
