"""Who of several that want the same messages gets which of them: the models of fairness.

    fast            the first found with room, in order of subscription
    round-robin     the next in rotation with room
    proportional    the lowest outstanding / backlog; between equals the first found

`pick` is the definition, one message at a time; `Hands.deal` says the same of many messages at once.  Ratios are
compared as doubles: two different ratios of backlogs below 2**25 are different doubles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.core.queue.dispatching.takers import ratio
from penstock.core.queue.order.runs import Run, packed, view
from penstock.records.chunks import as_chunk
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
    return min(candidates, key=ratio)


FEW = 32
"""Messages below which plain lists deal faster than columns do."""


class Hands(NamedTuple):
    """Those who want the same messages, in order of subscription.

    rooms         how many more each may take; they add up to what is dealt at least
    outstanding, weights    for `proportional`; a weight without end: nothing of it is ever outstanding
    first         the index whose turn it is, for `round-robin`
    """

    model: FairnessModel
    rooms: Sequence[int]
    outstanding: Sequence[int]
    weights: Sequence[float]
    first: int

    def deal(self, count: int) -> Ints:
        """For each of so many messages the index of its consumer."""
        rooms = self.rooms
        if self.model == "fast":
            return np.repeat(np.arange(len(rooms)), rooms)[:count] if sum(rooms) < 4 * count else _fill(rooms, count)
        if self.model == "round-robin":
            return _rotate(rooms, self.first, count)
        return _proportional(rooms, self.outstanding, self.weights, count)

    def deal_few(self, count: int) -> list[int]:
        """The same for few messages."""
        rooms = self.rooms
        if self.model == "proportional":
            return _by_ratio(rooms, self.outstanding, self.weights, count)
        out: list[int] = []
        if self.model == "fast":
            for i, room in enumerate(rooms):
                out += [i] * min(room, count - len(out))
                if len(out) == count:
                    break
            return out
        left, n, i = list(rooms), len(rooms), self.first
        while len(out) < count:
            if left[i]:
                left[i] -= 1
                out.append(i)
            i = i + 1 if i + 1 < n else 0
        return out


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
    return np.array(_by_ratio(rooms, outstanding, weights, count))


def _by_ratio(rooms: Sequence[int], outstanding: Sequence[int], weights: Sequence[float], count: int) -> list[int]:
    """One by one to the lowest of what is outstanding by weight."""
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
    return out


def share_out(
    model: FairnessModel, free: Sequence[Consumer], turn: int, runs: list[Run], count: int
) -> tuple[list[list[Run]], Consumer]:
    """What each of those with room gets of so many messages, and who gets the last; `turn` is who was served last."""
    first = next((i for i, consumer in enumerate(free) if consumer.serial > turn), 0)
    held = [consumer.load if consumer.shared is not None else consumer.leases.count for consumer in free]
    rooms = [consumer.room for consumer in free]
    weights = [math.inf if consumer.no_ack else consumer.weight for consumer in free]  # it never holds anything
    shares: list[list[Run]] = [[] for _ in free]
    hands = Hands(model, rooms, held, weights, first)
    if count < FEW:
        last = _deal_few(runs, hands.deal_few(count), shares)
    else:
        last = _deal_many(runs, hands.deal(count), shares)
    return shares, free[last]


def _deal_few(runs: list[Run], who: list[int], shares: list[list[Run]]) -> int:
    """Add to the shares what each of the messages' owners gets; the owner of the last."""
    done = 0
    for run in runs:
        owners = who[done : done + len(run.chunk)]
        done += len(run.chunk)
        if owners.count(owners[0]) == len(owners):
            shares[owners[0]].append(run)
            continue
        mine: dict[int, list[int]] = {}
        for owner, lsn in zip(owners, run.chunk, strict=True):
            mine.setdefault(owner, []).append(lsn)
        for owner, lsns in mine.items():
            shares[owner].append(run.part(as_chunk(lsns), False))
    return who[-1]


def _deal_many(runs: list[Run], who: npt.NDArray[np.int64], shares: list[list[Run]]) -> int:
    """The same by columns."""
    done = 0
    for run in runs:
        owners = who[done : done + len(run.chunk)]
        done += len(run.chunk)
        lowest, highest = int(owners.min()), int(owners.max())
        if lowest == highest:
            shares[lowest].append(run)
            continue
        lsns = view(run.chunk)
        for i in range(lowest, highest + 1):
            mine = lsns[owners == i]
            if len(mine):
                shares[i].append(run.part(packed(mine), False))
    return int(who[-1])
