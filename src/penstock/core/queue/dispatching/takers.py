"""Who takes from one list: an order of those that may have room, so that the next of them is found without asking all.

Of consumers that share a filter a thousand would otherwise each be asked for every message.  In `Takers` each stands in
an order that fits the model of fairness; one that turns out to have no room is dropped, and comes back when its queue
says that it has some again.  The answer is that of `dealing.pick` over those with room.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Generic, Protocol, TypeVar

from penstock.core.queue.settling.leases import Leases
from penstock.records.queue_settings import FairnessModel


class Taker(Protocol):
    """What is asked of a consumer here; `dispatching.consumers` says what it means."""

    serial: int
    level: int
    limit: int
    choked: bool
    closed: bool
    no_ack: bool
    silent: bool
    leases: Leases

    @property
    def shared(self) -> object | None:
        """Credit that it has together with others."""
        ...

    @property
    def room(self) -> int:
        """How many more it may take; 0 or less is none."""
        ...

    @property
    def weight(self) -> int:
        """The backlog by which the `proportional` model divides."""
        ...

    @property
    def load(self) -> int:
        """What that model divides: what it holds, and of credit for all its queues what is used."""
        ...


AnyTaker = TypeVar("AnyTaker", bound=Taker)

STRETCH = 64
"""Consumers that are looked at in one go, at most."""

Rank = tuple[int, int]
"""Consumers in order: (level, highest first, as a negative number; order of subscription)."""


class Takers(Generic[AnyTaker]):
    """Those of one list.  All but those without room are here; some without room may be."""

    __slots__ = ("_by_rank", "_heap", "_members", "_ranks")

    def __init__(self) -> None:
        self._ranks: list[Rank] = []  # ascending
        self._members: list[AnyTaker] = []  # in the same order
        self._by_rank: dict[Rank, AnyTaker] = {}
        self._heap: list[tuple[int, float, int]] | None = None  # (priority, ratio, serial); made when it is asked for

    def __bool__(self) -> bool:
        return bool(self._ranks)

    def __len__(self) -> int:
        return len(self._ranks)

    @property
    def unweighed(self) -> bool:
        """Whether nothing here depends on how much each holds."""
        return self._heap is None

    @property
    def able(self) -> bool:
        """Whether one of them has room; who has none is not looked at again."""
        members = self._members
        while members and not has_room(members[0]):
            self._drop(0)
        return bool(members)

    @property
    def speaks(self) -> bool:
        """The same of who is not silent."""
        return self.able and not self._members[0].silent

    def free(self) -> list[AnyTaker]:
        """All of the highest priority that have room."""
        out: list[AnyTaker] = []
        for rank, consumer in zip(self._ranks, self._members, strict=True):
            if out and rank[0] != -out[0].level:
                break
            if has_room(consumer):
                out.append(consumer)
        return out

    @property
    def has_silent(self) -> bool:
        """Whether one that may have room is silent."""
        return bool(self._members) and self._members[-1].silent

    def add(self, consumer: AnyTaker) -> None:
        """It may have room: it is looked at in its turn."""
        rank = (-consumer.level, consumer.serial)
        if rank not in self._by_rank:
            self._by_rank[rank] = consumer
            place = bisect_left(self._ranks, rank)
            self._ranks.insert(place, rank)
            self._members.insert(place, consumer)
        if self._heap is not None:
            if len(self._heap) > 4 * len(self._ranks) + 64:
                self._heap = None  # mostly outdated entries
            else:
                heappush(self._heap, (rank[0], ratio(consumer), rank[1]))

    def remove(self, consumer: AnyTaker) -> None:
        """It is gone, or has no room."""
        rank = (-consumer.level, consumer.serial)
        if rank in self._by_rank:
            self._drop(bisect_left(self._ranks, rank))

    def _drop(self, place: int) -> None:
        del self._by_rank[self._ranks.pop(place)], self._members[place]

    def room(self, most: int) -> int:
        """No more than this do they take together; from 1 to `most`."""
        room = 0
        for consumer in self._members:
            room += most if consumer.no_ack else max(consumer.room, 0)
            if room >= most:
                return most
        return max(room, 1)

    def next(self, model: FairnessModel, turn: int) -> AnyTaker | None:
        """Who of the highest priority with room comes next; `turn` is who was served last.  None: nobody."""
        if model == "proportional":
            return self._lightest()
        ranks = self._ranks
        while ranks:
            level = ranks[0][0]
            at = 0
            if model == "round-robin":
                at = bisect_left(ranks, (level, turn + 1))
                if at == len(ranks) or ranks[at][0] != level:
                    at = 0
            consumer = self._members[at]
            if has_room(consumer):
                return consumer
            self._drop(at)
        return None

    def deal(self, model: FairnessModel, turn: int, count: int) -> list[AnyTaker]:
        """Who gets so many messages, in their order; fewer without room for all.  What each is given counts as held."""
        if model == "proportional":
            return self._deal_by_weight(count)
        out: list[AnyTaker] = []
        self._heap = None  # made anew when it is asked for
        in_turn = model == "round-robin"
        while self._ranks and (left := min(count - len(out), STRETCH)) > 0:
            place, some = self._whose_turn(turn, left) if in_turn else (0, self._first_alone(left))
            if _all_free(some):
                out += some
                turn = some[-1].serial
                for consumer in some:
                    consumer.leases.count += 1
                continue
            for consumer in some:
                if has_room(consumer):
                    out.append(consumer)
                    turn = consumer.serial
                    place += in_turn
                    if not consumer.no_ack:
                        consumer.leases.count += 1
                else:
                    self._drop(place)
                    if not in_turn:
                        break  # the others are the same
        return out

    def _deal_by_weight(self, count: int) -> list[AnyTaker]:
        """The same where each message goes to the lightest."""
        out: list[AnyTaker] = []
        while len(out) < count and (consumer := self._lightest()) is not None:
            out.append(consumer)
            if not consumer.no_ack:
                consumer.leases.count += 1
                self.served(consumer)
        return out

    def _whose_turn(self, turn: int, most: int) -> tuple[int, list[AnyTaker]]:
        """Up to so many of the highest priority, from whose turn it is on, and the place of the first."""
        ranks = self._ranks
        level = ranks[0][0]
        stop = bisect_left(ranks, (level + 1,))
        place = bisect_left(ranks, (level, turn + 1), 0, stop) % stop  # behind the last comes the first
        return place, self._members[place : min(stop, place + most)]

    def _first_alone(self, most: int) -> list[AnyTaker]:
        """The first, as often as it has room."""
        first = self._members[0]
        return [first] * min(most, max(first.limit - first.leases.count, 1))

    def served(self, consumer: AnyTaker) -> None:
        """It holds more than before."""
        if self._heap is not None:
            heappush(self._heap, (-consumer.level, ratio(consumer), consumer.serial))

    def _lightest(self) -> AnyTaker | None:
        heap = self._heap
        if heap is None:
            heap = self._heap = [(p, ratio(self._by_rank[p, serial]), serial) for p, serial in self._ranks]
            heapify(heap)
        while heap:
            priority, told, serial = heap[0]
            consumer = self._by_rank.get((priority, serial))
            now = None if consumer is None else ratio(consumer)
            if consumer is not None and told == now:
                if has_room(consumer):
                    return consumer
                self.remove(consumer)
            elif consumer is not None and now is not None and consumer.shared is not None:
                heapreplace(heap, (priority, now, serial))  # others have used its credit
                continue
            heappop(heap)
        return None


def _all_free(some: Sequence[Taker]) -> bool:
    """Whether each has room for one more, as is seen without asking anybody else."""
    return not [c for c in some if c.leases.count >= c.limit or c.choked or c.closed or c.no_ack or c.shared]


def ratio(consumer: Taker) -> float:
    """What `proportional` compares, the lowest first: how much of its backlog is in use."""
    weight = consumer.weight
    if not weight:
        return math.inf
    return (consumer.leases.count if consumer.shared is None else consumer.load) / weight


def has_room(consumer: Taker) -> bool:
    """Whether it can be given a message now."""
    return not consumer.choked and not consumer.closed and consumer.room > 0
