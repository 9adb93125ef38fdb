"""What a queue counts beside its messages: redeliveries, expirations by reason, how fast it is acknowledged.

Made when there is something to count.  Times from lease to acknowledgement go into buckets that grow by a quarter of an
octave, so a percentile is right within a quarter; one acknowledgement of several is looked at and stands for the
others.  There are so many buckets at most, and an acknowledgement costs the same for one message and ten thousand.
"""

from __future__ import annotations

import math

from penstock.core.queue.order.runs import Run

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
