"""Levels: the property `priority` as the order of a queue, as RabbitMQ's `x-max-priority` has it.

    level = min(priority, most), 0 without one

With ageing A each A of age counts as much as one level.  A message published at t has at T the worth
level + (T - t) / A; of two messages the difference is that of `level * A - t`, whatever T is, so their order is known
when they come and never changes.  It knows headers of messages, and no queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

from penstock.core.queue.priority.ranks import LOWEST, rank_of
from penstock.errors import ProtocolError
from penstock.expr import Value, compile_value
from penstock.records import properties as header_codec
from penstock.records.queue_settings import LEVELS

ZERO_US = 1 << 60
"""With ageing the age of a message counts from here on back: far beyond any time, so that no worth is negative."""

MEMO_MOST = 4096
"""Different headers that are remembered within one batch."""


class Levels:
    """The order by levels, in the shape of a compiled expression."""

    needs_body = False
    needs: frozenset[str] = frozenset()

    def __init__(self, text: str) -> None:
        self.text = text
        most, ageing = text.removeprefix(LEVELS).split(",")
        self.most = int(most)
        self.ageing = int(ageing)
        if self.ageing:
            self.needs = frozenset(("time",))

    def ranks(self, properties: bytes | Sequence[bytes], count: int, times: int | Sequence[int]) -> list[int]:
        """The rank of each of `count` messages.  times: microseconds since the epoch, of all or of each."""
        if isinstance(properties, bytes):
            levels = [self.level(properties)] * count
        else:
            memo: dict[bytes, int] = {}
            levels = list[int]()
            for data in properties:
                if (level := memo.get(data)) is None:
                    level = self.level(data)
                    if len(memo) < MEMO_MOST:
                        memo[data] = level
                levels.append(level)
        if not self.ageing:
            return [LOWEST - 1 - level for level in levels]
        ageing = self.ageing
        if isinstance(times, int):
            return [rank_of(level * ageing + ZERO_US - times) for level in levels]
        return [rank_of(level * ageing + ZERO_US - time) for level, time in zip(levels, times, strict=True)]

    def level(self, properties: bytes) -> int:
        """The level of a message with this header; of a header that cannot be read 0."""
        if header_codec.plain_mode(properties) >= 0:
            return 0
        try:
            priority = header_codec.peek(properties)[1]
        except ProtocolError:
            return 0
        return min(priority or 0, self.most)


Ranking: TypeAlias = "Levels | Value"


@lru_cache(maxsize=1024)
def compile_ranking(text: str) -> Ranking:
    """What a queue's `rank_text` stands for.  ExpressionError for an expression that cannot be read."""
    return Levels(text) if text.startswith(LEVELS) else compile_value(text)
