"""The border to pyarrow's stubs: values and columns of a batch with types that a reader can follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import pyarrow as pa

Column: TypeAlias = "pa.Array[Any]"


def values(batch: pa.RecordBatch, name: str) -> list[Any]:
    """A column as Python values; None where it is null."""
    given: Any = batch
    return cast("list[Any]", given.column(name).to_pylist())


def column(batch: pa.RecordBatch, name: str) -> Any:
    """A column, of whatever type."""
    given: Any = batch
    return given.column(name)


def by_name(batch: pa.RecordBatch) -> dict[str, Column]:
    given: Any = batch
    return dict(zip(cast("list[str]", given.schema.names), cast("list[Column]", given.columns), strict=True))


def batch_of(columns: Sequence[Column], names: Sequence[str]) -> pa.RecordBatch:
    """A batch of these columns."""
    kind: Any = pa.RecordBatch
    return cast("pa.RecordBatch", kind.from_arrays(list(columns), names=list(names)))


def batch_like(columns: Sequence[Column], schema: pa.Schema) -> pa.RecordBatch:
    """A batch of these columns, whose types are those of the schema."""
    kind: Any = pa.RecordBatch
    return cast("pa.RecordBatch", kind.from_arrays(list(columns), schema=schema))
