"""Rows of the log for the shares of an audit: what each of them needs, and nothing else.

A publish goes to the share of its LSN and to the rest, without its body.  A record about messages goes to the shares of
the LSNs it names and to the rest; all other records go to everybody.  Bodies of records alone travel.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.audit.audit import Audit
from penstock.core.audit.verdict import Part, Share
from penstock.core.state.durable import DurableState
from penstock.core.state.fold import Fold
from penstock.core.state.lsns import flat
from penstock.log.record_batches import cells, column
from penstock.records.kinds import MOVES, PUBLISHES
from penstock.records.schema import COLUMNS

Ints = npt.NDArray[np.int64]

ROWS = pa.schema([pa.field("share", pa.int32()), pa.field("batch", pa.int64()), *COLUMNS])
"""What travels: the number of a share, the record batch that the row was written in, and the row."""

AT_ONCE = 100_000
"""Rows that an audit is given in one go."""


def parted(batch: pa.RecordBatch, groups: Ints, borders: Sequence[int]) -> pa.RecordBatch:
    """Rows of the log as the shares need them; `borders` as of `core.audit.parts.shares`."""
    kinds, lsns = column(batch, "kind", "<i1"), column(batch, "lsn", "<i8")
    rest = len(borders) + 1
    publishes = np.isin(kinds, [int(kind) for kind in PUBLISHES])
    events = np.isin(kinds, [int(kind) for kind in MOVES])
    edges = np.asarray(borders, dtype=np.int64)
    low = np.where(publishes, np.searchsorted(edges, lsns, side="right"), 0)
    high = np.where(publishes, low, rest - 1)
    bodies = cells(batch, "body") if (~publishes).any() else []
    for event in np.flatnonzero(events).tolist():
        body: bytes | None = bodies[event]
        if body is None or len(body) < 24 or len(body) % 16 != 8:
            continue  # it cannot be read, which any of them may tell
        pairs = np.frombuffer(body, np.int64, -1, 8)
        first, last = np.searchsorted(edges, (int(pairs.min()), int(pairs.max()) - 1), side="right")
        low[event], high[event] = first, max(int(first), int(last))
    count = high - low + 1
    row = np.repeat(np.arange(len(kinds)), count)
    share = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(low, count)
    row, share = np.concatenate((row, np.arange(len(kinds)))), np.concatenate((share, np.full(len(kinds), rest)))
    slim = _without_bodies(batch, publishes)
    taken = cast("Any", slim).take(pa.array(row))
    arrays: list[Any] = [pa.array(share.astype(np.int32)), pa.array(groups[row]), *taken.columns]
    return cast("pa.RecordBatch", cast("Any", pa.RecordBatch).from_arrays(arrays, schema=ROWS))


def _without_bodies(batch: pa.RecordBatch, publishes: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    """Messages without what nobody asks: an audit does not look into them."""
    mask: Any = pa.array(publishes)
    columns: list[Any] = []
    for name in COLUMNS.names:
        one: Any = batch.column(name)
        if name in ("properties", "body"):
            one = cast("Any", pa).compute.if_else(mask, pa.scalar(b"", pa.binary()), one)
        columns.append(one)
    return cast("pa.RecordBatch", cast("Any", pa.RecordBatch).from_arrays(columns, schema=COLUMNS))


def judged(
    rows: Iterable[pa.RecordBatch], shares: Sequence[Share], state: bytes | None
) -> Iterator[tuple[int, Part, dict[int, Ints] | None]]:
    """What each share finds, of rows sorted by share and LSN; and of the rest what waits as the fold has it.

    state: of the base that the log begins at.
    """
    start = DurableState.decode(state) if state is not None else None
    number, audit, fold = -1, Audit(), Fold()
    for share, batch, groups in _whole_groups(rows):
        if share != number:
            if number >= 0:
                yield number, audit.part(), _waiting(fold) if shares[number].rest else None
            number, audit, fold = share, Audit(start, shares[share]), Fold(start)
        audit.feed(batch, groups)
        if shares[share].rest:
            fold.feed(pa.Table.from_batches([batch]))
    if number >= 0:
        yield number, audit.part(), _waiting(fold) if shares[number].rest else None


def _waiting(fold: Fold) -> dict[int, Ints]:
    return {number: flat(queue.waiting) for number, queue in fold.finish().queues.items()}


def _whole_groups(rows: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch, Ints]]:
    """The rows of one share at a time, so that no group goes on with the next."""
    held, count = list[pa.RecordBatch](), 0
    for batch in rows:
        if not batch.num_rows:
            continue
        held.append(batch)
        count += batch.num_rows
        if count >= AT_ONCE:
            *whole, rest = _cut(held)
            yield from map(_columns, whole)
            held, count = [rest], rest.num_rows
    if held:
        yield from map(_columns, _cut(held))


def _cut(held: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The rows a share at a time; the last group of all apart, for it may go on."""
    whole: Any = cast("Any", pa).concat_batches(held)
    share, group = whole.column("share").to_numpy(), whole.column("batch").to_numpy()
    starts = [0, *(np.flatnonzero(np.diff(share)) + 1).tolist()]
    last = np.flatnonzero((group != group[-1]) | (share != share[-1]))
    cut = int(last[-1]) + 1 if len(last) else 0
    edges = sorted({*starts, cut, whole.num_rows})
    return [whole.slice(a, b - a) for a, b in pairwise(edges)]


def _columns(batch: pa.RecordBatch) -> tuple[int, pa.RecordBatch, Ints]:
    share = int(cast("Any", batch.column("share"))[0].as_py())
    rows = cast("pa.RecordBatch", cast("Any", batch.select(COLUMNS.names)).cast(COLUMNS))
    return share, rows, np.asarray(batch.column("batch").to_numpy(), dtype=np.int64)
