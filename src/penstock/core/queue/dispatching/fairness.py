"""Who gets the next message, when several could take it.

    fast            the first found with room, in order of subscription
    round-robin     the next in rotation with room
    proportional    the lowest outstanding / backlog; between equals the first found

`pick` is the definition, one message at a time; `deal` says the same of many messages at once.  Ratios are compared as
doubles: two different ratios of backlogs below 2**25 are different doubles.

Of consumers that share a filter a thousand would otherwise each be asked for every message.  In `Takers` each stands in
an order that fits the model; one that turns out to have no room is dropped, and comes back when its queue says that it
has some again.  The answer is that of `pick` over those with room.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from penstock.records.queue_settings import FairnessModel

if TYPE_CHECKING:
    from penstock.core.queue.dispatching.consumers import Consumer


Ints = npt.NDArray[np.int64]


def pick(model: FairnessModel, candidates: Sequence[Consumer], turn: int) -> Consumer:
    """One of the candidates, which all have room and stand in order of subscription; `turn` is who was served last."""
    if model == "round-robin":
        return next((c for c in candidates if c.serial > turn), candidates[0])
    if model == "fast" or len(candidates) == 1:
        return candidates[0]
    return min(candidates, key=_ratio)


def _ratio(consumer: Consumer) -> float:
    if consumer.shared is not None:
        return consumer.load / consumer.weight
    return consumer.leases.count / consumer.weight


def deal(
    model: FairnessModel,
    rooms: Sequence[int],
    outstanding: Sequence[int],
    weights: Sequence[float],
    first: int,
    count: int,
) -> Ints:
    """For each of `count` messages the index of its consumer.

    rooms         how many more each may take; they add up to `count` at least
    outstanding, weights    for `proportional`; a weight without end: nothing of it is ever outstanding
    first         the index whose turn it is, for `round-robin`
    """
    n = len(rooms)
    if model == "fast":
        return np.repeat(np.arange(n), rooms)[:count] if sum(rooms) < 4 * count else _fill(rooms, count)
    if model == "round-robin":
        return _rotate(rooms, first, count)
    return _proportional(rooms, outstanding, weights, count)


def _fill(rooms: Sequence[int], count: int) -> Ints:
    shares: list[int] = []
    for room in rooms:
        shares.append(min(room, count))
        count -= shares[-1]
    return np.repeat(np.arange(len(rooms)), shares)


def _rotate(rooms: Sequence[int], first: int, count: int) -> Ints:
    n = len(rooms)
    order = [(first + i) % n for i in range(n)]
    left = [rooms[i] for i in order]
    out: list[Ints] = []
    while count:
        alive = [i for i in range(n) if left[i]]
        rounds = min(min(left[i] for i in alive), count // len(alive))
        if rounds == 0:  # the last, broken round
            out.append(np.array([order[i] for i in alive[:count]]))
            break
        out.append(np.tile(np.array([order[i] for i in alive]), rounds))
        for i in alive:
            left[i] -= rounds
        count -= rounds * len(alive)
    return np.concatenate(out)


def _proportional(rooms: Sequence[int], outstanding: Sequence[int], weights: Sequence[float], count: int) -> Ints:
    n = len(rooms)
    if count >= 64 and n * count <= 200_000:
        shares = [min(room, count) for room in rooms]
        who = np.repeat(np.arange(n), shares)
        ratios = np.concatenate(
            [np.arange(o, o + share) / w for o, share, w in zip(outstanding, shares, weights, strict=True)]
        )
        return who[np.argsort(ratios, kind="stable")[:count]]
    heap = [(o / w, i) for i, (o, w) in enumerate(zip(outstanding, weights, strict=True))]
    heapify(heap)
    held = list(outstanding)
    ends = [o + room for o, room in zip(outstanding, rooms, strict=True)]
    out: list[int] = []
    for _ in range(count):
        i = heap[0][1]
        out.append(i)
        held[i] += 1
        heapreplace(heap, (held[i] / weights[i] if held[i] < ends[i] else float("inf"), i))
    return np.array(out)


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
