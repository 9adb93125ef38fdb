"""Rooms: publishers that wait for room in a full queue that holds them up, each queue's in the order they came.

Looked at in each turn: while a queue has room for the first message of whoever is first in its line, he may go on.  He
who has to wait again, with what is left, stays at the front.  It knows no protocol; what waits is with its door.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.core.queue.queue import Queue
    from penstock.server.runtime import Runtime


class Waiter:
    """A publisher that may have to wait, and what it does when it is its turn."""

    __slots__ = ("go_on", "gone", "queue", "size")

    def __init__(self, go_on: Callable[[], None]) -> None:
        self.go_on = go_on
        self.queue: Queue | None = None  # in whose line it stands
        self.size = 0  # bytes of its first message
        self.gone = False  # and does nothing any more


class Rooms:
    """The lines of all full queues.  Belongs to the loop's thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.lines: dict[Queue, deque[Waiter]] = {}
        self._going: Waiter | None = None  # whose turn it is

    @property
    def waiting(self) -> int:
        """Publishers in line."""
        return sum(map(len, self.lines.values()))

    def wait(self, queue: Queue, size: int, waiter: Waiter) -> None:
        """Stand in line for a message of so many bytes; at its front if it is this one's turn."""
        assert waiter.queue is None
        waiter.queue, waiter.size = queue, size
        line = self.lines.setdefault(queue, deque())
        if waiter is self._going:
            line.appendleft(waiter)
        else:
            line.append(waiter)

    def leave(self, waiter: Waiter) -> None:
        """He does not wait any more."""
        queue, waiter.queue = waiter.queue, None
        if queue is None or (line := self.lines.get(queue)) is None:
            return
        line.remove(waiter)
        if not line:
            del self.lines[queue]

    def look(self) -> None:
        """Let go on who finds room now."""
        for queue in list(self.lines):
            self._serve(queue)

    def _first(self, queue: Queue) -> Waiter | None:
        line = self.lines.get(queue)
        return line[0] if line else None

    def _waits(self, queue: Queue, size: int) -> bool:
        return self._runtime.broken is None and self._runtime.core.holds_up(queue, size)

    def _serve(self, queue: Queue) -> None:
        while (line := self.lines.get(queue)) and not self._waits(queue, line[0].size):
            waiter = line.popleft()
            if not line:
                del self.lines[queue]
            waiter.queue = None
            self._going = waiter
            try:
                waiter.go_on()
            finally:
                self._going = None
            if self._first(queue) is waiter and not self._waits(queue, waiter.size):
                return  # he found none after all: what is due comes first
