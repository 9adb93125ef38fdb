"""Compaction of a running server's log: one rewriting at a time, planned here, written elsewhere, swapped in here.

    look     facts about closed segments; where rows may go also what is still needed, as of a synced LSN
    plan     `log.rewrite_plan` says what is worth doing
    base     before rows are left out, a durable base that stands for them
    rewrite  in the bulk child where there is one, else in a thread; never above the room that the disk has
    swap     one new list of segments on the loop; readers go on with the old files

Every step may fail, and the log is as it was.  What may go is decided by settled, synced records alone: a message that
waits, is leased, is on its way, or was planned for a stream keeps its row, and a running read keeps all from its start.
Whoever is granted a message later finds its row, which waited then.  So deliveries stand in nobody's way: one slow
consumer always has something on its way that is old, and what nobody needs would stay for him.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from penstock.core.state.capture import held_from, needed_pairs
from penstock.core.state.lsns import Ints, count
from penstock.errors import LogDamaged, Unavailable
from penstock.log.name_index import build
from penstock.log.rewrite import Made, Old, Order, drop, rewrite
from penstock.log.rewrite_plan import UNKNOWN, Aims, Facts, Task, plan
from penstock.records.dataclass import dataclass

if TYPE_CHECKING:
    from penstock.core.state.durable import DurableState
    from penstock.log.catalog import SegmentInfo
    from penstock.records.chunks import Chunk
    from penstock.server.base.runtime import Runtime
    from penstock.server.upkeep.retention import Retirement

logger = logging.getLogger("penstock.server")

_T = TypeVar("_T")

MARGIN = 64 << 20
"""Bytes of the disk that a rewriting leaves free, beside what the log holds back for itself."""

LEFT_PART = 4
"""On a full disk a rewriting that leaves rows out leaves this part of `low_space` free: one in so many."""

PAUSE_S = 0.002
"""In a thread of the server: how long it rests after each group of batches."""

BASE_WAIT_US = 3_600_000_000
"""How long a base is put off because it would take more than half of what it lets go."""

LARGE = 8 << 20
"""Bytes to read from which on the work is done elsewhere."""


class Elsewhere(Protocol):
    """Another process for what reads much."""

    async def rewrite(self, order: Order) -> Made:
        """As `log.rewrite.rewrite`; PenstockError too when the other process cannot do it."""
        ...

    async def index(self, first: int) -> int: ...


@dataclass(frozen=True, slots=True)
class Needs:
    """Which rows are needed: by a state as of a synced LSN, and by what was on its way when it was there."""

    state: DurableState
    underway: list[Chunk]

    def pairs(self, first: int, last: int) -> Ints:
        """Those in [first, last], as of `needed_pairs`."""
        return needed_pairs(self.state, first, last, self.underway)


@dataclass(slots=True)
class Look:
    """What was found: tasks, and what their segments still need."""

    tasks: list[Task]
    needs: Needs | None = None

    @property
    def gain(self) -> int:
        """Bytes that one base would let go in all."""
        return sum(task.gain for task in self.tasks if task.drops)


@dataclass(slots=True)
class Totals:
    """What was done since the start."""

    rewritten: int = 0  # files that were replaced
    freed: int = 0  # bytes
    dropped: int = 0  # rows


class Compaction:
    """Compaction of one log.  Its coroutines run one at a time, and belong to the loop."""

    def __init__(
        self,
        runtime: Runtime,
        retirement: Retirement,
        pool: Executor,
        state: Callable[[], Awaitable[DurableState]],
        synced: Callable[[int], Awaitable[None]],
        aims: Aims,
        elsewhere: Elsewhere | None,
    ) -> None:
        """`state` gives what the log has settled, on disk for sure; `synced` waits until the log has synced an LSN."""
        self.totals = Totals()
        self.stopping = False
        self._runtime, self._retirement, self._pool = runtime, retirement, pool
        self._state, self._synced, self._aims = state, synced, aims
        self._elsewhere = elsewhere
        self._rest = threading.Event()
        self._failed = set[int]()  # first LSNs of segments that could not be rewritten
        self._seen: tuple[int, int, int, int] = (0, 0, 0, 0)
        self._base_size = 0  # bytes of the base that was too large for its gain
        self._base_since = 0  # mono when it was first put off; 0: none is

    def news(self) -> bool:
        """Whether there may be something to do that was not there at the last look.  Cheap; on the loop."""
        segments = self._runtime.log.segments()
        past = self._retirement.past_upto  # by age alone, too
        seen = (len(segments), segments[-1].first, sum(one.generation for one in segments), past)
        if seen == self._seen:
            return False
        self._seen = seen
        return True

    async def look(self) -> Look:
        """What is worth doing now.  Raises LogBroken, LogDamaged, OSError."""
        runtime = self._runtime
        past = {one.first for one in await self._off(self._retirement.past)}
        closed = [_facts(one, one.first in past) for one in runtime.log.segments()[:-1]]
        room = self._room()
        needs: Needs | None = None
        hold = runtime.reading()
        if any(one.past and one.last < hold and one.rows for one in closed):
            state = await self._state()
            needs = Needs(state, runtime.underway())  # what was settled for its delivery is on its way now
            closed = await self._off(partial(_counted, closed, needs))
            hold = min(runtime.reading(), held_from(state))
        full, aims = runtime.log.room.full, self._aims
        if full:  # what does not free much has to wait, and what frees much goes in pieces that fit
            aims = replace(aims, segment=min(aims.segment, max(room, 1)))
        tasks = [
            task for task in plan(closed, hold, room, aims)
            if (task.drops or not full) and not self._read(task)
            and not any(one.first in self._failed for one in task.segments)
        ]  # fmt: skip
        return Look(tasks, needs)

    def _read(self, task: Task) -> bool:
        """Whether somebody reads these files: rows that he may want stay, and he may open a file by its name."""
        runtime = self._runtime
        return (runtime.reading() if task.drops else runtime.reading_files()) <= task.segments[-1].last

    async def step(self) -> Task | None:
        """Do the most useful thing, if there is one; the task that was done."""
        look = await self.look()
        for task in look.tasks:
            if self.stopping:
                return None
            if await self.run(task, look.needs, look.gain):
                return task
        return None

    async def run(self, task: Task, needs: Needs | None, gain: int = 0) -> bool:
        """Carry out one task; whether the log is now different.

        `gain`: bytes that the base which it needs would let go in all, with other tasks.
        Raises LogBroken, OSError, and Unavailable when the other process died.  Segments that turn out to be damaged
        are told and not tried again.
        """
        log = self._runtime.log
        order = Order(tuple(Old(one.first, one.last, one.generation, one.rows) for one in task.segments))
        order = replace(order, compress=task.why == "cold" or _all_compressed(task))
        if task.drops:
            assert needs is not None, "rows are left out by a state alone"
            floor = await self._base_over(order.last, max(gain, task.gain))
            if not floor:
                return False
            keep = await self._off(lambda: needs.pairs(order.first, order.last).tobytes())
            order = replace(order, keep=keep, floor=floor)
        try:
            made = await self._rewrite(order, task.bytes_before)
        except Unavailable:
            if not self.stopping:
                raise
            return False
        except LogDamaged as error:
            logger.warning("upkeep of the log: %s", error)
            self._failed.update(one.first for one in task.segments)
            return False
        if not await self._swapped(task, made):
            await self._off(lambda: drop(log.disk, made))
            return False
        freed = task.bytes_before - made.end
        self.totals.rewritten += len(task.segments)
        self.totals.freed += freed
        self.totals.dropped += made.rows_before - made.rows
        logger.info(
            "%d segment(s) from LSN %d on rewritten (%s): %d of %d rows, %d bytes freed",
            len(task.segments), made.first, task.why, made.rows, made.rows_before, freed,
        )  # fmt: skip
        return True

    async def _swapped(self, task: Task, made: Made) -> bool:
        """Whether what was made has taken the place of its segments; else they stay, and it may go."""
        if self._read(task):
            return False
        try:
            swap = self._runtime.log.swap(made)
        except ValueError as error:  # retired meanwhile
            logger.info("a rewriting came too late: %s", error)
            return False
        await self._off(swap.prepare)
        if self._read(task):  # in the step that enters: a read that comes later finds what is then in the list
            swap.undo()
            return False
        swap.enter()
        if task.drops:
            told = self._runtime.on_left_out
            self._runtime.faults.run_each([partial(one, made.first, task.segments[-1].last) for one in told])
        try:
            await self._off(swap.finish)
        except OSError as error:
            if not swap.renamed:
                swap.undo()
                await self._off(lambda: drop(self._runtime.log.disk, made))
                raise
            logger.warning("upkeep of the log: %s", error)
        held = [swap]
        del swap
        await self._off(held.clear)  # in a thread: to close a large deleted file takes the kernel 20 ms
        return True

    async def _base_over(self, last: int, gain: int) -> int:
        """The floor of a durable base above `last`; 0 when a new one would cost too much for now.

        A base is as large as what waits below it is scattered: 2 bytes a message and more.  So it is put off while
        twice its size is more than the bytes that it lets go, but for an hour at most: what nobody needs stays no
        longer beside a queue of many millions, and the log grows by one such base an hour at most.
        """
        log, retirement = self._runtime.log, self._retirement
        if log.base_floor > last:
            return log.base_floor
        if self._puts_off(self._base_size, gain):
            return 0  # without the work of folding it again
        past = await self._off(retirement.past)
        floor = max([last, *(one.last for one in past)]) + 1
        state = await self._off(lambda: retirement.state_below(floor))
        self._base_size = len(state)
        if self._puts_off(len(state), gain) or not retirement.room_for(state):
            return 0
        self._base_since = self._base_size = 0
        await self._synced(retirement.write_base(floor, state))
        return log.base_floor

    def _puts_off(self, size: int, gain: int) -> bool:
        """Whether a base of this size has to wait."""
        now = self._runtime.clock.mono()
        if 2 * size <= gain or (size < gain and self._runtime.log.room.full):
            return False
        self._base_since = self._base_since or now
        return now - self._base_since < BASE_WAIT_US

    async def _rewrite(self, order: Order, size: int) -> Made:
        if self._elsewhere is not None and size >= LARGE:
            return await self._elsewhere.rewrite(order)
        return await self._off(lambda: rewrite(self._runtime.log.disk, order, self._between))

    async def index(self, give_way: Callable[[], Awaitable[None]]) -> int:
        """Make the indexes of names that are missing; how many.  Segments that cannot be read are told once.

        give_way: does between two of them what does not wait for all.
        """
        log, made = self._runtime.log, 0
        sizes = {one.first: one.bytes for one in log.segments()}
        for first in await self._off(log.unindexed):
            if self.stopping or log.room.full or first in self._failed:
                continue
            await give_way()
            try:
                if self._elsewhere is not None and sizes.get(first, 0) >= LARGE:
                    await self._elsewhere.index(first)
                else:
                    await self._off(partial(build, log.disk, first, self._between))
            except Unavailable:
                if not self.stopping:
                    raise
            except LogDamaged as error:
                logger.warning("upkeep of the log: %s", error)
                self._failed.add(first)
            else:
                made += 1
        return made

    def _between(self, done: int) -> bool:
        """In a thread of the server, between groups of batches: let the loop have the interpreter."""
        self._rest.wait(PAUSE_S)
        return self.stopping

    async def _off(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _room(self) -> int:
        log = self._runtime.log
        if log.room.full:
            return max(0, log.disk.free() - log.settings.low_space // LEFT_PART) if self._retirement.yields else 0
        held_back = log.settings.low_space + log.settings.reserve
        return log.disk.free() - held_back - (MARGIN if log.settings.low_space else 0)


def _facts(one: SegmentInfo, past: bool) -> Facts:
    return Facts(one.first, one.last, one.rows, one.batches, one.bytes, one.generation, one.compressed, past)


def _counted(closed: list[Facts], needs: Needs) -> list[Facts]:
    """The facts with what is needed of each segment past retention."""
    out = list[Facts]()
    for one in closed:
        needed = min(one.rows, count(needs.pairs(one.first, one.last))) if one.past else UNKNOWN
        out.append(replace(one, needed=needed))
    return out


def _all_compressed(task: Task) -> bool:
    return all(one.compressed for one in task.segments)
