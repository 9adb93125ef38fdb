"""Settlements of messages that are not at hand: acks for those to come, and one by filter for all that match.

An ack may come before its message: another instance gave the message its number and it has not come here yet, or it is
older than the queue, which may still take it up by its recovery point.  It is remembered for a while, and applied when
the message appears.  What the queue has had is stale instead, and is not remembered.  Bounded by time
(`deferred_ack_expiration`) and by number, since any reader can ask for more.

A settlement by filter goes through what was in the queue when the command came, in any state, whoever holds it, a
stretch at a time: what comes later is not touched, what goes elsewhere meanwhile is found there, and what is gone is
passed over.  The matching happens off the loop (`Scan`); between two stretches the queue lives on.  About each message
it is decided as for an ack by name.  What was delivered at most once and never acknowledged takes part for its own
receiver, whose backlog it fills.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.effects import Purpose, Scan, Scanned, Sink, Swept, Token, Verb
from penstock.core.queue.order.runs import NEVER, sorted_chunk, view
from penstock.core.queue.settling.leases import SLOT
from penstock.core.queue.whole import ACTIVE
from penstock.core.state.pending import DeferredAck, DeferredAcks, copies, forget, remember
from penstock.errors import QueueFull
from penstock.records.causes import TWIN
from penstock.records.chunks import Chunk, Now, as_chunk, pack_pairs, pairs_of
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from penstock.core.queue.dispatching.filtering import Matcher
    from penstock.core.queue.queue import Queue


DEFERRED_MOST = 100_000
"""Messages of one queue whose acks are remembered."""


class Deferred:
    """The deferred acks of all queues."""

    __slots__ = ("_known", "by_queue", "due", "lasting")

    def __init__(self, start: DeferredAcks | None = None) -> None:
        self.by_queue: DeferredAcks = copies(start or {})
        self.due = NEVER  # wall: nothing is forgotten before this
        self.lasting = set[int]()  # queues of which nothing is forgotten any more: a fault has stopped them
        self._known: dict[int, dict[int, set[int]]] = {}  # by queue and origin: what is remembered
        for queue, entries in self.by_queue.items():
            for entry in entries:
                self._known_of(queue, entry.origin).update(entry.lsns)
        self._set_due()

    def _known_of(self, queue: int, origin: int) -> set[int]:
        return self._known.setdefault(queue, {}).setdefault(origin, set())

    def count(self, queue: int) -> int:
        """How many messages of a queue are remembered."""
        return sum(map(len, self._known.get(queue, {}).values()))

    def add(
        self, now: Now, queue: Queue, origin: int, chunk: Chunk, verb: Verb, by: str, sink: Sink, *, twins: bool = False
    ) -> array[int]:
        """Remember an ACK or EXPIRE of these messages of an origin (ascending); those that are new.

        twins: a site has let them go because others are the same messages, which are not done by that.

        Errors: QueueFull when that would be more than there may be; nothing is remembered then.
        """
        if not queue.settings.deferred_ack_expiration:
            return array("q")
        there, before = self._known_of(queue.id, origin), self.count(queue.id)
        endless = len(chunk) > DEFERRED_MOST + len(there)  # a span may be of any length, and is not spread then
        lsns = array("q", () if endless else [lsn for lsn in chunk if lsn not in there])
        if endless or before + len(lsns) > DEFERRED_MOST:
            raise QueueFull(
                f"queue '{queue.name}' in vhost '{queue.vhost}' remembers {before} acks of messages that are not "
                f"there; {len(chunk) if endless else len(lsns)} more would be beyond {DEFERRED_MOST}"
            )
        if not lsns:
            return lsns
        until = now.wall + queue.settings.deferred_ack_expiration
        entry = DeferredAck(origin, TWIN if twins else verb.value, by, until, lsns)
        sink.record(Kind.DEFER, queue.name, entry.header(), pack_pairs(queue.id, entry.pairs()))
        remember(self.by_queue, queue.id, entry)
        there.update(lsns)
        self.due = min(self.due, until)
        return lsns

    def appeared(
        self, now: Now, queue: Queue, origin: int, chunk: Chunk, here: Chunk, sink: Sink, sites: Container[str] = (),
        twins: list[int] | None = None,
    ) -> int:  # fmt: skip
        """Messages of an origin (`chunk`, ascending) came into the queue, as `here`: do what was said about them.

        Returns how many left the queue by that.  sites: what these have said is done there, and no ack of a client.
        twins: takes those that went because others are the same messages.
        """
        affected, there = 0, self._known.get(queue.id, {}).get(origin)
        if not there or there.isdisjoint(chunk):
            return 0
        for entry in list(self.by_queue.get(queue.id, ())):
            if entry.origin != origin:
                continue
            both, _, places = np.intersect1d(np.frombuffer(entry.lsns, np.int64), view(chunk), return_indices=True)
            if not len(both):
                continue
            wanted = as_chunk(array("q", sorted(view(here)[places].tolist())))
            if entry.verb == TWIN:
                affected += queue.settled_elsewhere(now, wanted, entry.by, sink, [] if twins is None else twins)
            elif entry.by in sites:
                affected += queue.settled_elsewhere(now, wanted, entry.by, sink)
            else:
                affected += queue.settle(now, [wanted], Verb(entry.verb), sink, client=entry.by)
            self._forget(queue, origin, array("q", both.tolist()), sink)
        self._set_due()
        return affected

    def overdue(self, now: Now) -> list[int]:
        """Queues of which something has been remembered for long enough."""
        if now.wall < self.due:
            return []
        some = [number for number in self.by_queue if number not in self.lasting]
        return [number for number in some if any(entry.until <= now.wall for entry in self.by_queue[number])]

    def expire(self, now: Now, queue: Queue, sink: Sink) -> None:
        """Forget what has been remembered for long enough."""
        for entry in list(self.by_queue[queue.id]):
            if entry.until <= now.wall:
                self._forget(queue, entry.origin, entry.lsns, sink)
        self._set_due()

    def keep(self, queue: int) -> None:
        """Forget nothing of a queue any more."""
        self.lasting.add(queue)
        self._set_due()

    def queue_gone(self, number: int) -> None:
        """The queue was deleted, and its record says so."""
        self._known.pop(number, None)
        if self.by_queue.pop(number, None) is not None:
            self._set_due()

    def _forget(self, queue: Queue, origin: int, lsns: array[int], sink: Sink) -> None:
        pairs = pairs_of(as_chunk(lsns), False)
        sink.record(Kind.UNDEFER, queue.name, {"origin": str(origin)}, pack_pairs(queue.id, pairs))
        forget(self.by_queue, queue.id, origin, lsns)
        self._known_of(queue.id, origin).difference_update(lsns)

    def _set_due(self) -> None:
        lasting = self.lasting
        ends = (one.until for number, some in self.by_queue.items() if number not in lasting for one in some)
        self.due = min(ends, default=NEVER)


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


SWEEPS_MOST = 64
"""Settlements by filter at the same time."""


class Sweeps:
    """Those that are on their way."""

    def __init__(self) -> None:
        self._by_token: dict[Token, Sweep] = {}
        self._serial = 0  # of the last one

    def refuse_more(self) -> None:
        """QueueFull when there are as many as there may be."""
        if len(self._by_token) >= SWEEPS_MOST:
            raise QueueFull(f"{SWEEPS_MOST} settlements by filter are on their way; one more has to wait")

    def begin(
        self, queue: Queue, filter: Matcher, verb: Verb, client: str, answer: Callable[[int], None], sink: Sink
    ) -> None:
        """One more, of what is in the queue now."""
        self._serial += 1
        sweep = Sweep(queue, self._serial, filter, verb, client, answer)
        if sweep.ask(sink):
            self._by_token[sweep.token] = sweep

    def scanned(self, now: Now, answer: Scanned, there: Queue | None, sink: Sink) -> None:
        """A stretch was looked through, of the queue that has its number now."""
        sweep = self._by_token.get(answer.token)
        if sweep is None:
            return
        if there is not sweep.queue:
            sweep.end(sink)
            del self._by_token[answer.token]
        elif not sweep.scanned(now, answer.found[0], answer.upto, sink):
            del self._by_token[answer.token]

    def stopped(self, queue: Queue, sink: Sink) -> None:
        """A fault has stopped the queue: those who wait are told what was affected until then."""
        for token in [token for token, sweep in self._by_token.items() if sweep.queue is queue]:
            self._by_token.pop(token).end(sink)


def _everything(queue: Queue, client: str) -> Iterable[Chunk]:
    """All active messages, and what fills the client's backlog, in any order, as chunks that will not change."""
    yield from (chunk for chunk in queue.chunks(*ACTIVE) if len(chunk))
    for holder in queue.holders():
        if client and holder.client == client:
            yield from (run.chunk for run in holder.leases.held() if run.place == SLOT)


def _first(chunk: Chunk) -> int:
    return chunk[0]
