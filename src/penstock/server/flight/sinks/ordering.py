"""Stages with an order: each rises by its column `order`, and their rows become visible in the order of them all.

A task sorts what it sends in pieces, so a batch is a few sorted stages, and merging them needs a piece of each in
memory.  Equal orders keep the place of their stage (partition, then piece) and of the row in it.  What cannot stand in
one line is merged apart: stages of different topics, exchanges, columns.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidArgument
from penstock.wire.flight.schemas import ORDER

if TYPE_CHECKING:
    from penstock.server.flight.sinks.stage_files import StageInfo

AT_ONCE = 16
"""Stages that are merged at a time; more are merged in several rounds."""

Batches: TypeAlias = "Iterator[pa.RecordBatch]"
Order: TypeAlias = Any
"""A number or bytes: all of one column are alike."""


def plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows without their order."""
    return batch.drop_columns([ORDER])


def check_rising(batch: pa.RecordBatch, last: Order | None) -> Order | None:
    """The last order of a batch that follows `last`.  InvalidArgument unless the orders rise."""
    column = batch.column(ORDER)
    if column.null_count:
        raise InvalidArgument(f"stage: column '{ORDER}' has {column.null_count} nulls")
    numbers = orders(batch)
    if len(numbers) and ((last is not None and numbers[0] < last) or bool((numbers[1:] < numbers[:-1]).any())):
        raise InvalidArgument(f"stage: column '{ORDER}' does not rise")
    return numbers[-1] if len(numbers) else last


def orders(batch: pa.RecordBatch) -> npt.NDArray[Any]:
    """The orders of a batch: int64, or objects that are bytes."""
    return batch.column(ORDER).to_numpy(zero_copy_only=False)


def lines(found: Sequence[tuple[str, StageInfo]]) -> list[list[tuple[str, StageInfo]]]:
    """Stages that are merged with each other, in the order in which they were found."""
    out: dict[StageInfo, list[tuple[str, StageInfo]]] = {}
    for stem, info in found:
        alike = replace(info, partition=0, attempt=0, time=0, rows=0, bytes=0, crc=0)
        out.setdefault(alike, []).append((stem, info))
    return list(out.values())


def merged(stages: Sequence[Batches]) -> Batches:
    """The rows of sorted stages in one order, columns as they are.  InvalidArgument where columns differ."""
    heads: list[pa.RecordBatch | None] = [next(rows, None) for rows in stages]
    schema = next((head.schema for head in heads if head is not None), None)
    while True:
        living = [(place, head) for place, head in enumerate(heads) if head is not None]
        if not living or schema is None:
            return
        bound = min(orders(head)[-1] for _, head in living)  # nothing that comes later is below it
        taken: list[pa.RecordBatch] = []
        exhausted = False
        for place, head in living:
            if not head.schema.equals(schema):
                raise InvalidArgument("sink_commit: ordered stages of one topic have different columns")
            # what equals the bound in a later stage waits until the earlier ones have no more of it
            count = int(np.searchsorted(orders(head), bound, side="left" if exhausted else "right"))
            taken.append(head.slice(0, count))
            if count == head.num_rows:
                heads[place] = next(stages[place], None)
                following = heads[place]
                exhausted = exhausted or (following is not None and bool(orders(following)[0] == bound))
            else:
                heads[place] = head.slice(count)
        table = pa.Table.from_batches(taken, schema=schema)
        if len(living) > 1:
            table = table.take(np.argsort(table.column(ORDER).to_numpy(), kind="stable"))
        yield from table.combine_chunks().to_batches()
