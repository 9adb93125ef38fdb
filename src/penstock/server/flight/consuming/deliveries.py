"""Deliveries on their way to a Flight consumer, as Arrow batches."""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.history.history import History
from penstock.memory import Piece
from penstock.memory.slab import ROW_OVERHEAD
from penstock.records.dataclass import dataclass
from penstock.records.entries import Topic
from penstock.records.schema import TIMESTAMP
from penstock.wire.flight.codec import bookmark_column, constant, lsn_column, message_batch, text_column
from penstock.wire.flight.schemas import DELIVERY

if TYPE_CHECKING:
    from penstock.log import Log

BATCH_ROWS = 10_000


@dataclass(slots=True)
class Delivery:
    """Neighbouring rows for a consumer.  `time` None: to be looked up in the log, where the rows came from."""

    piece: Piece
    attempt: int
    redelivered: bool
    lease_until: int  # microseconds since the epoch; 0: no end by time
    time: int | None
    queue: str | None = None  # where it is another than the one that was asked for
    size: int = 0

    def __post_init__(self) -> None:
        assert self.piece.bodies is not None
        self.size = sum(map(len, self.piece.bodies)) + ROW_OVERHEAD * len(self.piece.bodies)


def delivery_batch(deliveries: Sequence[Delivery], log: Log) -> pa.RecordBatch:
    """The deliveries as one batch of `schemas.DELIVERY`, in order.

    Most have one topic and one header for all rows, and then nothing is done row by row.
    """
    bodies: list[bytes] = []
    lengths: list[int] = []
    lsns: list[pa.Array[Any]] = []
    times: list[npt.NDArray[np.int64]] = []
    for one in deliveries:
        n = len(one.piece.chunk)
        lengths.append(n)
        lsns.append(lsn_column(one.piece.chunk))
        bodies += cast("list[bytes]", one.piece.bodies)
        times.append(np.full(n, one.time, np.int64) if one.time is not None else _times(lsns[-1], log))
    rows = len(bodies)
    lsn: Any = lsns[0] if len(lsns) == 1 else pa.concat_arrays(lsns)
    topics = _topics(deliveries)
    return message_batch(
        DELIVERY,
        rows,
        _properties(deliveries),
        {
            "lsn": lambda: lsn,
            "bookmark": lambda: bookmark_column(log.origin, lsn),
            "topic": lambda: text_column(topics[0], rows),
            "exchange": lambda: text_column(topics[1], rows),
            "time": lambda: _stamps(times[0] if len(times) == 1 else np.concatenate(times)),
            "attempt": lambda: _values(pa.int32(), [one.attempt for one in deliveries], lengths, rows),
            "redelivered": lambda: _values(pa.bool_(), [one.redelivered for one in deliveries], lengths, rows),
            "queue": lambda: _values(pa.string(), [one.queue for one in deliveries], lengths, rows),
            "lease_until": lambda: _values(TIMESTAMP, [one.lease_until or None for one in deliveries], lengths, rows),
            "body": lambda: cast("pa.Array[Any]", pa.array(bodies, pa.binary())),
        },
    )


def _topics(deliveries: Sequence[Delivery]) -> tuple[str | list[str], str | list[str]]:
    """Names and exchanges: one for all rows, or one a row."""
    first = deliveries[0].piece.topics
    if isinstance(first, Topic) and all(one.piece.topics is first for one in deliveries):
        return first.name, first.exchange
    topics: list[Topic] = []
    for one in deliveries:
        some = one.piece.topics
        topics += [some] * len(one.piece.chunk) if isinstance(some, Topic) else some
    return [topic.name for topic in topics], [topic.exchange for topic in topics]


def _properties(deliveries: Sequence[Delivery]) -> bytes | list[bytes]:
    """Headers: one for all rows, or one a row."""
    first = deliveries[0].piece.properties
    if isinstance(first, bytes) and all(one.piece.properties == first for one in deliveries):
        return first
    out: list[bytes] = []
    for one in deliveries:
        some = one.piece.properties
        out += [some] * len(one.piece.chunk) if isinstance(some, bytes) else some
    return out


def _values(kind: Any, values: list[Any], lengths: list[int], rows: int) -> pa.Array[Any]:
    """A value for each delivery, spread over its rows."""
    if values.count(values[0]) == len(values):
        return constant(kind, values[0], rows)
    return cast("pa.Array[Any]", pa.array(np.repeat(np.array(values, object), lengths), kind))


def _stamps(values: npt.NDArray[np.int64]) -> pa.Array[Any]:
    """Microseconds as timestamps, 0 is null."""
    if not (values == 0).any():
        return cast("pa.Array[Any]", pa.Array.from_buffers(TIMESTAMP, len(values), [None, pa.py_buffer(values.data)]))
    return cast("pa.Array[Any]", pa.array(values, pa.int64(), mask=values == 0).cast(TIMESTAMP))


def _times(lsns: pa.Array[Any], log: Log) -> npt.NDArray[np.int64]:
    """When rows that came from the log were published; 0 for one that the log has let go meanwhile."""
    asked = lsns.to_numpy()
    wanted = np.unique(asked)
    found = np.zeros(len(wanted), np.int64)
    for batch in History(log, lambda: False).rows_at(wanted):
        places = np.searchsorted(wanted, batch.column("lsn").to_numpy())
        found[places] = batch.column("time").cast(pa.int64()).to_numpy()
    return found[np.searchsorted(wanted, asked)]
