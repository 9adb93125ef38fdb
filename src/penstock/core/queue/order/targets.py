"""Target lists of a queue with priorities: each filter's list holds the first of its matches in the order of places.

A list has looked at everything up to a place, in the order of dispatch, and walks on from there when half of its
matches are gone.  What arrives before that place is looked at as it comes; what arrives behind it is met by the walk.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np

from penstock.core.effects import Sink
from penstock.core.queue.dispatching import filtering
from penstock.core.queue.dispatching.consumers import TargetList
from penstock.core.queue.dispatching.filtering import Look, Matcher, Targets
from penstock.core.queue.dispatching.recalled import Gone, Recalled
from penstock.core.queue.order.main_order import Main
from penstock.core.queue.order.priority import PriorityOrder
from penstock.core.queue.order.ranks import Ranks
from penstock.core.queue.order.returned import PriorityReturned, Returned, place_in_level
from penstock.core.queue.order.runs import ALL, Key, Run, view
from penstock.core.queue.order.standing import LOW, place_of
from penstock.core.state.lsns import to_array
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.entries import Publishes

NOTHING = -ALL
"""Before every place."""


class PriorityTargetList(TargetList):
    """The waiting messages that one filter wants, highest priority first.

    `walked` is a place here: all of the main order up to it was looked at.
    """

    __slots__ = ("front", "reach")

    def __init__(self, filter: Matcher, owner: Targets, stride: int) -> None:
        super().__init__(filter, owner, stride)
        self.walked = NOTHING
        self.reach = NOTHING  # `walked`, or the end of the stretch that is being looked through
        self.front: list[Key] = []  # matches of the main order up to `reach`, their keys negated, ascending

    def first(self, main: Main) -> Key | None:
        """Where the first of the matches stands that are known; what is gone is dropped on the way."""
        front = self.front
        first: Key | None = None
        while front:
            first = -front[-1][0], -front[-1][1]
            if main.stands(first):
                break
            front.pop()
            first = None
        if self.parked and 2 * len(front) <= self._owner.most:
            self._owner.unpark(self)
        back = self.back.head() if self.back else None
        if back is not None and (first is None or back < first):
            first = back
        return first

    def set_out(self, serial: int, end: int) -> None:
        super().set_out(serial, end)
        self.reach = end

    def arrived(self, place: int) -> None:
        self.walked = self.reach = place

    def unseen(self, main: Main) -> Key | None:
        """Where the first message of the main order stands at which it has still to look; None without one."""
        assert isinstance(main, PriorityOrder)
        place = main.behind(self.walked)
        return None if place is None else (place, place & LOW)

    def in_front(self, count: int) -> list[Key]:
        """The first matches of the main order; some may be gone."""
        return [(-place, -lsn) for place, lsn in self.front[: -count - 1 : -1]]

    def put(self, keys: Sequence[Key]) -> None:
        """Add matches of the main order in any order, as far as `reach`, and drop the last ones over the bound."""
        front = self.front
        for place, lsn in keys:
            if place <= self.reach:
                insort(front, (-place, -lsn))
        over = len(front) - self._owner.most
        if over > 0:
            del front[:over]
            self.reach = -front[0][0] if front else NOTHING
            self.walked = min(self.walked, self.reach)
        if keys:
            self._owner.awake[self] = None

    def end_at(self, place: int) -> None:
        """What stands behind this place was not looked at."""
        self.reach = min(self.reach, place)
        self.walked = min(self.walked, self.reach)
        del self.front[: bisect_left(self.front, (-self.reach, NOTHING))]

    def forget(self) -> None:
        """The queue was emptied of what is ready."""
        super().forget()
        self.front.clear()


class PriorityRecalled(Recalled):
    """Some of what came back, by rank and then place."""

    __slots__ = ("_ranks",)

    def __init__(self, gone: Gone, ranks: Ranks) -> None:
        super().__init__(gone)
        self._ranks = ranks

    def key(self, lsn: int, place: int) -> Key:
        """Where a message stands, by rank and place."""
        return place_of(self._ranks.of(lsn), place or lsn), lsn

    def cuts(self, chunk: Chunk, place: int) -> Iterator[Sequence[int]]:
        """An ascending chunk in pieces that follow each other, so that the first are looked at first."""
        if len(chunk) == 1:
            yield chunk
            return
        ordered = view(chunk)[np.argsort(self._ranks.each(chunk), kind="stable")]
        for start in range(0, len(ordered), filtering.RECHECK):
            yield to_array(ordered[start : start + filtering.RECHECK])


class PriorityTargets(Targets):
    """The target lists of a queue with priorities."""

    __slots__ = ("_ranks", "_resting")

    def __init__(self, queue: int, ranks: Ranks) -> None:
        self._ranks = ranks
        super().__init__(queue)
        self._resting: list[Look] = []  # walks that were answered for a part

    def nothing_recalled(self) -> Recalled:
        """What to keep in mind what came back, by priority."""
        return PriorityRecalled(self._gone, self._ranks)

    def place_of(self, run: Run) -> int:
        """Where a run that came back stands in its level; 0: each message at its own LSN."""
        return place_in_level(run)

    def _new(self, filter: Matcher, main: Main) -> TargetList:
        targets = PriorityTargetList(filter, self, filtering.WALK_FIRST)
        self._hear(targets)  # as far as it has walked
        self._behind[targets] = None
        return targets

    def _all(self) -> list[PriorityTargetList]:
        return cast("list[PriorityTargetList]", list(self.lists.values()))

    # -- what comes

    def arrive(self, chunk: Chunk, batch: Publishes | None, rows: Sequence[int] | None, main: Main) -> None:
        """Evaluate messages that are about to be put into the main order, as far as lists have walked beyond them."""
        assert isinstance(main, PriorityOrder)
        places = main.places(chunk)
        lowest = min(places)
        if not any(targets.reach >= lowest for targets in self._all()):
            return
        found = None if batch is None else self._evaluate(chunk, batch, rows)
        if found is None:
            for targets in self._all():
                if targets.reach >= lowest:
                    targets.end_at(lowest - 1)
                    self._behind_again(targets)
            return
        for slot, hits in found.items():
            targets = cast("PriorityTargetList", self._by_slot[slot])
            before = targets.reach
            targets.put([(places[hit], chunk[hit]) for hit in hits])
            if targets.reach != before:
                self._behind_again(targets)

    def _behind_again(self, targets: PriorityTargetList) -> None:
        """The list has to walk from where it is; a full one waits first."""
        self._park(targets, full=2 * len(targets.front) > self.most)

    # -- looking through what waits

    def ask(self, main: Main, sink: Sink) -> None:
        """Have the world look where lists have room and something to look at."""
        resting, self._resting = self._resting, []
        for look in resting:
            self._scan(look, sink)
        super().ask(main, sink)

    def _is_answered(self, look: Look, found: Sequence[Sequence[int]], upto: int) -> bool:
        """The rest of a part stands between these: it is asked for, and then lists go on."""
        before = look.found or [()] * len(found)
        look.found = [[*some, *more] for some, more in zip(before, found, strict=True)]
        seen = bisect_right(look.chunk, upto)
        if seen == len(look.chunk):
            return True
        look.chunk = look.chunk[seen:]
        look.part = look.part or max(seen, 1)
        self._resting.append(look)
        return False

    def _found(self, targets: TargetList, lsns: Sequence[int], upto: int, main: Main) -> None:
        assert isinstance(main, PriorityOrder)
        assert isinstance(targets, PriorityTargetList)
        targets.walked = targets.reach
        if lsns:
            known = main.ranks.among(as_chunk(lsns))
            keys = zip(main.places(known), known, strict=True) if len(known) else ()
            targets.put([key for key in keys if main.stands(key)])
        self._behind_again(targets)


# -- what memory asks


def lowest(main: Main, returned: Returned) -> int | None:
    """The oldest ready position; None when nothing is ready."""
    found = [part.lowest() for part in (main, returned) if part.count]
    return min(found, default=None)


def next_by_priority(main: Main, returned: Returned, targets: TargetList | None, count: int) -> Chunk:
    """Up to `count` positions that are dispatched next from one list, ascending by LSN."""
    assert isinstance(main, PriorityOrder)
    keys = list[Key]()
    if isinstance(targets, PriorityTargetList):
        keys += [key for key in targets.in_front(count) if main.stands(key)]
        keys += targets.back.first(count)
    else:
        if main.count:
            chunk = main.next_ones(count)
            keys += zip(main.places(chunk), chunk, strict=True)
        if isinstance(returned, PriorityReturned):
            keys += returned.next_ones(count)
    return as_chunk(sorted(lsn for _, lsn in sorted(keys)[:count]))


def among_by_priority(main: PriorityOrder, targets: TargetList | None, first: int, stop: int) -> Chunk:
    """Positions of one list with LSNs in [first, stop), ascending, of those never delivered."""
    if not isinstance(targets, PriorityTargetList):
        return main.between(first, stop)
    found = [(-place, -lsn) for place, lsn in targets.front if first <= -lsn < stop]
    return as_chunk(sorted(lsn for place, lsn in found if main.stands((place, lsn))))
