"""Messages that are not ready yet: failed ones in their back-off, and scheduled ones before their time.

Times are wall time in microseconds.  A failed message returns to its own place; a scheduled one takes the place of the
`DUE` record that makes it ready.

A tick may be late: of scheduled messages whose time has come some have expired by then.  That is as if each had become
ready, and expired, in its time, and shows in queues with last values alone.  What was due and over while nobody served
never arrived.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.effects import Sink
from penstock.core.queue.order.returned import RunHeap
from penstock.core.queue.order.runs import NEVER, Key, Run, packed, view
from penstock.core.queue.settling.leases import STEP_MOST, STEP_RUNS
from penstock.core.queue.timed.schedule import Schedule
from penstock.core.queue.timed.timetable import NOBODY, Ints
from penstock.records.causes import TIME_LIMIT
from penstock.records.chunks import Chunk, Now, as_chunk

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue


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


def fallen_due(queue: Queue, now: Now, sink: Sink) -> tuple[list[Chunk], frozenset[int]]:
    """Take scheduled messages whose time has come, as `Delays.pop_scheduled` does; which of them have expired since.

    That is told of last values alone: one replaces the older one of its key though it is over by now.  What expired
    before its time came was never there, and is gone; the others are still counted as delayed.
    """
    if queue.last_values is None or queue.expiry.empty:
        return queue.delays.pop_scheduled(now.wall), frozenset()
    lsns, times = queue.delays.take_scheduled(now.wall)
    ends = np.zeros(len(lsns), dtype=np.int64)
    order = np.argsort(lsns)
    ends[order] = queue.expiry.deadlines_of(packed(lsns[order]))
    never = queue.last_values.loaded  # what was due and over while nobody served
    before = (ends > 0) & (ends <= (now.wall if never else times - 1))
    if before.any():
        queue.expire([Run(packed(np.sort(lsns[before])), False)], TIME_LIMIT, sink)
    since = ~before & (ends > 0) & (ends <= now.wall)
    return ascending(lsns[~before]), frozenset(lsns[since].tolist())


def apart(chunk: Chunk, some: frozenset[int]) -> Iterator[tuple[Chunk, bool]]:
    """The chunk in parts of which all or none are among some; whether they are."""
    if not some:
        yield chunk, False
        return
    for among, part in groupby(chunk, some.__contains__):
        yield as_chunk([*part]), among


def without_due(queue: Queue, chunk: Chunk) -> Chunk:
    """Of what has expired all but what is scheduled and became due before: it replaces an older one, and then ends."""
    if queue.last_values is None or queue.last_values.loaded or not queue.delays.scheduled.count:
        return chunk
    times = queue.delays.scheduled.times_of(chunk)
    due = (times >= 0) & (times <= queue.expiry.deadlines_of(chunk))
    return packed(view(chunk)[~due]) if due.any() else chunk
