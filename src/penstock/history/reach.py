"""How far a reader gets with so many messages or bytes, and where its share is cut into parts of like weight.

Every message is looked at once; its body is read where a filter does, else its length alone.  What comes out depends on
the rows alone, so whoever measures the same range again gets the same.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from penstock.log.record_batches import column, lengths
from penstock.records.compute import compute
from penstock.records.dataclass import dataclass
from penstock.records.kinds import Kind

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.history.history import History
    from penstock.wire.flight.commands import Replay

Ints: TypeAlias = "npt.NDArray[np.int64]"

PART_ROWS = 50_000
"""About how many messages a part has."""

PART_BYTES = 16 << 20
"""About how many bytes of bodies a part has, where they are large."""

PARTS_MAX = 8
"""More parts only when they are asked for."""

ROW_COST = 100
"""Bytes of a body that weigh as much as the fixed cost of its row."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a range ends, at the latest: at most so many messages and bytes of bodies, but one message in any case."""

    rows: int = 1 << 62
    bytes: int = 1 << 62
    parts: int = 1  # parts there are at least, if there are as many messages


@dataclass(frozen=True, slots=True)
class Measured:
    """A range of messages."""

    end: int  # everything below it was looked at
    rows: int
    bytes: int  # of their bodies
    cuts: tuple[int, ...]  # LSNs at which its parts begin, but for the first
    time: int  # of its last message, microseconds since the epoch; 0 without one


def measure(history: History, command: Replay, start: int, end: int, limits: Limits) -> Measured:
    """The messages of a replay with LSNs in [start, end), as far as the limits reach.  Raises what reading raises."""
    lsns, sizes = list[Ints](), list[Ints]()
    rows = size = time = 0
    for some, their, last in _weighed(history, command, start, end):
        total = np.cumsum(their)
        fit = min(len(some), limits.rows - rows)
        if size + int(total[-1]) > limits.bytes:
            fit = min(fit, int(np.searchsorted(total, limits.bytes - size, side="right")))
        if not rows:
            fit = max(fit, 1)
        if fit:
            lsns.append(some[:fit])
            sizes.append(their[:fit])
            rows, size, time = rows + fit, size + int(total[fit - 1]), last
        if fit < len(some) or rows == limits.rows:
            end = int(lsns[-1][-1]) + 1
            break
    return Measured(end, rows, size, _cuts(lsns, sizes, rows, size, limits.parts), time)


def _cuts(lsns: list[Ints], sizes: list[Ints], rows: int, size: int, least: int) -> tuple[int, ...]:
    parts = min(rows, max(least, min(PARTS_MAX, max(-(-rows // PART_ROWS), -(-size // PART_BYTES)))))
    if parts <= 1:
        return ()
    weights = np.cumsum(np.concatenate(sizes) + ROW_COST)
    places = np.searchsorted(weights, np.arange(1, parts) * (int(weights[-1]) / parts)) + 1
    places = np.unique(np.minimum(places, rows - 1))
    return tuple(cast("list[int]", np.concatenate(lsns)[places].tolist()))


def _weighed(history: History, command: Replay, start: int, end: int) -> Iterator[tuple[Ints, Ints, int]]:
    """LSNs and bytes of bodies of the wanted messages, and the time of the last of them; nothing is empty."""
    if command.filter is not None or command.rights is not None:
        for batch in history.chosen(command, start, end):
            if batch.num_rows:
                yield column(batch, "lsn", "<i8"), lengths(batch, "body"), _last_time(batch, batch.num_rows - 1)
        return
    keep, last = history.topics(command), int(Kind.PUBLISH_TRANSIENT)
    for batch in history.outlines(command, start, end):
        mask: Any = compute.and_(compute.less_equal(batch.column("kind"), last), keep(batch))
        hits = compute.fill_null(mask, False).to_numpy(zero_copy_only=False)
        count = int(np.count_nonzero(hits))
        if not count:
            continue
        lsns, sizes = column(batch, "lsn", "<i8"), lengths(batch, "body")
        lsns = lsns[hits]  # a copy: an outline is good until the next one
        if count < len(hits):
            sizes = sizes[hits]
        yield lsns, sizes, _last_time(batch, int(np.flatnonzero(hits)[-1]))


def _last_time(batch: pa.RecordBatch, row: int) -> int:
    return int(column(batch, "time", "<i8")[row])
