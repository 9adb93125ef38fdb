"""Rows of a result as they are answered: of types that readers of Arrow know, and in pieces of a bounded size.

DuckDB has types that Arrow has not, or that few of Arrow's readers know.  A value of those is answered as the text that
DuckDB shows of it; `shown` says which.  What Arrow cannot hold although it has the type is refused by name.
"""

# duckdb is untyped here, and pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pyarrow as pa

from penstock.errors import InvalidArgument

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
        try:
            text, other = shown(kind)
        except InvalidArgument as error:
            raise InvalidArgument(f"column {name!r}: {error}") from None
        cast = cast or other
        out.append(f"CAST(#{at} AS {text}) AS {quoted(name)}" if other else f"#{at} AS {quoted(name)}")
    return ", ".join(out) if cast else None


def quoted(name: str) -> str:
    """A name as SQL quotes it."""
    return '"' + name.replace('"', '""') + '"'


def cut(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """A batch in pieces of so many bytes at most, or of one row."""
    rows = batch.num_rows
    if rows <= 1 or batch.nbytes <= most:
        yield batch
    else:
        yield from cut(batch.slice(0, rows // 2), most)
        yield from cut(batch.slice(rows // 2), most)


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
            out.append(column.to_pylist(maps_as_pydicts="lossy"))
        except (ValueError, TypeError, OverflowError) as error:  # years beyond 9999, lists as keys of a map
            raise beyond(field, error) from None
    return out


def to_json(value: object) -> bytes:
    """JSON of values; bytes become text with what is no UTF-8 replaced.  InvalidArgument for what JSON has not."""
    try:
        return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS)
    except TypeError as error:  # keys of a map that are no scalars
        raise InvalidArgument(f"the result has what JSON cannot hold: cast it to VARCHAR ({error})") from None


def _plain(value: object) -> object:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def beyond(field: pa.Field[Any], error: Exception) -> InvalidArgument:
    """The refusal of a value that its type in the answer has no room for."""
    reason = str(error).partition("Invalid: ")[2] or str(error)
    return InvalidArgument(
        f"column {field.name!r} has a value that {field.type} cannot hold: cast it to VARCHAR ({reason})"
    )
