"""What the core wants done in the world: deliver, reply, act, tell, work something out (`core.asks`).

Effects are plain values: the engine performs them after the LSN they name is durable.  Losing them in a crash is
allowed, for the log alone says what happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from penstock.records.chunks import Chunk
from penstock.records.dataclass import dataclass
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from penstock.core.actions.rules import Happening, Rule
    from penstock.core.asks import Ask
    from penstock.records.entries import Topic

ConsumerT = TypeVar("ConsumerT", covariant=True)
QueueT = TypeVar("QueueT", covariant=True)


class Verb(Enum):
    """How a delivery ends."""

    ACK = "ack"  # done
    CANCEL = (
        "cancel"  # back to its place after the queue's back-off; a failure and a cancel (nack, reject with requeue)
    )
    RELEASE = "release"  # back to its place at once, uncounted
    UNSEEN = "unseen"  # the same, and its delivery does not count either: whom it was for never saw it
    EXPIRE = "expire"  # refused for good: dead letter (nack, reject without requeue)


@dataclass(slots=True, eq=False)
class Deliver(Generic[ConsumerT, QueueT]):
    """Send these messages to the consumer, in this order, once `after` is durable (0: at once)."""

    consumer: ConsumerT
    queue: QueueT
    chunk: Chunk
    attempt: int  # of every message in the chunk; 1 is the first delivery that anybody may see
    redelivered: bool
    after: int
    until: int = 0  # microseconds since the epoch: when the lease ends by time; 0: it does not
    barrier: bool = False  # one message, to all subscriptions at once; nobody holds it and nobody acknowledges it
    others: int = 0  # with the first delivery of a barrier: how many more follow
    sends: int = 1  # the number of this one among all sends, those included that nobody saw: what its lease says


@dataclass(slots=True, eq=False)
class DeliverEach(Generic[ConsumerT, QueueT]):
    """Send each of these messages to a consumer of its own, at once; all consumers have one holder.

    What a `Deliver` for each would say: the first delivery of a message that is leased, of which nothing has to be
    durable.  `consumers[i]` gets `chunk[i]`, and each of them is here once.
    """

    consumers: Sequence[ConsumerT]
    queue: QueueT
    chunk: Chunk  # ascending
    until: int = 0  # as of a `Deliver`

    def singly(self) -> Iterator[Deliver[ConsumerT, QueueT]]:
        """The same, one by one."""
        for consumer, lsn in zip(self.consumers, self.chunk, strict=True):
            yield Deliver(consumer, self.queue, range(lsn, lsn + 1), 1, False, 0, self.until)


@dataclass(slots=True, eq=False)
class Reply:
    """Give a message to whoever waits at the address that is its topic's name.  No queue has it, and no log."""

    take: Callable[[Reply], None]
    topic: Topic
    properties: bytes
    body: bytes
    after: int = 0  # LSN that has to be durable first: the transaction's in which it was sent


@dataclass(slots=True, eq=False)
class Act:
    """Go on with an action at one of its steps, once `after` is durable; or tell that it failed there."""

    rule: Rule
    step: int
    happening: Happening
    hops: int  # actions before this one, each set off by the one before it
    after: int = 0
    failed: str = ""
    judged: bool = True  # its condition is known to be TRUE


@dataclass(slots=True, eq=False)
class Gone(Generic[QueueT]):
    """A queue's messages are acknowledged, or were removed as they were sent, and an action wants to know."""

    queue: QueueT
    chunks: Sequence[Chunk]
    after: int  # LSN of the record that says so


@dataclass(slots=True, eq=False)
class Dying:
    """A queue's messages leave without success, and wait for their letters: nobody can have them any more.

    No record says so before the letters are written.
    """

    queue: int  # its id
    chunks: Sequence[Chunk]


@dataclass(slots=True, eq=False)
class Cancelled(Generic[ConsumerT]):
    """The queue is gone under this consumer."""

    consumer: ConsumerT


@dataclass(slots=True, eq=False)
class Overdue:
    """A delivery stayed unsettled for longer than its consumer may keep it: tell whoever holds it, who ends it."""

    tell: Callable[[int], None]
    timeout: int  # microseconds


@dataclass(slots=True, eq=False)
class Swept:
    """A settlement by filter has gone through the queue: tell whoever asked how many messages it affected."""

    answer: Callable[[int], None]
    affected: int


Told: TypeAlias = "Cancelled[Any] | Overdue | Swept"
"""What somebody is told that is no message."""

Effect: TypeAlias = "Deliver[Any, Any] | DeliverEach[Any, Any] | Reply | Ask | Act | Gone[Any] | Dying | Told"
"""Any of them.  Queues and consumers, which make effects, are above this file: who names both says `Delivery`."""


def delivered(effects: Iterable[Effect]) -> Iterator[Deliver[Any, Any]]:
    """What of these is delivered, to one consumer after the other."""
    for effect in effects:
        if isinstance(effect, Deliver):
            yield effect
        elif isinstance(effect, DeliverEach):
            yield from effect.singly()


class Sink(Protocol):
    """Where a queue puts its records and effects: the outbox of the turn."""

    def record(
        self, kind: Kind, name: str, header: Mapping[str, object] | bytes | None = None, body: bytes = b""
    ) -> int:
        """Write a control record; returns its LSN."""
        ...

    def effect(self, effect: Effect, /) -> None:
        """Ask for something to be done."""
        ...
