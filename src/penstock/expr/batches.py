"""Messages as expressions read them: an Arrow batch, each column taken out once, and steps to a value in a message.

Columns: `body` (binary or string); where they are there `properties` (encoded AMQP header), `topic` (its name, behind
exchange and slash unless that is the default one), `lsn` (int64) and `time` (timestamp, or microseconds as int64).
A null is an empty body, an empty header, or NULL.  What Arrow cannot type is a list.

Steps into lists: a name is looked up in each element (`/c/x` of `{"c":[{"x":1},{"x":2}]}` is [1, 2]), a subscript picks
from the flattened list, and a scalar counts as a list of one.  What is not there is NULL; so is every field of a body
that is no JSON.  The last of duplicate keys wins.  Knows no tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from datetime import datetime
from decimal import Decimal
from functools import cached_property, lru_cache
from itertools import repeat
from typing import Any, Protocol, TypeAlias, cast

import orjson
import pyarrow as pa

from penstock.errors import InvalidArgument, PenstockError
from penstock.expr.tree import Scalar, Step
from penstock.expr.values import Value, flatten, from_bytes, to_bytes
from penstock.records.compute import compute
from penstock.records.dataclass import dataclass
from penstock.records.properties import EMPTY, decode

PROPERTIES = (
    "content_type",
    "content_encoding",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
)
"""The AMQP 0-9-1 basic properties that `/@properties/...` may name."""

Table = dict[str, Value]
NOTHING: Table = {}

Properties: TypeAlias = "bytes | Sequence[bytes]"
"""Encoded AMQP headers: one that all messages have, or each its own."""


class BodyReader(Protocol):
    """How bodies are read; a `BodyType` is one."""

    @property
    def needs(self) -> frozenset[str]:
        """The columns that it takes this from."""
        ...

    def tables(self, bodies: Sequence[bytes], properties: Properties) -> list[Table]:
        """The fields of each body."""
        ...


def parsed(body: bytes) -> Table:
    """The fields of a body; none if it is no JSON."""
    try:
        record = cast("object", orjson.loads(body))
    except orjson.JSONDecodeError:
        return NOTHING
    return cast("Table", record) if record.__class__ is dict else root(record)


class _Json:
    """Bodies of JSON, without a look into the table of types."""

    needs = frozenset(("body",))

    def tables(self, bodies: Sequence[bytes], properties: Properties) -> list[Table]:
        return list(map(parsed, bodies))


_JSON = _Json()


def root(value: Value) -> Table:
    """The names at the top of a parsed body; an array of objects gives each name the list of its values."""
    if isinstance(value, dict):
        return cast("Table", value)
    merged: dict[str, Value] = {}
    if isinstance(value, list):
        for item in flatten(cast("Value", value)):
            if isinstance(item, dict):
                for name, found in cast("Table", item).items():
                    cast("list[Value]", merged.setdefault(name, [])).append(found)
    return merged


def walk(value: Value, steps: tuple[Step, ...]) -> Value:
    """What the steps lead to: a scalar, a list, an object, or None."""
    for step in steps:
        if isinstance(step, str):
            if value.__class__ is dict:
                value = cast("Table", value).get(step)
            elif value.__class__ is list:
                tables = [cast("Table", item) for item in flatten(value) if isinstance(item, dict)]
                value = [table[step] for table in tables if step in table]
            else:
                return None
        elif value.__class__ is list:
            items = flatten(value)
            value = items[step] if step < len(items) else None
        elif step != 0:
            return None
    return value


@lru_cache(maxsize=1024)
def header_tables(properties: bytes) -> tuple[Table, Table]:
    """(headers, properties) of an AMQP header in the language's values.

    Remembered, because few distinct headers come with many messages.

    A header that cannot be decoded has no fields.
    """
    try:
        found = decode(properties)
    except PenstockError:
        return NOTHING, NOTHING
    headers = _plain(cast("Value", found.headers or {}))
    return cast("Table", headers), {name: _plain(cast("Value", getattr(found, name))) for name in PROPERTIES}


def _plain(value: Value) -> Value:
    """A decoded AMQP value as the language has it: byte strings, numbers, seconds since the epoch for timestamps."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return from_bytes(to_bytes(value)) if not value.isascii() else value
    if isinstance(value, bytes | bytearray):
        return from_bytes(bytes(value))
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, datetime):
        return int(value.timestamp())
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in cast("Mapping[object, Value]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("list[Value]", value)]
    return None


def topic_name(topic: object) -> str | None:
    """A topic as people write it: the key, behind its exchange when that is not the default one."""
    if topic is None:
        return None
    exchange, name = cast("str", getattr(topic, "exchange", "")), cast("str", getattr(topic, "name", topic))
    return (f"{exchange}/{name}" if exchange else name) or None


def bookmark(origin: object, lsn: object) -> str | None:
    """`<origin>|<lsn>|`."""
    return None if origin is None or lsn is None else f"{origin}|{lsn}|"


def seconds(time: object) -> float | None:
    """Microseconds as seconds."""
    return None if time is None else cast("int", time) / 1_000_000


# pyarrow's stubs leave the element types of arrays open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false


Batch: TypeAlias = "pa.RecordBatch | pa.Table"
Typed: TypeAlias = Any
"""An Arrow array or scalar of bool, int64, double or binary without empty texts, or of nulls."""

NO_VALUES: Typed = cast("Any", pa.nulls(1))[0]  # what makes one of a Python value has pyarrow load pandas


class Objects(list[Value]):
    """Values that no one Arrow type has room for: several kinds in one column, arrays, integers beyond 64 bits."""


@dataclass
class View:
    """A batch and what several parts of an expression ask of it, worked out once."""

    batch: Batch
    origin: int | None = None
    seconds: float | None = None
    context: object = None
    kind: BodyReader = _JSON  # how its bodies are read
    columns: dict[object, Typed | Objects] = field(default_factory=dict["object", "Typed | Objects"])

    def __len__(self) -> int:
        return self.batch.num_rows

    def _column(self, name: str, kind: pa.DataType) -> Typed | None:
        if name not in self.batch.schema.names:
            return None
        found: Any = self.batch.column(name)
        if isinstance(found, pa.ChunkedArray):
            found = cast("Any", found).combine_chunks()
        if found.type == kind:
            return found
        try:
            if pa.types.is_dictionary(found.type):
                found = found.dictionary_decode()
            if pa.types.is_string(found.type) and kind == pa.binary():
                return found.view(kind)
            return found.cast(pa.timestamp("us", "UTC") if pa.types.is_timestamp(found.type) else kind).cast(kind)
        except pa.ArrowException as error:
            raise InvalidArgument(f"column {name!r} of the batch is {found.type}, not {kind}") from error

    @cached_property
    def body(self) -> Typed:
        """Bodies as Arrow has them; InvalidArgument when the batch has none."""
        found = self._column("body", pa.binary())
        if found is None:
            raise InvalidArgument(f"the batch has no column 'body', it has {', '.join(self.batch.schema.names)}")
        return compute.fill_null(found, b"") if found.null_count else found

    @cached_property
    def bodies(self) -> list[bytes]:
        """Bodies one by one."""
        return cast("list[bytes]", self.body.to_pylist())

    @cached_property
    def records(self) -> list[Table]:
        """Bodies, each parsed once."""
        return self.kind.tables(self.bodies, self.headers if "properties" in self.kind.needs else EMPTY)

    @cached_property
    def headers(self) -> bytes | list[bytes]:
        """Headers, or the one that all rows have."""
        found = self._column("properties", pa.binary())
        if found is None or found.null_count == len(self):
            return EMPTY
        return cast("list[bytes]", compute.fill_null(found, EMPTY).to_pylist())

    @cached_property
    def topic(self) -> Typed:
        """Names of topics."""
        found = self._column("topic", pa.binary())
        return NO_VALUES if found is None else told(found)

    @cached_property
    def topics(self) -> list[str | None] | None:
        """Names of topics one by one."""
        found = self._column("topic", pa.string())
        return None if found is None else cast("list[str | None]", found.to_pylist())

    @cached_property
    def lsn(self) -> Typed | None:
        """Positions in the log."""
        return self._column("lsn", pa.int64())

    @cached_property
    def lsns(self) -> list[int] | None:
        """The same one by one."""
        return None if self.lsn is None else cast("list[int]", self.lsn.to_pylist())

    @cached_property
    def time(self) -> Typed | None:
        """Microseconds since the epoch."""
        return self._column("time", pa.int64())

    @cached_property
    def times(self) -> list[int] | None:
        """The same one by one."""
        return None if self.time is None else cast("list[int]", self.time.to_pylist())

    def arguments(
        self, needs: frozenset[str]
    ) -> tuple[Sequence[bytes], Iterable[Table], Iterable[bytes], Iterable[object], Iterable[object], Iterable[object]]:
        """What a function of `compile_parsed` takes first; columns that it does not need are filled up."""
        body = "body" in needs
        headers = self.headers if "properties" in needs else EMPTY
        return (
            self.bodies if body or "size" in needs or "properties" in needs else [b""] * len(self),
            self.records if body else (),
            repeat(headers) if isinstance(headers, bytes) else headers,
            self.topics if "topic" in needs and self.topics is not None else repeat(None),
            self.lsns if "lsn" in needs and self.lsns is not None else repeat(None),
            self.times if "time" in needs and self.times is not None else repeat(None),
        )


def told(column: Typed) -> Typed:
    """A column of texts, the empty ones null."""
    return compute.if_else(compute.equal(column, b""), pa.scalar(None, pa.binary()), column)


def typed(values: list[Value]) -> Typed | Objects:
    """Values as an Arrow array if one type has room for all of them; '' and objects are null."""
    kinds = set(map(type, values))
    if dict in kinds:
        values = [None if value.__class__ is dict else value for value in values]
        kinds.discard(dict)
    kinds.discard(type(None))
    if not kinds:
        return pa.nulls(len(values))
    if len(kinds) > 1:
        return Objects(values)
    make = _ARRAYS.get(kinds.pop())
    return Objects(values) if make is None else make(values)


def _whole_numbers(values: list[Any]) -> Typed | Objects:
    try:
        return pa.array(values, pa.int64())
    except (OverflowError, pa.ArrowInvalid):
        return Objects(values)


def _texts(values: list[Any]) -> Typed:
    try:
        return pa.array([value or None for value in values], pa.binary())
    except UnicodeEncodeError:
        return pa.array([to_bytes(value) if value else None for value in values], pa.binary())


_ARRAYS: dict[type, Callable[[list[Any]], Typed | Objects]] = {
    bool: lambda values: pa.array(values, pa.bool_()),
    float: lambda values: pa.array(values, pa.float64(), from_pandas=False),
    int: _whole_numbers,
    str: _texts,
}


def settled(column: Typed | Objects, rows: int) -> pa.Array[Any]:
    """A result as users get it: bool, int64, uint64, double, string (binary if not UTF-8), null; else a dense union."""
    if isinstance(column, Objects):
        return _union(column)
    if isinstance(column, pa.Scalar):
        held: Any = column
        column = pa.nulls(rows) if held.type == pa.null() else _repeated(held, rows)
    values: Any = column
    if values.type == pa.binary():
        try:
            return cast("pa.Array[Any]", values.cast(pa.string()))
        except pa.ArrowInvalid:
            return cast("pa.Array[Any]", values)
    return cast("pa.Array[Any]", values)


def scalars(column: pa.Array[Any]) -> list[Scalar]:
    """The values of a settled column one by one, texts as the language has them."""
    found = cast("list[Any]", cast("Any", column).to_pylist())
    return [from_bytes(one) if isinstance(one, bytes) else one for one in found]


def batch_of(
    bodies: Sequence[bytes],
    properties: bytes | Sequence[bytes],
    topics: object,
    lsns: Sequence[int] | None,
    times: Sequence[int] | int | None,
) -> pa.RecordBatch:
    """Messages as `Filter.matches` takes them, as a batch."""
    rows = len(bodies)
    columns: dict[str, Any] = {"body": pa.array(bodies, pa.binary())}
    headers = [properties] * rows if isinstance(properties, bytes) else list(properties)
    columns["properties"] = pa.array(headers, pa.binary())
    if topics is not None:
        names = [topic_name(one) for one in (topics if isinstance(topics, list | tuple) else [topics] * rows)]
        columns["topic"] = pa.array(names, pa.string())
    if lsns is not None:
        columns["lsn"] = pa.array(lsns, pa.int64())
    if times is not None:
        stamps: Any = pa.array([times] * rows if isinstance(times, int) else times, pa.int64())
        columns["time"] = stamps.cast(pa.timestamp("us", "UTC"))
    return pa.RecordBatch.from_pydict(columns)


def _repeated(value: Any, rows: int) -> Any:
    return cast("Any", pa.repeat)(value, rows) if value.is_valid else pa.nulls(rows, value.type)


def _union(values: Objects) -> pa.Array[Any]:
    """Values of several kinds: children bool, int64, uint64, double, text."""
    children: list[list[Any]] = [[], [], [], [], []]
    codes: list[int] = []
    places: list[int] = []
    for value in values:
        code = _code(value)
        codes.append(code)
        places.append(len(children[code]))
        children[code].append(to_bytes(value) if isinstance(value, str) else value)
    if set(codes) <= {1, 2} and all(value is None or cast("int", value) >= 0 for value in values):
        return pa.array(cast("list[int | None]", list(values)), pa.uint64())
    kinds: tuple[Any, ...] = (pa.bool_(), pa.int64(), pa.uint64(), pa.float64(), pa.binary())
    arrays: list[Any] = [pa.array(held, kind) for held, kind in zip(children, kinds, strict=True)]
    arrays[4] = settled(arrays[4], len(arrays[4]))
    names = ["bool", "int", "uint", "double", "text"]
    union: Any = pa.UnionArray
    return cast(
        "pa.Array[Any]", union.from_dense(pa.array(codes, pa.int8()), pa.array(places, pa.int32()), arrays, names)
    )


def _code(value: Value) -> int:
    if isinstance(value, bool):
        return 0
    if isinstance(value, int):
        return 1 if value < 1 << 63 else 2
    if isinstance(value, float):
        return 3
    return 4 if isinstance(value, str) else 1
