"""Arrow from strangers, and the one way in: `receive` judges a batch, and `Received` is what it gives.

A batch whose offsets lie ends the process of whoever touches it: its columns, and even its size in bytes.  So `receive`
looks at the types first, then at Arrow's own full validation, then at sizes; what takes data from a client takes a
`Received`, and nothing but this module makes one.  Extension types, dictionaries, unions and nested types other than
the map of headers are refused: the reader of a stream joins dictionaries that nobody has judged.  Views of texts and
bytes, of which many may show the same bytes, become plain once it is known what they come to.  Refuses to know what the
columns mean to a queue.

Beside the batches of a DoPut `transact` comes where each goes, and at the end the word that commits:

    batch of messages, columns of `PUBLISH`     metadata {"exchange": E, "topic": T}, both optional
    ...
    last                                        metadata {"commit": {"rows": N, "settles": [settle, ...]}}

    settle = [consumer, queue or null, lsn, attempt, verb, delay in microseconds or null, reason or null]

`consumer` is the name that the server gave the consumer when it subscribed.  An upload that ends without the last word
has committed nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self, cast

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidArgument, shown
from penstock.records.compute import compute
from penstock.records.dataclass import dataclass
from penstock.wire.fields import LSN_MAX, NAME_LIMIT, Fields, nearest, read_json
from penstock.wire.flight.commands import HEADERS, ORDER, ORDER_KINDS, ORDERED, PUBLISH, SETTLE, TEXT_COLUMNS

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false


_STRINGS = (pa.string(), pa.large_string())
_VIEWS: Mapping[pa.DataType, pa.DataType] = {pa.binary_view(): pa.binary(), pa.string_view(): pa.string()}
_TEXTS = (*_STRINGS, pa.string_view())
_INTS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32())
_ALTERNATES: Mapping[str, tuple[pa.DataType, ...]] = {
    "body": (pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), *_VIEWS),
    "topic": _TEXTS,
    "priority": _INTS,
    "lsn": (pa.int64(),),
    "attempt": _INTS,
    "verb": _TEXTS,
    "delay": (pa.int64(), pa.int32()),
    "expiration": (pa.int64(), pa.int32()),
    "reason": _TEXTS,
    "queue": _TEXTS,
    ORDER: ORDER_KINDS,
    **dict.fromkeys(TEXT_COLUMNS, _TEXTS),
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


@dataclass(frozen=True, slots=True)
class Layout:
    """What one kind of stream brings: columns of `schema`, of which some must be there.  `what` names it in errors."""

    what: str
    schema: pa.Schema
    required: tuple[str, ...]


PUBLISHED = Layout("publish", PUBLISH, ("body",))
STAGED = Layout("stage", PUBLISH, ("body",))
STAGED_IN_ORDER = Layout("stage", ORDERED, ("body", ORDER))
TRANSACTED = Layout("transact", PUBLISH, ("body",))
SETTLED = Layout("settle", SETTLE, ("lsn", "verb"))


@dataclass(frozen=True, slots=True)
class Received:
    """A batch that was found whole: every offset, length and text in it holds.  `receive` makes it."""

    batch: pa.RecordBatch
    size: int  # bytes that its columns take
    layout: Layout

    def __len__(self) -> int:
        return self.batch.num_rows

    def without(self, name: str, layout: Layout) -> Received:
        """The same rows without a column, as another layout has them."""
        return replace(self, batch=self.batch.drop_columns([name]), layout=layout)


def check_schema(given: pa.Schema, layout: Layout) -> None:
    """Refuse a stream whose columns cannot become the layout's: unknown, doubled, missing or of another type."""
    try:
        _check_columns(given, layout)
    except UnicodeDecodeError:  # of a column, of a field inside it, of a time zone
        raise InvalidArgument(f"{layout.what}: a name in the schema is no UTF-8") from None


def _check_columns(given: pa.Schema, layout: Layout) -> None:
    what, wanted, names = layout.what, layout.schema, given.names
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(f"{what}: column {name[:60]!r} is there twice")
        if name not in wanted.names:
            raise InvalidArgument(f"{what}: unknown column {name[:60]!r}{nearest(name[:60], wanted.names)}")
        kind, asked = given.field(name).type, wanted.field(name).type
        if not _acceptable(name, kind, asked):
            taken = " or ".join(map(str, _ALTERNATES.get(name, (asked,))))
            hint = "; send it decoded" if pa.types.is_dictionary(kind) else ""
            raise InvalidArgument(f"{what}: column {name!r} is {str(kind)[:80]}, not {taken}{hint}")
    for name in layout.required:
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


def receive(batch: pa.RecordBatch, layout: Layout, bounds: Bounds, passed: pa.Schema | None = None) -> Received:
    """A stranger's batch, judged.  passed: a schema that `check_schema` has let through; its batches ask no more.

    Errors: InvalidArgument for columns that are not the layout's, for offsets, lengths or text that Arrow finds wrong,
    and for too many rows or bytes.
    """
    if passed is None or not batch.schema.equals(passed):
        check_schema(batch.schema, layout)
    what, rows = layout.what, batch.num_rows
    if rows > bounds.rows:
        raise InvalidArgument(f"{what}: a batch has {rows} rows; at most {bounds.rows} are taken")
    if not rows:  # of columns without rows Arrow validates nothing, and their offsets may lie still
        return Received(pa.RecordBatch.from_pylist([], schema=batch.schema), 0, layout)
    views = [name for name, kind in zip(batch.schema.names, batch.schema.types, strict=True) if kind in _VIEWS]
    try:
        batch.validate(full=True)
        size = batch.nbytes + sum(_shown(batch.column(name)) for name in views)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidArgument(f"{what}: a batch is not valid Arrow: {str(error)[:300]}") from None
    if size > bounds.batch_bytes:
        raise InvalidArgument(f"{what}: a batch has {size} bytes; at most {bounds.batch_bytes} are taken")
    for name in views:
        column = batch.column(name)
        batch = batch.set_column(batch.schema.get_field_index(name), name, column.cast(_VIEWS[column.type]))
    return Received(batch, batch.nbytes if views else size, layout)


def _shown(views: pa.Array[Any]) -> int:
    """Bytes that a column of views shows, however often the same ones."""
    data = views.buffers()[1]
    assert data is not None
    lengths = np.frombuffer(memoryview(data), np.int32)[4 * views.offset :: 4][: len(views)]
    there = views.is_valid().to_numpy(zero_copy_only=False)
    return int(lengths[there].sum(dtype=np.int64))


def columns_of(received: Received) -> dict[str, pa.Array[Any]]:
    """Columns, each of exactly its type in the layout; those that did not come are left out.

    Errors: InvalidArgument for values that the type here cannot hold.
    """
    out: dict[str, pa.Array[Any]] = {}
    batch, wanted = received.batch, received.layout.schema
    for name in batch.schema.names:
        column = batch.column(name)
        kind = wanted.field(name).type
        if column.type != kind:
            try:
                column = column.cast(kind)
            except (pa.ArrowException, ValueError) as error:
                raise InvalidArgument(f"{received.layout.what}: column {name!r}: {str(error)[:300]}") from None
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


def check_sent(batch: pa.RecordBatch, what: str) -> None:
    """Refuse what no server takes before it is sent: far beyond its bounds a server ends the connection, and says
    nothing of why.
    """
    most = Bounds()
    if batch.nbytes > most.body_bytes and "body" in batch.schema.names:
        bodies: Any = batch.column("body").drop_null()
        check_bodies(bodies, most, what)
    if batch.nbytes > most.batch_bytes:
        raise InvalidArgument(f"{what}: a batch has {batch.nbytes} bytes; at most {most.batch_bytes} are taken")


VERBS = ("ack", "release", "retry", "cancel", "reject", "expire")


@dataclass(frozen=True, slots=True)
class Settle:
    """One delivery that ends with the transaction."""

    consumer: str
    queue: str | None  # None: the one that the consumer asked for
    lsn: int
    attempt: int
    verb: str
    delay: int | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Goal:
    """Where the messages of one batch go."""

    exchange: str = ""
    topic: str | None = None  # of rows without one
    mandatory: bool = False  # a row that nobody wants refuses the whole transaction


@dataclass(frozen=True, slots=True)
class CommitWord:
    """The last word."""

    rows: int
    settles: tuple[Settle, ...]


def read_word(metadata: bytes) -> Goal | CommitWord:
    """The metadata of one message of a client.  InvalidArgument says what is wrong with it."""
    fields = Fields("transact metadata", read_json(metadata, "transact metadata"))
    commit = fields.inner("commit")
    if commit is None:
        goal = Goal(fields.text("exchange"), fields.optional_text("topic"), fields.flag("mandatory"))
        fields.finish()
        return goal
    fields.finish()
    rows = commit.count("rows")
    items: object = commit.rest().pop("settles", [])
    if not isinstance(items, list):
        raise InvalidArgument(f"transact: settles is {shown(items)}, not a list")
    return CommitWord(rows, tuple([_settle(one) for one in cast("list[object]", items)]))


def _settle(item: object) -> Settle:
    told = f"transact: {shown(item)}"
    values = cast("list[object]", item) if isinstance(item, list) else []
    if len(values) != 7:
        raise InvalidArgument(f"{told} is no settle: [consumer, queue, lsn, attempt, verb, delay, reason]")
    consumer, queue, lsn, attempt, verb, delay, reason = values
    if not isinstance(consumer, str) or not isinstance(queue, str | None):
        raise InvalidArgument(f"{told}: consumer and queue are text")
    if not all(map(_whole, (lsn, attempt, 0 if delay is None else delay))):
        raise InvalidArgument(f"{told}: lsn, attempt and delay are whole numbers from 0 on")
    if verb not in VERBS:
        hint = nearest(verb, VERBS) if isinstance(verb, str) else ""
        raise InvalidArgument(f"transact: verb {shown(verb)} is unknown{hint}")
    if not isinstance(reason, str | None) or len((reason or "").encode()) > 8 * NAME_LIMIT:
        raise InvalidArgument(f"{told}: reason is text of at most {8 * NAME_LIMIT} bytes")
    numbers = cast("tuple[int, int]", (lsn, attempt))
    return Settle(consumer, queue, *numbers, verb, cast("int | None", delay), reason or None)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LSN_MAX
