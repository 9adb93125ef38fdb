"""What the settings of a queue allow to be ready, what they say about the rest, and what the queue counts.

A limit counts ready messages alone: what is leased, delayed or dying is outside, whatever its number.  It is exceeded
by strictly more.  It knows no message; what is removed for it, and when, stands in `trimming`.

Rates are so many messages in so much time, as a bucket of tokens that fills evenly and holds what one period gives.
Levels are whole numbers, tokens times microseconds, so nothing is ever rounded away.

Figures are made when there is something to count.  Times from lease to acknowledgement go into buckets that grow by a
quarter of an octave, so a percentile is right within a quarter; one acknowledgement of several is looked at and stands
for the others: it costs the same for one message and ten thousand.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from penstock.core.queue.order.runs import NEVER, Run
from penstock.records.queue_settings import MODES, Overflowing, QueueSettings

if TYPE_CHECKING:
    from penstock.core.queue.whole import Whole


UNLIMITED = Overflowing()


class Limits:
    """Of one queue.  `NEVER`: no limit."""

    __slots__ = ("length", "mode", "ring", "size")

    def __init__(self, settings: QueueSettings) -> None:
        self.length = NEVER if settings.max_length is None else settings.max_length
        self.size = NEVER if settings.max_length_bytes is None else settings.max_length_bytes
        self.ring = settings.ring_size if settings.ring_size >= 0 else NEVER
        bounded = self.length < NEVER or self.size < NEVER
        self.mode = MODES[settings.overflow] if bounded else UNLIMITED

    def yields(self, queue: Whole, count: int, size: int) -> bool:
        """Whether something may give way to so many newcomers, of so many bytes together."""
        if queue.ready + count > self.ring:
            return True
        return self.mode.drops_head and (queue.ready + count > self.length or queue.weight + size > self.size)

    def fit(self, queue: Whole, size: int) -> bool:
        """Whether there is room for one more message, of so many bytes."""
        return queue.ready < self.length and (self.size == NEVER or queue.weight + size <= self.size)

    def ever_fit(self, size: int) -> bool:
        """Whether there is if nothing else is ready."""
        return self.length > 0 and size <= self.size

    def exceeded(self, queue: Whole) -> bool:
        """Whether more is ready than is allowed."""
        return queue.ready > self.length or queue.weight > self.size


@lru_cache(256)
def limits_of(settings: QueueSettings) -> Limits | None:
    """The limits in these settings; None without any."""
    if settings.max_length is None and settings.max_length_bytes is None and settings.ring_size < 0:
        return None
    return Limits(settings)


SOONEST_US = 1_000
"""After an empty bucket nobody looks again before this: of a high rate several go together."""


class Pace:
    """A bucket: full at first."""

    __slots__ = ("_at", "_level", "count", "due", "period")

    def __init__(self, count: int, period: int, mono: int = 0) -> None:
        """count: messages in each `period` of microseconds."""
        self.count = count
        self.period = period
        self._level = count * period
        self._at = mono
        self.due = NEVER  # when there is a token again for who found none, on the monotonic clock

    def allowed(self, mono: int) -> int:
        """How many may go now; with none `due` says when to ask again."""
        if mono > self._at:
            self._level = min(self._level + (mono - self._at) * self.count, self.count * self.period)
            self._at = mono
        if self._level >= self.period:
            self.due = NEVER
            return self._level // self.period
        self.due = mono + max(-(-(self.period - self._level) // self.count), SOONEST_US)
        return 0

    def tick(self, mono: int) -> None:
        """There is a token again for who found none; whoever still wants one asks."""
        if self.due <= mono:
            self.due = NEVER

    def wait(self, mono: int) -> int:
        """Microseconds until one more may go; 0: at once.  Asking changes nothing."""
        level = self._level + max(mono - self._at, 0) * self.count
        return max(-(-(self.period - level) // self.count), 0)

    def spend(self, count: int) -> None:
        """Take tokens for so many messages."""
        self._level = max(self._level - count * self.period, 0)

    def full(self, mono: int) -> bool:
        """Whether it is as good as a new one."""
        return self._level + max(mono - self._at, 0) * self.count >= self.count * self.period


SLEEPING_MOST = 1024
"""Buckets of tenants without messages before those that are full are forgotten."""


class Sleeping:
    """The buckets of tenants that have no message now, by their keys."""

    __slots__ = ("_buckets", "_sweep_at")

    def __init__(self) -> None:
        self._buckets: dict[str, Pace] = {}
        self._sweep_at = SLEEPING_MOST

    def add(self, text: str, pace: Pace, mono: int) -> None:
        """A tenant has lost its last message; its bucket is not full."""
        self._buckets[text] = pace
        if len(self._buckets) > self._sweep_at:
            self._buckets = {name: one for name, one in self._buckets.items() if not one.full(mono)}
            self._sweep_at = max(SLEEPING_MOST, 2 * len(self._buckets))

    def wake(self, text: str) -> Pace | None:
        """The bucket of a tenant that has messages again; None: it is full."""
        return self._buckets.pop(text, None)


BUCKETS = 164
"""Up to 2^42 microseconds: 50 days."""

EVERY = 8
"""Acknowledged messages for each one that is looked at, after the first `FIRST`."""

FIRST = 256

RATE_US = 10_000_000
"""Over about how long the rate of acknowledgements is taken."""

QUANTILES = (0.5, 0.9, 0.99, 0.999)


class Figures:
    """Counts of one queue since the start of the process."""

    __slots__ = (
        "_buckets", "_rate", "_rated_at", "acked", "delivered", "dropped", "expirations", "expired_leases", "gotten",
        "gotten_unacked", "letters_refused", "redelivered", "refused", "replaced", "sampled", "stale", "step",
        "unacked", "unsampled",
    )  # fmt: skip

    def __init__(self, mono: int = 0) -> None:
        self.delivered = 0  # of them, to who asked for some: with acknowledgement, without; and to consumers without
        self.gotten = self.gotten_unacked = self.unacked = 0
        self.redelivered = 0
        self.acked = 0
        self.stale = 0  # settled by who did not hold it any more
        self.expired_leases = 0  # deliveries that ended by time
        self.dropped = 0  # gave way to a limit at the head
        self.replaced = 0  # gave way to a newer message of a ring
        self.refused = 0  # did not come in, for a limit was met
        self.letters_refused = 0  # dead letters that a target had no room for, each time they were tried
        self.expirations: dict[str, int] | None = None  # messages by reason
        self.unsampled = 0  # acknowledged since one was looked at
        self.step = 1
        self.sampled = 0  # acknowledged messages that the buckets stand for
        self._buckets: dict[int, int] | None = None  # those that there are
        self._rate = 0.0  # messages a microsecond, as of `_rated_at`
        self._rated_at = mono

    def sample(self, mono: int, run: Run) -> None:
        """An acknowledged run, which stands for all that were acknowledged since the last one."""
        count, self.unsampled = self.unsampled, 0
        elapsed = max(mono - self._rated_at, 1)
        fresh = -math.expm1(-elapsed / RATE_US)
        self._rate += fresh * (count / elapsed - self._rate)
        self._rated_at = mono
        if not run.granted:
            return
        self.sampled += count
        if self.sampled > FIRST:
            self.step = EVERY
        buckets = self._buckets
        if buckets is None:
            buckets = self._buckets = {}
        place = bucket(mono - run.granted)
        buckets[place] = buckets.get(place, 0) + count

    def handed(self, count: int, *, asked: bool, no_ack: bool) -> None:
        """So many deliveries are no usual ones: somebody asked for them, or acknowledges nothing."""
        if not asked:
            self.unacked += count
        elif no_ack:
            self.gotten_unacked += count
        else:
            self.gotten += count

    def expired(self, reasons: str, count: int) -> None:
        """Messages expired for these reasons; each counts."""
        counts = self.expirations
        if counts is None:
            counts = self.expirations = {}
        for reason in reasons.split(","):
            counts[reason] = counts.get(reason, 0) + count

    def rate(self, mono: int) -> float:
        """Acknowledged messages a second at present."""
        return self._rate * math.exp(-max(mono - self._rated_at, 0) / RATE_US) * 1_000_000

    def quantiles(self) -> dict[float, float]:
        """Seconds from lease to acknowledgement within which a share of messages was; empty without any."""
        buckets = self._buckets
        if buckets is None:
            return {}
        total = sum(buckets.values())
        out: dict[float, float] = {}
        seen, wanted = 0, iter(QUANTILES)
        quantile = next(wanted)
        for place, count in sorted(buckets.items()):
            seen += count
            while seen >= quantile * total:
                out[quantile] = upper(place) / 1e6
                following = next(wanted, None)
                if following is None:
                    return out
                quantile = following
        return out


NOTHING_COUNTED = Figures()
"""Stands for those of a queue that has counted nothing yet; nobody counts here."""


def bucket(micros: int) -> int:
    """The bucket of a duration."""
    if micros < 4:
        return max(micros, 0)
    bits = micros.bit_length()
    return min(4 * (bits - 2) + (micros >> (bits - 3) & 3), BUCKETS - 1)


def upper(place: int) -> int:
    """The longest duration of a bucket, in microseconds."""
    if place < 4:
        return place
    octave, quarter = divmod(place, 4)
    return ((5 + quarter) << (octave - 1)) - 1
