"""Decided batches on their way from stage files to the log: what a chunk is, and how a start finishes them.

A commit over `GroupLimits.group_bytes` is a `DECIDED` record; its rows follow in chunks of bounded size, each one group
with a record of how far it brings the batch.  So wherever a crash comes, the log knows the first row that is missing,
and the next start copies from there before any door opens.  Nothing that is decided is refused: rows whose exchange is
gone by then are left out, as rows that nobody wants are.

Where stages have an order their sorted rows are merged: equal orders keep the place of their stage and of the row in
it.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import logging
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.state.pending import DecidedPart, DecidedState
from penstock.errors import DiskFull, InvalidArgument, LogBroken, LogDamaged, Refused
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes
from penstock.records.message_bodies import listed
from penstock.server.flight.publish import to_publishes
from penstock.server.flight.sinks.stage_files import check, discard, path_of, pieces, rows_of
from penstock.wire.flight.codec import Upload, read_upload
from penstock.wire.flight.commands import ORDER
from penstock.wire.flight.received import STAGED, Bounds, receive

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.ports import Disk
    from penstock.server.engine import Engine
    from penstock.server.flight.sinks.stage_files import StageInfo


logger = logging.getLogger("penstock.flight")

Stretch: TypeAlias = "tuple[DecidedPart, Upload]"
"""Rows of one stage."""

_TAKEN = Bounds(rows=1 << 40, batch_bytes=1 << 50, body_bytes=1 << 40)
"""What was staged has been judged; a bound that became lower since does not refuse it any more."""


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """How large a group of a sink may be, and the chunks of one that is larger."""

    group_bytes: int = 64 << 20  # of the stages' files
    group_rows: int = 65_536  # of those that differ in topic, properties or times
    chunk_bytes: int = 2 << 20
    chunk_rows: int = 8192  # a chunk is decided in one turn of the loop
    alike_bytes: int = 8 << 20  # the same of rows of which nothing is looked at one by one
    alike_rows: int = 65_536
    delta_rows: int = 500  # the same of one with deltas, each of which is merged there

    @classmethod
    def within(cls, memory: int) -> Self:
        """As far as a budget of so many bytes goes: what is copied lies there as rows and as what is written of them,
        and a chunk is read while the one before is synced."""
        most = cls()
        return cls(
            group_bytes=min(most.group_bytes, memory // 8),
            chunk_bytes=min(most.chunk_bytes, memory // 64),
            alike_bytes=min(most.alike_bytes, memory // 32),
        )


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that are copied as one group."""

    rows: int
    stretches: Sequence[Stretch]


def check_parts(disk: Disk, query: str, state: DecidedState) -> None:
    """LogDamaged naming file, query and batch unless every stage that still has rows to give is what was written."""
    start = 0
    for part in state.parts:
        start += part.rows
        if start <= state.rows:
            continue
        try:
            check(disk, part.stage, part.bytes, part.crc)
        except LogDamaged as error:
            raise _damaged(query, state, error) from error


def _damaged(query: str, state: DecidedState, error: LogDamaged) -> LogDamaged:
    return LogDamaged(
        f"{error}; query '{query}' has committed batch {state.batch}, and {state.total - state.rows} of its rows are "
        "still to come from there: nothing was removed"
    )


def alike(upload: Upload) -> bool:
    """Whether its rows have one topic, one header and no times, so that nothing is done row by row."""
    return (
        upload.name_of is None
        and isinstance(upload.properties, bytes)
        and not any((upload.not_before, upload.expires_at, upload.delay, upload.expiration))
    )


def chunks_of(
    disk: Disk,
    query: str,
    state: DecidedState,
    limits: GroupLimits,
    keyed: Container[tuple[str, str, str]] = (),
) -> Iterator[Chunk]:
    """What is missing of a batch, in order; it holds about one chunk in memory.

    `state` is not looked at again after the first chunk.  keyed: topics whose rows are looked at one by one.
    LogDamaged as `check_parts`.
    """
    skip = state.rows
    gathered: list[Stretch] = []
    rows = size = 0
    rows_most, bytes_most = limits.alike_rows, limits.alike_bytes  # of the chunk that is gathered
    for part in state.parts:
        if skip >= part.rows:
            skip -= part.rows
            continue
        left = part.rows - skip
        few = limits.delta_rows if part.delta else limits.chunk_rows
        try:
            for batch in rows_of(disk, part.stage, skip):
                for small in pieces(batch, limits.chunk_bytes):
                    upload = _read(small, part.topic)
                    same = alike(upload) and (part.vhost, part.exchange, upload.names[0]) not in keyed
                    most = limits.alike_rows if same else few
                    for a in range(0, small.num_rows, most):
                        piece = small
                        if small.num_rows > most:
                            piece = small.slice(a, most)
                            upload = _read(piece, part.topic)
                        if not same:
                            rows_most, bytes_most = min(rows_most, most), limits.chunk_bytes
                        if rows and (rows + len(piece) > rows_most or size + piece.nbytes > bytes_most):
                            yield Chunk(rows, gathered)
                            gathered, rows, size = [], 0, 0
                            rows_most, bytes_most = limits.alike_rows, limits.alike_bytes
                            if not same:
                                rows_most, bytes_most = most, limits.chunk_bytes
                        gathered.append((part, upload))
                        rows, size, left = rows + piece.num_rows, size + piece.nbytes, left - piece.num_rows
            if left:
                raise LogDamaged(f"{path_of(part.stage)} has {part.rows - left} rows of {part.rows}")
        except LogDamaged as error:
            raise _damaged(query, state, error) from error
        skip = 0
    if rows:
        yield Chunk(rows, gathered)


def _read(batch: pa.RecordBatch, topic: str | None) -> Upload:
    return read_upload(receive(batch, STAGED, _TAKEN), topic, _TAKEN)


def chunk_publishes(engine: Engine, chunk: Chunk) -> list[Publishes]:
    """A chunk with its topics looked up, on the loop; without the rows whose exchange is gone."""
    out: list[Publishes] = []
    for part, upload in chunk.stretches:
        try:
            publishes = to_publishes(engine, upload, part.vhost, part.exchange)
            publishes.delta = part.delta or None
            if part.delta:
                publishes.bodies = listed(publishes.bodies)  # what is worked out about a body is known by its object
            out.append(publishes)
        except Refused as refusal:
            logger.warning("%d rows of stage %s go nowhere: %s", len(upload), part.stage, refusal)
    return out


def finish_decided(engine: Engine, disk: Disk, limits: GroupLimits | None = None) -> int:
    """`finishing` without a pause; how many batches."""
    batches = len(engine.core.decided)
    for _ in finishing(engine, disk, limits):
        pass
    return batches


def finishing(engine: Engine, disk: Disk, limits: GroupLimits | None = None) -> Iterator[tuple[int, int]]:
    """Copy what an earlier process had decided and not copied, each batch from its first missing row.

    Gives (rows copied, of how many) after each chunk.  For a start, before any door opens: it waits for the disk.
    Errors: LogDamaged, with nothing written, when a stage is missing or damaged; DiskFull; LogBroken.
    """
    limits = limits or GroupLimits.within(engine.bodies.budget.limit)
    waiting = sorted(engine.core.decided.items(), key=lambda item: item[1].lsn)
    for query, state in waiting:
        check_parts(disk, query, state)
    copied, missing = 0, sum(state.total - state.rows for _, state in waiting)
    for query, state in waiting:
        logger.info("query %s: copying batch %d from row %d of %d", query, state.batch, state.rows, state.total)
        for chunk in chunks_of(disk, query, state, limits, engine.core.sows.by_name):
            if engine.log.full:
                left = state.total - state.rows
                raise DiskFull(f"{left} rows of batch {state.batch} of query '{query}', which is decided, have no room")
            engine.core.sink_copy(engine.now(), query, chunk.rows, chunk_publishes(engine, chunk))
            engine.finish_turn()
            engine.log.flush()
            if engine.broken is not None:
                raise LogBroken(engine.broken)
            copied += chunk.rows
            yield copied, missing
        for part in state.parts:
            discard(disk, path_of(part.stage))


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
