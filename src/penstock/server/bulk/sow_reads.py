"""The read of a SOW topic in the child, apart from `reads`: it needs far more code than what goes through the log."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.history.history import Batches, History
from penstock.server.bulk.jobs import Request
from penstock.server.flight.reading.record_queries import Held
from penstock.server.flight.reading.record_queries import records as records_of
from penstock.server.sow.query import Counts
from penstock.wire.flight.commands import Sow


def sow(
    request: Request, command: dict[str, Any], keyed: bool, given: bool, numbers: bytes, lsns: bytes
) -> tuple[pa.Schema, Batches]:
    """Records of a SOW topic; numbers and lsns: packed, of the index as of one moment."""
    values: dict[str, Any] = {**command, "order_by": tuple(command["order_by"])}
    counts = Counts()
    held = Held(np.frombuffer(numbers, np.uint64), np.frombuffer(lsns, np.int64), keyed, given)
    schema, rows = records_of(Sow(**values), held, request.view, History(request.view, request.gone), counts)
    return schema, _noted(rows, counts, request)


def _noted(rows: Batches, counts: Counts, request: Request) -> Batches:
    yield from rows
    request.notes.update(counts.plain())
