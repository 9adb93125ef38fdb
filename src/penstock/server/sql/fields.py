"""The fields of bodies: their names, and types that take every value they have.  DuckDB reads all of them as JSON text.

DuckDB's own `json_group_structure` holds all values of a table at once.  Here DuckDB tells the structure of each body,
a page at a time, and what is new in it is merged into one.  Types are the names that `json_transform` reads.

    "NULL" "BOOLEAN" "UBIGINT" "BIGINT" "HUGEINT" "DOUBLE" "VARCHAR"      a scalar
    [type]                                                                 a list
    {name: type}                                                           an object
    "JSON"                                                                 kinds that have no common type
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, TypeAlias, cast

import orjson
import pyarrow as pa

from penstock.errors import InvalidArgument
from penstock.expr.bodies.type_table import body_type
from penstock.records.message_types import JSON, MessageType

AS_READ = "penstock as read"
"""The column's name, which no statement can mean by chance."""


def with_readings(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], kind: MessageType = JSON
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """A table with that column, by its column `body`, of bodies of a type."""
    text = body_type(kind).json

    def rows() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            read = pa.array([shown_as(text, body) for body in batch.column("body").to_pylist()], pa.string())
            yield pa.RecordBatch.from_arrays([*batch.columns, read], schema=wider)

    wider = schema.append(pa.field(AS_READ, pa.string()))
    return wider, rows()


def shown_as(text: Callable[[bytes], bytes], body: bytes | None) -> str | None:
    """What DuckDB is to read for a body; None: the body itself.  text: gives a body as JSON."""
    if body is None:
        return None
    try:
        made = text(body)
    except ValueError:
        return ""
    found = reading(made)
    return made.decode() if found is None and made is not body else found


def reading(body: bytes | None) -> str | None:
    """What DuckDB is to read for a body."""
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
"""Structures that are known by their text, and not read again."""


class Fields:
    """What all bodies of a table have come to."""

    def __init__(self, db: Any, wanted: Collection[str] | None) -> None:
        """wanted: lower-case names; None: all."""
        self._db = db
        self._wanted = wanted
        self._seen = set[str]()
        self._shape: dict[str, Shape] = {}

    def look(self, page: pa.RecordBatch) -> None:
        """Learn from the bodies of a page."""
        self._db.register("page", pa.Table.from_batches([page.select(["body", AS_READ])]))
        try:
            # What nests deeper than DuckDB follows has no structure, and `try` makes that NULL.
            sql = f'SELECT try(json_structure(coalesce("{AS_READ}", try(decode(body))))) AS shape FROM page'
            found = self._db.sql(sql).to_arrow_table().column("shape")
        finally:
            self._db.unregister("page")
        for text in found.unique().to_pylist():
            if text is not None and text.startswith("{") and text not in self._seen:
                if len(self._seen) < SEEN_MAX:
                    self._seen.add(text)
                self._merge(cast("dict[str, object]", orjson.loads(text)))

    def _merge(self, found: dict[str, object]) -> None:
        shape, wanted = self._shape, self._wanted
        for name, told in found.items():
            if wanted is None or name.lower() in wanted:
                one = read(told)
                shape[name] = merged(shape[name], one) if name in shape else one

    def found(self, table: str) -> dict[str, Shape]:
        """Names and types of the wanted fields.  InvalidArgument for more than a table may have.

        SQL's names have no case: the first of two stays, and column `json` has both.
        """
        out, seen = dict[str, Shape](), set[str]()
        for name, shape in self._shape.items():
            if name and name.lower() not in seen:
                seen.add(name.lower())
                out[name] = shown(shape)
        count = sum(map(leaves, out.values()))
        if count > FIELDS_MAX:
            raise InvalidArgument(
                f"the bodies of {table} have {count} different fields, and {FIELDS_MAX} are the most: name those that "
                "you want instead of *, or take them from column `json`"
            )
        return out


def read(told: object, *, listed: bool = False) -> Shape:
    """A type as `json_structure` tells it of one body: there `JSON` is an object without fields, but not in lists."""
    if isinstance(told, dict):
        return {name: read(one) for name, one in cast("dict[str, object]", told).items()}
    if isinstance(told, list):
        return [read(one, listed=True) for one in cast("list[object]", told)]
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


def shown(shape: Shape) -> Shape:
    """The same as DuckDB takes it: its structs have fields, and no two whose names differ in case alone."""
    if isinstance(shape, list):
        return [shown(shape[0])]
    if isinstance(shape, dict):
        names = {name.lower() for name in shape}
        if not names or "" in names or len(names) < len(shape):
            return ANY
        return {name: shown(one) for name, one in shape.items()}
    return shape


def leaves(shape: Shape) -> int:
    """How many values it has."""
    if isinstance(shape, list):
        return leaves(shape[0])
    return sum(map(leaves, shape.values())) if isinstance(shape, dict) else 1
