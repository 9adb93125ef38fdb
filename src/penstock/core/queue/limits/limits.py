"""What the settings of a queue allow to be ready, and what they say about the rest.

A limit counts ready messages alone: what is leased, delayed or dying is outside, whatever its number.  It is exceeded
by strictly more.  It knows no message; what is removed for it, and when, stands in `trimming`.

Rates are so many messages in so much time, as a bucket of tokens that fills evenly and holds what one period gives.
Levels are whole numbers, tokens times microseconds, so nothing is ever rounded away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.queue.order.runs import NEVER
from penstock.core.sizes.sizes import Sizes
from penstock.records.chunks import Chunk

if TYPE_CHECKING:
    from penstock.core.queue.whole import Whole
    from penstock.records.queue_settings import Overflow, QueueSettings


class Overflowing(NamedTuple):
    """What becomes of messages for which there is no room."""

    drops: bool = False  # the head gives way
    rejects: bool = False  # newcomers are refused
    silent: bool = False  # and nobody is told
    letters: bool = False  # and become dead letters
    blocks: bool = False  # and whoever can wait for room does


MODES: Mapping[Overflow, Overflowing] = {
    "drop-head": Overflowing(drops=True),
    "reject-publish": Overflowing(rejects=True),
    "reject-publish-dlx": Overflowing(rejects=True, letters=True),
    "drop-newest": Overflowing(rejects=True, silent=True),
    "block": Overflowing(rejects=True, blocks=True),
}


class Limits:
    """Of one queue.  `NEVER`: no limit."""

    __slots__ = ("blocks", "drops", "length", "letters", "rejects", "ring", "silent", "size")

    def __init__(self, settings: QueueSettings) -> None:
        self.length = NEVER if settings.max_length is None else settings.max_length
        self.size = NEVER if settings.max_length_bytes is None else settings.max_length_bytes
        self.ring = settings.ring_size if settings.ring_size >= 0 else NEVER
        bounded = self.length < NEVER or self.size < NEVER
        mode = MODES[settings.overflow] if bounded else Overflowing()
        self.drops, self.rejects, self.silent, self.letters, self.blocks = mode

    def yields(self, queue: Whole, count: int, size: int) -> bool:
        """Whether something may give way to so many newcomers, of so many bytes together."""
        if queue.ready + count > self.ring:
            return True
        return self.drops and (queue.ready + count > self.length or queue.weight + size > self.size)

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


class Weighing:
    """Weighs what was ready as it began; what came and went since is counted in the queue's `weight`, beside `UNKNOWN`.

    It asks a copy of the sizes, for those of messages that have gone are forgotten.
    """

    __slots__ = ("_chunks", "_sizes", "total")

    def __init__(self, chunks: Iterable[Chunk], sizes: Sizes) -> None:
        self._chunks = list(chunks)
        self._chunks.reverse()
        self._sizes = sizes.copy()
        self.total = 0  # bytes of those that were looked at

    def go_on(self, most: int) -> bool:
        """Weigh so many more, or a few; whether it is over."""
        chunks = self._chunks
        while chunks and most > 0:
            chunk = chunks.pop()
            if len(chunk) > most and not isinstance(chunk, range):
                chunks.append(chunk[most:])
                chunk = chunk[:most]
            self.total += self._sizes.total(chunk)
            most -= 1 if isinstance(chunk, range) else len(chunk)
        return not chunks
