"""What waits in a queue, and what a stream has planned, as Arrow batches, whole or in parts by key.

The loop gives references to positions; rows are read from the log elsewhere (see `history`), so a listing of a deep
queue holds nobody up.  Looking changes nothing and leases nothing.

To which part of a planned batch a message belongs, where all messages of one key belong together, depends on the text
of the key alone; messages without a key (NULL) are spread by their LSNs.  The keys of a batch are worked out once, by
whoever reads its first part, in the log's order, and kept while other parts may be read: a number of four bytes for
each message.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import NotFound
from penstock.history.history import Batches, History, limited
from penstock.records.chunks import Chunk
from penstock.records.compute import lsns_of
from penstock.records.dataclass import dataclass
from penstock.wire.flight.codec import constant
from penstock.wire.flight.commands import CONTENT_DEFAULT, MESSAGES, PLAN_DEFAULT, Plan, QueueContent, select
from penstock.wire.flight.failures import PASSED
from penstock.wire.flight.tickets import STATES

if TYPE_CHECKING:
    from penstock.core.queue.queue import Queue


# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false


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


def pack(parts: Sequence[Part]) -> dict[str, object]:
    """Positions for a request to another process, without copying them.

    A range as [state, attempt, start, stop], packed LSNs as [state, attempt, name of the bytes].
    """
    named = dict[str, object]()
    told = list[list[object]]()
    for at, part in enumerate(parts):
        if isinstance(part.chunk, range):
            told.append([part.state, part.attempt, part.chunk.start, part.chunk.stop])
        else:
            named[f"chunk{at}"] = memoryview(part.chunk)
            told.append([part.state, part.attempt, f"chunk{at}"])
    return {"parts": told, **named}


def unpack(parts: Sequence[Any], packed: dict[str, Any]) -> list[Part]:
    """What `pack` was given, of a request as it arrived."""
    out = list[Part]()
    for state, attempt, *where in parts:
        chunk: Chunk
        if len(where) == 2:
            chunk = range(where[0], where[1])
        else:
            chunk = array("q")
            chunk.frombytes(packed[where[0]])
        out.append(Part(state, chunk, attempt))
    return out


def content(command: QueueContent, parts: Sequence[Part], history: History) -> tuple[pa.Schema, Batches]:
    """The rows of a snapshot, each state in log order."""
    schema = select(MESSAGES, command.columns or CONTENT_DEFAULT)
    rows = _content(command, parts, history, schema)
    return schema, rows if command.limit is None else limited(rows, command.limit)


def _content(command: QueueContent, parts: Sequence[Part], history: History, schema: pa.Schema) -> Batches:
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
            yield history.present(batch, schema, extra)


def planned(command: Plan, chunks: Sequence[Chunk], history: History) -> tuple[pa.Schema, Batches]:
    """One part of a planned batch, settled or not, as long as the log has its rows."""
    schema = select(MESSAGES, command.columns or PLAN_DEFAULT)
    lsns = np.concatenate([lsns_of(chunk) for chunk in chunks]) if chunks else np.zeros(0, np.int64)
    if command.key is None:
        low = len(lsns) * command.part // command.parts
        high = len(lsns) * (command.part + 1) // command.parts
        mine = lsns[low:high]
    else:
        mine = rows_of_part(lsns, command.key, command.part, command.parts, history)
    rows = history.rows_at(mine)
    return schema, _complete(rows, schema, history, command, len(mine))


def _complete(rows: Batches, schema: pa.Schema, history: History, command: Plan, wanted: int) -> Batches:
    """The rows, and an error at the end if the log does not have them all any more."""
    found = 0
    for batch in rows:
        found += batch.num_rows
        yield history.present(batch, schema)
    if found < wanted and not history.gone():
        raise NotFound(
            f"stream {command.stream!r} batch {command.batch}: the log holds {found} of {wanted} messages; "
            "retention has passed the others: set failOnDataLoss to false to go on without them",
            reason=PASSED,
        )


NEEDED = ("body", "properties", "topic", "lsn", "time")
"""Columns that a key may be made of."""

BYTES_MOST = 32 << 20
"""Of all that is kept; the newest batch is kept in any case."""

Ints: TypeAlias = "npt.NDArray[np.int64]"
Sums: TypeAlias = "npt.NDArray[np.uint32]"


@dataclass(slots=True)
class _Known:
    """The keys' sums of one batch, once they are worked out, by one reader while others wait."""

    lock: threading.Lock
    sums: Sums | None = None


_kept: OrderedDict[tuple[int, str, bytes], _Known] = OrderedDict()
_guard = threading.Lock()


def rows_of_part(lsns: Ints, key: str, part: int, parts: int, history: History) -> Ints:
    """Of ascending LSNs those whose messages are of this part.

    A message that the log no longer has is of a part all the same, whose reader misses it.
    """
    if parts == 1 or not len(lsns):
        return lsns
    name = (history.origin, key, sha256(lsns.tobytes()).digest())
    with _guard:
        known = _kept.setdefault(name, _Known(threading.Lock()))
        _kept.move_to_end(name)
    with known.lock:
        if known.sums is None:
            sums = _sums(lsns, key, history)
            if history.gone():
                return lsns[:0]  # nobody waits for them, and not all were looked at
            known.sums = sums
        sums = known.sums
    _forget(name)
    mine: Ints = lsns[sums % np.uint32(parts) == part]
    return mine


def _forget(newest: tuple[int, str, bytes]) -> None:
    with _guard:
        total = 0
        for name in reversed(list(_kept)):
            sums = _kept[name].sums
            total += 0 if sums is None else sums.nbytes
            if total > BYTES_MOST and name != newest:
                del _kept[name]


def _sums(lsns: Ints, key: str, history: History) -> Sums:
    """A number for each message, the same for all of one key."""
    from penstock.expr import compile_value  # a sixth of the start of a child

    value, schema = compile_value(key), select(MESSAGES, NEEDED)
    sums = lsns.astype(np.uint32)
    known: dict[object, int] = {}
    rows: Batches = history.rows_at(lsns)
    for batch in rows:
        shown: Any = history.present(batch, schema)
        places = np.searchsorted(lsns, batch.column("lsn").to_numpy())
        keys: Any = value.on_batch(shown)
        if pa.types.is_string(keys.type):
            told = keys.dictionary_encode()
            each = np.array(_of_keys(told.dictionary.to_pylist(), known) or [0], np.uint32)
            found, there = each[told.indices.fill_null(0).to_numpy()], told.is_valid().to_numpy(zero_copy_only=False)
        else:
            values = cast("list[object]", keys.to_pylist())
            there = np.array([one is not None for one in values], bool)
            found = np.array(_of_keys(values, known), np.uint32)
        sums[places[there]] = found[there]
    return sums


def _of_keys(keys: list[object], known: dict[object, int]) -> list[int]:
    """Their sums.  `known`: those of keys seen before; 5 and 5.0 are one key, with the sum of which came first."""
    found = list[int]()
    for key in keys:
        made = 0 if key is None else known.get(key)
        if made is None:
            text = key if isinstance(key, bytes) else str(key).encode(errors="surrogateescape")
            made = known[key] = crc32(text)
        found.append(made)
    return found
