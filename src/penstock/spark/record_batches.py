"""The border to pyarrow's stubs: values and columns of a batch with types that a reader can follow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, cast

import pyarrow as pa

from penstock.records.dataclass import dataclass

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


Mapped: TypeAlias = "Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]"


@dataclass(frozen=True, slots=True)
class Named:
    """A function of batches whose columns came by place."""

    function: Mapped
    names: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What the function makes of them under the names that the columns have."""
        return self.function(batch.rename_columns(list(self.names)) for batch in batches)


def in_arrow(frame: Any, function: Mapped, schema: Any) -> Any:
    """`frame.mapInArrow`, which looks for each column by its name: one with a dot is none, and of two that differ in
    case it knows neither.  The columns of such a frame go by their places.
    """
    names: tuple[str, ...] = tuple(frame.schema.names)
    if len({name.lower() for name in names}) == len(names) and not any({".", "`"} & {*name} for name in names):
        return frame.mapInArrow(function, schema)
    return frame.toDF(*(f"c{place}" for place in range(len(names)))).mapInArrow(Named(function, names), schema)
