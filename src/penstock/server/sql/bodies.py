"""Bodies as every reader takes them, for DuckDB, whose JSON differs: it takes NaN, 1e400 and a comma behind the last
member for JSON, and of equal names in an object the first.

    column   null for a body that DuckDB reads like everybody; else the text that it reads instead
             ''                          a body that is no JSON
             {"a": 2}                    for {"a": 1, "a": 2}: the last of equal names counts

Few bodies differ, so the column is next to empty, and a body costs what reading it once costs.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import cast

import orjson
import pyarrow as pa

AS_READ = "penstock as read"
"""The column's name, which no statement can mean by chance."""


def with_readings(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """A table with that column, by its column `body`."""

    def rows() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            read = pa.array([reading(body) for body in batch.column("body").to_pylist()], pa.string())
            yield pa.RecordBatch.from_arrays([*batch.columns, read], schema=wider)

    wider = schema.append(pa.field(AS_READ, pa.string()))
    return wider, rows()


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
