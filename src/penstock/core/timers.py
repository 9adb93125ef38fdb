"""Which queue has something due next, without asking all of them.

Commands name the queues they touched; only those are asked again.  Two heaps, one for each clock, with stale entries
that are skipped when they come to the top.
"""

from __future__ import annotations

from heapq import heappop, heappush

from penstock.core.effects import Effect
from penstock.core.outbox import Outbox
from penstock.core.queue.order.runs import NEVER
from penstock.core.queue.view import Queue
from penstock.records.chunks import Now

_NEVER: tuple[int | None, int | None] = (None, None)


class Timers:
    """The next deadlines of all queues."""

    def __init__(self, moved: set[Queue], outbox: Outbox[Effect]) -> None:
        """moved: gets every queue that was touched, too; somebody else empties it.  outbox: knows the time."""
        self._outbox = outbox
        self._moved = moved
        self._changed: set[Queue] | None = None  # touched since somebody asked; None: nobody asks
        self.touched: set[Queue] = set()
        self._known: dict[int, tuple[int | None, int | None]] = {}  # queue id -> its next deadlines, if it has any
        self._wall: list[tuple[int, int]] = []  # (time, queue id)
        self._mono: list[tuple[int, int]] = []

    def forget(self, queue: Queue) -> None:
        self.touched.discard(queue)
        if self._changed is not None:
            self._changed.add(queue)
        self._known.pop(queue.id, None)

    def watch(self, wanted: bool) -> None:
        """Whether somebody will ask which queues have `changed`."""
        self._changed = set() if wanted else None

    def changed(self) -> set[Queue]:
        """Queues that were touched, or are gone, since this was asked last; none unless watched."""
        self._look()
        taken = self._changed
        if taken is None:
            return set()
        self._changed = set()
        return taken

    def next(self) -> tuple[int | None, int | None]:
        """The earliest deadlines on the wall and on the monotonic clock; None: nothing is due ever."""
        self._look()
        wall, mono = self._wall, self._mono
        while wall and self._known.get(wall[0][1], (None, None))[0] != wall[0][0]:
            heappop(wall)
        while mono and self._known.get(mono[0][1], (None, None))[1] != mono[0][0]:
            heappop(mono)
        return (wall[0][0] if wall else None), (mono[0][0] if mono else None)

    def due(self, now: Now) -> list[int]:
        """Ids of the queues with something due, ascending.  They are to be ticked and named as touched."""
        out: set[int] = set()
        wall, mono = self.next()
        while wall is not None and wall <= now.wall:
            out.add(heappop(self._wall)[1])
            wall = self.next()[0]
        while mono is not None and mono <= now.mono:
            out.add(heappop(self._mono)[1])
            mono = self.next()[1]
        for number in out:
            self._known.pop(number, None)  # asked again in any case
        return sorted(out)

    def _look(self) -> None:
        self._moved |= self.touched
        if self._changed is not None:
            self._changed |= self.touched
        time = self._outbox.time
        for queue in self.touched:
            queue.used(time)
            wall, mono = queue.next_deadline()
            known = self._known.get(queue.id, _NEVER)
            if wall is not None and wall != known[0]:
                heappush(self._wall, (wall, queue.id))
            if mono is not None and mono != known[1]:
                heappush(self._mono, (mono, queue.id))
            if wall is not None or mono is not None:
                self._known[queue.id] = (wall, mono)
            elif known != _NEVER:
                del self._known[queue.id]
        self.touched.clear()


class Floors:
    """The floors of the queues that hold something."""

    def __init__(self) -> None:
        self.moved: set[Queue] = set()  # touched since they were asked
        self._known: dict[int, int] = {}  # by queue id

    def forget(self, queue: Queue) -> None:
        self.moved.discard(queue)
        self._known.pop(queue.id, None)

    def look(self, most: int) -> bool:
        """Ask up to so many of those that moved; whether some are left."""
        moved = self.moved
        while moved and most:
            most -= 1
            queue = moved.pop()
            floor = queue.floor()
            if floor < NEVER:
                self._known[queue.id] = floor
            else:
                self._known.pop(queue.id, None)
        return bool(moved)

    def lowest(self) -> int:
        """No message of any queue is older, of those asked."""
        return min(self._known.values(), default=NEVER)
