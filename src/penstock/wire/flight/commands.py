"""The Flight door as values: the commands of DoPut, DoExchange and DoGet, and the Arrow schemas of what comes and goes.

`tickets` reads commands, `received` judges batches.  Knows no JSON, no range, and not what columns mean to a queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa

from penstock.records.dataclass import dataclass
from penstock.records.message_types import JSON, MessageType
from penstock.records.schema import COLUMNS, TIMESTAMP
from penstock.wire.fields import LSN_MAX

DEFAULT_VHOST = "/"

BATCH_MOST = 10_000
"""Rows of one batch of a sow query at most."""

HEARTBEAT_US = 30_000_000
"""Silence after which a consumer loses its leases, unless its command says otherwise."""


@dataclass(frozen=True, slots=True)
class Publish:
    """DoPut: messages.  `topic` serves rows that have none of their own."""

    topic: str | None = None
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
    attempt: int = 0
    topic: str | None = None
    exchange: str = ""
    vhost: str = DEFAULT_VHOST
    delta: bool = False  # bodies are merged into the present records of their keys
    ordered: bool = False  # a column `order` rises: the stages of a batch become visible in its order
    mandatory: bool = False  # the commit is refused where nobody keeps `topic`, whatever it says of other rows


@dataclass(frozen=True, slots=True)
class Transact:
    """DoPut: messages and settles that are done as a whole; `wire.flight.received` has what comes beside them."""

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
class Link:
    """DoExchange: another site tells what happens there, for as long as the stream lasts."""

    name: str  # who it takes this site for
    site: str
    origin: int
    group: str = ""
    sync: bool = False  # whether its publishers wait for this one
    offers: Sequence[object] = ()  # its queues, for the core to read
    sites: Sequence[tuple[str, int, str]] = ()  # that it has met: name, origin, group


@dataclass(frozen=True, slots=True)
class QueueContent:
    """DoGet: what waits in a queue now."""

    name: str
    vhost: str = DEFAULT_VHOST
    states: tuple[str, ...] = ("ready",)
    limit: int | None = None
    filter: str | None = None
    columns: tuple[str, ...] | None = None
    message_type: MessageType = JSON  # the door's: what the bodies are


@dataclass(frozen=True, slots=True)
class Replay:
    """DoGet: the messages of a topic from a bookmark on, settled or not; `pattern` chooses several topics."""

    topic: str | None = None
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
    held_for: str | None = None  # the stream that this is a part of: refused where rows went that it did not hold
    rights: Sequence[tuple[str | None, bool | str]] | None = None  # the door's: what of which topics may be read
    select: tuple[str, ...] = ()  # which fields of a JSON body are sent: `-/`, `+/id`
    shown: tuple[str, ...] = ()  # the door's: which fields the user may read, as `select`
    message_type: MessageType = JSON  # the door's: what the bodies are


@dataclass(frozen=True, slots=True)
class Records:
    """Which records of a SOW topic, or rows, in which order, and what of each."""

    topic: str
    exchange: str = ""
    vhost: str = DEFAULT_VHOST
    filter: str | None = None
    order_by: tuple[str, ...] = ()  # expressions, each perhaps with ASC or DESC
    top_n: int | None = None
    skip_n: int = 0
    columns: tuple[str, ...] | None = None
    projection: tuple[str, ...] = ()  # with `grouping`: rows as a view with these would have
    grouping: tuple[str, ...] | None = None
    select: tuple[str, ...] = ()  # as of `Replay`
    shown: tuple[str, ...] = ()  # as of `Replay`


@dataclass(frozen=True, slots=True)
class Sow(Records):
    """DoGet: the records of a SOW topic now, or what is available in a queue."""

    batch_size: int = BATCH_MOST
    stats: bool = False  # beside an empty last batch: how many records were compared, matched and returned
    message_type: MessageType = JSON  # as of `Replay`


@dataclass(frozen=True, slots=True)
class Sql:
    """DoGet: the result of a SELECT over queues, topics and views."""

    statement: str
    vhost: str = DEFAULT_VHOST


@dataclass(frozen=True, slots=True)
class Subscribe(Records):
    """DoGet: the records of a SOW topic now, then what becomes of them."""

    sow: bool = True  # first the records there are
    delta: bool = False  # changed fields only
    no_empties: bool = False
    oof: bool = False
    conflation: str | None = None  # an interval, `auto` or `none`
    conflation_key: tuple[str, ...] = ()
    within: bool = False  # the door's: the filter is, or has in it, what the user may read


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
    key: str | None = None  # an expression: a part has all messages of its keys, instead of its share of the rows


Put: TypeAlias = "Publish | Stage | Transact"
Get: TypeAlias = "QueueContent | Replay | LogRange | Plan | Sow | Subscribe | Sql"


# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false


HEADERS = pa.map_(pa.string(), pa.string())

TEXT_COLUMNS = ("content_type", "message_id", "correlation_id", "reply_to")

_TYPES: Mapping[str, pa.DataType] = {
    **dict.fromkeys(("bookmark", "topic", "exchange", "queue", "sow_key", *TEXT_COLUMNS), pa.string()),
    **dict.fromkeys(("verb", "state", "reason", "death_reason", "event"), pa.string()),
    **dict.fromkeys(("time", "not_before", "expires_at", "lease_until"), TIMESTAMP),
    **dict.fromkeys(("lsn", "delay", "expiration"), pa.int64()),  # durations are microseconds
    **dict.fromkeys(("body", "properties"), pa.binary()),
    "attempt": pa.int32(), "priority": pa.int16(), "redelivered": pa.bool_(), "headers": HEADERS,
}  # fmt: skip
"""The one type that a column of this name has, whatever is asked or told in it."""


def _schema(*names: str) -> pa.Schema:
    return pa.schema([pa.field(name, _TYPES[name]) for name in names])


PUBLISH = _schema(
    "body", "topic", "priority", "not_before", "expires_at", "delay", "expiration", "headers", *TEXT_COLUMNS
)
"""Columns of a publish; `body` must be there, the others may be missing or null.

`delay` stands for `not_before` and `expiration` for `expires_at`, counted from the moment at which the server takes the
message: nothing then depends on the publisher's clock.
"""

ORDER = "order"
"""The column by which the rows of an ordered stage rise: no nulls."""

ORDER_KINDS = (pa.int64(), pa.binary())
"""Its types: a number, or bytes, as UTF-8 text is ordered."""

ORDERED = PUBLISH.append(pa.field(ORDER, ORDER_KINDS[0]))
"""Columns of an ordered stage."""

DELIVERY = _schema(
    "lsn", "bookmark", "topic", "exchange", "time", "attempt", "redelivered", "lease_until", "headers", "priority",
    *TEXT_COLUMNS, "body", "queue",
)  # fmt: skip
"""What a consumer gets.  `lease_until` is null where a lease does not end by time, `queue` for the one it named."""

SETTLE = _schema("lsn", "attempt", "verb", "delay", "reason", "queue")
"""What a consumer sends; `delay` is for retry and extend, `reason` for reject and retry, `queue` as it came."""

MESSAGES = _schema(
    "lsn", "bookmark", "topic", "exchange", "time", "headers", "attempt", "priority", *TEXT_COLUMNS, "properties",
    "body", "state", "death_reason",
)  # fmt: skip
"""What replay, queue content and planned batches may show; a ticket chooses columns.

`death_reason` says why a dead letter died: in the words of the consumer that refused it or failed last, else in AMQP's.
"""

RECORDS = _schema("sow_key", *MESSAGES.names)
"""What a sow query may show; `sow_key` is null for messages of a queue."""

EVENTS = _schema("event", "reason", *RECORDS.names)
"""What a subscription to records may show."""

EVENTS_DEFAULT = ("event", "reason", "sow_key", "lsn", "bookmark", "topic", "time", "headers", "body")
RECORDS_DEFAULT = ("sow_key", "lsn", "bookmark", "topic", "time", "headers", "body")
REPLAY_DEFAULT = ("lsn", "bookmark", "topic", "exchange", "time", "headers", "priority", "body")
CONTENT_DEFAULT = ("lsn", "bookmark", "topic", "exchange", "time", "headers", "attempt", "state", "body")
PLAN_DEFAULT = ("lsn", "bookmark", "topic", "time", "headers", "attempt", "body")


def of_messages(columns: Sequence[str]) -> list[str]:
    """Columns for who reads message by message: with all that a message says of itself."""
    return [*columns, *(name for name in ("exchange", "priority", *TEXT_COLUMNS) if name not in columns)]


def select(schema: pa.Schema, columns: tuple[str, ...]) -> pa.Schema:
    """The named fields in the order they were asked for."""
    return pa.schema([schema.field(name) for name in columns])


def log_schema(columns: tuple[str, ...] | None) -> pa.Schema:
    """Columns of a log range."""
    return COLUMNS if columns is None else select(COLUMNS, columns)
