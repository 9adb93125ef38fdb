"""What the settings of a queue allow to be ready, and what they say about the rest.

A limit counts ready messages alone: what is leased, delayed or dying is outside, whatever its number.  It is exceeded
by strictly more.  It knows no message; what is removed for it, and when, stands in `trimming` and `ring`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from penstock.core.queue.order.runs import NEVER

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents
    from penstock.records.queue_settings import QueueSettings


class Limits:
    """Of one queue.  `NEVER`: no limit."""

    __slots__ = ("blocks", "drops", "length", "letters", "rejects", "ring", "silent", "size")

    def __init__(self, settings: QueueSettings) -> None:
        self.length = NEVER if settings.max_length is None else settings.max_length
        self.size = NEVER if settings.max_length_bytes is None else settings.max_length_bytes
        self.ring = settings.ring_size if settings.ring_size >= 0 else NEVER
        bounded = self.length < NEVER or self.size < NEVER
        self.rejects = bounded and settings.overflow != "drop-head"  # newcomers are refused
        self.silent = self.rejects and settings.overflow == "drop-newest"  # and nobody is told
        self.blocks = self.rejects and settings.overflow == "block"  # and whoever can wait for room does
        self.letters = self.rejects and settings.overflow == "reject-publish-dlx"  # and become dead letters
        self.drops = bounded and not self.rejects  # the head gives way

    def yields(self, queue: Contents, count: int, size: int) -> bool:
        """Whether something may give way to so many newcomers, of so many bytes together."""
        if queue.ready + count > self.ring:
            return True
        return self.drops and (queue.ready + count > self.length or queue.weight + size > self.size)

    def fit(self, queue: Contents, size: int) -> bool:
        """Whether there is room for one more message, of so many bytes."""
        return queue.ready < self.length and (self.size == NEVER or queue.weight + size <= self.size)

    def ever_fit(self, size: int) -> bool:
        """Whether there is if nothing else is ready."""
        return self.length > 0 and size <= self.size

    def exceeded(self, queue: Contents) -> bool:
        """Whether more is ready than is allowed."""
        return queue.ready > self.length or queue.weight > self.size


@lru_cache(256)
def limits_of(settings: QueueSettings) -> Limits | None:
    """The limits in these settings; None without any."""
    if settings.max_length is None and settings.max_length_bytes is None and settings.ring_size < 0:
        return None
    return Limits(settings)
