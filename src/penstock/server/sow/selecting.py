"""Select lists on Arrow batches that are on their way out: the column `body` with the fields that are sent."""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias, cast

import pyarrow as pa

from penstock.core.sow.select import SelectList
from penstock.server.filters.evaluating import breathe, slices

Piece: TypeAlias = "tuple[pa.RecordBatch, bytes] | pa.RecordBatch"


def selected(rows: Iterable[Piece], wanted: SelectList) -> Iterator[Piece]:
    """The same batches, some with metadata beside them, with smaller bodies.  Any thread but the loop's."""
    for piece in rows:
        yield (_batch(piece[0], wanted), piece[1]) if isinstance(piece, tuple) else _batch(piece, wanted)


def _batch(batch: pa.RecordBatch, wanted: SelectList) -> pa.RecordBatch:
    place = batch.schema.get_field_index("body")
    if place < 0 or not batch.num_rows:
        return batch
    column = batch.schema.field(place)
    bodies = sent(cast("list[bytes]", batch.column(place).to_pylist()), wanted)
    return batch.set_column(place, column, pa.array(bodies, column.type))


def sent(bodies: Sequence[bytes], wanted: SelectList) -> list[bytes]:
    """Bodies as they are sent, a slice between two breaths.  Any thread but the loop's."""
    out: list[bytes] = []
    for rows in slices(range(len(bodies)), list(map(len, bodies))):
        out += [wanted.body(bodies[row]) for row in rows]
        breathe()
    return out
