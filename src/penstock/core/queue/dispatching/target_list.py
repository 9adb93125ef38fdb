"""The waiting messages of a queue that one filter wants."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from penstock.core.queue.dispatching.takers import Takers
from penstock.core.queue.order.main_order import Main
from penstock.core.queue.order.runs import Key
from penstock.expr import Matcher
from penstock.records.chunks import Chunk

if TYPE_CHECKING:
    from penstock.core.queue.dispatching.consumers import Consumer
    from penstock.core.queue.dispatching.filtering import Targets


class TargetList:
    """The waiting messages that one filter wants."""

    __slots__ = (
        "_back", "_owner", "asked", "born", "busy", "consumers", "filter", "found", "new", "parked", "recalled",
        "recheck", "slot", "stride", "takers", "walked",
    )  # fmt: skip

    def __init__(self, filter: Matcher, owner: Targets, stride: int) -> None:
        self.filter = filter
        self.consumers: list[Consumer] = []
        self.takers = Takers()  # those that are pushed to and may have room
        self.found: deque[int] = deque()  # matching, of the main order, ascending; some may be gone
        self.walked = 0  # all of the main order up to here was looked at; NEVER: it follows
        self.recalled: dict[int, int] = {}  # matching, of what came back: LSN -> place; none is gone
        self.recheck: deque[Chunk] = deque()  # came back, not yet looked at by this list; some may be gone
        self.slot = -1  # among those that follow
        owner.joined += 1
        self.born = owner.joined  # the how many-th list it is
        self.stride = stride  # messages of the next stretch that it looks through
        self.busy = False  # a scan is under way for it
        self.new = True  # no scan for it was answered yet, and it does not follow
        self.asked = 0  # the serial of its last one
        self.parked = False  # full: it walks on when half of its positions are gone
        self._back: list[Key] = []  # heap over `recalled`; some may be gone
        self._owner = owner

    def head(self, main: Main) -> Key | None:
        """Where the oldest match stands; what is gone is dropped on the way."""
        found, back = self.found, self._back
        while found and not main.has(found[0]):
            found.popleft()
        if self.parked and 2 * len(found) <= self._owner.most:
            self._owner.unpark(self)
        while back and self.recalled.get(back[0][1]) != back[0][0]:
            heappop(back)
        if not found:
            return back[0] if back else None
        first = (found[0], found[0])
        return min(first, back[0]) if back else first

    def oldest_recalled(self) -> Key | None:
        """Where the oldest match of what came back stands, after `head`."""
        return self._back[0] if self._back else None

    def take(self, lsns: Sequence[int], most: int) -> int:
        """Add matches of the main order, ascending, as far as there is room; returns how many were added."""
        room = max(most - len(self.found), 0)
        if lsns:
            self.found.extend(lsns if len(lsns) <= room else lsns[:room])
            self._owner.awake[self] = None
        return min(len(lsns), room)

    @property
    def complete(self) -> bool:
        """Whether all its consumers are among the takers, whose order no count changes."""
        return self.takers.unweighed and len(self.takers) == len(self.consumers)

    def wake(self, consumer: Consumer) -> None:
        """A consumer may have room again."""
        if not (consumer.passive or consumer.closed):
            self.takers.add(consumer)
            self._owner.awake[self] = None

    def recall(self, keys: Iterable[Key]) -> None:
        """These came back and match."""
        self._owner.awake[self] = None
        for place, lsn in keys:
            self.recalled[lsn] = place
            heappush(self._back, (place, lsn))

    def forget(self) -> None:
        """The queue was emptied."""
        self.found.clear()
        self.recalled.clear()
        self._back.clear()
        self.recheck.clear()
