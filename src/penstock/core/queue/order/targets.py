"""Target lists of a queue with priorities: each filter's list holds the first of its matches in the order of places.

A list has looked at everything up to a place, in the order of dispatch, and walks on from there when half of its
matches are gone.  What arrives before that place is looked at as it comes; what arrives behind it is met by the walk.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np

from penstock.core.effects import Purpose, Scan, Sink, Token
from penstock.core.queue.dispatching import filtering
from penstock.core.queue.dispatching.consumers import Consumer, TargetList
from penstock.core.queue.dispatching.filtering import Look, Matcher, Targets
from penstock.core.queue.dispatching.recalled import Recalled
from penstock.core.queue.order.main_order import Main
from penstock.core.queue.order.priority import PriorityOrder
from penstock.core.queue.order.ranks import Ranks
from penstock.core.queue.order.returned import PriorityReturned, Returned, place_in_level
from penstock.core.queue.order.runs import END, Key, Run, view
from penstock.core.queue.order.standing import LOW, place_of
from penstock.core.state.lsns import to_array
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.entries import Publishes

ALL = END[0]
"""Behind every place: a list that has looked at everything follows."""

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


class PriorityLook(Look):
    """A walk under way: how far it goes, and what was found so far."""

    __slots__ = ("gathered", "part")

    def __init__(self, lists: tuple[TargetList, ...], chunk: Chunk, last: bool) -> None:
        super().__init__(lists, chunk, last)
        self.gathered: list[list[int]] = [[] for _ in lists]
        self.part: int | None = None  # messages of the first answer, if that was for a part


class PriorityRecalled(Recalled):
    """Some of what came back, by rank and then place."""

    __slots__ = ("_ranks",)

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
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
        self._resting: list[PriorityLook] = []  # walks that were answered for a part

    def nothing_recalled(self) -> Recalled:
        """What to keep in mind what came back, by priority."""
        return PriorityRecalled(self._ranks)

    def place_of(self, run: Run) -> int:
        """Where a run that came back stands in its level; 0: each message at its own LSN."""
        return place_in_level(run)

    def join(self, consumer: Consumer, filter: Matcher, main: Main, returned: Returned) -> TargetList:
        """The list of a filter, for one more consumer."""
        targets = self.lists.get(filter.text)
        if targets is None:
            targets = self.lists[filter.text] = PriorityTargetList(filter, self, filtering.WALK_FIRST)
            targets.slot = self._following.add(filter)
            self._by_slot[targets.slot] = targets
            self._behind[targets] = None
            self._look_at_all(targets, returned)
        targets.consumers.append(consumer)
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
            self._look(look, look.chunk, sink)
        super().ask(main, sink)

    def _walk(self, group: Sequence[TargetList], most: int, last: bool, main: Main, sink: Sink) -> bool:
        """Have the stretch behind lists that stand at one place looked through; False: they moved on without."""
        assert isinstance(main, PriorityOrder)
        walked = group[0].walked
        others = min((targets.walked for targets in self._behind if targets.walked > walked), default=ALL)
        chunk, end = main.stretch_after(walked, min(max(targets.stride for targets in group), most), others)
        for one in group:
            targets = cast("PriorityTargetList", one)
            if len(chunk):
                targets.busy = True
                targets.reach = end
            elif others < ALL:
                targets.walked = targets.reach = others
            else:
                targets.walked = targets.reach = ALL
                targets.new = False
                targets.stride = filtering.WALK_FIRST
                self._behind.pop(targets)
                self.awake[targets] = None
        if not len(chunk):
            return False
        self._look(PriorityLook(tuple(group), chunk, last), chunk, sink)
        return True

    def _look(self, look: PriorityLook, chunk: Chunk, sink: Sink) -> None:
        self._serial += 1
        self.asked[self._serial] = look
        for targets in look.lists:
            targets.asked = self._serial
        filters = tuple([targets.filter for targets in look.lists])
        sink.effect(Scan(Token(self._queue, self._serial, Purpose.WALK), filters, chunk))

    def scanned(self, token: Token, found: Sequence[Sequence[int]], upto: int, main: Main) -> None:
        """The answer to a scan: for each filter the LSNs that it matches, ascending, of those up to `upto`."""
        look = self.asked.get(token.serial)
        if not isinstance(look, PriorityLook):
            super().scanned(token, found, upto, main)
            return
        del self.asked[token.serial]
        assert isinstance(main, PriorityOrder)
        for gathered, more in zip(look.gathered, found, strict=True):
            gathered += more
        if upto < look.chunk[-1]:  # the rest stands between these
            seen = bisect_left(look.chunk, upto + 1)
            look.chunk = look.chunk[seen:]
            look.part = look.part or seen
            self._looked_at(look, seen)
            self._resting.append(look)
            return
        self._looked_at(look, len(look.chunk))
        for one, lsns in zip(look.lists, look.gathered, strict=True):
            targets = cast("PriorityTargetList", one)
            targets.busy = targets.new = False
            if self.lists.get(targets.filter.text) is not targets:
                continue
            longer = 2 * targets.stride if look.part is None else look.part
            targets.stride = min(max(longer, filtering.WALK_LEAST), filtering.WALK_MOST)
            if 4 * len(lsns) > self.most:
                targets.stride = max(targets.stride // 8, filtering.WALK_LEAST)
            targets.walked = targets.reach
            if lsns:
                known = main.ranks.among(as_chunk(lsns))
                keys = zip(main.places(known), known, strict=True) if len(known) else ()
                targets.put([key for key in keys if main.stands(key)])
            self.awake[targets] = None
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
