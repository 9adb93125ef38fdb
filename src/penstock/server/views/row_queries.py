"""What a query shows of rows that are JSON objects: those that match, in an order, some of them.

For rows in memory, as views have them; order and filter mean what they mean for records.

A query by name is about what a queue or topic shows now; one with a projection and a grouping is gathered once over
rows of the log, and not kept up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

import numpy as np
import pyarrow as pa

from penstock.core.queue.places import AVAILABLE
from penstock.core.sow.select import Ordered, parse_order
from penstock.core.views.view import Elements, View, body_of
from penstock.errors import InvalidArgument, NotFound
from penstock.expr import compile_filter
from penstock.expr.batches import parsed
from penstock.expr.gathering.view_definition import Definition
from penstock.records.entries import Topic
from penstock.records.properties import EMPTY
from penstock.server.flight.reading.queue_contents import lsns_of

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.state.lsns import Ints
    from penstock.history.history import Batches


class Asked(TypedDict, total=False):
    """What a query may say."""

    filter: str | None
    order_by: str | Sequence[str] | None
    top_n: int | None
    skip_n: int | None


def chosen(bodies: Sequence[bytes], **asked: Unpack[Asked]) -> list[bytes]:
    """Rows that match, ordered, at most `top_n` behind the first `skip_n`.  Errors as `places`."""
    return [bodies[place] for place in places(bodies, **asked)]


def places(
    bodies: Sequence[bytes],
    *,
    filter: str | None = None,
    order_by: str | Sequence[str] | None = None,
    top_n: int | None = None,
    skip_n: int | None = None,
) -> list[int]:
    """The same as places in `bodies`.

    Errors: ExpressionError; InvalidArgument for numbers below 0, and for `skip_n` without `top_n`.
    """
    for name, value in (("top_n", top_n), ("skip_n", skip_n)):
        if value is not None and value < 0:
            raise InvalidArgument(f"{name} is {value}, below 0")
    if skip_n and top_n is None:
        raise InvalidArgument("skip_n needs top_n: it says how many of the first so many are passed over")
    terms = parse_order(order_by)
    there: Sequence[int] = range(len(bodies))
    if filter is not None:
        passed = compile_filter(filter).matches(bodies)
        there = [place for place in there if passed[place]]
    skip = skip_n or 0
    most = None if top_n is None else top_n + skip
    if terms:
        some = [bodies[place] for place in there]
        ordered = Ordered(terms, most)
        ordered.add(there, there, [term.value.values(some) for term in terms])
        there = ordered.lsns()
    return list(there[skip:most])


def positions(core: Core, vhost: str, name: str) -> Ints:
    """LSNs of what is available in a queue, or of the records of a topic with a key; ascending.

    Errors: NotFound, InvalidArgument for a topic without a key.
    """
    found = _topic(core, vhost, name)
    if found is not None:
        return np.sort(found)
    queue = core.find_queue(vhost, name)
    if queue is None:
        core.sow(vhost, "", name)  # says what is wrong with the name
        raise NotFound(f"no queue or topic '{name}' in vhost '{vhost}'")
    chunks = [lsns_of(chunk) for chunk in core.queue(vhost, name).chunks(*AVAILABLE)]
    return np.sort(np.concatenate(chunks)) if chunks else np.zeros(0, np.int64)


def _topic(core: Core, vhost: str, name: str) -> Ints | None:
    exchange, slash, key = name.partition("/")
    by_name = core.sows.by_name
    sow = by_name.get((vhost, exchange, key)) if slash and exchange else None
    sow = sow or by_name.get((vhost, "", name))
    return None if sow is None else sow.index.snapshot().arrays()[1]


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
