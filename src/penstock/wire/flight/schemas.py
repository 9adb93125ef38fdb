"""The Arrow schemas of the Flight door: what comes, what readers and consumers get, what a ticket may choose from.

`received` judges what comes by them.  Refuses to know what the columns mean to a queue.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.records.schema import COLUMNS, TIMESTAMP


def _fields(*fields: pa.Field[Any]) -> list[pa.Field[Any]]:
    return list(fields)


HEADERS = pa.map_(pa.string(), pa.string())

TEXT_COLUMNS = ("content_type", "message_id", "correlation_id", "reply_to")

PUBLISH = pa.schema(
    _fields(
        pa.field("body", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("priority", pa.int16()),
        pa.field("not_before", TIMESTAMP),
        pa.field("expires_at", TIMESTAMP),
        pa.field("delay", pa.int64()),  # microseconds
        pa.field("expiration", pa.int64()),  # microseconds
        pa.field("headers", HEADERS),
        *(pa.field(name, pa.string()) for name in TEXT_COLUMNS),
    )
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

DELIVERY = pa.schema(
    _fields(
        pa.field("lsn", pa.int64()),
        pa.field("bookmark", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("exchange", pa.string()),
        pa.field("time", TIMESTAMP),
        pa.field("attempt", pa.int32()),
        pa.field("redelivered", pa.bool_()),
        pa.field("lease_until", TIMESTAMP),
        pa.field("headers", HEADERS),
        pa.field("priority", pa.int16()),
        *(pa.field(name, pa.string()) for name in TEXT_COLUMNS),
        pa.field("body", pa.binary()),
        pa.field("queue", pa.string()),
    )
)
"""What a consumer gets.  `lease_until` is null where a lease does not end by time, `queue` for the one it named."""

SETTLE = pa.schema(
    _fields(
        pa.field("lsn", pa.int64()),
        pa.field("attempt", pa.int32()),
        pa.field("verb", pa.string()),
        pa.field("delay", pa.int64()),  # microseconds
        pa.field("reason", pa.string()),
        pa.field("queue", pa.string()),
    )
)
"""What a consumer sends; `delay` is for retry and extend, `reason` for reject and retry, `queue` as it came."""

MESSAGES = pa.schema(
    _fields(
        pa.field("lsn", pa.int64()),
        pa.field("bookmark", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("exchange", pa.string()),
        pa.field("time", TIMESTAMP),
        pa.field("headers", HEADERS),
        pa.field("attempt", pa.int32()),
        pa.field("priority", pa.int16()),
        pa.field("properties", pa.binary()),
        pa.field("body", pa.binary()),
        pa.field("state", pa.string()),
        pa.field("death_reason", pa.string()),
    )
)
"""What replay, queue content and planned batches may show; a ticket chooses columns.

`death_reason` says why a dead letter died: in the words of the consumer that refused it, else in AMQP's.
"""

RECORDS = pa.schema([pa.field("sow_key", pa.string()), *MESSAGES])
"""What a sow query may show; `sow_key` is null for messages of a queue."""

EVENTS = pa.schema([pa.field("event", pa.string()), pa.field("reason", pa.string()), *RECORDS])
"""What a subscription to records may show."""

EVENTS_DEFAULT = ("event", "reason", "sow_key", "lsn", "bookmark", "topic", "time", "headers", "body")
RECORDS_DEFAULT = ("sow_key", "lsn", "bookmark", "topic", "time", "headers", "body")
REPLAY_DEFAULT = ("lsn", "bookmark", "topic", "exchange", "time", "headers", "priority", "body")
CONTENT_DEFAULT = ("lsn", "bookmark", "topic", "exchange", "time", "headers", "attempt", "state", "body")
PLAN_DEFAULT = ("lsn", "bookmark", "topic", "time", "headers", "attempt", "body")


def select(schema: pa.Schema, columns: tuple[str, ...]) -> pa.Schema:
    """The named fields in the order they were asked for."""
    return pa.schema([schema.field(name) for name in columns])


def log_schema(columns: tuple[str, ...] | None) -> pa.Schema:
    """Columns of a log range."""
    return COLUMNS if columns is None else select(COLUMNS, columns)
