"""What the core wants of the world: deliver, reply, act, tell; or that something is worked out, and the answer to that.

Effects are plain values: the engine performs them after the LSN they name is durable.  Losing them in a crash is
allowed, for the log alone says what happened, and a start asks anew.

    a queue or a command  --Ask-->  the engine, off the loop where that takes long  --Answer-->  `Core.answered`

The token of an ask names who asked, and the answer brings it back; an answer that nobody waits for any more does
nothing.  Where an ask is about a chunk, the answer may be for the first part of it alone (`upto`); the rest is asked
for again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.records.chunks import Chunk
from penstock.records.dataclass import dataclass
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from penstock.core.action_rules import Happening, Rule
    from penstock.core.queue.order.ranks import Ranking
    from penstock.core.state.pending import Spans
    from penstock.errors import PenstockError
    from penstock.expr import Filter, Matcher, Value
    from penstock.expr.json_schema import BodyCheck
    from penstock.records.entries import Publishes, Rows, Topic
    from penstock.records.queue_settings import QueueSettings


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
    """Run an action from one of its steps on, once `after` is durable; or report that it failed there."""

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


class Part(NamedTuple):
    """A part of the core that a fault stops alone."""

    kind: str  # queue, topic, stream, publishers
    vhost: str = ""
    name: str = ""

    def __str__(self) -> str:
        named = f"{self.kind} '{self.name}'" if self.name else self.kind
        return f"{named} in vhost '{self.vhost}'" if self.vhost else named


def names_of(parts: Iterable[Part]) -> str:
    """In a sentence for people."""
    return ", ".join(map(str, parts))


@dataclass(slots=True, eq=False)
class Stopped:
    """A fault has stopped these: nothing falls due there before the next start, and such a queue gives nothing."""

    parts: Sequence[Part]
    error: Exception


@dataclass(slots=True, eq=False)
class Cancelled(Generic[ConsumerT]):
    """The queue is gone under this consumer, or gives nothing any more."""

    consumer: ConsumerT
    why: PenstockError


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

Effect: TypeAlias = "Deliver[Any, Any] | DeliverEach[Any, Any] | Reply | Ask | Act | Gone[Any] | Dying | Stopped | Told"
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


Ints = npt.NDArray[np.int64]

Made: TypeAlias = Literal["rank", "key", "text"]
"""What is made of an expression's value: a priority's rank, a key of 64 bits, a key as text."""


class Purpose(IntEnum):
    """What an answer is for."""

    WALK = 0  # filters go through messages that wait
    LETTER = 1  # messages leave without success, and a target or an action wants their bodies
    SWEEP = 2  # whatever a filter matches is settled
    BARRIER = 3  # filters say whether they want a barrier
    RANK = 4  # priorities of messages that wait
    KEY = 5  # keys of messages that wait
    PASS = 6  # a queue takes what the log had before it
    FOREIGN = 7  # filters look at what other sites own
    HISTORY = 8  # who is bound to an exchange with a history gets what it remembers


class Token(NamedTuple):
    """Names one ask: the answer brings it back."""

    queue: int  # id
    serial: int
    purpose: Purpose


@dataclass(slots=True, eq=False)
class Question:
    """A filter, an expression of priorities or keys, or a check of bodies, evaluated off the loop for some rows."""

    filter: Filter | Value | BodyCheck
    rows: list[int]
    made: Made | None = None  # of an expression: what is made of its value
    name: str = ""  # under what the answers stand on the batch; the text of a filter


@dataclass(slots=True, eq=False)
class Ask:
    """Work for the world outside the core."""

    token: Token


@dataclass(slots=True, eq=False)
class Fetch(Ask):
    """Read these messages.  Answer: `Fetched`."""

    chunk: Chunk


@dataclass(slots=True, eq=False)
class Scan(Ask):
    """Look which of these messages the filters want.  Answer: `Scanned`."""

    filters: tuple[Matcher, ...]
    chunk: Chunk


@dataclass(slots=True, eq=False)
class Judge(Ask):
    """Evaluate content filters for rows of these batches and put the answers on the batches.  Answer: `Judged`."""

    asked: Sequence[tuple[Publishes, Sequence[Question]]]


@dataclass(slots=True, eq=False)
class Rate(Ask):
    """Evaluate this expression for these messages.  Answer: `Rated`."""

    value: Ranking
    chunk: Chunk


@dataclass(slots=True, eq=False)
class Key(Ask):
    """Evaluate these expressions for these messages.  Answer: `Keyed`."""

    values: tuple[Value, ...]
    chunk: Chunk


@dataclass(slots=True, eq=False)
class Recover(Ask):
    """Walk over the log for the queues that want what it had before them (`Core.passes`).  Answers: `Recovered`."""


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """What a pass of one queue asks for from `at` on: to be looked at elsewhere, nothing of it changes."""

    queue: int  # id
    vhost: str
    name: str
    settings: QueueSettings
    at: int
    until: int
    time: int  # microseconds: what was published earlier is left out
    skip: Spans  # left out too
    offered: int  # what is not older was offered as it was published, unless
    others: frozenset[int]  # its route is one of these, which do not name the queue,
    beside: int  # or it has none and is newer than this
    booted: int  # transient messages that are older ended with an earlier process


class Came(NamedTuple):
    """Adjacent messages that a link brought.

    here     where the first one stands in this log
    there    what it is called where it was published
    size     how many they are
    peer     the number of the site that published them
    through  the origin of the site that brought them
    """

    here: int
    there: int
    size: int
    peer: int
    through: int


@dataclass(slots=True)
class Found:
    """What a queue takes of a stretch: parallel columns, LSNs ascending."""

    lsns: Ints
    times: Ints
    expires_at: Ints  # what the messages say themselves; 0: nothing
    not_before: Ints
    sizes: Ints  # bytes of the bodies
    barriers: list[int] = field(default_factory=list[int])
    transient: list[int] = field(default_factory=list[int])
    ways: list[Came] = field(default_factory=list["Came"])  # how those came that other sites published


@dataclass(slots=True, eq=False)
class Fetched:
    """Rows of the messages up to `upto`."""

    token: Token
    rows: Rows
    upto: int


@dataclass(slots=True, eq=False)
class Scanned:
    """For each of the filters the LSNs that match, ascending, of those up to `upto`."""

    token: Token
    found: Sequence[Sequence[int]]
    upto: int


@dataclass(slots=True, eq=False)
class Judged:
    """The answers are on the batches."""

    token: Token


@dataclass(slots=True, eq=False)
class Rated:
    """Ranks of the messages of the chunk, the first part of what was asked; what cannot be read has the lowest."""

    token: Token
    chunk: Chunk
    ranks: Sequence[int]


@dataclass(slots=True, eq=False)
class Keyed:
    """Keys of the messages of the chunk, the first part of what was asked; what cannot be read has none."""

    token: Token
    chunk: Chunk
    keys: Sequence[Sequence[str | None]]


@dataclass(slots=True, eq=False)
class Recovered:
    """What a queue takes of the next step of its pass: of all below `upto`."""

    of: Pass
    found: Found
    upto: int


Answer: TypeAlias = "Fetched | Scanned | Judged | Rated | Keyed | Recovered"
