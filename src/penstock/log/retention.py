"""Bases: what makes old segments deletable.

The rule.  A base is the durable state as of a floor, that is of all records below it, written again at the log's end
as one group of BASE records.  A segment may go when each of its rows lies below the floor that the caller names *and*
below the floor of a base that is durable as a whole.  Segments go from the front, one at a time, the folder synced
after each, so that a crash leaves an unbroken rest.  Recovery then is: the base with the highest floor, and all records
from that floor on.  Which floor is right (retention, holds, what is still waiting) is the caller's knowledge.

A BASE record: header {"part", "parts", "floor", "vias"?}, body a slice of the encoded state; `vias` in part 0 only.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import orjson
import pyarrow as pa

from penstock.log.arrow import cells
from penstock.records.entries import Control, Group
from penstock.records.kinds import Kind

PART_BYTES = 4 << 20


class Base(NamedTuple):
    """A complete base."""

    floor: int
    lsn: int  # of its last record: it counts once this is durable
    state: bytes
    vias: dict[str, list[str]]


def base_group(first_lsn: int, time: int, floor: int, state: bytes, vias: dict[str, list[str]]) -> Group:
    """The group of a base; it takes one LSN a part, from `first_lsn` on.  See `base_parts` for how many."""
    parts = base_parts(state)
    entries = list[Any]()
    for part in range(parts):
        header: dict[str, object] = {"part": part, "parts": parts, "floor": floor}
        if part == 0:
            header["vias"] = vias
        body = state[part * PART_BYTES : (part + 1) * PART_BYTES]
        entries.append(Control(Kind.BASE, "", orjson.dumps(header), body, first_lsn + part, time))
    return Group(entries)


def base_parts(state: bytes) -> int:
    """How many LSNs the base of this state takes."""
    return max(1, -(-len(state) // PART_BYTES))


def read_base(batch: pa.RecordBatch) -> Base | None:
    """The last complete base in a batch, or None."""
    parts = list[bytes]()
    found: Base | None = None
    vias: dict[str, list[str]] = {}
    columns = (cells(batch, name) for name in ("lsn", "kind", "properties", "body"))
    for lsn, kind, properties, body in zip(*columns, strict=True):
        if kind != Kind.BASE:
            continue
        header = cast("dict[str, Any]", orjson.loads(properties))
        if header["part"] == 0:
            parts, vias = [], header.get("vias", {})
        parts.append(body)
        if header["part"] == header["parts"] - 1 == len(parts) - 1:
            found = Base(header["floor"], lsn, b"".join(parts), vias)
    return found
