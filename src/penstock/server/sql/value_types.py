"""Types of SQL's values: those of fields in bodies, which take every value they have, and those of a result.

DuckDB has types that Arrow has not, or that few of Arrow's readers know.  A value of those is answered as the text that
DuckDB shows of it; `shown` says which.  What Arrow cannot hold although it has the type is refused by name.  An
answer is in pieces of a bounded size.

DuckDB reads all of a body's fields as JSON text.  Its own `json_group_structure` holds all values of a table at once.
Here DuckDB tells the structure of each body, a page at a time, and what is new in it is merged into one.  Types are the
names that `json_transform` reads.

    "NULL" "BOOLEAN" "UBIGINT" "BIGINT" "HUGEINT" "DOUBLE" "VARCHAR"      a scalar
    [type]                                                                 a list
    {name: type}                                                           an object
    "JSON"                                                                 kinds that have no common type
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, TypeAlias, cast

import orjson
import pyarrow as pa

from penstock.errors import InvalidArgument, told_as
from penstock.expr.batches import PROPERTIES as HEADER
from penstock.expr.bodies import body_type
from penstock.expr.bodies.body_type import BodyType, Whole
from penstock.records.compute import cut
from penstock.records.field_tables import as_json
from penstock.records.message_types import MessageType
from penstock.records.properties import EMPTY, decode

# duckdb is untyped here, and pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false


NO_TEXTS: Mapping[str, pa.DataType] = {
    "delivery_mode": pa.uint8(), "priority": pa.uint8(), "timestamp": pa.uint64()
}  # fmt: skip
"""Properties that are no texts."""

PIECE_BYTES = 16 << 20
"""Of a batch, if it has more than one row: the server holds one while its client reads the one before."""

ROW_BYTES_MOST = 64 << 20

SAME = frozenset({
    "boolean", "tinyint", "smallint", "integer", "bigint", "hugeint", "utinyint", "usmallint", "uinteger", "ubigint",
    "float", "double", "decimal", "varchar", "blob", "null", "date", "time", "time_ns", "timestamp", "timestamp_s",
    "timestamp_ms", "timestamp_ns", "timestamp with time zone", "timestamptz_ns",
})  # fmt: skip
"""Types that are answered as Arrow has them.  HUGEINT is a decimal of 38 digits there."""

AS_TEXT = frozenset({
    "uuid", "enum", "bit", "bignum", "uhugeint", "interval", "time with time zone", "union", "variant", "geometry",
})  # fmt: skip
"""Types that are answered as text."""


def shown(kind: Any) -> tuple[str, bool]:
    """The type, as SQL writes it, in which values of a DuckDB type are answered; and whether that is another one.

    InvalidArgument for a type that no answer can hold.
    """
    name = str(kind.id)
    if name in AS_TEXT:
        return "VARCHAR", True
    if name in ("list", "array"):
        [(_, child), *size] = kind.children
        text, other = shown(child)
        return f"{text}[{size[0][1] if size else ''}]", other
    if name in ("struct", "tuple", "map"):
        inner = [(field, *shown(child)) for field, child in kind.children]
        if not any(other for _, _, other in inner):
            return str(kind), False
        if name == "struct":
            return f"STRUCT({', '.join(f'{quoted(field)} {text}' for field, text, _ in inner)})", True
        return f"{name.upper()}({', '.join(text for _, text, _ in inner)})", True
    if name not in SAME or str(kind) == "AGGREGATE_STATE":
        raise InvalidArgument(f"a value of type {str(kind)[:100]} cannot be answered: cast it to VARCHAR")
    return str(kind), False


def selection(names: list[str], kinds: list[Any]) -> str | None:
    """What to select from a result so that each column is of a type that can be answered; None: it is so already."""
    out = list[str]()
    cast = False
    for at, (name, kind) in enumerate(zip(names, kinds, strict=True), 1):
        with told_as(InvalidArgument, f"column {name!r}: ", instead=InvalidArgument):
            text, other = shown(kind)
        cast = cast or other
        out.append(f"CAST(#{at} AS {text}) AS {quoted(name)}" if other else f"#{at} AS {quoted(name)}")
    return ", ".join(out) if cast else None


def quoted(name: str) -> str:
    """A name as SQL quotes it."""
    return '"' + name.replace('"', '""') + '"'


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch of a result as it is sent.  InvalidArgument for what is too large to be held, or is not Arrow's."""
    for at, column in enumerate(batch.columns):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise beyond(batch.schema.field(at), error) from None
    for piece in cut(batch, PIECE_BYTES):
        if piece.num_rows == 1 and piece.nbytes > ROW_BYTES_MOST:
            raise InvalidArgument(
                f"a row of the result has {piece.nbytes} bytes, and {ROW_BYTES_MOST} are the most: select less"
            )
        yield piece


def values(batch: pa.RecordBatch) -> list[list[Any]]:
    """Each column as Python's values, in which a map is a dict.  InvalidArgument for what Python or JSON have not."""
    out = list[list[Any]]()
    for field, column in zip(batch.schema, batch.columns, strict=True):
        try:
            some = column.to_pylist(maps_as_pydicts="lossy")
            out.append([_with_names(one) for one in some] if _has_odd_names(field.type) else some)
        except (ValueError, TypeError, OverflowError) as error:  # years beyond 9999, lists as keys of a map
            raise beyond(field, error) from None
    return out


def _has_odd_names(kind: pa.DataType) -> bool:
    """Whether it holds a map by numbers of which some may be none: JSON would call each of these null."""
    if pa.types.is_map(kind) and pa.types.is_floating(kind.key_type):
        return True
    return any(_has_odd_names(kind.field(at).type) for at in range(kind.num_fields))


def _with_names(value: object) -> object:
    """A value in which such keys are texts, as Spark's rows have them."""
    if isinstance(value, list):
        return [_with_names(one) for one in cast("list[object]", value)]
    if isinstance(value, dict):
        return {_name(key): _with_names(one) for key, one in cast("dict[object, object]", value).items()}
    return value


def _name(key: object) -> object:
    if not isinstance(key, float) or isfinite(key):
        return key
    return "NaN" if key != key else "Infinity" if key > 0 else "-Infinity"


def to_json(value: object) -> bytes:
    """JSON of values; bytes become text with what is no UTF-8 replaced.  InvalidArgument for what JSON has not."""
    try:
        return as_json(value)
    except TypeError as error:  # keys of a map that are no scalars
        raise InvalidArgument(f"the result has what JSON cannot hold: cast it to VARCHAR ({error})") from None


def beyond(field: pa.Field[Any], error: Exception) -> InvalidArgument:
    """The refusal of a value that its type in the answer has no room for."""
    reason = str(error).partition("Invalid: ")[2] or str(error)
    return InvalidArgument(
        f"column {field.name!r} has a value that {field.type} cannot hold: cast it to VARCHAR ({reason})"
    )


AS_READ = "penstock as read_shape"
"""The column's name, which no statement can mean by chance."""


def with_readings(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], kind: MessageType
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """A table with that column, of bodies of a type, by the columns that these need."""
    reader = body_type(kind)

    def rows() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            made = [shown_as(reader.json, body) for body in _whole(reader, batch)]
            read_shape = pa.array(made, pa.string())
            yield pa.RecordBatch.from_arrays([*batch.columns, read_shape], schema=wider)

    wider = schema.append(pa.field(AS_READ, pa.string()))
    return wider, rows()


def with_properties(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], name: str, encoded: str
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """A table with a struct of the properties that it has encoded."""

    def rows() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            heads = [decode(one) if one else None for one in batch.column(encoded).to_pylist()]
            said = [None if head is None else {one: getattr(head, one) for one in HEADER} for head in heads]
            yield pa.RecordBatch.from_arrays([*batch.columns, pa.array(said, kind)], schema=wider)

    kind = pa.struct([pa.field(one, NO_TEXTS.get(one, pa.string())) for one in HEADER])
    wider = schema.append(pa.field(name, kind))
    return wider, rows()


def _whole(reader: BodyType, batch: pa.RecordBatch) -> Sequence[Whole | None]:
    bodies = batch.column("body").to_pylist()
    if reader.header is None:
        return cast("Sequence[Whole | None]", bodies)
    heads = [one or EMPTY for one in batch.column("properties").to_pylist()]
    return [None if body is None else reader.one_whole(body, head) for body, head in zip(bodies, heads, strict=True)]


def shown_as(text: Callable[[Whole], bytes], body: Whole | None) -> str | None:
    """What DuckDB is to read_shape for a body; None: the body itself.  text: gives a body as JSON."""
    if body is None:
        return None
    try:
        made = text(body)
    except ValueError:
        return ""
    found = reading(made)
    return made.decode() if found is None and made is not body else found


def reading(body: bytes | None) -> str | None:
    """What DuckDB is to read_shape for a body."""
    if body is None:
        return None
    try:
        value: object = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    spaced = b" :" in body or b"\n:" in body or b"\t:" in body or b"\r:" in body  # names apart from their colons
    if body.count(b'":') == names(value) and not spaced:
        return None
    try:
        return _without_equals(body)
    except (RecursionError, ValueError):  # it goes less deep than the other, and DuckDB as little
        return ""


def names(value: object) -> int:
    """Names of all objects in it."""
    count, waiting = 0, [value]
    for one in waiting:
        if type(one) is dict:
            count += len(cast("dict[str, object]", one))
            waiting += [inner for inner in cast("dict[str, object]", one).values() if type(inner) in NESTS]
        elif type(one) is list:
            waiting += [inner for inner in cast("list[object]", one) if type(inner) in NESTS]
    return count


NESTS = frozenset((dict, list))


class _Text(str):
    """A piece of JSON as it is written."""

    __slots__ = ()


def _without_equals(body: bytes) -> str | None:
    """The body with the last of equal names alone, its numbers as they are written; None where it has none."""
    equal = False

    def taken(pairs: list[tuple[str, object]]) -> dict[str, object]:
        nonlocal equal
        found = dict(pairs)
        equal = equal or len(found) < len(pairs)
        return found

    value = json.loads(body, object_pairs_hook=taken, parse_int=_Text, parse_float=_Text)
    return _written(value) if equal else None


def _written(value: object) -> str:
    if isinstance(value, _Text):
        return value
    if isinstance(value, dict):
        inner = cast("dict[str, object]", value).items()
        return "{" + ",".join(f"{json.dumps(name)}:{_written(one)}" for name, one in inner) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, cast("list[object]", value))) + "]"
    return json.dumps(value, ensure_ascii=False)


Shape: TypeAlias = "str | list[Shape] | dict[str, Shape]"

ANY, NOTHING = "JSON", "NULL"
SIGNED, UNSIGNED, LARGE, REAL = "BIGINT", "UBIGINT", "HUGEINT", "DOUBLE"
NUMBERS = {SIGNED, UNSIGNED, LARGE, REAL}

FIELDS_MAX = 1000
"""Fields of a table: each is a column, which DuckDB holds room for."""

SEEN_MAX = 10_000
"""Structures that are known by their text, and not read_shape again."""


class Fields:
    """What all bodies of a table have come to."""

    def __init__(self, db: Any, wanted: Collection[str] | None) -> None:
        """wanted: lower-case names; None: all."""
        self._db = db
        self._wanted = wanted
        self._seen = set[str]()
        self._shape: dict[str, Shape] = {}
        self.names: dict[str, None] = {}
        """Of all fields, wanted or not, as they came; no more than `FIELDS_MAX` and one."""

    def look(self, page: pa.RecordBatch) -> None:
        """Learn from the bodies of a page."""
        self._db.register("page", pa.Table.from_batches([page.select(["body", AS_READ])]))
        try:
            bodies = f'SELECT coalesce("{AS_READ}", try(decode(body))) AS read FROM page'
            found = self._structures(f"SELECT read, try(json_structure(read)) AS shape FROM ({bodies})")
        finally:
            self._db.unregister("page")
        for text in found:
            if text is not None and text.startswith("{") and text not in self._seen:
                if len(self._seen) < SEEN_MAX:
                    self._seen.add(text)
                self._merge(cast("dict[str, object]", orjson.loads(text)))

    def _structures(self, sql: str) -> list[str | None]:
        """Of texts and what DuckDB says of them; of one that nests deeper than it follows, as far as it is a type."""
        deep = "CASE WHEN shape IS NULL AND json_valid(read) THEN read END"
        rows = self._db.sql(f"SELECT shape, {deep} AS deep FROM ({sql})").to_arrow_table()
        shapes, texts = rows.column("shape"), rows.column("deep")
        if texts.null_count == len(texts):
            return cast("list[str | None]", shapes.unique().to_pylist())
        told = zip(shapes.to_pylist(), texts.to_pylist(), strict=True)
        return [shape if text is None else self._structure(shallow(text, LEVELS_MAX + 3)) for shape, text in told]

    def _structure(self, text: str) -> str | None:
        [(found,)] = self._db.execute("SELECT json_structure(?)", [text]).fetchall()
        return cast("str | None", found)

    def _merge(self, found: dict[str, object]) -> None:
        shape, wanted = self._shape, self._wanted
        for name, told in found.items():
            if len(self.names) <= FIELDS_MAX:
                self.names[name] = None
            if wanted is None or name.lower() in wanted:
                one = read_shape(told)
                shape[name] = merged(shape[name], one) if name in shape else one

    def found(self, table: str) -> dict[str, Shape]:
        """Names and types of the wanted fields.  InvalidArgument for more than a table may have.

        SQL's names have no case: the first of two stays, and column `json` has both.
        """
        out, seen = dict[str, Shape](), set[str]()
        for name, shape in self._shape.items():
            if name and name.lower() not in seen:
                seen.add(name.lower())
                out[name] = as_columns(shape)
        count = sum(map(leaves, out.values()))
        if count > FIELDS_MAX:
            raise InvalidArgument(
                f"the bodies of {table} have {count} different fields, and {FIELDS_MAX} are the most: name those that "
                "you want instead of *, or take them from column `json`"
            )
        return out


LEVELS_MAX = 32
"""Lists and objects in each other that are a type; what nests deeper is JSON there.  Results may have twice as many."""


_MARK = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')
"""What tells how deep a place of a JSON text is: texts, in which brackets are none, and brackets."""


def shallow(text: str, levels: int) -> str:
    """A JSON text in which each list and object that deep in others is null."""
    out, depth, start = list[str](), 0, 0
    for mark in _MARK.finditer(text):
        if mark[0] in "[{":
            depth += 1
            if depth == levels:
                out.append(text[start : mark.start()])
        elif mark[0] in "]}":
            if depth == levels:
                out.append("null")
                start = mark.end()
            depth -= 1
    return "".join(out) + text[start:]


def read_shape(told: object, *, listed: bool = False, levels: int = LEVELS_MAX) -> Shape:
    """A type as `json_structure` tells it of one body: there `JSON` is an object without fields, but not in lists.

    levels: how many may be in each other.
    """
    if isinstance(told, dict | list) and not levels:
        return ANY
    if isinstance(told, dict):
        return {name: read_shape(one, levels=levels - 1) for name, one in cast("dict[str, object]", told).items()}
    if isinstance(told, list):
        return [read_shape(one, listed=True, levels=levels - 1) for one in cast("list[object]", told)]
    return {} if told == ANY and not listed else str(told)


def merged(a: Shape, b: Shape) -> Shape:
    """A type that takes the values of both."""
    if a == b or b == NOTHING:
        return a
    if a == NOTHING:
        return b
    if isinstance(a, dict) and isinstance(b, dict):
        return a | {name: merged(a[name], one) if name in a else one for name, one in b.items()}
    if isinstance(a, list) and isinstance(b, list):
        return [merged(a[0], b[0])]
    if isinstance(a, str) and isinstance(b, str) and {a, b} <= NUMBERS:
        return REAL if REAL in (a, b) else LARGE
    return ANY


def as_columns(shape: Shape) -> Shape:
    """The same as DuckDB takes it: its structs have fields, and no two whose names differ in case alone."""
    if isinstance(shape, list):
        return [as_columns(shape[0])]
    if isinstance(shape, dict):
        names = {name.lower() for name in shape}
        if not names or "" in names or len(names) < len(shape):
            return ANY
        return {name: as_columns(one) for name, one in shape.items()}
    return shape


def leaves(shape: Shape) -> int:
    """How many values it has."""
    if isinstance(shape, list):
        return leaves(shape[0])
    return sum(map(leaves, shape.values())) if isinstance(shape, dict) else 1
