"""A settlement by filter: every message of the queue that matches is settled, whoever holds it.

It goes through what was in the queue when the command came, in any state, a stretch at a time: what comes later is not
touched, what goes elsewhere meanwhile is found there, and what is gone is passed over.  The matching happens off the
loop (`Scan`); between two stretches the queue lives on.  `leasing` decides about each message as it does for an ack by
name.  What was delivered at most once and never acknowledged takes part for its own receiver, whose backlog it fills.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from penstock.core.asks import Purpose, Scan, Token
from penstock.core.effects import Sink, Swept, Verb
from penstock.core.queue.order.runs import sorted_chunk
from penstock.core.queue.settling.leases import SLOT
from penstock.records.chunks import Chunk, Now, as_chunk

if TYPE_CHECKING:
    from penstock.core.queue.dispatching.filtering import Matcher
    from penstock.core.queue.queue import Queue

STRETCH = 16_384
"""Messages that are looked through together, where they lie scattered; a long range is one stretch."""


class Sweep:
    """One settlement by filter on its way."""

    __slots__ = ("_answer", "_asked", "_client", "_filter", "_left", "_verb", "affected", "queue", "token")

    def __init__(
        self, queue: Queue, serial: int, filter: Matcher, verb: Verb, client: str, answer: Callable[[int], None]
    ) -> None:
        """serial: tells it from others of the core.  answer: hears the number of messages affected, at the end."""
        self.queue = queue
        self.token = Token(queue.id, serial, Purpose.SWEEP)
        self.affected = 0
        self._filter = filter
        self._verb = verb
        self._client = client
        self._answer = answer
        self._left: deque[Chunk] = deque(sorted(_everything(queue, client), key=_first))
        self._asked: Chunk = range(0)

    def ask(self, sink: Sink) -> bool:
        """Have the next stretch looked through; False at the end, where it answers."""
        left = self._left
        if not left:
            sink.effect(Swept(self._answer, self.affected))
            return False
        parts = [left.popleft()]
        size = len(parts[0])
        while left and size + len(left[0]) <= STRETCH:
            parts.append(left.popleft())
            size += len(parts[-1])
        self._asked = sorted_chunk(parts)
        sink.effect(Scan(self.token, (self._filter,), self._asked))
        return True

    def scanned(self, now: Now, lsns: Iterable[int], upto: int, sink: Sink) -> bool:
        """What was looked through up to `upto`, and what of it matches, is settled; then as `ask`."""
        asked = self._asked
        if upto < asked[-1]:
            self._left.appendleft(asked[bisect_right(asked, upto) :])
        found = as_chunk(array("q", lsns))
        if len(found):
            self.affected += self.queue.settle(now, [found], self._verb, sink, client=self._client)
        return self.ask(sink)

    def end(self, sink: Sink) -> None:
        """The queue is gone, and with it what was left to look through."""
        self._left.clear()
        self.ask(sink)


def _everything(queue: Queue, client: str) -> Iterable[Chunk]:
    """All active messages, and what fills the client's backlog, in any order, as chunks that will not change."""
    contained = queue.capture()
    if contained is not None:
        yield from (chunk for chunk in contained.active() if len(chunk))
    for holder in queue.holders():
        if client and holder.client == client:
            yield from (run.chunk for run in holder.leases.held() if run.place == SLOT)


def _first(chunk: Chunk) -> int:
    return chunk[0]
