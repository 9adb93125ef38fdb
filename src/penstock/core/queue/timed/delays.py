"""Messages that are not ready yet: failed ones in their back-off, and scheduled ones before their time.

Times are wall time in microseconds.  A failed message returns to its own place; a scheduled one takes the place of the
`DUE` record that makes it ready.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.core.queue.order.returned import RunHeap
from penstock.core.queue.order.runs import NEVER, Key, Run, packed
from penstock.core.queue.settling.leases import STEP_MOST, STEP_RUNS
from penstock.core.queue.timed.schedule import Schedule
from penstock.core.queue.timed.timetable import NOBODY, Ints
from penstock.records.chunks import Chunk

STEP_TIMES = 1024
"""Messages that are made ready in one step when each has a time of its own."""


class Retries(RunHeap):
    """Failed messages by the end of their back-off (`Run.deadline`)."""

    __slots__ = ()

    def key(self, run: Run) -> Key:
        """When it is due."""
        return run.deadline, run.chunk[0]


class Delays:
    """Everything delayed in one queue."""

    __slots__ = ("due", "retries", "scheduled")

    def __init__(self) -> None:
        self.retries = Retries()
        self.scheduled = Schedule()
        self.due = NEVER  # nothing is due before this

    @property
    def count(self) -> int:
        """Delayed messages."""
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

    def _reckon(self) -> None:
        self.due = self.scheduled.next_after(0) if self.scheduled.count else NEVER
        if self.retries.count:
            self.due = min(self.due, self.retries.head()[0])

    def pop_retries(self, wall: int) -> list[Run]:
        """Take failed messages whose back-off is over, in order of its end; of very many the first."""
        out: list[Run] = []
        most = STEP_MOST
        while self.retries.count and self.retries.head()[0] <= wall and len(out) < STEP_RUNS and most > 0:
            out.append(self.retries.pop())
            most -= len(out[-1].chunk)
        self._reckon()
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
            self._reckon()
        return np.concatenate(lsns), np.concatenate(times)

    def extract(self, wanted: Chunk) -> list[Run]:
        """Take those of the wanted that are delayed."""
        out = self.retries.extract(wanted)
        if self.scheduled.count:
            lsns = self.scheduled.remove(wanted)[0]
            if len(lsns):
                out.append(Run(packed(lsns), False))
        return out


def ascending(lsns: Ints) -> list[Chunk]:
    """LSNs in any order as chunks that ascend."""
    if not len(lsns):
        return []
    return [packed(part) for part in np.split(lsns, np.flatnonzero(np.diff(lsns) < 0) + 1)]
