"""The records of one moment as events, portion after portion; off the loop."""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa

from penstock.core.sow.index import Snapshot
from penstock.history.history import Batches, History, Past
from penstock.records.entries import Topic
from penstock.server.sow.page_work import Event, given_key
from penstock.server.sow.query import Counts, Query, run, values_of

if TYPE_CHECKING:
    from penstock.core.sow.holding import Sow
    from penstock.core.sow.index import Ints, Numbers
    from penstock.core.sow.ordering import Term
    from penstock.core.sow.paging import Window


def portions(
    taken: object,
    sow: Sow,
    filter: str | None,
    terms: Sequence[Term],
    window: Window | None,
    log: Past,
    gone: Callable[[], bool],
    size: int,
) -> Iterator[list[Event]]:
    """Records that match, or those on the page, which is filled then; in the order that `terms` say."""
    assert isinstance(taken, Snapshot)
    numbers, lsns = taken.arrays()
    history = History(log, gone)
    order = tuple(f"{term.value.text} {'DESC' if term.descending else 'ASC'}" for term in terms)
    if window is None:
        rows = run(Query(filter, order, batch_size=size), numbers, lsns, history, sow.vhost, Counts())
    else:
        rows = _of_page(window, filter, terms, numbers, lsns, history, sow.vhost)
    by_lsn = np.argsort(lsns)
    for batch in rows:
        own = cast("Ints", batch.column("lsn").to_numpy())
        found = numbers[by_lsn][np.searchsorted(lsns[by_lsn], own)].tolist()
        yield list(_events(batch, found, sow))


def _of_page(
    window: Window,
    filter: str | None,
    terms: Sequence[Term],
    numbers: Numbers,
    lsns: Ints,
    history: History,
    vhost: str,
) -> Batches:
    """All that match are given their place; the rows of the page."""
    by_lsn = np.argsort(lsns)
    rows: list[tuple[int, int, Sequence[object]]] = []
    for batch in run(Query(filter), numbers, lsns, history, vhost, Counts()):
        own = cast("Ints", batch.column("lsn").to_numpy())
        found = numbers[by_lsn][np.searchsorted(lsns[by_lsn], own)].tolist()
        columns = values_of(terms, batch, vhost)
        rows += zip(found, own.tolist(), zip(*columns, strict=True) if columns else [()] * len(found), strict=True)
    for lsn in window.fill(rows):  # type: ignore[arg-type]  # values of expressions
        yield from history.rows_at([lsn])


def _events(batch: pa.RecordBatch, numbers: Sequence[int], sow: Sow) -> Iterator[Event]:
    topic = Topic(sow.vhost, sow.exchange, sow.name)
    columns = (
        batch.column("lsn").to_pylist(),
        batch.column("time").cast(pa.int64()).to_pylist(),
        batch.column("properties").to_pylist(),
        batch.column("body").to_pylist(),
    )
    rows = cast("Iterator[tuple[int, int, int, bytes, bytes]]", zip(numbers, *columns, strict=True))
    for number, lsn, time, properties, body in rows:
        key = given_key(properties) or "" if sow.rule.given else str(number)
        yield Event("sow", number, key, topic, lsn, time, properties, body)
