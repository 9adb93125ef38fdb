"""Columns of the log as numpy arrays, and the few set operations on LSN pairs that bulk work needs.

Arrow in, int64 out.  Nothing here knows what a record means.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.state import Ints

NONE = np.zeros(0, dtype=np.int64)


def numbers(table: pa.Table, name: str, null: int = 0) -> Ints:
    """A column as int64; timestamps as microseconds; nulls as `null`."""
    column = table.column(name)
    if column.null_count == len(column):
        return np.full(len(column), null, dtype=np.int64)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if column.null_count:
        column = pc.fill_null(column, null)
    return np.concatenate([chunk.to_numpy(zero_copy_only=False) for chunk in column.chunks]).astype(np.int64, copy=False)


def groups(values: Ints) -> dict[int, Ints]:
    """The places of each distinct value, ascending."""
    if not len(values):
        return {}
    low, high = int(values.min()), int(values.max())
    if low == high:
        return {low: np.arange(len(values))}
    # 16 bits: numpy's stable sort is a radix sort
    sortable = (values - low).astype(np.uint16) if high - low < 65_536 else values
    order = np.argsort(sortable, kind="stable")
    ordered = values[order]
    breaks = np.flatnonzero(np.diff(ordered)) + 1
    names = ordered[np.concatenate(([0], breaks))].tolist()
    return dict(zip(names, np.split(order, breaks), strict=True))


def spans(starts: Ints, ends: Ints) -> Ints:
    """All numbers of the half-open spans, one span after another."""
    lengths = ends - starts
    return np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(int(lengths.sum()))


def pair_bodies(column: pa.ChunkedArray) -> tuple[Ints, Ints, Ints, Ints]:
    """Bodies of `records.chunks.pack_pairs`: per row its queue and number of pairs; all pairs flat, a and b.

    A body that is none gives queue -1 and no pair.
    """
    joined = column.combine_chunks()
    if isinstance(joined, pa.ChunkedArray):
        joined = pa.concat_arrays(joined.chunks) if joined.num_chunks else pa.array([], pa.binary())
    lengths = pc.fill_null(pc.binary_length(joined), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    good = (lengths >= 8) & (lengths % 16 == 8)
    if not good.all():
        joined, kept = joined.filter(pa.array(good)), lengths[good]
    else:
        kept = lengths
    data = joined.buffers()[2]
    first = int(np.frombuffer(joined.buffers()[1], dtype=np.int32)[joined.offset]) if len(joined) else 0
    count = int(kept.sum()) // 8
    values = np.frombuffer(data, dtype="<i8", count=count, offset=first) if count and data is not None else NONE
    heads = np.cumsum(kept // 8) - kept // 8
    is_pair = np.ones(len(values), dtype=bool)
    is_pair[heads] = False
    flat = values[is_pair].reshape(-1, 2)
    queues = np.full(len(lengths), -1, dtype=np.int64)
    queues[good] = values[heads]
    pairs = np.zeros(len(lengths), dtype=np.int64)
    pairs[good] = (kept // 8 - 1) // 2
    return queues, pairs, flat[:, 0], flat[:, 1]
