"""The border between Arrow tables and what the fold works on: numpy columns and lists of bytes.

Every place that touches an untyped Arrow value is here.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.state.lsns import Ints

_NONE: Ints = np.zeros(0, dtype=np.int64)


def whole(rows: pa.RecordBatch | pa.Table) -> pa.Table:
    """The rows as a table; nothing is copied."""
    return rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])


def pick(table: pa.Table, mask: npt.NDArray[np.bool_], columns: list[str] | None = None) -> pa.Table:
    """The rows of a table that a mask names, and some of its columns.

    By `filter`, chunk by chunk: `take` joins the chunks of each column first, bodies included.
    """
    if columns is not None:
        table = table.select(columns)
    return table if mask.all() else table.filter(cast(Any, pa.array(mask)))


def is_empty(table: pa.Table, name: str) -> bool:
    """Whether a column holds nothing but nulls."""
    return table.column(name).null_count == table.num_rows


def numbers(table: pa.Table, name: str, null: int = 0) -> Ints:
    """A column as int64; timestamps as microseconds; nulls as `null`."""
    column: Any = table.column(name)
    if column.null_count == len(column):
        return np.full(len(column), null, dtype=np.int64)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if column.null_count:
        column = column.fill_null(null)
    parts = [chunk.to_numpy(zero_copy_only=False).astype(np.int64, copy=False) for chunk in column.chunks]
    return cast(Ints, parts[0] if len(parts) == 1 else np.concatenate(parts))


def texts(table: pa.Table, name: str) -> list[str]:
    """A column of text; nulls as empty."""
    values: list[Any] = table.column(name).to_pylist()
    return [value or "" for value in values]


def blobs(table: pa.Table, name: str) -> list[bytes]:
    """A column of bytes; nulls as empty."""
    values: list[Any] = table.column(name).to_pylist()
    return [value or b"" for value in values]


def coded(table: pa.Table, name: str) -> tuple[list[bytes], Ints]:
    """A column of bytes as its distinct values and each row's number among them; nulls as empty."""
    column: Any = cast(Any, table.column(name)).fill_null(b"").combine_chunks()
    encoded: Any = column.dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def lengths(table: pa.Table, name: str) -> Ints:
    """Bytes of each value of a column of bytes; nulls have none."""
    column: Any = table.column(name)
    parts = [_NONE]
    for chunk in column.chunks:
        if len(chunk):
            ends = np.frombuffer(chunk.buffers()[1], np.int32, len(chunk) + 1, 4 * chunk.offset)
            parts.append(np.diff(ends).astype(np.int64))
    return parts[1] if len(parts) == 2 else np.concatenate(parts)


def packed_integers(table: pa.Table, name: str) -> tuple[Ints, Ints]:
    """A column of packed int64, all rows end to end, and the offsets in bytes where each begins (and the last ends).

    Offsets count from the first row.  A row whose length is no multiple of 8 makes the values meaningless: check first.
    """
    column: Any = cast(Any, table.column(name)).fill_null(b"").combine_chunks()
    places, data = column.buffers()[1:]
    offsets = np.frombuffer(places, dtype=np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    start, size = int(offsets[0]), int(offsets[-1] - offsets[0])
    if data is None or size < 8:
        return _NONE, offsets - start
    return np.frombuffer(data, dtype=np.int64, count=size // 8, offset=start), offsets - start
