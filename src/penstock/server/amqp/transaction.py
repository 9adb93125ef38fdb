"""What an AMQP channel keeps back: what is said between tx.select and tx.commit or tx.rollback, and answers that wait.

Publishes of a transaction lie here and are counted against the budget.  The tags of lent acks are spent, but the
deliveries are still held.  Answers wait that could not be sent at once, in the order of what was asked; what comes of a
request without being its answer goes behind those that are owed.  It knows nothing of what may be refused, nor why.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

from penstock.core.commands.transactions import Ending
from penstock.core.effects import Verb
from penstock.core.queue.queue import queue_of
from penstock.errors import MemoryShort, PreconditionFailed
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.compute import distinct_numbers, lsns_of
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes, Topic
from penstock.records.one_or_each import each, one_or_each
from penstock.records.schema import TRANSACTION_BYTES_MAX
from penstock.server.amqp.tags import SMALL, Tags, singly
from penstock.server.base.faults import Asker, asker_of
from penstock.server.transaction_memory import Charge
from penstock.wire.amqp import events

if TYPE_CHECKING:
    from penstock.core.queue.dispatching.consumers import Consumer
    from penstock.server.engine import Engine
    from penstock.wire.amqp.methods import Method


class Sender(Protocol):
    """A session."""

    def send(self, channel: int, method: Method, /) -> None:
        """A method frame, in order with what waits to be written."""


@dataclass(slots=True, eq=False)
class Answer:
    """An answer that waits: for what it promises, or for the answers before it."""

    method: Method | None  # None: `then` writes it
    then: Callable[[], None] | None = None  # run once it is on its way
    promise: bool = False  # it waits for the disk
    ready: bool = False
    lasts: bool = True  # it is owed also once the channel is over
    left: int = 0  # messages that were ready in its queue when a basic.get was granted its own


class Answers:
    """Those that could not be sent at once."""

    __slots__ = ("_number", "_session", "_waiting")

    def __init__(self, session: Sender, number: int) -> None:
        self._session = session
        self._number = number
        self._waiting: deque[Answer] | None = None  # an empty deque is large

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def asker(self) -> Asker | None:
        return asker_of(self._session)

    @property
    def promising(self) -> bool:
        """Whether one of them waits for the disk."""
        return any(one.promise and not one.ready for one in self._waiting or ())

    def add(self, method: Method, then: Callable[[], None] | None = None) -> Answer:
        """An answer that takes its place in the order now and leaves when it is `ready`."""
        answer = Answer(method, then)
        self._append(answer)
        return answer

    def wait(self) -> Answer:
        """Something that the last word waits for, whatever else is owed; say nothing more of it than `ready`."""
        answer = Answer(None, promise=True)
        self._append(answer)
        return answer

    def _append(self, answer: Answer) -> None:
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append(answer)

    def tell(self, write: Callable[[], None]) -> None:
        """Say something that is no answer, behind all that are owed."""
        if self._waiting:
            self._append(Answer(None, write, ready=True))
        else:
            write()

    def ready(self, answer: Answer) -> None:
        """What an answer waited for has come."""
        answer.ready = True
        self._go_on()

    def close(self, last: Callable[[], None]) -> None:
        """The channel is over: of what is owed that goes out which can still come true, then the last word."""
        owed = [one for one in self._waiting or () if one.lasts and (one.ready or one.promise)]
        for one in owed:
            if one.method is not None:
                one.then = None
        self._waiting = deque([*owed, Answer(None, last, ready=True, lasts=False)])
        self._go_on()

    def break_promises(self) -> None:
        """What waits for the disk never comes true."""
        self._waiting = deque([one for one in self._waiting or () if one.ready or not one.promise])
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self._waiting[0].ready:
            first = self._waiting.popleft()
            if first.method is not None:
                self._session.send(self._number, first.method)
            if first.then is not None:
                first.then()
        if not self._waiting:
            self._waiting = None


ROW_COST = 128
"""Bytes a message counts for beyond its body and header."""

END_COST = 16
"""Bytes a lent delivery counts for."""


class Open:
    """The transaction of one channel: always open once tx.select was said, and empty after each end."""

    __slots__ = (
        "_bodies", "_core", "_ends", "_headers", "_runs", "_size", "_tags", "_topics", "acknowledged", "charge",
    )  # fmt: skip

    def __init__(self, engine: Engine, tags: Tags, user: str, name: str, cut: Callable[[MemoryShort], object]) -> None:
        """name: of what it is, for who is told.  cut: closes the channel, for memory is short."""
        self._core = engine.core
        self._tags = tags
        self._runs: list[events.PublishRun] = []
        self._topics, self._headers, self._bodies = list[Topic](), list[bytes](), list[bytes]()  # of all their rows
        self._ends: dict[tuple[Consumer, Verb], array[int]] = {}  # messages, as they were settled
        self.acknowledged = 0  # deliveries
        self._size = 0  # bytes of bodies and headers
        self.charge = Charge(engine.charges, user, name, cut)

    # -- while it is open

    def publish(self, run: events.PublishRun, topics: Topic | list[Topic]) -> None:
        """Keep messages.  Raises what a header is refused for, PreconditionFailed or MemoryShort beyond the bounds."""
        batch = Publishes(topics, run.properties, run.bodies)
        for _, refusal in self._core.refused_headers(batch):
            raise refusal
        size = sum(map(len, run.bodies))
        if isinstance(run.properties, list):
            size += sum(map(len, run.properties))
        else:
            size += len(run.properties) * len(run.bodies)
        if self._size + size > TRANSACTION_BYTES_MAX:
            raise PreconditionFailed(
                f"a transaction may have {TRANSACTION_BYTES_MAX} bytes of messages, and this one is at "
                f"{self._size + size}: it is rolled back"
            )
        self.charge.add(size + ROW_COST * len(run.bodies))
        self._size += size
        self._runs.append(run)
        self._topics += each(topics, len(run.bodies))
        self._headers += each(run.properties, len(run.bodies))
        self._bodies += run.bodies

    def settle(self, low: int, high: int, verb: Verb) -> None:
        """Lend deliveries.  Raises UnknownTag."""
        lent = singly(self._tags.lend(low, high))
        count = sum([len(chunk) for _, chunk in lent])
        self.charge.add(END_COST * count)
        if verb is Verb.ACK:
            self.acknowledged += count
        for consumer, chunk in lent:
            lsns = self._ends.get((consumer, verb))
            if lsns is None:
                lsns = self._ends[consumer, verb] = array("q")
            if len(chunk) < SMALL:
                lsns.extend(chunk)
            else:
                lsns.frombytes(lsns_of(chunk).tobytes())

    def forget(self) -> None:
        """It has ended; what it was charged is given back."""
        self.charge.end()
        self._runs, self._topics, self._headers, self._bodies = [], [], [], []
        self._ends, self._size, self.acknowledged = {}, 0, 0

    def close(self) -> None:
        """The channel is over: nothing of it is done."""
        self.forget()
        self.charge.close()

    def keep(self) -> None:
        """It was committed: what it settled is settled for good."""
        self._tags.keep()
        self.forget()

    def roll_back(self) -> None:
        """Publishes are forgotten, and what was settled is outstanding again."""
        self._tags.take_back()
        self.forget()

    # -- what it comes to

    def batch(self) -> Publishes | None:
        """All its messages in order, as one batch."""
        if not self._bodies:
            return None
        return Publishes(one_or_each(self._topics), one_or_each(self._headers), self._bodies, size=self._size)

    def endings(self) -> list[Ending]:
        """What it settled: of each consumer what ends in one way together, in the order of the messages."""
        return [
            Ending(queue_of(consumer), [_ascending(lsns)], verb, by=consumer)
            for (consumer, verb), lsns in self._ends.items()
        ]

    @property
    def published(self) -> int:
        """How many messages it holds."""
        return len(self._bodies)

    def found(self, rows: Iterable[int]) -> list[tuple[events.PublishRun, int]]:
        """For each of some of its messages its run, and its row there."""
        starts = [0, *accumulate(len(run.bodies) for run in self._runs)]
        places = [(row, bisect_right(starts, row) - 1) for row in rows]
        return [(self._runs[at], row - starts[at]) for row, at in places]


def _ascending(lsns: array[int]) -> Chunk:
    return as_chunk(array("q", distinct_numbers(lsns_of(lsns)).tobytes()))
