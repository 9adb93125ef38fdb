"""The Arrow schemas of the Flight door, and the judging of batches that strangers send.

Arrow from a client is untrusted: a batch with wrong offsets can crash whoever touches it.  So `checked` looks at types
first, then at Arrow's own full validation, then at sizes, and only then gives columns of exactly the types named here.
Extension types, dictionaries, unions and nested types other than the map of headers are refused.  Refuses to know what
the columns mean to a queue.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import pyarrow as pa

from penstock.errors import InvalidArgument
from penstock.records.compute import compute
from penstock.records.dataclass import dataclass
from penstock.records.schema import COLUMNS, TIMESTAMP
from penstock.wire.flight.fields import nearest


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
    )
)
"""What replay, queue content and planned batches may show; a ticket chooses columns."""

RECORDS = pa.schema([pa.field("sow_key", pa.string()), *MESSAGES])
"""What a sow query may show; `sow_key` is null for messages of a queue."""

EVENTS = pa.schema([pa.field("event", pa.string()), pa.field("reason", pa.string()), *RECORDS])
"""What a subscription to records may show."""

EVENTS_DEFAULT = ("event", "reason", "sow_key", "lsn", "bookmark", "topic", "time", "headers", "body")
RECORDS_DEFAULT = ("sow_key", "lsn", "bookmark", "topic", "time", "headers", "body")
REPLAY_DEFAULT = ("lsn", "bookmark", "topic", "exchange", "time", "headers", "priority", "body")
CONTENT_DEFAULT = ("lsn", "bookmark", "topic", "exchange", "time", "headers", "attempt", "state", "body")
PLAN_DEFAULT = ("lsn", "bookmark", "topic", "time", "headers", "attempt", "body")

_STRINGS = (pa.string(), pa.large_string())
_INTS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32())
_ALTERNATES: Mapping[str, tuple[pa.DataType, ...]] = {
    "body": (pa.binary(), pa.large_binary(), pa.string(), pa.large_string()),
    "topic": _STRINGS,
    "priority": _INTS,
    "lsn": (pa.int64(),),
    "attempt": _INTS,
    "verb": _STRINGS,
    "delay": (pa.int64(), pa.int32()),
    "expiration": (pa.int64(), pa.int32()),
    "reason": _STRINGS,
    "queue": _STRINGS,
    **dict.fromkeys(TEXT_COLUMNS, _STRINGS),
}


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one batch of a stranger may hold."""

    rows: int = 1_000_000
    batch_bytes: int = 256 * 2**20
    body_bytes: int = 16 * 2**20

    @classmethod
    def within(cls, memory: int) -> Self:
        """As far as a server with so many bytes of memory goes: half of it, which is enough for one body."""
        most = cls()
        return cls(batch_bytes=min(most.batch_bytes, max(2 * most.body_bytes, memory // 2)))


def select(schema: pa.Schema, columns: tuple[str, ...]) -> pa.Schema:
    """The named fields in the order they were asked for."""
    return pa.schema([schema.field(name) for name in columns])


def log_schema(columns: tuple[str, ...] | None) -> pa.Schema:
    """Columns of a log range."""
    return COLUMNS if columns is None else select(COLUMNS, columns)


def check_schema(given: pa.Schema, wanted: pa.Schema, required: tuple[str, ...], what: str) -> None:
    """Refuse a stream whose columns cannot become `wanted`: unknown, doubled, missing or of another type."""
    names = given.names
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(f"{what}: column {name[:60]!r} is there twice")
        if name not in wanted.names:
            raise InvalidArgument(f"{what}: unknown column {name[:60]!r}{nearest(name, wanted.names)}")
        if not _acceptable(name, given.field(name).type, wanted.field(name).type):
            raise InvalidArgument(
                f"{what}: column {name!r} is {str(given.field(name).type)[:80]}, not {wanted.field(name).type}"
            )
    for name in required:
        if name not in names:
            raise InvalidArgument(f"{what}: column {name!r} is missing; there are {', '.join(names)[:200] or 'none'}")


def _acceptable(name: str, given: pa.DataType, wanted: pa.DataType) -> bool:
    if isinstance(given, pa.BaseExtensionType):
        return False
    if given == wanted or given in _ALTERNATES.get(name, ()):
        return True
    if pa.types.is_timestamp(wanted):
        return pa.types.is_timestamp(given) and given.tz is not None
    if wanted == HEADERS and isinstance(given, pa.MapType):
        return given.key_type in _STRINGS and given.item_type in _STRINGS
    return False


def checked(batch: pa.RecordBatch, wanted: pa.Schema, bounds: Bounds, what: str) -> dict[str, pa.Array[Any]]:
    """Columns of a stranger's batch, each of exactly its type in `wanted`; those that are not there are left out.

    The batch's schema has passed `check_schema`.  Errors: InvalidArgument for offsets, lengths or text that Arrow finds
    wrong, for too many rows or bytes, and for values that the type here cannot hold.
    """
    rows = batch.num_rows
    if rows > bounds.rows:
        raise InvalidArgument(f"{what}: a batch has {rows} rows; at most {bounds.rows} are taken")
    try:
        batch.validate(full=True)
        size = batch.nbytes
    except (pa.ArrowException, ValueError) as error:
        raise InvalidArgument(f"{what}: a batch is not valid Arrow: {str(error)[:300]}") from None
    if size > bounds.batch_bytes:
        raise InvalidArgument(f"{what}: a batch has {size} bytes; at most {bounds.batch_bytes} are taken")
    out: dict[str, pa.Array[Any]] = {}
    for name in batch.schema.names:
        column = batch.column(name)
        kind = wanted.field(name).type
        if column.type != kind:
            try:
                column = column.cast(kind)
            except (pa.ArrowException, ValueError) as error:
                raise InvalidArgument(f"{what}: column {name!r}: {str(error)[:300]}") from None
        out[name] = column
    return out


def check_bodies(bodies: pa.Array[Any], bounds: Bounds, what: str) -> None:
    """Refuse null bodies and bodies beyond the bound."""
    if bodies.null_count:
        raise InvalidArgument(f"{what}: column 'body' has {bodies.null_count} nulls; a body may be empty but not null")
    if bodies.nbytes > bounds.body_bytes:
        longest: int = compute.max(compute.binary_length(bodies)).as_py()
        if longest > bounds.body_bytes:
            raise InvalidArgument(f"{what}: a body has {longest} bytes; at most {bounds.body_bytes} are taken")
