"""The waiting messages of a queue that one filter wants.

What filters said, as they came, of messages that wait in line behind others of their key is remembered (`Foreseen`), of
a bounded number: when such a message is let go, whoever wants it has it at once, in its turn.  At the others lists look
when they are let go.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from penstock.core.queue.dispatching.fairness import Takers
from penstock.core.queue.order.main_order import Main
from penstock.core.queue.order.runs import Key
from penstock.expr import Matcher
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.entries import Publishes

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


NONE: tuple[TargetList, ...] = ()


class Foreseen:
    """By message: which lists were there, as a number that grows with each new one, and which of them want it."""

    __slots__ = ("_said",)

    def __init__(self) -> None:
        self._said: dict[int, tuple[int, tuple[TargetList, ...]]] = {}

    def __len__(self) -> int:
        return len(self._said)

    def look(
        self, targets: Targets, chunk: Chunk, arrived: Chunk, batch: Publishes | None, rows: Sequence[int] | None
    ) -> None:
        """Ask the filters about some of the messages that arrived, if all of them follow and there is room.

        batch, rows    as `Queue.arrive` has them
        """
        if batch is None or not targets.all_follow or len(self._said) + len(chunk) > targets.most:
            return
        here: Sequence[int] = range(len(batch)) if rows is None else rows
        if len(chunk) < len(arrived):
            some = set(chunk)
            here = [row for lsn, row in zip(arrived, here, strict=True) if lsn in some]
        found = targets.matches(chunk, batch, here)
        if found is None:
            return
        wanting: dict[int, tuple[TargetList, ...]] = {}
        for one, places in found:
            for place in places:
                wanting[place] = (*wanting.get(place, NONE), one)
        joined = targets.joined
        said = self._said
        for place, lsn in enumerate(chunk):
            said[lsn] = joined, wanting.get(place, NONE)

    def let_go(self, targets: Targets, chunk: Chunk, place: int) -> Chunk:
        """Messages stand among what came back now, at this place: tell the lists; those at which all have to look."""
        said = self._said
        strange = array("q")
        for lsn in chunk:
            known = said.pop(lsn, None)
            if known is None:
                strange.append(lsn)
                continue
            joined, wanting = known
            one = range(lsn, lsn + 1)
            for each in wanting:
                if targets.lists.get(each.filter.text) is each:
                    targets.recall(each, one, place)
            if joined < targets.joined:
                targets.ask_newer(joined, lsn, place)
        return as_chunk(strange)

    def forget(self, chunks: Iterable[Chunk]) -> None:
        """These wait no longer."""
        said = self._said
        for chunk in chunks:
            for lsn in chunk:
                said.pop(lsn, None)

    def clear(self) -> None:
        """Nothing waits any more."""
        self._said.clear()
