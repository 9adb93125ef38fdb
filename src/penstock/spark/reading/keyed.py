"""Option `orderBy`: all rows of a batch that have one key are in one partition, in the order of the log.

Every part reads the batch and keeps the rows of its keys: which part a key belongs to depends on its text alone, so a
part that is read again has the same rows.  Rows without a key (NULL) are spread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.expr import compile_value
from penstock.spark.arrow import column

NEEDED = ("body", "properties", "topic", "lsn", "time")
"""Columns that a key may be made of."""

Parts = npt.NDArray[np.int64]


def with_needed(columns: tuple[str, ...]) -> list[str]:
    """These columns, and those that keys are made of."""
    return [*columns, *(name for name in NEEDED if name not in columns)]


def of_part(batches: Iterator[pa.RecordBatch], key: str, part: int, parts: int) -> Iterator[pa.RecordBatch]:
    """The rows whose key belongs to this part."""
    value = compile_value(key)
    known: dict[object, int] = {}
    for batch in batches:
        if parts == 1:
            yield batch
            continue
        given: Any = batch
        mine: pa.RecordBatch = given.filter(pa.array(_parts(value.on_batch(batch), batch, parts, known) == part))
        if mine.num_rows:
            yield mine


def _parts(keys: pa.Array[Any], batch: pa.RecordBatch, parts: int, known: dict[object, int]) -> Parts:
    """To which part each row belongs.  `known`: those of keys seen before."""
    found = np.empty(len(keys), np.int64)
    lsns: list[int] | None = None
    for row, key in enumerate(cast("list[object]", keys.to_pylist())):
        if key is None:
            if lsns is None:
                lsns = cast("list[int]", column(batch, "lsn").to_pylist())
            found[row] = lsns[row] % parts
            continue
        part = known.get(key)
        if part is None:
            text = key if isinstance(key, bytes) else str(key).encode(errors="surrogateescape")
            part = known[key] = crc32(text) % parts
        found[row] = part
    return found
