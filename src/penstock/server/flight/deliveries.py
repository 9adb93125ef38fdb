"""Deliveries on their way to a Flight consumer, as Arrow batches."""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from penstock.memory import Piece
from penstock.memory.bodies import ROW_OVERHEAD
from penstock.records.entries import Topic
from penstock.records.schema import TIMESTAMP
from penstock.server.flight.history import History
from penstock.wire.flight.codec import bookmark_column, lsn_column, message_batch
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
    size: int = 0

    def __post_init__(self) -> None:
        assert self.piece.bodies is not None
        self.size = sum(map(len, self.piece.bodies)) + ROW_OVERHEAD * len(self.piece.bodies)


def delivery_batch(deliveries: Sequence[Delivery], log: Log) -> pa.RecordBatch:
    """The deliveries as one batch of `schemas.DELIVERY`, in order."""
    bodies: list[bytes] = []
    topics: list[str] = []
    exchanges: list[str] = []
    properties: list[bytes] = []
    lengths: list[int] = []
    lsns: list[pa.Array[Any]] = []
    times: list[Any] = []
    for one in deliveries:
        piece = one.piece
        n = len(piece.chunk)
        lengths.append(n)
        lsns.append(lsn_column(piece.chunk))
        bodies += cast("list[bytes]", piece.bodies)
        if isinstance(piece.topics, Topic):
            topics += [piece.topics.name] * n
            exchanges += [piece.topics.exchange] * n
        else:
            topics += [topic.name for topic in piece.topics]
            exchanges += [topic.exchange for topic in piece.topics]
        properties += [piece.properties] * n if isinstance(piece.properties, bytes) else piece.properties
        times.append(np.full(n, one.time, np.int64) if one.time is not None else _times(lsns[-1], log))
    rows = len(bodies)
    lsn: Any = lsns[0] if len(lsns) == 1 else pa.concat_arrays(lsns)
    until = np.repeat([one.lease_until for one in deliveries], lengths)
    all_times = np.concatenate(times)
    return message_batch(
        DELIVERY,
        rows,
        properties,
        {
            "lsn": lambda: lsn,
            "bookmark": lambda: bookmark_column(log.origin, lsn),
            "topic": lambda: _texts(topics),
            "exchange": lambda: _texts(exchanges),
            "time": lambda: _stamps(all_times),
            "attempt": lambda: _array(np.repeat([one.attempt for one in deliveries], lengths).astype(np.int32)),
            "redelivered": lambda: _array(np.repeat([one.redelivered for one in deliveries], lengths)),
            "lease_until": lambda: _stamps(until),
            "body": lambda: cast("pa.Array[Any]", pa.array(bodies, pa.binary())),
        },
    )


def _array(values: Any) -> pa.Array[Any]:
    return cast("pa.Array[Any]", pa.array(values))


def _texts(values: list[str]) -> pa.Array[Any]:
    return cast("pa.Array[Any]", pa.array(values, pa.string()))


def _stamps(values: Any) -> pa.Array[Any]:
    """Microseconds, 0 is null."""
    return cast("pa.Array[Any]", pa.array(values, pa.int64(), mask=values == 0).cast(TIMESTAMP))


def _times(lsns: pa.Array[Any], log: Log) -> Any:
    """When rows that came from the log were published; 0 for one that the log has let go meanwhile."""
    asked = lsns.to_numpy()
    wanted = np.unique(asked)
    found = np.zeros(len(wanted), np.int64)
    for batch in History(log, lambda: False).rows_at(wanted):
        places = np.searchsorted(wanted, batch.column("lsn").to_numpy())
        found[places] = batch.column("time").cast(pa.int64()).to_numpy()
    return found[np.searchsorted(wanted, asked)]
