"""What the core asks the world outside to work out, and how it is answered.

    a queue or a command  --Ask-->  the engine, off the loop where that takes long  --Answer-->  `Core.answered`

An ask is an effect like others: losing it in a crash is allowed, for a start asks anew.  Its token names who asked, and
the answer brings it back; an answer that nobody waits for any more does nothing.  Where an ask is about a chunk, the
answer may be for the first part of it alone (`upto`); the rest is asked for again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from enum import IntEnum
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.records.chunks import Chunk
from penstock.records.dataclass import dataclass

if TYPE_CHECKING:
    from penstock.core.queue.order.ranks import Ranking
    from penstock.core.state.pending import Spans
    from penstock.expr import Filter, Matcher, Value
    from penstock.expr.json_schema import BodyCheck
    from penstock.records.entries import Publishes, Rows
    from penstock.records.queue_settings import QueueSettings

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
    """Something that the world outside is to work out."""

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
    others: frozenset[int]  # its route is one of these, which do not name the queue
    booted: int  # transient messages that are older ended with an earlier process


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
