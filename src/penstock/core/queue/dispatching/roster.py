"""On which terms consumers come to a queue, those that are pushed to, and what is remembered of who attends to it.

A consumer that hangs has room again whenever its leases have ended, and more of it than those that work: each model of
fairness but the rotation would give it the same messages again, for ever.  So who let one end is served behind all
others, whatever its priority, until it settles or extends something.  With nobody else it gets them as before.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Mapping, Sequence
from typing import Required, TypedDict

from penstock.core.queue.dispatching.consumers import Consumer, Credit, serial_of
from penstock.core.queue.order.runs import NEVER
from penstock.expr import Matcher


class Terms(TypedDict, total=False):
    """On which terms somebody consumes from a queue; the defaults are those of `Consumer`."""

    tag: Required[str]
    holder: Required[object]  # the session's own object
    client: str
    arguments: Mapping[str, object] | None
    no_ack: bool
    exclusive: bool  # nobody else may consume
    filter: Matcher | None
    max_backlog: int | None  # outstanding at once; None: no limit of its own; 0: it gets nothing
    shared: Credit | None
    priority: int  # higher is served first
    passive: bool  # it gets only what it asks for by `pull`
    choked: bool  # its connection takes nothing now, until `unchoke`
    own_timeout: int | None  # microseconds that a delivery may stay unsettled; None: as the queue says; 0: any time
    read: tuple[int, int]  # of a queue that nobody takes from: what is not beyond this place and LSN it has read
    on_overdue: Callable[[int], None] | None  # told that time when it is over, ends it; None: what is overdue goes back


LAST = 1 << 64
"""By so much the level of a silent consumer is lower: priorities of clients are numbers of 64 bits at most."""


SPARE_MOST = 64
"""Of more consumers those that may have room are known while they are no more than this; else all are looked at."""


class Roster:
    """The consumers of a queue that are pushed to, by priority and order of subscription."""

    __slots__ = ("all", "in_order", "levels", "place", "plain", "silent", "spare", "turn")

    def __init__(self) -> None:
        self.all: list[Consumer] = []
        self.in_order = True  # their serials ascend: none of them had left and came back
        self.plain: list[Consumer] = []  # those without a filter
        self.levels: list[list[Consumer]] = []  # highest priority first
        self.silent = 0  # how many are served behind all others
        self.turn = 0  # serial of the one that was served last
        self.place = 0  # where it may stand among those of its priority
        self.spare: dict[Consumer, None] | None = None  # of those without a filter who may have room; None: all may

    def add(self, consumer: Consumer) -> None:
        """A new subscription, the last of its priority."""
        self.spare = None
        self.in_order = not self.all or (self.in_order and self.all[-1].serial < consumer.serial)
        self.all.append(consumer)
        self.silent += consumer.silent
        if consumer.targets is None:
            self.plain.append(consumer)
        if self.in_order:
            self._enter(consumer)
        else:
            self._sort()

    def remove(self, consumer: Consumer) -> None:
        """A subscription has ended, and is pushed to no more.  Of ten thousand that end at once each costs little."""
        if self.spare is not None:
            self.spare.pop(consumer, None)  # nobody else has room by that
        self._drop(self.all, consumer)
        self.silent -= consumer.silent
        if consumer.targets is None:
            self._drop(self.plain, consumer)
        if self.in_order:
            self._leave(consumer)
        else:
            self._sort()

    def _drop(self, some: list[Consumer], consumer: Consumer) -> None:
        if self.in_order:
            del some[bisect_left(some, consumer.serial, key=serial_of)]
        else:
            some.remove(consumer)

    def sift(self) -> None:
        """A subscription has got a filter, or lost it."""
        self.spare = None
        self.plain = [consumer for consumer in self.all if consumer.targets is None]

    def wake(self, consumer: Consumer) -> None:
        """It may have room again."""
        if consumer.targets is not None:
            consumer.targets.wake(consumer)
        elif (spare := self.spare) is not None and not consumer.passive:
            spare[consumer] = None
            if len(spare) > SPARE_MOST:
                self.spare = None

    def spare_of(self, level: Sequence[Consumer]) -> list[Consumer]:
        """Of those of one priority who may have room, in order of subscription."""
        return sorted([one for one in self.spare or () if one.level == level[0].level], key=serial_of)

    def rank(self, consumer: Consumer, *, silent: bool) -> None:
        """A delivery to it ended by time: it is served behind all others; or it has said something since."""
        if consumer.silent == silent or consumer.passive or consumer.closed:
            return
        targets = consumer.targets
        if targets is not None:
            targets.takers.remove(consumer)
        consumer.silent = silent
        self.silent += 1 if silent else -1
        self._move(consumer, consumer.priority - LAST if silent else consumer.priority)
        if targets is not None:
            targets.wake(consumer)

    def whose_turn(self, level: Sequence[Consumer]) -> Consumer | None:
        """Of those of one priority with room who comes behind the one that was served last; all subscribed in order."""
        first = self.place + 1
        if first > len(level) or level[first - 1].serial != self.turn:
            first = bisect_right(level, self.turn, key=serial_of)
        for some in (range(first, len(level)), range(first)):
            for place in some:
                one = level[place]
                if one.leases.count < one.limit and not one.choked and (one.shared is None or one.room > 0):
                    self.place = place
                    return one
        return None

    def _move(self, consumer: Consumer, level: int) -> None:
        """To another level.  Of ten thousand that let leases end at once each costs little."""
        self.spare = None
        if not self.in_order:
            consumer.level = level
            self._sort()
            return
        self._leave(consumer)
        consumer.level = level
        self._enter(consumer)

    def _leave(self, consumer: Consumer) -> None:
        levels = self.levels
        place = next(place for place, members in enumerate(levels) if members[0].level == consumer.level)
        del levels[place][bisect_left(levels[place], consumer.serial, key=serial_of)]
        if not levels[place]:
            del levels[place]

    def _enter(self, consumer: Consumer) -> None:
        levels, level = self.levels, consumer.level
        place = next((place for place, members in enumerate(levels) if members[0].level <= level), len(levels))
        if place == len(levels) or levels[place][0].level < level:
            levels.insert(place, [])
        insort(levels[place], consumer, key=serial_of)

    def _sort(self) -> None:
        levels = sorted({consumer.level for consumer in self.all}, reverse=True)
        self.levels = [[c for c in self.all if c.level == level] for level in levels]


class Attendance:
    """What a queue remembers of that; nothing of it lasts beyond the process."""

    __slots__ = ("began", "expires", "looking", "opens", "overdue", "spare", "used")

    def __init__(self) -> None:
        self.began = False  # enough consumers came, or the wait for them is over
        self.looking = False  # they are there; it begins when their filters have looked at what waits first
        self.opens = NEVER  # mono: it begins without the others
        self.overdue = NEVER  # mono: no delivery has been out for too long before this
        self.spare = 0  # microseconds in which consumers could have taken more, until `QueueParts.used_at`
        self.used = 0  # mono: when a consumer, get or declare was last there
        self.expires = NEVER  # mono: look then whether the queue has been unused for long enough

    @property
    def due(self) -> int:
        """When the queue has something to do here."""
        return min(self.opens, self.overdue)
