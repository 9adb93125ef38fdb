"""Aggregated queries: a projection and a grouping over rows of the log, gathered once and not kept up."""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from penstock.core.views.view import Elements, View, body_of
from penstock.errors import InvalidArgument
from penstock.expr.fields import parsed
from penstock.expr.gathering.definition import Definition
from penstock.records.entries import Topic
from penstock.records.properties import EMPTY

if TYPE_CHECKING:
    from penstock.history.history import Batches

PORTION = 1000
"""Rows that are gathered in one step."""


def adhoc_view(
    source: str, projection: str | Sequence[str] | None, grouping: str | Sequence[str] | None, vhost: str = "/"
) -> View | None:
    """The view that an aggregated query asks for; None for a query that asks for none.

    Errors: ExpressionError; InvalidArgument when only one of the two is there.
    """
    if projection is None and grouping is None:
        return None
    if projection is None or grouping is None:
        raise InvalidArgument("projection and grouping go together: an aggregated query needs both")
    select = (projection,) if isinstance(projection, str) else tuple(projection)
    group_by = (grouping,) if isinstance(grouping, str) else tuple(grouping)
    return View(Definition("", source, select, group_by, vhost=vhost))


def gather_bodies(view: View, bodies: Sequence[bytes]) -> list[bytes]:
    """The rows of an ad-hoc view over JSON objects."""
    view.enter(view.read(Elements(range(1, len(bodies) + 1), [parsed(body) for body in bodies], bodies)))
    view.flush()
    return [body_of(view, row) for row in view.rows.values()]


def gather(
    view: View, rows: Batches, exchange_of: Callable[[int], str], pause: Callable[[], object] = int
) -> list[bytes]:
    """The rows of an ad-hoc view over messages in the log's columns, as JSON objects.

    exchange_of: of a `via`.  pause: called between portions.
    """
    at = 0
    for batch in rows:
        for start in range(0, batch.num_rows, PORTION):
            part = batch.slice(start, PORTION)
            view.enter(view.read(_elements(part, at + 1, exchange_of)))
            at += part.num_rows
            pause()
    view.flush()
    return [body_of(view, row) for row in view.rows.values()]


def _elements(batch: pa.RecordBatch, first: int, exchange_of: Callable[[int], str]) -> Elements:
    """Positions are counted anew: rows of several states need not ascend."""
    columns: dict[str, Any] = {name: batch.column(name) for name in ("body", "properties", "name", "via", "time")}
    bodies = [body or b"" for body in cast("Iterable[bytes | None]", columns["body"].to_pylist())]
    topics = [
        Topic("", "" if via is None else exchange_of(via), name)
        for via, name in zip(columns["via"].to_pylist(), columns["name"].to_pylist(), strict=True)
    ]
    return Elements(
        range(first, first + batch.num_rows),
        [parsed(body) for body in bodies],
        bodies,
        [data or EMPTY for data in columns["properties"].to_pylist()],
        topics,
        columns["time"].cast(pa.int64()).to_pylist(),
    )
