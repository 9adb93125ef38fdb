"""What a connection settles at once goes to the core in portions: one ack for a million messages holds nobody up.

The first portion is settled at once, each other one in a turn of its own.  Until then the consumer holds the messages;
nothing else can happen to them, for their tags are spent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from penstock.core.effects import Verb
from penstock.server.amqp.tags import Settled

if TYPE_CHECKING:
    from penstock.core.queue.settling.several import Acked
    from penstock.core.queue.view import Queue
    from penstock.server.amqp.session import Session

PORTION = 32_768
"""Messages in a portion, about; a range counts as few, however long."""

RANGE_WEIGHT = 64


class Settling:
    """What one connection has settled and the core does not know yet."""

    __slots__ = ("_left", "_session")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._left: deque[tuple[Settled, Verb]] = deque()

    def settle(self, settled: Settled, verb: Verb) -> None:
        """Settle chunks, those of one consumer together; of very much only the first part at once."""
        few = len(settled) == 1 or sum([len(chunk) for _, chunk in settled]) + RANGE_WEIGHT * len(settled) <= PORTION
        portions = [settled] if few else list(_portions(settled))
        self._now(portions[0], verb)
        if len(portions) > 1:
            if not self._left:
                self._session.engine.call_soon(self._step)
            self._left += ((portion, verb) for portion in portions[1:])

    def finish(self) -> None:
        """Settle all that is left."""
        while self._left:
            self._now(*self._left.popleft())

    def _step(self) -> None:
        if not self._left:
            return  # finished meanwhile
        self._now(*self._left.popleft())
        self._session.engine.arm()
        if self._left:
            self._session.engine.call_soon(self._step)

    def _now(self, settled: Settled, verb: Verb) -> None:
        session = self._session
        now = session.engine.now()
        if len(settled) == 1:
            consumer, chunk = settled[0]
            session.core.settle(now, consumer.queue, [chunk], verb, by=consumer)
            return
        each = [(consumer, [chunk for _, chunk in own]) for consumer, own in groupby(settled, key=itemgetter(0))]
        if verb is not Verb.ACK or len(each) == 1:
            for consumer, chunks in each:
                session.core.settle(now, consumer.queue, chunks, verb, by=consumer)
            return
        for queue, some in groupby(each, key=_queue_of):
            session.core.settle_several(now, queue, list(some))


def _queue_of(acked: Acked) -> Queue:
    return acked[0].queue


def _portions(settled: Settled) -> Iterator[Settled]:
    weight = start = 0
    for at, (_, chunk) in enumerate(settled):
        if weight >= PORTION:
            yield settled[start:at]
            weight, start = 0, at
        weight += RANGE_WEIGHT if isinstance(chunk, range) else len(chunk)
    yield settled[start:]
