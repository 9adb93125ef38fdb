"""The commands of DoPut, DoExchange and DoGet as values; `tickets` reads them.  They know no JSON and no range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from penstock.records.dataclass import dataclass
from penstock.wire.fields import LSN_MAX

DEFAULT_VHOST = "/"

BATCH_MOST = 10_000
"""Rows of one batch of a sow query at most."""

HEARTBEAT_US = 30_000_000
"""Silence after which a consumer loses its leases, unless its command says otherwise."""


@dataclass(frozen=True, slots=True)
class Publish:
    """DoPut: messages.  `topic` serves rows that have none of their own."""

    topic: str | None
    exchange: str = ""
    vhost: str = DEFAULT_VHOST
    publisher: str | None = None
    sequence: int | None = None  # of the first row; the next row has the next number
    delta: bool | None = None  # bodies are merged into the present records of their keys; None: headers say
    mandatory: bool = False  # a topic that nobody keeps refuses the batch, and its sequence does not count


@dataclass(frozen=True, slots=True)
class Stage:
    """DoPut: rows of one task of one batch of a sink, invisible until a `sink_commit` names them."""

    query: str
    batch: int
    partition: int
    attempt: int
    topic: str | None
    exchange: str = ""
    vhost: str = DEFAULT_VHOST
    delta: bool = False  # bodies are merged into the present records of their keys
    ordered: bool = False  # a column `order` rises: the stages of a batch become visible in its order
    mandatory: bool = False  # the commit is refused where nobody keeps `topic`, whatever it says of other rows


@dataclass(frozen=True, slots=True)
class Transact:
    """DoPut: messages and settles that are done as a whole; `wire.flight.transactions` has what comes beside them."""

    vhost: str = DEFAULT_VHOST


@dataclass(frozen=True, slots=True)
class Consume:
    """DoExchange: be a consumer of a queue."""

    queue: str
    vhost: str = DEFAULT_VHOST
    filter: str | None = None
    backlog: int | None = None  # None: the queue's own rules
    name: str = ""  # of the client, for people
    no_ack: bool = False
    priority: int = 0
    heartbeat: int = HEARTBEAT_US  # microseconds of silence that end the leases
    max_backlog: int | None = None  # as `backlog`, and 0 is none; None: `backlog` says


@dataclass(frozen=True, slots=True)
class QueueContent:
    """DoGet: what waits in a queue now."""

    name: str
    vhost: str = DEFAULT_VHOST
    states: tuple[str, ...] = ("ready",)
    limit: int | None = None
    filter: str | None = None
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Replay:
    """DoGet: the messages of a topic from a bookmark on, settled or not; `pattern` chooses several topics."""

    topic: str | None
    pattern: str | None = None
    exchange: str = ""
    vhost: str = DEFAULT_VHOST
    bookmark: str = "EPOCH"
    filter: str | None = None
    limit: int | None = None
    columns: tuple[str, ...] | None = None
    missing: str = "now"  # `bookmark_not_found`: epoch, now or fail
    follow: bool = False  # go on with what is published
    rate: str | None = None  # `1000`, `500KB` (a second), `2X`
    rate_max_gap: int | None = None  # microseconds between two messages, for a rate like `2X`
    stream: str | None = None  # whose place MOST_RECENT is
    id: str | None = None  # the client's own name for it, for `replay_pause`
    rights: Sequence[tuple[str | None, bool | str]] | None = None  # the door's: what of which topics may be read
    select: tuple[str, ...] = ()  # which fields of a JSON body are sent: `-/`, `+/id`
    shown: tuple[str, ...] = ()  # the door's: which fields the user may read, as `select`


@dataclass(frozen=True, slots=True)
class Sow:
    """DoGet: the records of a SOW topic now, or what is available in a queue."""

    topic: str
    exchange: str = ""
    vhost: str = DEFAULT_VHOST
    filter: str | None = None
    order_by: tuple[str, ...] = ()  # expressions, each perhaps with ASC or DESC
    top_n: int | None = None
    skip_n: int = 0
    batch_size: int = BATCH_MOST
    columns: tuple[str, ...] | None = None
    projection: tuple[str, ...] = ()  # with `grouping`: rows as a view with these would have
    grouping: tuple[str, ...] | None = None
    select: tuple[str, ...] = ()  # as of `Replay`
    stats: bool = False  # beside an empty last batch: how many records were compared, matched and returned
    shown: tuple[str, ...] = ()  # as of `Replay`


@dataclass(frozen=True, slots=True)
class Sql:
    """DoGet: the result of a SELECT over queues, topics and views."""

    statement: str
    vhost: str = DEFAULT_VHOST


@dataclass(frozen=True, slots=True)
class Subscribe:
    """DoGet: the records of a SOW topic now, then what becomes of them."""

    topic: str
    exchange: str = ""
    vhost: str = DEFAULT_VHOST
    filter: str | None = None
    sow: bool = True  # first the records there are
    delta: bool = False  # changed fields only
    no_empties: bool = False
    oof: bool = False
    order_by: tuple[str, ...] = ()
    top_n: int | None = None
    skip_n: int = 0
    columns: tuple[str, ...] | None = None
    conflation: str | None = None  # an interval, `auto` or `none`
    conflation_key: tuple[str, ...] = ()
    projection: tuple[str, ...] = ()  # with `grouping`, as of `Sow`
    grouping: tuple[str, ...] | None = None
    select: tuple[str, ...] = ()  # as of `Replay`
    shown: tuple[str, ...] = ()  # as of `Replay`


@dataclass(frozen=True, slots=True)
class LogRange:
    """DoGet: records of the log with `from_lsn <= lsn < to_lsn`."""

    from_lsn: int = 1
    to_lsn: int = LSN_MAX
    columns: tuple[str, ...] | None = None
    kinds: tuple[int, ...] | None = None  # numbers of `records.kinds`; None: all


@dataclass(frozen=True, slots=True)
class Plan:
    """DoGet: part `part` of `parts` of a planned batch of a stream."""

    stream: str
    batch: int
    part: int = 0
    parts: int = 1
    columns: tuple[str, ...] | None = None
    revision: int | None = None  # of the batch, as the reader was told
    query: str | None = None  # whose batch `query_batch` these rows are
    query_batch: int = 0
    epoch: int | None = None  # the reader's, for the sentence where the batch is gone


Put: TypeAlias = "Publish | Stage | Transact"
Get: TypeAlias = "QueueContent | Replay | LogRange | Plan | Sow | Subscribe | Sql"
