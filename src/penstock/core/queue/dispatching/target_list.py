"""The waiting messages of a queue that one filter wants."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.core.queue.dispatching.takers import Takers
from penstock.core.queue.order.main_order import Main
from penstock.core.queue.order.runs import Key
from penstock.expr import Matcher

if TYPE_CHECKING:
    from penstock.core.queue.dispatching.consumers import Consumer
    from penstock.core.queue.dispatching.filtering import Targets


class TargetList:
    """The waiting messages that one filter wants."""

    __slots__ = (
        "_owner", "asked", "back", "born", "busy", "consumers", "filter", "found", "new", "parked", "recheck", "slot",
        "stride", "takers", "walked",
    )  # fmt: skip

    def __init__(self, filter: Matcher, owner: Targets, stride: int) -> None:
        self.filter = filter
        self.consumers: list[Consumer] = []
        self.takers = Takers()  # those that are pushed to and may have room
        self.found: deque[int] = deque()  # matching, of the main order, ascending; some may be gone
        self.walked = 0  # all of the main order up to here was looked at; NEVER: it follows
        self.back = owner.nothing_recalled()  # matching, of what came back
        self.recheck = owner.nothing_recalled()  # came back, and this list alone has still to look at it
        self.slot = -1  # among those that follow
        owner.joined += 1
        self.born = owner.joined  # the how many-th list it is
        self.stride = stride  # messages of the next stretch that it looks through
        self.busy = False  # a scan is under way for it
        self.new = True  # no scan for it was answered yet, and it does not follow
        self.asked = 0  # the serial of its last one
        self.parked = False  # full: it walks on when half of its positions are gone
        self._owner = owner

    def head(self, main: Main) -> Key | None:
        """Where the oldest match stands; None without one, and while the list has not looked at something before it."""
        first = self.first(main)
        return None if first is None or self.stop(main, first) is not None else first

    def first(self, main: Main) -> Key | None:
        """Where the oldest of the matches stands that are known; what is gone is dropped on the way."""
        found = self.found
        while found and not main.has(found[0]):
            found.popleft()
        if self.parked and 2 * len(found) <= self._owner.most:
            self._owner.unpark(self)
        back = self.back.head() if self.back else None
        if not found:
            return back
        first = (found[0], found[0])
        return first if back is None else min(first, back)

    def stop(self, main: Main, before: Key) -> Key | None:
        """Where the oldest message before a place stands at which the list has still to look; None without one.

        What stands behind it nobody is given by this list: it may be theirs, and then it is their next.
        """
        unseen = self.unseen(main) if before[0] > self.walked else None
        again = self._owner.recheck_of(self)
        if again is not None and (unseen is None or again < unseen):
            unseen = again
        return unseen if unseen is not None and unseen < before else None

    def unseen(self, main: Main) -> Key | None:
        """Where the oldest message of the main order stands at which it has still to look; None without one."""
        some = main.after(self.walked, 1)
        return (some[0], some[0]) if some else None

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

    def forget(self) -> None:
        """The queue was emptied."""
        self.found.clear()
        self.back.clear()
        self.recheck.clear()
