"""Rows of a result as the server takes them: without what a stream has to explain, in pieces of a bounded size."""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from penstock.errors import InvalidArgument

PIECE_BYTES = 16 << 20
"""Of a batch, if it has more than one row: the server holds one while its client reads the one before."""

ROW_BYTES_MOST = 64 << 20


def plain(kind: Any) -> Any:
    """A type without dictionaries, which DuckDB makes of an ENUM, however deep they lie."""
    if pa.types.is_dictionary(kind):
        return plain(kind.value_type)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(plain(kind.value_type)))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(plain(kind.value_type)), kind.list_size)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(plain(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(plain(kind.key_type), plain(kind.item_type))
    return kind


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The same columns, each of a plain type."""
    return pa.schema([field.with_type(plain(field.type)) for field in schema])


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in pieces.  InvalidArgument for a row that is too large to be held."""
    rows, size = batch.num_rows, batch.nbytes
    if size <= PIECE_BYTES or rows == 0:
        yield batch
    elif rows == 1:
        if size > ROW_BYTES_MOST:
            raise InvalidArgument(
                f"a row of the result has {size} bytes, and {ROW_BYTES_MOST} are the most: select less"
            )
        yield batch
    else:
        yield from pieces(batch.slice(0, rows // 2))
        yield from pieces(batch.slice(rows // 2))
