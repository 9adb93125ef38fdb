"""Bases: what makes old segments deletable.

The rule.  A base is the durable state as of a floor, that is of all records below it, written again at the log's end
as one group of BASE records.  A segment may go when each of its rows lies below the floor that the caller names *and*
below the floor of a base that is durable as a whole.  Segments go from the front, one at a time, the folder synced after
each, so that a crash leaves an unbroken rest.  Recovery then is: the newest complete base, and all records from its
floor on.  Which floor is right (retention, holds, what is still waiting) is the caller's knowledge.

A BASE record: header {"part", "parts", "floor", "vias"?}, body a slice of the encoded state; `vias` in part 0 only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import orjson
import pyarrow as pa

from penstock.records.entries import Control, Entry, Group
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


def floor_of(entries: Sequence[Entry]) -> tuple[int, int] | None:
    """(floor, last LSN) of the last whole base among entries, or None."""
    found: tuple[int, int] | None = None
    for entry in entries:
        if isinstance(entry, Group) and entry.entries and isinstance(last := entry.entries[-1], Control):
            if last.kind == Kind.BASE:
                header = cast("dict[str, int]", orjson.loads(last.header))
                if header["part"] == header["parts"] - 1:
                    found = (header["floor"], last.lsn)
        elif isinstance(entry, Control) and entry.kind == Kind.BASE:
            header = cast("dict[str, int]", orjson.loads(entry.header))
            if header["parts"] == 1:
                found = (header["floor"], entry.lsn)
    return found


def read_base(batch: pa.RecordBatch) -> Base | None:
    """The last complete base in a batch, or None."""
    parts = list[bytes]()
    found: Base | None = None
    vias: dict[str, list[str]] = {}
    kinds = cast("list[int]", batch.column(1).to_pylist())
    for row, kind in enumerate(kinds):
        if kind != Kind.BASE:
            continue
        header = cast("dict[str, Any]", orjson.loads(cast("bytes", batch.column(9)[row].as_py())))
        if header["part"] == 0:
            parts, vias = [], header.get("vias", {})
        parts.append(cast("bytes", batch.column(10)[row].as_py()))
        if header["part"] == header["parts"] - 1 == len(parts) - 1:
            found = Base(header["floor"], cast("int", batch.column(0)[row].as_py()), b"".join(parts), vias)
    return found
