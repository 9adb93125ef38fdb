"""One page of the log, for a reader that is not live.  Runs off the loop, in a thread that others wait beside.

Topics are chosen by Arrow over whole batches; content filters go through the sieve first.  A page ends at its size or
when its time is up, and says how far it has looked.  Batches come from the log's own cache of decoded ones, so many
readers at about the same place share the work.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from penstock.errors import LogDamaged, PenstockError
from penstock.history.history import joined
from penstock.log.arrow import cells, chosen, column, lengths, nulls
from penstock.records.compute import compute
from penstock.records.dataclass import dataclass
from penstock.records.entries import Rows
from penstock.records.kinds import Kind
from penstock.server.filters.evaluating import Ask, breathe, spent
from penstock.server.replaying.page import PAGE_BYTES, PAGE_ROWS, ROW_COST, Page, page_of
from penstock.server.replaying.rights import Sieve
from penstock.server.replaying.topics import Selection

if TYPE_CHECKING:
    from penstock.history.history import Past

LOOK_US = 50_000
"""A reader that has looked for so long hands over what it has."""

_LAST_PUBLISH = int(Kind.PUBLISH_TRANSIENT)


@dataclass(frozen=True, slots=True)
class Found:
    """What a look at the log gave."""

    page: Page | None
    upto: int  # everything below this LSN has been looked at
    error: PenstockError | None = None  # there is nothing more to read


def look(
    log: Past,
    selection: Selection,
    sieve: Sieve | None,
    start: int,
    end: int,
    mono: Callable[[], int],
    rows: int = PAGE_ROWS,
    ask: Ask | None = None,
) -> Found:
    """Messages with LSNs in [start, end): the next page of them, at most `rows`.  Any thread; raises nothing."""
    try:
        return _look(log, selection, sieve, start, end, mono, rows, ask)
    except PenstockError as error:
        return Found(None, start, error)
    except OSError as error:
        failure = LogDamaged(f"the log cannot be read: {error}")
        failure.__cause__ = error
        return Found(None, start, failure)


def _look(
    log: Past,
    selection: Selection,
    sieve: Sieve | None,
    start: int,
    end: int,
    mono: Callable[[], int],
    rows: int,
    ask: Ask | None,
) -> Found:
    stop = mono() + LOOK_US
    out = Rows([], [], [], [], [], [], [])
    left_rows, left_bytes = rows, PAGE_BYTES
    upto = start
    for batch in joined(log.batches(start, end, None, selection.names()), PAGE_ROWS, 4 * PAGE_BYTES):
        last = int(column(batch, "lsn", "<i8")[-1])
        found = _wanted(log, selection, sieve, batch, ask)
        if found.num_rows:
            costs = np.cumsum(lengths(found, "body") + lengths(found, "properties") + ROW_COST)
            fit = min(int(np.searchsorted(costs, left_bytes, "right")), left_rows)
            if not out.lsns:
                fit = max(fit, 1)
            if fit:
                _add(log, found.slice(0, fit), out)
                left_rows -= fit
                left_bytes -= int(costs[fit - 1])
            if fit < found.num_rows:
                upto = out.lsns[-1] + 1 if fit else upto
                break
        upto = last + 1
        if left_rows <= 0 or left_bytes <= 0 or mono() > stop:
            break
        breathe()
    else:
        upto = end
    return Found(page_of(out) if out.lsns else None, upto)


def _wanted(
    log: Past, selection: Selection, sieve: Sieve | None, batch: pa.RecordBatch, ask: Ask | None
) -> pa.RecordBatch:
    """The messages of a batch that are meant."""
    mask = compute.and_(compute.less_equal(batch.column("kind"), _LAST_PUBLISH), selection.mask(batch, log.vias.known))
    count = compute.sum(mask).as_py() or 0
    if count < batch.num_rows:
        batch = cast("Any", batch).filter(mask) if count else batch.slice(0, 0)
    if sieve is None or not count:
        return batch
    if not sieve.plain or sieve.filter is None:
        rows = Rows([], [], [], [], [], [], [])
        _add(log, batch, rows)
        hits = sieve.passed(rows.bodies, rows.properties, rows.topics, rows.lsns, rows.times, ask, here=False)
        return chosen(batch, np.isin(np.arange(len(rows)), hits))
    from penstock.expr.meter import LOOP_BODY
    from penstock.expr.scan import Scan

    scanner = Scan([sieve.filter], log.vias.topics, spent, body_most=LOOP_BODY, breathe=breathe)
    [found], large = scanner.run(batch)
    for lsn in large:
        one = Rows([], [], [], [], [], [], [])
        _add(log, chosen(batch, column(batch, "lsn", "<i8") == lsn), one)
        if sieve.passed(one.bodies, one.properties, one.topics, one.lsns, one.times, ask, here=False):
            found.append(lsn)
    return chosen(batch, np.isin(column(batch, "lsn", "<i8"), found))


def _add(log: Past, batch: pa.RecordBatch, out: Rows) -> None:
    names: list[str] = cells(batch, "name")
    vias = None if nulls(batch, "via") == len(names) else cells(batch, "via")
    out.topics += log.vias.topics(vias, names)
    out.lsns += column(batch, "lsn", "<i8").tolist()
    out.properties += cells(batch, "properties")
    out.bodies += cells(batch, "body")
    out.times += column(batch, "time", "<i8").tolist()
