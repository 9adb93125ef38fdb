"""What the core asks of the world, and the few words it shares with those who do it.

Effects are plain values: the engine performs them after the LSN they name is durable.  Losing them in a crash is
allowed, for the log alone says what happened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from penstock.records.chunks import Chunk
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    from penstock.core.publishing.judging import Question
    from penstock.core.queue.consumers import Consumer
    from penstock.core.queue.view import Queue
    from penstock.expr import Matcher
    from penstock.records.entries import Publishes


class Verb(Enum):
    """How a delivery ends."""

    ACK = "ack"  # done
    CANCEL = (
        "cancel"  # back to its place after the queue's back-off; a failure and a cancel (nack, reject with requeue)
    )
    RELEASE = "release"  # back to its place at once, uncounted
    EXPIRE = "expire"  # refused for good: dead letter (nack, reject without requeue)


class Purpose(IntEnum):
    """What a `Fetch` is for."""

    WALK = 0  # filters go through messages that wait
    LETTER = 1  # messages leave without success, and a target or an action wants their bodies


class Token(NamedTuple):
    """Names one `Fetch`, `Scan` or `Judge`: the answer brings it back."""

    queue: int  # id
    serial: int
    purpose: Purpose


@dataclass(slots=True, eq=False)
class Deliver:
    """Send these messages to the consumer, in this order, once `after` is durable (0: at once)."""

    consumer: Consumer
    queue: Queue
    chunk: Chunk
    attempt: int  # of every message in the chunk; 1 is the first delivery
    redelivered: bool
    after: int


@dataclass(slots=True, eq=False)
class Fetch:
    """Read these messages and hand them to `fetched` under the same token."""

    token: Token
    chunk: Chunk


@dataclass(slots=True, eq=False)
class Scan:
    """Look which of these messages the filters want, and tell `scanned` under the same token.

    However many there are, it happens off the loop; the answer may be for the first part of the chunk alone.
    """

    token: Token
    filters: tuple[Matcher, ...]
    chunk: Chunk


@dataclass(slots=True, eq=False)
class Judge:
    """Evaluate content filters for rows of these batches off the loop, put the answers on the batches, and tell
    `judged` under the same token.
    """

    token: Token
    asked: Sequence[tuple[Publishes, Sequence[Question]]]


@dataclass(slots=True, eq=False)
class Cancelled:
    """The queue is gone under this consumer."""

    consumer: Consumer


Effect: TypeAlias = "Deliver | Fetch | Scan | Judge | Cancelled"


class Sink(Protocol):
    """Where a queue puts its records and effects: the outbox of the turn."""

    def record(self, kind: Kind, name: str, header: Mapping[str, object] | None = None, body: bytes = b"") -> int:
        """Write a control record; returns its LSN."""
        ...

    def effect(self, effect: Effect, /) -> None:
        """Ask for something to be done."""
        ...
