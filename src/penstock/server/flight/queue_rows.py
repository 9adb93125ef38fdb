"""What waits in a queue, and what a stream has planned, as Arrow batches.

The loop gives references to positions; rows are read from the log elsewhere (see `history`), so a listing of a deep
queue holds nobody up.  Looking changes nothing and leases nothing.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import NotFound
from penstock.history.history import Batches, History, Past, limited
from penstock.records.chunks import Chunk
from penstock.records.dataclass import dataclass
from penstock.wire.flight.codec import constant, present
from penstock.wire.flight.commands import CONTENT_DEFAULT, MESSAGES, PLAN_DEFAULT, Plan, QueueContent, select
from penstock.wire.flight.tickets import STATES

if TYPE_CHECKING:
    from penstock.core.queue.queue import Queue


@dataclass(frozen=True, slots=True)
class Part:
    """Messages of one state.  `attempt` is how often each was delivered."""

    state: str
    chunk: Chunk
    attempt: int


def snapshot(queue: Queue, states: Sequence[str], limit: int | None = None) -> list[Part]:
    """Positions of the messages in these states, with a limit of the oldest of each; on the loop."""
    found: list[Part] = []
    for state in STATES:
        if state in states:
            some = queue.standing(state) if limit is None else queue.first(limit, state)
            found += (Part(state, run.chunk, run.tally.attempt) for _, run, _ in some)
    return found


def content(command: QueueContent, parts: Sequence[Part], log: Past, history: History) -> tuple[pa.Schema, Batches]:
    """The rows of a snapshot, each state in log order."""
    schema = select(MESSAGES, command.columns or CONTENT_DEFAULT)
    rows = _content(command, parts, log, history, schema)
    return schema, rows if command.limit is None else limited(rows, command.limit)


def _content(command: QueueContent, parts: Sequence[Part], log: Past, history: History, schema: pa.Schema) -> Batches:
    for state in command.states:
        mine = [part for part in parts if part.state == state and len(part.chunk)]
        if not mine:
            continue
        lsns = np.concatenate([lsns_of(part.chunk) for part in mine])
        attempts = np.repeat(np.array([part.attempt for part in mine], np.int32), [len(part.chunk) for part in mine])
        order = np.argsort(lsns, kind="stable")
        lsns, attempts = lsns[order], attempts[order]
        rows: Iterator[pa.RecordBatch] = history.rows_at(lsns)
        if command.filter is not None:
            rows = history.matching(rows, command.filter, command.vhost)
        for batch in rows:
            there = pa.array(attempts[np.searchsorted(lsns, batch.column("lsn").to_numpy())])
            extra = {
                "state": partial(constant, pa.string(), state, batch.num_rows),
                "attempt": partial(cast, "pa.Array[Any]", there),
            }
            yield present(batch, schema, log.origin, history.exchange_of, extra)


def planned(command: Plan, chunks: Sequence[Chunk], log: Past, history: History) -> tuple[pa.Schema, Batches]:
    """One part of a planned batch, settled or not, as long as the log has its rows."""
    schema = select(MESSAGES, command.columns or PLAN_DEFAULT)
    lsns = np.concatenate([lsns_of(chunk) for chunk in chunks]) if chunks else np.zeros(0, np.int64)
    if command.key is None:
        low = len(lsns) * command.part // command.parts
        high = len(lsns) * (command.part + 1) // command.parts
        mine = lsns[low:high]
    else:
        from penstock.server.flight.key_parts import rows_of_part  # expressions: few ask for it

        mine = rows_of_part(lsns, command.key, command.part, command.parts, log, history)
    rows = history.rows_at(mine)
    return schema, _complete(rows, schema, log, history, command, len(mine))


def _complete(rows: Batches, schema: pa.Schema, log: Past, history: History, command: Plan, wanted: int) -> Batches:
    """The rows, and an error at the end if the log does not have them all any more."""
    found = 0
    for batch in rows:
        found += batch.num_rows
        yield present(batch, schema, log.origin, history.exchange_of)
    if found < wanted and not history.gone():
        raise NotFound(
            f"stream {command.stream!r} batch {command.batch}: the log holds {found} of {wanted} messages; "
            "retention has passed the others"
        )


def lsns_of(chunk: Chunk) -> npt.NDArray[np.int64]:
    """A chunk as an array; one that is packed already is not copied."""
    if isinstance(chunk, range):
        return np.arange(chunk.start, chunk.stop, dtype=np.int64)
    return np.frombuffer(chunk, dtype=np.int64)
