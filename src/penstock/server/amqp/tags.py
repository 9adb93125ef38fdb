"""Delivery tags of one channel: which consumer's which message a tag means.

While acks come in order this is a deque of runs (first tag, consumer, chunk), and an ack cuts the front: no object a
message.  The first ack out of order turns the channel's runs into a dict by tag, until it is empty again.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING

from penstock.records.chunks import Chunk, as_chunk

if TYPE_CHECKING:
    from penstock.core.queue.consumers import Consumer

Settled = list["tuple[Consumer, Chunk]"]


class UnknownTag(Exception):
    """The client settled a tag that is not outstanding."""

    def __init__(self, tag: int) -> None:
        super().__init__(tag)
        self.tag = tag


class Tags:
    """Outstanding deliveries of a channel: `count` of them; `next` is the tag of the next delivery."""

    def __init__(self) -> None:
        self.next = 1
        self.count = 0
        self._runs: deque[tuple[int, Consumer, Chunk]] = deque()
        self._spread: dict[int, tuple[Consumer, int]] = {}

    def give(self, consumer: Consumer, chunk: Chunk, outstanding: bool) -> int:
        """The first of `len(chunk)` new tags; they stay outstanding unless the consumer does not ack."""
        first = self.next
        n = len(chunk)
        self.next = first + n
        if outstanding:
            self.count += n
            if self._spread:
                for offset, lsn in enumerate(chunk):
                    self._spread[first + offset] = (consumer, lsn)
            else:
                self._runs.append((first, consumer, chunk))
        return first

    def settle(self, low: int, high: int) -> Settled:
        """Take tags low..high (low 0: all up to high; 0, 0: all) out; raises UnknownTag and changes nothing.

        Returns chunks per consumer in tag order.
        """
        if low == 0:
            return self._settle_up_to(high)
        if self._spread:
            return self._settle_spread(low, high)
        runs = self._runs
        if not runs:
            raise UnknownTag(low)
        first, consumer, chunk = runs[0]
        if low == first:
            if high < first + len(chunk):  # the common case: within the oldest run
                n = high - first + 1
                self.count -= n
                if n == len(chunk):
                    runs.popleft()
                else:
                    runs[0] = (high + 1, consumer, chunk[n:])
                return [(consumer, chunk[:n])]
            last_first, _, last_chunk = runs[-1]
            if high < last_first + len(last_chunk) and self._gapless():
                return self._cut(high)
        self._scatter()
        return self._settle_spread(low, high)

    def all(self) -> Settled:
        """Everything outstanding, oldest first; nothing is outstanding afterwards."""
        return self._settle_up_to(0)

    def _settle_up_to(self, high: int) -> Settled:
        if high == 0:
            high = self.next - 1
        elif high >= self.next or not self._reaches(high):
            raise UnknownTag(high)
        if self._spread:
            return self._collect([tag for tag in self._spread if tag <= high])
        return self._cut(high)

    def _reaches(self, high: int) -> bool:
        """Whether the tag itself is outstanding: one that was settled before is unknown."""
        if self._spread:
            return high in self._spread
        return any(first <= high < first + len(chunk) for first, _, chunk in self._runs)

    def _gapless(self) -> bool:
        """No tag between the runs is missing (deliveries without ack leave gaps)."""
        expected = self._runs[0][0]
        for first, _, chunk in self._runs:
            if first != expected:
                return False
            expected = first + len(chunk)
        return True

    def _cut(self, high: int) -> Settled:
        out: Settled = []
        runs = self._runs
        while runs and runs[0][0] <= high:
            first, consumer, chunk = runs.popleft()
            n = high - first + 1
            if n < len(chunk):
                runs.appendleft((high + 1, consumer, chunk[n:]))
                chunk = chunk[:n]
            self.count -= len(chunk)
            out.append((consumer, chunk))
        return out

    def _scatter(self) -> None:
        for first, consumer, chunk in self._runs:
            for offset, lsn in enumerate(chunk):
                self._spread[first + offset] = (consumer, lsn)
        self._runs.clear()

    def _settle_spread(self, low: int, high: int) -> Settled:
        spread = self._spread
        for tag in range(low, high + 1):
            if tag not in spread:
                raise UnknownTag(tag)
        return self._collect(range(low, high + 1))

    def _collect(self, tags: range | list[int]) -> Settled:
        per: dict[Consumer, array[int]] = {}
        spread = self._spread
        for tag in tags:
            consumer, lsn = spread.pop(tag)
            per.setdefault(consumer, array("q")).append(lsn)
        self.count -= len(tags)
        return [(consumer, as_chunk(array("q", sorted(lsns)))) for consumer, lsns in per.items()]
