"""What a start gives to the fold: a state to begin with, and all records after it as large tables.

The state is the newest checkpoint's or the highest base's, whichever knows more; with neither the fold begins at
nothing.  A checkpoint older than the base is of no use: segments between the two may be gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import LogDamaged
from penstock.log import checkpoints
from penstock.log.arrow import cells_where
from penstock.log.index import Catalog
from penstock.log.mending import Recovery
from penstock.log.reader import Vias, check
from penstock.log.recover import newest_base
from penstock.ports import Disk
from penstock.records.kinds import Kind
from penstock.records.schema import COLUMNS

_ROWS = 500_000
_BLOCK = 4 << 20
"""Bytes that are read at once.  Blocks of 16 MiB took a fifth more CPU: the system gave fresh pages for each."""


class Start(NamedTuple):
    """Where replay starts.  A checkpoint holds all records up to `lsn`, a base all records below it."""

    kind: str  # "checkpoint" or "base"
    lsn: int
    state: bytes


def choose_start(disk: Disk, catalog: Catalog, recovery: Recovery, vias: Vias) -> Start | None:
    """Choose, note the choice in `recovery`, and learn the ids that the choice knows.

    LogDamaged when segments are missing that nothing covers, or a checkpoint shows that the log went on.
    """
    base = newest_base(catalog.segments[0], recovery)
    checkpoint = checkpoints.newest(disk, recovery.origin, recovery.warnings)
    last = catalog.segments[-1].last
    if checkpoint is not None and checkpoint.lsn > last:
        raise LogDamaged(
            f"the log ends at LSN {last}, but checkpoints/{checkpoint.lsn:020d}.state shows that it went on: "
            "restore the missing part, or move the checkpoint away to go on without it"
        )
    if base is not None:
        recovery.base = base.floor
        vias.load(base.vias)
    if checkpoint is not None and (base is None or checkpoint.lsn >= base.floor - 1):
        recovery.checkpoint = checkpoint.lsn
        vias.load(checkpoint.vias)
        return Start("checkpoint", checkpoint.lsn, checkpoint.state)
    return None if base is None else Start("base", base.floor, base.state)


def tables(catalog: Catalog, vias: Vias, after: int) -> Iterator[pa.Table]:
    """Rows above `after` in tables of about 500,000; their VIA records are learned.

    LogDamaged at the first bad batch.
    """
    held, rows = list[pa.Table](), 0
    for table in _blocks(catalog, after):
        held.append(table)
        rows += table.num_rows
        if rows >= _ROWS:
            yield _learned(pa.concat_tables(held), vias)
            held, rows = [], 0
    if held:
        yield _learned(pa.concat_tables(held), vias)


def replayed_after(start: Start | None) -> int:
    """The LSN after which rows are to be replayed."""
    return 0 if start is None else start.lsn if start.kind == "checkpoint" else start.lsn - 1


def rows_after(catalog: Catalog, after: int) -> int:
    """About how many rows lie above `after`: in the segment that it falls into all batches count as equal."""
    rows = 0
    for segment in catalog.segments:
        if segment.last > after and len(segment.lsns):
            number, n = max(0, segment.batch_of(after + 1)), len(segment.lsns)
            rows += -(-segment.rows * (n - number) // n)
    return rows


def _blocks(catalog: Catalog, after: int) -> Iterator[pa.Table]:
    """A table for each block of adjacent batches: one read, then a CRC a batch, then pyarrow reads all at once."""
    schema = COLUMNS.serialize().to_pybytes()
    for segment in list(catalog.segments):
        if segment.last <= after:
            continue
        number, n = max(0, segment.batch_of(after + 1)), len(segment.lsns)
        while number < n:
            upto, start = number + 1, segment.offsets[number]
            while upto < n and segment.offsets[upto] + segment.lengths[upto] - start <= _BLOCK:
                upto += 1
            end = segment.offsets[upto - 1] + segment.lengths[upto - 1]
            block = segment.file.pread(end - start, start)
            view = memoryview(block)
            for at in range(number, upto):
                begin = segment.offsets[at] - start
                check(segment, at, view[begin : begin + segment.lengths[at]])
            with pa.ipc.open_stream(pa.BufferReader(pa.py_buffer(schema + block))) as reader:
                table = reader.read_all()
            if segment.lsns[number] <= after:
                lsns = cast("npt.NDArray[np.int64]", table.column("lsn").to_numpy())
                table = table.slice(int(np.searchsorted(lsns, after + 1)))
            if table.num_rows:
                yield table
            number = upto


def _learned(table: pa.Table, vias: Vias) -> pa.Table:
    for via, header in zip(*cells_where(table, Kind.VIA, ("via", "properties")), strict=True):
        vias.learn(via, header)
    return table
