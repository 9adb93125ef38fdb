"""Rows as JSON objects, a column at a time: Arrow writes the text of each column and joins them, no value is an object.

Times in ISO form with a fraction only where there is one, binary as base64, decimals as text, what is no number in a
floating column as null.  Arrays become arrays, structs and maps become objects, keys of maps text.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import orjson
import pyarrow as pa

from penstock.errors import InvalidArgument
from penstock.records.compute import compute

Texts: TypeAlias = "Any"
"""A string array without nulls, or what pyarrow takes for one."""

QUOTE, SLASH = ord('"'), ord("\\")


def rows_as_json(batch: pa.RecordBatch, names: Sequence[str]) -> pa.Array[Any]:
    """Each row as a JSON object of these columns: a binary array."""
    given: Any = batch
    columns = [given.column(name) for name in names]
    return cast("pa.Array[Any]", _objects(names, columns, batch.num_rows).cast(pa.binary()))


def _objects(names: Sequence[str], columns: Sequence[Any], rows: int) -> Texts:
    """Objects of these fields."""
    parts: list[Any] = []
    before = "{"
    for name, column in zip(names, columns, strict=True):
        before += orjson.dumps(name).decode() + ":"
        text, quoted = _texts(column)
        if quoted:
            before += '"'
        parts += [before, text]
        before = ('"' if quoted else "") + ","
    end = before[:-1] + "}" if parts else "{}"
    if not parts:
        return pa.array([end] * rows, pa.string())
    return _joined(*parts, end)


def _joined(*parts: Any) -> Texts:
    return compute.binary_join_element_wise(*parts, "")


def _texts(column: Any) -> tuple[Texts, bool]:
    """The JSON of each value, nulls as null; and whether the texts still want quotation marks around them."""
    kind = column.type
    if pa.types.is_null(kind) or column.null_count == len(column):
        return pa.array(["null"] * len(column), pa.string()), False
    text, quoted = _written(column, kind)
    if not column.null_count:
        return text, quoted
    if quoted:
        text = _joined('"', text, '"')
    return compute.if_else(column.is_valid(), text, "null"), False


def _written(column: Any, kind: pa.DataType) -> tuple[Texts, bool]:
    """As `_texts`; what stands for nulls does not matter."""
    types = pa.types
    if types.is_string(kind) or types.is_large_string(kind):
        return _escaped(column.cast(pa.string()))
    if types.is_integer(kind) or types.is_boolean(kind):
        return column.cast(pa.string()), False
    if types.is_floating(kind):
        return _floats(column), False
    if types.is_decimal(kind) or types.is_date(kind):
        return column.cast(pa.string()), True
    if types.is_timestamp(kind):
        return _times(column, kind.tz), True
    if types.is_binary(kind) or types.is_large_binary(kind):
        coded = [None if value is None else base64.b64encode(value).decode() for value in column.to_pylist()]
        return pa.array(coded, pa.string()), True
    if isinstance(kind, pa.StructType):
        return _objects([field.name for field in kind], column.flatten(), len(column)), False
    if isinstance(kind, pa.MapType):
        return _maps(column), False
    if types.is_list(kind) or types.is_large_list(kind):
        inner, quoted = _texts(column.values)
        return _lists(column.offsets, _joined('"', inner, '"') if quoted else inner, "[", "]"), False
    raise InvalidArgument(f"a value of type {kind} has no place in JSON: cast it")


def _escaped(column: Any) -> tuple[Texts, bool]:
    """Text with what JSON escapes escaped."""
    data = _bytes_of(column)
    if not ((data == QUOTE) | (data == SLASH) | (data < 0x20)).any():
        return column, True
    if (data < 0x20).any():
        return pa.array([orjson.dumps(value).decode() for value in column.to_pylist()], pa.string()), False
    column = compute.replace_substring(column, pattern="\\", replacement="\\\\")
    return compute.replace_substring(column, pattern='"', replacement='\\"'), True


def _bytes_of(column: Any) -> Any:
    """All text of a string column, as numbers."""
    offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
    data = column.buffers()[2]
    if data is None:
        return np.zeros(0, np.uint8)
    return np.frombuffer(data, np.uint8)[int(offsets[0]) : int(offsets[-1])]


def _floats(column: Any) -> Texts:
    text = column.cast(pa.string())
    whole = compute.and_(compute.is_finite(column), compute.equal(compute.floor(column), column))
    bare = compute.and_(whole, compute.invert(compute.match_substring_regex(text, pattern="[.e]")))
    text = compute.if_else(bare, _joined(text, ".0"), text)
    return compute.if_else(compute.is_finite(column), text, "null")


def _times(column: Any, zone: str | None) -> Texts:
    if zone is not None and zone != "UTC":
        column = column.cast(pa.timestamp("us", tz="UTC"))
    column = column.cast(pa.timestamp("us"))  # text with a zone is a hundred times slower
    micros = compute.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    fractions = micros % 1_000_000 != 0
    text = column.cast(pa.timestamp("s"), safe=False).cast(pa.string())
    if fractions.any():
        text = compute.if_else(pa.array(fractions), column.cast(pa.string()), text)
    text = compute.binary_replace_slice(text, start=10, stop=11, replacement="T")
    return _joined(text, "Z") if zone is not None else text


def _lists(offsets: Any, inner: Texts, before: str, after: str) -> Texts:
    """The texts of the elements joined, list by list."""
    listed = pa.ListArray.from_arrays(offsets.cast(pa.int32()), inner.cast(pa.string()))
    return _joined(before, compute.binary_join(listed, ","), after)


def _maps(column: Any) -> Texts:
    keys = column.keys
    name, quoted = _texts(keys)
    if not quoted and not (pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type)):
        name, quoted = _escaped(name)
    if quoted:
        name = _joined('"', name, '"')
    text, quoted = _texts(column.items)
    text = _joined(name, ':"', text, '"') if quoted else _joined(name, ":", text)
    return _lists(column.offsets, text, "{", "}")
