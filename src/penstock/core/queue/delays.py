"""Messages that are not ready yet: failed ones in their back-off, and scheduled ones before their time.

Times are wall time in microseconds.  A failed message returns to its own place; a scheduled one takes the place of the
`DUE` record that makes it ready.

Of what is scheduled the earliest are taken again and again, a few at a time, however many are due.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import chain

import numpy as np

from penstock.core.queue.order.run_heap import RunHeap
from penstock.core.queue.order.runs import NEVER, Key, Run, ascending, packed, view
from penstock.core.queue.settling.leases import STEP_MOST, STEP_RUNS
from penstock.core.queue.timetable import NOBODY, SAMPLE, Block, Ints, Timetable, block_of
from penstock.core.state.lsns import to_array
from penstock.records.chunks import Chunk

NEAR = 1024
"""Messages that stand apart because they are due next, about."""

MANY = 65_536
"""The same while more than four times as many are there and most of them are due: after a long stop."""

SIFT = 131_072
"""Messages that are looked at in one step to find those."""


class Schedule(Timetable):
    """Times of messages that become due one after the other.

    The messages that are due next stand in a small block of their own, the first one, so that taking some of them does
    not touch those of later times.  It is filled again when it is empty, and with what came since and is due earlier:
    at once, or where very many are due a number of blocks a step, and nothing is taken before all were looked at.
    """

    __slots__ = ("_far", "_horizon", "_near", "_sifting")

    def __init__(self) -> None:
        super().__init__()
        self._near: Block | None = None  # holds whatever is due up to the horizon, but for what came since
        self._horizon = 0
        self._far: int | None = None  # no time in the other blocks is earlier; None: not known
        self._sifting: int | None = None  # while the near block is filled step by step: blocks that were looked at

    def add(self, lsns: Sequence[int], times: Sequence[int]) -> None:
        """New messages; all newer than those here."""
        if self._near is not None and self.blocks[-1] is self._near:
            self.blocks.append(Block(array("q", lsns), array("q", times)))
            self.count += len(lsns)
        else:
            super().add(lsns, times)
        if self._far is not None:
            self._far = min(self._far, min(times))

    def add_older(self, lsns: Ints, times: Ints) -> None:
        """Messages, ascending, that may be older than those here."""
        near, self._near = self._near, None
        self._sifting = None
        super().add_older(lsns, times)  # small blocks may be joined, the near one among them
        if near is not None and self.blocks[0] is near:
            self._near = near
        self._far = None

    def next_after(self, moment: int) -> int:
        """The earliest time later than `moment`; `NEVER` without one."""
        if moment:
            return super().next_after(moment)
        return min(self._far_due(), self._near.due_after(0) if self._near is not None else NEVER)

    def _far_due(self) -> int:
        if self._far is None:
            self._far = min([block.due_after(0) for block in self.blocks if block is not self._near], default=NEVER)
        return self._far

    def take(self, wall: int, most: int, ties: int) -> tuple[Ints, Ints]:
        """As a timetable does; nothing while those that are due next are looked for."""
        if self._sifting is not None or self._abundant(wall):
            return self._take_near(min(wall, self._horizon), most, ties) if self._sift(SIFT) else (NOBODY, NOBODY)
        if self._ahead():
            return self._take_near(min(wall, self._horizon), most, ties)
        if not self._gathered(wall):
            self._near, self._far = None, None
            return super().take(wall, most, ties)
        return self._take_near(wall, most, ties)

    def _take_near(self, wall: int, most: int, ties: int) -> tuple[Ints, Ints]:
        near = self._near
        assert near is not None
        others, self.blocks = self.blocks[1:], [near]
        taken = super().take(wall, most, ties)
        self._near = self.blocks[0] if self.blocks else None
        self.blocks += others
        return taken

    def _ahead(self) -> bool:
        """Whether the near block has what is due first."""
        near = self._near
        return near is not None and near.due_after(0) <= self._horizon < self._far_due()

    def _abundant(self, wall: int) -> bool:
        """Whether very many are due beyond the near block, which does not have the next ones; the search begins."""
        if self.count < 4 * MANY or self._far_due() > wall:
            return False
        if self._ahead():
            return False
        reach = self._reach(MANY) - 1  # of very many with one time there is no end
        if reach >= wall or reach < self._far_due():
            return False
        self._horizon = reach if self._near is None else max(reach, self._horizon)
        self._sifting = 0
        return True

    def _reach(self, count: int) -> int:
        """The time up to which about so many are due."""
        stride = max(1, self.count // SAMPLE)
        sample = np.sort(np.concatenate([block.columns()[1][::stride] for block in self.blocks]))
        return int(sample[min(len(sample) * count // self.count, len(sample) - 1)])

    def _sift(self, left: int) -> bool:
        """Fill the near block from so many messages more, about; whether all were looked at."""
        assert self._sifting is not None
        near, at = self._near, self._sifting
        lsns, times = ([NOBODY], [NOBODY]) if near is None else ([part] for part in near.columns())
        while at < len(self.blocks) and left > 0:
            block = self.blocks[at]
            if block is near or block.due_after(0) > self._horizon:
                at += 1
                left -= 1
                continue
            held, when = block.columns()
            left -= len(held)
            chosen = when <= self._horizon
            lsns.append(held[chosen])
            times.append(when[chosen])
            if chosen.all():
                del self.blocks[at]
                continue
            self.blocks[at] = Block(to_array(held[~chosen]), to_array(when[~chosen]))
            at += 1
        if len(lsns) > 1:
            self._near = block_of(np.concatenate(lsns), np.concatenate(times))
            self.blocks[: near is not None] = [self._near]
            at += near is None
            self.mixed = True
            self._far = None
        self._sifting = at if at < len(self.blocks) else None
        return self._sifting is None

    def _gathered(self, wall: int) -> bool:
        """Whether all that is due stands in the near block, which is made or filled for that."""
        near = self._near
        if self._far_due() > wall:
            return near is not None
        if self.count < 4 * NEAR:
            return False
        if near is None or wall > self._horizon:
            self._horizon = self._reach(NEAR)
            if self._horizon < wall:
                return False  # very many are due
        soon = [block.columns()[1] for block in self.blocks if block is near or block.due_after(0) <= self._horizon]
        if sum([int((times <= self._horizon).sum()) for times in soon]) > 8 * NEAR:
            return False
        self._sifting = 0
        return self._sift(NEVER)

    def move(self, wanted: Chunk, when: int) -> Ints:
        """Another time for those of the wanted that are here; their LSNs, in no order."""
        self._sifting = None
        moved = super().move(wanted, when)
        if self._near is not None:
            self._near = self.blocks[0]
        self._far = None
        return moved

    def remove(self, wanted: Chunk) -> tuple[Ints, Ints]:
        """Take those of the wanted that are here, ascending, and their times."""
        near, self._sifting = self._near, None
        removed = super().remove(wanted)
        if near is not None and (not self.blocks or self.blocks[0] is not near):
            left = self.blocks[0] if self.blocks else None
            lsns = view(near.lsns)
            at = 0 if left is None else int(np.searchsorted(lsns, left.lsns[0]))
            self._near = left if left is not None and at < len(lsns) and int(lsns[at]) == left.lsns[0] else None
        self._far = None
        return removed


STEP_TIMES = 1024
"""Messages that are made ready in one step when each has a time of its own."""


class Retries(RunHeap):
    """Failed messages by the end of their back-off (`Run.deadline`)."""

    __slots__ = ()

    def stands(self, run: Run) -> int:
        """When its back-off ends, in microseconds of wall time."""
        return run.deadline

    def below(self, run: Run, limit: Key) -> int:
        """How many of its messages, from the first on, stand before `limit`."""
        return bisect_left(run.chunk, limit[1]) if run.deadline == limit[0] else len(run.chunk)


class Delays:
    """Everything delayed in one queue."""

    __slots__ = ("due", "retries", "scheduled")

    def __init__(self) -> None:
        self.retries = Retries()
        self.scheduled = Schedule()
        self.due = NEVER  # nothing is due before this

    @property
    def count(self) -> int:
        """Delayed messages of both kinds."""
        return self.retries.count + self.scheduled.count

    def retry(self, run: Run) -> None:
        """A failed run whose back-off ends at `run.deadline`."""
        self.retries.push(run)
        self.due = min(self.due, run.deadline)

    def schedule(self, lsns: Sequence[int], times: Sequence[int]) -> None:
        """New messages with a time each."""
        self.scheduled.add(lsns, times)
        self.due = min(self.due, min(times))

    def schedule_older(self, lsns: Ints, times: Ints) -> None:
        """The same for messages that may be older than those here."""
        self.scheduled.add_older(lsns, times)
        self.due = min(self.due, int(times.min()))

    def move(self, wanted: Chunk, when: int) -> Ints:
        """Another time for those of the wanted that are scheduled and were never delivered; their LSNs."""
        moved = self.scheduled.move(wanted, when) if self.scheduled.count else NOBODY
        if len(moved):
            self.due = min(self.due, when)
        return moved

    def next(self) -> int:
        """When the first of them is due; `NEVER` without one."""
        due = self.scheduled.next_after(0) if self.scheduled.count else NEVER
        return min(due, self.retries.head()[0]) if self.retries.count else due

    def pop_retries(self, wall: int) -> list[Run]:
        """Take failed messages whose back-off is over, in order of its end; of very many the first."""
        out: list[Run] = []
        most = STEP_MOST
        while len(out) < STEP_RUNS and most > 0 and (runs := self.retries.take(most, (wall + 1, 0))):
            out += runs
            most -= sum([len(run.chunk) for run in runs])
        self.due = self.next()
        return out

    def pop_scheduled(self, wall: int) -> list[Chunk]:
        """Take scheduled messages that are due, by time and then LSN, as chunks that ascend.

        Of very many the earliest; `due` has passed as long as there are more.
        """
        return ascending(self.take_scheduled(wall)[0])

    def take_scheduled(self, wall: int) -> tuple[Ints, Ints]:
        """The same as LSNs in this order, and the time of each."""
        lsns, times = [NOBODY], [NOBODY]
        room = STEP_TIMES
        while room > 0 and self.scheduled.count and self.scheduled.next_after(0) <= wall:
            taken, due = self.scheduled.take(wall, room, STEP_MOST)
            if not len(taken):
                break  # those that are due next are looked for
            lsns.append(taken)
            times.append(due)
            room -= len(taken)
        if len(lsns) > 1:
            self.due = self.next()
        return np.concatenate(lsns), np.concatenate(times)

    def any_before(self, lsn: int, but: set[int]) -> bool:
        """Whether a message older than this is delayed, besides those."""
        if not (self.retries.count or self.scheduled.count) or self.count <= len(but):
            return False
        for chunk in chain(self.retries.pieces(), (block.lsns for block in self.scheduled.blocks)):
            if chunk[0] < lsn and not (but and but.issuperset(chunk[: bisect_left(chunk, lsn)])):
                return True
        return False

    def unschedule(self, wanted: Chunk) -> list[Run]:
        """Take those of the wanted that are scheduled."""
        lsns = self.scheduled.remove(wanted)[0]
        return [Run(packed(lsns), False)] if len(lsns) else []
