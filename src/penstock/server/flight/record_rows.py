"""DoGet sow: a query for the records of a topic, as Arrow batches.

The loop gives a snapshot of the index, which is answered for when everything up to then is durable; rows are read in
the Flight thread or in the bulk child.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
import orjson
import pyarrow as pa

from penstock.core.queue.places import AVAILABLE
from penstock.core.queue.queue import Queue
from penstock.core.sow.select import order_of
from penstock.history.history import Batches, History
from penstock.records.compute import lsns_of
from penstock.records.dataclass import dataclass
from penstock.server.flight.handover import Piece
from penstock.server.views.record_query import Counts, Found, Query
from penstock.server.views.row_source import read_by
from penstock.wire.flight.codec import constant, text_column
from penstock.wire.flight.commands import RECORDS, RECORDS_DEFAULT, Sow, select

if TYPE_CHECKING:
    from penstock.core.sow.index import Ints, Numbers
    from penstock.server.engine import Engine


@dataclass(frozen=True, slots=True)
class Held:
    """What a query is about, as of one moment."""

    numbers: Numbers
    lsns: Ints
    keyed: bool = True  # a SOW topic; else what is available in a queue
    given: bool = False  # its publishers give the keys


def hold(engine: Engine, command: Sow) -> Callable[[], Held]:
    """References to what there is now, on the loop; the rest in any thread."""
    core = engine.core
    engine.usable()
    name = command.vhost, command.exchange, command.topic
    if not isinstance(read_by(core, *name, gathers=False), Queue):
        sow = core.sow(*name, engine.views.shown)
        given, taken = sow.rule.given, sow.index.snapshot()
        return lambda: Held(*taken.arrays(), given=given)
    available = list(core.queue(command.vhost, command.topic).chunks(*AVAILABLE))

    def listed() -> Held:
        chunks = [lsns_of(chunk) for chunk in available]
        lsns = np.concatenate(chunks) if chunks else np.zeros(0, np.int64)
        return Held(lsns.astype(np.uint64), lsns, keyed=False)

    return listed


def records(command: Sow, held: Held, history: History, counts: Counts | None = None) -> tuple[pa.Schema, Batches]:
    """The rows of a query, whole.  Raises ExpressionError, InvalidArgument, before the first row.

    counts: what they came to, once they are read.
    """
    schema = select(RECORDS, command.columns or RECORDS_DEFAULT)
    query = Query(command.filter, order_of(command.order_by or None), command.top_n, command.skip_n, command.batch_size)
    return schema, _records(command, query, held, history, schema, counts or Counts())


def _records(command: Sow, query: Query, held: Held, history: History, schema: pa.Schema, counts: Counts) -> Batches:
    found = Found(held.numbers, held.lsns, history, command.vhost, held.given if held.keyed else None)
    for batch in found.run(query, counts):
        if held.keyed:
            keys = found.keys_of(batch)
            extra = {"sow_key": partial(text_column, cast("list[str]", keys), len(keys))}
        else:
            extra = {"sow_key": partial(constant, pa.string(), None, batch.num_rows)}
        yield history.present(batch, schema, extra)


def with_stats(rows: Iterator[Piece], schema: pa.Schema, counts: Counts) -> Iterator[Piece]:
    """Rows, then beside an empty batch what they came to."""
    yield from rows
    yield pa.RecordBatch.from_pylist([], schema=schema), orjson.dumps({"stats": counts.plain()})
