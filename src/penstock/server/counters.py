"""Counters since the start of the process, and the rates of such counts as RabbitMQ's tools read them.

Sessions add to those of a channel a run at a time; what it had when it closed stays with its vhost. The metrics read
sums of these. A rate is that between two looks a second or more apart, so that what nobody looks at costs
nothing; the first look shows none.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from itertools import accumulate, chain
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from penstock.records.dataclass import dataclass
from penstock.records.message_bodies import Bodies, lengths
from penstock.records.remembered import Remembered

if TYPE_CHECKING:
    from penstock.core.queue.queue import Queue

SIZES = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000)
"""Upper ends of what sizes of bodies are counted by, as in RabbitMQ; the last count is of what is above."""


Counts: TypeAlias = tuple[int, ...]


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
class MessageCounts:
    """What happened to messages so far: on a channel, in a vhost over channels that are closed, or in sum."""

    published: int = 0
    published_confirm: int = 0
    confirmed: int = 0
    unroutable_dropped: int = 0
    unroutable_returned: int = 0
    delivered_consume_auto_ack: int = 0
    delivered_consume_manual_ack: int = 0
    delivered_get_auto_ack: int = 0
    delivered_get_manual_ack: int = 0
    get_empty: int = 0  # answers
    redelivered: int = 0
    acknowledged: int = 0

    @property
    def delivered(self) -> int:
        """To consumers and by get."""
        return (
            self.delivered_consume_auto_ack
            + self.delivered_consume_manual_ack
            + self.delivered_get_auto_ack
            + self.delivered_get_manual_ack
        )

    def deliver(self, count: int, *, no_ack: bool, again: bool) -> None:
        """To consumers, those who ask for no acks apart."""
        if no_ack:
            self.delivered_consume_auto_ack += count
        else:
            self.delivered_consume_manual_ack += count
        if again:
            self.redelivered += count

    def fetch(self, count: int, *, no_ack: bool, again: bool) -> None:
        """By basic.get, or by a get over HTTP."""
        if no_ack:
            self.delivered_get_auto_ack += count
        else:
            self.delivered_get_manual_ack += count
        if again:
            self.redelivered += count

    def add(self, other: MessageCounts) -> None:
        for name in MessageCounts.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def stats(self) -> Counts:
        """In the order of `STATS`."""
        return _STATS_OF(self)


@dataclass(slots=True)
class Counters:
    """Of a server, in messages unless the name says otherwise."""

    connections_opened: int = 0  # connections
    connections_closed: int = 0
    channels_opened: int = 0  # channels
    channels_closed: int = 0
    routed: int = 0
    refused: int = 0
    sizes: BodySizes = field(default_factory=BodySizes)  # of what was published
    vhosts: dict[str, MessageCounts] = field(default_factory=dict[str, MessageCounts])  # without channels that are open
    gone: MessageCounts = field(default_factory=MessageCounts)  # of vhosts that were deleted

    def of(self, vhost: str) -> MessageCounts:
        """What no channel that is open has counted."""
        return self.vhosts.setdefault(vhost, MessageCounts())

    def closed(self, vhost: str, counts: MessageCounts) -> MessageCounts:
        """A channel is over: what it had stays with its vhost, and so does what it may still have."""
        whole = self.of(vhost)
        whole.add(counts)
        return whole

    def forget(self, vhost: str) -> None:
        """What was counted of a vhost's messages is not told of the next one of its name."""
        self.gone.add(self.vhosts.pop(vhost, MessageCounts()))

    def counted(self, vhost: str | None, channels: Iterable[MessageCounts]) -> MessageCounts:
        """All that was counted, or what is of a vhost.  channels: those of it that are open."""
        kept = [*self.vhosts.values(), self.gone] if vhost is None else [self.of(vhost)]
        return MessageCounts(*map(sum, zip(*map(_EACH_OF, chain(kept, channels)), strict=True)))


STATS: Mapping[str, str] = {
    "publish": "published", "confirm": "confirmed", "return_unroutable": "unroutable_returned",
    "drop_unroutable": "unroutable_dropped", "deliver_get": "delivered", "deliver": "delivered_consume_manual_ack",
    "deliver_no_ack": "delivered_consume_auto_ack", "get": "delivered_get_manual_ack",
    "get_no_ack": "delivered_get_auto_ack", "get_empty": "get_empty", "ack": "acknowledged",
    "redeliver": "redelivered",
}  # fmt: skip
"""What RabbitMQ's API calls the counts of messages."""

_STATS_OF: Callable[[MessageCounts], Counts] = attrgetter(*STATS.values())
_EACH_OF: Callable[[MessageCounts], Counts] = attrgetter(*MessageCounts.__slots__)

NAMES = (
    "publish", "deliver_get", "deliver", "deliver_no_ack", "get", "get_no_ack", "ack", "redeliver",
)  # fmt: skip
"""Those of a queue."""

APART_US = 1_000_000

REMEMBERED = 20_000
"""Things whose last look is remembered."""


class Look(NamedTuple):
    """A look at the counts of one thing, to which later ones are compared."""

    mono: int
    counts: Counts
    rates: Sequence[float]  # a second, up to then
    since: int  # the first look that found these counts

    def later(self, mono: int, counts: Counts, *, falls: bool = False) -> Look:
        """The one to compare to from now on.  falls: whether counts may fall; else they have begun anew."""
        if mono - self.mono < APART_US:
            return self
        seconds, least = (mono - self.mono) / 1e6, -inf if falls else 0
        rates = [round(max(now - then, least) / seconds, 3) for now, then in zip(counts, self.counts, strict=True)]
        return Look(mono, counts, rates, self.since if counts == self.counts else mono)


def look(seen: Look | None, mono: int, counts: Counts, *, falls: bool = False) -> Look:
    """A later look, or the first one."""
    return Look(mono, counts, [0.0] * len(counts), mono) if seen is None else seen.later(mono, counts, falls=falls)


def with_rates(names: Iterable[str], counts: Counts, rates: Sequence[float]) -> dict[str, object]:
    """Counts by name, each with its rate."""
    found: dict[str, object] = {}
    for name, count, rate in zip(names, counts, rates, strict=True):
        found[name], found[f"{name}_details"] = count, {"rate": rate}
    return found


def queue_counts(queue: Queue) -> Counts:
    """In the order of `NAMES`."""
    if (figures := queue.figures) is None:
        return (queue.arrived,) + (0,) * (len(NAMES) - 1)
    others = figures.unacked, figures.gotten, figures.gotten_unacked
    usual = figures.delivered - sum(others)
    return queue.arrived, figures.delivered, usual, *others, figures.acked, figures.redelivered


class Rates:
    """The last look at each of some queues, or connections."""

    def __init__(self) -> None:
        self._seen = Remembered[Hashable, Look](REMEMBERED)
        # when, microseconds with room, the share then
        self._spare = Remembered[int, tuple[int, int, float]](REMEMBERED)

    def stats(self, queue: Queue, mono: int) -> dict[str, object]:
        return self.told(queue.id, mono, NAMES, queue_counts(queue))

    def told(
        self, key: Hashable, mono: int, names: Iterable[str], counts: Counts, *, falls: bool = False
    ) -> dict[str, object]:
        """Counts of one thing by name, each with its rate.  key: the id of a queue, or names."""
        seen = self._seen.get(key)
        latest = look(seen, mono, counts, falls=falls)
        if latest is not seen:
            self._seen.keep(key, latest)
        return with_rates(names, counts, latest.rates)

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
