"""Consumers that share a filter and may have room: who of them is next, without asking all.

A thousand workers with one filter would otherwise each be asked for every message.  Here each stands in an order that
fits the fairness model; one that turns out to have no room is dropped, and comes back when its queue says that it has
some again (`add`).  The answer is that of `fairness.pick` over those with room.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from penstock.records.queue_settings import FairnessModel

if TYPE_CHECKING:
    from penstock.core.queue.dispatching.consumers import Consumer

STRETCH = 64
"""Consumers that are looked at in one go, at most."""

Rank = tuple[int, int]
"""Consumers in order: (priority, highest first, as a negative number; order of subscription)."""


class Takers:
    """Those of one list.  All but those without room are here; some without room may be."""

    __slots__ = ("_by_rank", "_heap", "_members", "_ranks")

    def __init__(self) -> None:
        self._ranks: list[Rank] = []  # ascending
        self._members: list[Consumer] = []  # in the same order
        self._by_rank: dict[Rank, Consumer] = {}
        self._heap: list[tuple[int, float, int]] | None = None  # (priority, ratio, serial); made when it is asked for

    def __bool__(self) -> bool:
        return bool(self._ranks)

    def __len__(self) -> int:
        return len(self._ranks)

    @property
    def unweighed(self) -> bool:
        """Whether nothing here depends on how much each holds."""
        return self._heap is None

    def add(self, consumer: Consumer) -> None:
        """It may have room."""
        rank = (-consumer.priority, consumer.serial)
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

    def remove(self, consumer: Consumer) -> None:
        """It is gone, or has no room."""
        rank = (-consumer.priority, consumer.serial)
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

    def next(self, model: FairnessModel, turn: int) -> Consumer | None:
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

    def deal(self, model: FairnessModel, turn: int, count: int) -> list[Consumer]:
        """Who gets so many messages, one after the other: fewer when nobody has room any more.

        What each is given counts at once as held.
        """
        out: list[Consumer] = []
        if model == "proportional":
            while len(out) < count and (consumer := self._lightest()) is not None:
                out.append(consumer)
                if not consumer.no_ack:
                    consumer.leases.count += 1
                    self.served(consumer)
            return out
        self._heap = None  # made anew when it is asked for
        ranks, members = self._ranks, self._members
        in_turn = model == "round-robin"
        while ranks and (left := count - len(out)) > 0:
            place = 0
            if in_turn:
                level = ranks[0][0]
                stop = bisect_left(ranks, (level + 1,))
                place = bisect_left(ranks, (level, turn + 1), 0, stop)
                if place == stop:
                    place = 0
                some = members[place : min(stop, place + min(left, STRETCH))]
            else:
                some = members[:1] * min(left, STRETCH, max(members[0].limit - members[0].leases.count, 1))
            if not [
                one
                for one in some
                if one.leases.count >= one.limit or one.paused or one.closed or one.no_ack or one.shared is not None
            ]:
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

    def served(self, consumer: Consumer) -> None:
        """It holds more than before."""
        if self._heap is not None:
            heappush(self._heap, (-consumer.priority, ratio(consumer), consumer.serial))

    def _lightest(self) -> Consumer | None:
        heap = self._heap
        if heap is None:
            heap = self._heap = [(p, ratio(self._by_rank[p, serial]), serial) for p, serial in self._ranks]
            heapify(heap)
        while heap:
            priority, told, serial = heap[0]
            consumer = self._by_rank.get((priority, serial))
            if consumer is not None and told == ratio(consumer):
                if has_room(consumer):
                    return consumer
                self.remove(consumer)
            heappop(heap)
        return None


def ratio(consumer: Consumer) -> float:
    """What `proportional` compares."""
    weight = consumer.weight
    return consumer.leases.count / weight if weight else math.inf


def has_room(consumer: Consumer) -> bool:
    """Whether it can be given a message now."""
    return not consumer.paused and not consumer.closed and consumer.room > 0
