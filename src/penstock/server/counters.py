"""Counters since the start of the process, and the rates of such counts as RabbitMQ's tools read them.

Sessions add to counters a run at a time; the metrics read them. A rate is that between two looks a second or more
apart, so that what nobody looks at costs nothing; the first look shows none.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import field
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from penstock.records.dataclass import dataclass
from penstock.records.message_bodies import Bodies, lengths
from penstock.records.remembered import Remembered

if TYPE_CHECKING:
    from penstock.core.queue.queue import Queue

SIZES = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000)
"""Upper ends of what sizes of bodies are counted by, as in RabbitMQ; the last count is of what is above."""


class BodySizes:
    """How many bodies were how large."""

    __slots__ = ("_counts", "_total")

    def __init__(self) -> None:
        self._counts = [0] * (len(SIZES) + 1)
        self._total = 0  # bytes

    def add(self, bodies: Bodies) -> None:
        """Bodies of a run or a round: mostly of one size, or all among the smallest."""
        if not isinstance(bodies, list):
            each = lengths(bodies)
            self._total += int(each.sum())
            counts = np.bincount(np.searchsorted(SIZES, each), minlength=len(self._counts)).tolist()
            self._counts = [one + more for one, more in zip(self._counts, counts, strict=True)]
            return
        sizes = [*map(len, bodies)]
        count, size = len(sizes), sizes[0] if sizes else 0
        if sizes.count(size) == count:
            self._total += size * count
            self._counts[bisect_left(SIZES, size)] += count
            return
        self._total += sum(sizes)
        if max(sizes) <= SIZES[0]:
            self._counts[0] += count
            return
        for size in sizes:
            self._counts[bisect_left(SIZES, size)] += 1

    def told(self) -> tuple[int, list[tuple[float, int]]]:
        """Bytes of all, and how many are no larger than each of `SIZES`, and how many there are."""
        return self._total, list(zip((*SIZES, inf), accumulate(self._counts), strict=True))


@dataclass(slots=True)
class Counters:
    """What happened so far, in messages unless the name says otherwise."""

    connections_opened: int = 0  # connections
    connections_closed: int = 0
    channels_opened: int = 0  # channels
    channels_closed: int = 0
    published: int = 0
    published_confirm: int = 0
    confirmed: int = 0
    routed: int = 0
    unroutable_dropped: int = 0
    unroutable_returned: int = 0
    refused: int = 0
    delivered_consume_auto_ack: int = 0
    delivered_consume_manual_ack: int = 0
    delivered_get_auto_ack: int = 0
    delivered_get_manual_ack: int = 0
    get_empty: int = 0  # answers
    redelivered: int = 0
    acknowledged: int = 0
    sizes: BodySizes = field(default_factory=BodySizes)  # of what was published

    @property
    def delivered(self) -> int:
        """To consumers and by get."""
        return (
            self.delivered_consume_auto_ack
            + self.delivered_consume_manual_ack
            + self.delivered_get_auto_ack
            + self.delivered_get_manual_ack
        )


NAMES = (
    "publish", "deliver_get", "deliver", "deliver_no_ack", "get", "get_no_ack", "ack", "redeliver",
)  # fmt: skip

APART_US = 1_000_000

REMEMBERED = 20_000
"""Things whose last look is remembered."""

Counts = tuple[int, ...]


class Rates:
    """The last look at each of some queues, or connections."""

    def __init__(self) -> None:
        # of each thing: when, counts, rates then
        self._seen = Remembered[int | str, tuple[int, Counts, tuple[float, ...]]](REMEMBERED)
        # when, microseconds with room, the share then
        self._spare = Remembered[int, tuple[int, int, float]](REMEMBERED)

    def stats(self, queue: Queue, mono: int) -> dict[str, object]:
        if (figures := queue.figures) is None:
            counts: Counts = (queue.arrived,) + (0,) * (len(NAMES) - 1)
        else:
            others = figures.unacked, figures.gotten, figures.gotten_unacked
            usual = figures.delivered - sum(others)
            counts = queue.arrived, figures.delivered, usual, *others, figures.acked, figures.redelivered
        return self.told(queue.id, mono, NAMES, counts)

    def told(self, key: int | str, mono: int, names: Sequence[str], counts: Counts) -> dict[str, object]:
        """Counts of one thing by name, each with its rate.  key: the id of a queue, or the name of a connection."""
        found: dict[str, object] = {}
        for name, count, rate in zip(names, counts, self._rates(key, mono, counts), strict=True):
            found[name], found[f"{name}_details"] = count, {"rate": rate}
        return found

    def capacity(self, queue: Queue, wall: int) -> float:
        """The share of the time since the look before in which its consumers could have taken more; 0 without any."""
        if not queue.consumers:
            return 0.0
        spare = queue.spare(wall)
        seen = self._spare.get(queue.id)
        if seen is not None and wall - seen[0] < APART_US:
            return seen[2]
        share = float(queue.used_at < 0)
        if seen is not None:
            share = round(min(max(spare - seen[1], 0) / (wall - seen[0]), 1.0), 3)
        self._spare.keep(queue.id, (wall, spare, share))
        return share

    def _rates(self, key: int | str, mono: int, counts: Counts) -> tuple[float, ...]:
        seen = self._seen.get(key)
        if seen is not None and mono - seen[0] < APART_US:
            return seen[2]
        rates = (0.0,) * len(counts)
        if seen is not None:
            seconds = (mono - seen[0]) / 1e6
            rates = tuple(round(max(now - then, 0) / seconds, 3) for now, then in zip(counts, seen[1], strict=True))
        self._seen.keep(key, (mono, counts, rates))
        return rates
