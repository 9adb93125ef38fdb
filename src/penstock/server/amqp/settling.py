"""What a connection settles at once goes to the core in portions: one ack for a million messages holds nobody up.

The first portion is settled at once, each other one in a turn of its own.  Until then the consumer holds the messages;
nothing else can happen to them, for their tags are spent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from penstock.core.effects import Verb
from penstock.core.queue.queue import queue_of
from penstock.server.amqp.tags import Owner, Settled, singly

if TYPE_CHECKING:
    from penstock.core.queue.dispatching.consumers import Consumer
    from penstock.core.queue.queue import Queue
    from penstock.core.queue.settling.settle import Acked
    from penstock.records.chunks import Chunk, Now
    from penstock.server.engine import Engine

PORTION = 32_768
"""Messages in a portion, about; a range counts as few, however long."""

RANGE_WEIGHT = 64

EACH_WEIGHT = 16
"""What a message counts for that has a consumer of its own."""


class Settling:
    """What one connection has settled and the core does not know yet."""

    __slots__ = ("_engine", "_left")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._left: deque[tuple[Settled, Verb]] = deque()

    def settle(self, settled: Settled, verb: Verb) -> None:
        """Settle chunks, those of one consumer together; of very much only the first part at once."""
        few = len(settled) == 1
        if not few:
            weight = sum([_weight(owner, chunk) for owner, chunk in settled])
            few = weight + RANGE_WEIGHT * len(settled) <= PORTION
        portions = [settled] if few else list(_portions(settled))
        self._now(portions[0], verb)
        if len(portions) > 1:
            if not self._left:
                self._engine.call_soon(self._step)
            self._left += ((portion, verb) for portion in portions[1:])

    def finish(self) -> None:
        """Settle all that is left."""
        while self._left:
            self._now(*self._left.popleft())

    def _step(self) -> None:
        if not self._left:
            return  # finished meanwhile
        self._now(*self._left.popleft())
        self._engine.arm()
        if self._left:
            self._engine.call_soon(self._step)

    def _now(self, settled: Settled, verb: Verb) -> None:
        core, now = self._engine.core, self._engine.now()
        if len(settled) == 1 and not isinstance(consumer := settled[0][0], list):
            core.settle(now, queue_of(consumer), [settled[0][1]], verb, by=consumer)
            return
        if verb is not Verb.ACK:
            for consumer, chunks in _by_consumer(singly(settled)):
                core.settle(now, queue_of(consumer), chunks, verb, by=consumer)
            return
        alone: list[tuple[Consumer, Chunk]] = []
        for owner, chunk in settled:
            if isinstance(owner, list):
                self._several(now, alone)
                alone = []
                core.settle_each(now, queue_of(owner[0]), owner, chunk)
            else:
                alone.append((owner, chunk))
        self._several(now, alone)

    def _several(self, now: Now, settled: Sequence[tuple[Consumer, Chunk]]) -> None:
        core = self._engine.core
        for queue, some in groupby(_by_consumer(settled), key=_queue_of):
            each = list(some)
            if len(each) > 1:
                core.settle_several(now, queue, each)
            else:
                core.settle(now, queue, each[0][1], Verb.ACK, by=each[0][0])


def _by_consumer(settled: Sequence[tuple[Consumer, Chunk]]) -> Iterator[Acked]:
    for consumer, own in groupby(settled, key=itemgetter(0)):
        yield consumer, [chunk for _, chunk in own]


def _queue_of(acked: Acked) -> Queue:
    return queue_of(acked[0])


def _portions(settled: Settled) -> Iterator[Settled]:
    weight = start = 0
    for at, (owner, chunk) in enumerate(settled):
        if weight >= PORTION:
            yield settled[start:at]
            weight, start = 0, at
        weight += _weight(owner, chunk)
    yield settled[start:]


def _weight(owner: Owner, chunk: Chunk) -> int:
    if isinstance(owner, list):
        return EACH_WEIGHT * len(owner)
    return RANGE_WEIGHT if isinstance(chunk, range) else len(chunk)
