"""What messages give to views: their rows of a batch, or read back from the log, parsed once and read by each view, so
many of them at once as take a few milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pyarrow as pa

from penstock.core.view_contributions import AVAILABLE, AWAY, INACTIVE
from penstock.core.view_feed import Arrived, Moved, Noted
from penstock.core.view_groups import Elements, Given, Side, View, body_of
from penstock.errors import InvalidArgument
from penstock.expr.batches import BodyReader, Table, parsed
from penstock.expr.bodies import body_type
from penstock.expr.view_definition import Definition
from penstock.records.chunks import as_chunk
from penstock.records.entries import Rows, Topic
from penstock.records.message_bodies import listed
from penstock.records.message_types import MessageType
from penstock.records.properties import EMPTY

if TYPE_CHECKING:
    from penstock.history.history import Batches
    from penstock.server.views.shown import Live

Into: TypeAlias = "View | Side"

PORTION = 1000
"""Messages that are read and brought to the groups in one step: two to four milliseconds."""

SLICE = 250
"""Messages that are parsed before a thread lets the loop in."""


def states_of(step: Arrived) -> bytes:
    """The state of each row; empty when all are available."""
    batch, rows = step.batch, step.rows
    late = batch.not_before if step.delayed else None
    if late is None and batch.first + rows[-1] < step.upto:
        return b""
    return bytes(
        AWAY
        if late is not None and late[row] > batch.time
        else INACTIVE
        if batch.first + row >= step.upto
        else AVAILABLE
        for row in rows
    )


def elements_of(step: Arrived) -> Elements:
    """Rows of a batch; `records` are not there yet (`given`).  Any thread."""
    batch, rows = step.batch, step.rows
    every = len(rows) == len(batch.bodies)
    bodies = listed(batch.bodies)
    headers, topics = batch.properties, batch.topics
    return Elements(
        [batch.first + row for row in rows],
        (),
        bodies if every else [bodies[row] for row in rows],
        headers if isinstance(headers, bytes) or every else [headers[row] for row in rows],
        topics if not isinstance(topics, list) or every else [topics[row] for row in rows],
        batch.time,
        states_of(step),
    )


def elements_of_rows(rows: Rows, states: bytes) -> Elements:
    """Rows that were read back.  Any thread."""
    return Elements(rows.lsns, (), rows.bodies, rows.properties, rows.topics, rows.times, states)


def noted(step: Arrived) -> Noted:
    return Noted(step.queue, as_chunk([step.batch.first + row for row in step.rows]), states_of(step))


def given(
    views: Sequence[Into], elements: Elements, pause: Callable[[], None] | None, kind: MessageType
) -> list[Given | Exception]:
    """What messages of a type give to each view, or what it fails with; the bodies are parsed once.

    Any thread: `pause` lets the loop in between.
    """
    try:
        whole = _parsed(elements, pause, kind)
    except Exception as error:  # noqa: BLE001 - theirs
        return [error] * len(views)
    out: list[Given | Exception] = []
    for view in views:
        try:
            out.append(view.read(whole))
        except Exception as error:  # noqa: BLE001 - the border of each
            out.append(error)
        if pause is not None:
            pause()
    return out


def _parsed(elements: Elements, pause: Callable[[], None] | None, kind: MessageType) -> Elements:
    bodies, heads, tables = elements.bodies, elements.headers, body_type(kind).tables
    if pause is None:
        records = tables(bodies, heads)
    else:
        records = list[Table]()
        for start in range(0, len(bodies), SLICE):
            part = slice(start, start + SLICE)
            records += tables(bodies[part], heads if isinstance(heads, bytes) else heads[part])
            pause()
    return Elements(elements.lsns, records, bodies, elements.headers, elements.topics, elements.times, elements.states)


def portion(lives: Sequence[Live], step: Moved) -> tuple[Moved, Moved | None]:
    """As much of a step as is done at once, and the rest: each pair costs as much as some messages."""
    pairs = step.pairs
    if step.verb in ("end", "anew", "look"):
        return step, None
    room = PORTION
    for at in range(0, len(pairs), 2):
        low, high = pairs[at], pairs[at + 1]
        for live in lives:
            stop, rows = live.into.measure(low, high, max(room, 1))  # at least one, or it would never end
            if stop < high:
                now, rest = [*pairs[:at], low, stop], [stop, *pairs[at + 1 :]]
                return Moved(step.queue, step.verb, now, step.lsn), Moved(step.queue, step.verb, rest, step.lsn)
            room -= rows // max(len(lives), 1) + 1
        if room <= 0 and at + 2 < len(pairs):
            now, rest = list(pairs[: at + 2]), list(pairs[at + 2 :])
            return Moved(step.queue, step.verb, now, step.lsn), Moved(step.queue, step.verb, rest, step.lsn)
        room = max(room, 1)
    return step, None


# -- an aggregated query: gathered once over rows of the log, and not kept up


def adhoc_view(
    source: str, projection: str | Sequence[str] | None, grouping: str | Sequence[str] | None, vhost: str
) -> View | None:
    """The view that an aggregated query asks for, weighed; None for a query that asks for none.

    Errors: ExpressionError; InvalidArgument when only one of the two is there.
    """
    if projection is None and grouping is None:
        return None
    if projection is None or grouping is None:
        raise InvalidArgument("projection and grouping go together: an aggregated query needs both")
    select = (projection,) if isinstance(projection, str) else tuple(projection)
    group_by = (grouping,) if isinstance(grouping, str) else tuple(grouping)
    return View(Definition("", source, select, group_by, vhost=vhost), weighed=True)


def gather_bodies(view: View, bodies: Sequence[bytes], pause: Callable[[], object]) -> list[bytes]:
    """The rows of an ad-hoc view over JSON objects.  pause: called between portions, and raises where it is to end."""
    for start in range(0, len(bodies), PORTION):
        some = bodies[start : start + PORTION]
        lsns = range(start + 1, start + 1 + len(some))
        view.enter(view.read(Elements(lsns, [parsed(body) for body in some], some)))
        pause()
    view.flush()
    return [body_of(view, row) for row in view.rows.values()]


def gather(
    view: View, rows: Batches, exchange_of: Callable[[int], str], kind: MessageType, pause: Callable[[], object] = int
) -> list[bytes]:
    """The rows of an ad-hoc view over messages in the log's columns, as JSON objects.

    exchange_of: of a `via`.  kind: of the bodies.  pause: called between portions, and raises where it is to end.
    """
    at, reader = 0, body_type(kind)
    for batch in rows:
        for start in range(0, batch.num_rows, PORTION):
            part = batch.slice(start, PORTION)
            view.enter(view.read(_elements(part, at + 1, exchange_of, reader)))
            at += part.num_rows
            pause()
    view.flush()
    return [body_of(view, row) for row in view.rows.values()]


def _elements(batch: pa.RecordBatch, first: int, exchange_of: Callable[[int], str], reader: BodyReader) -> Elements:
    """Positions are counted anew: rows of several states need not ascend."""
    columns: dict[str, Any] = {name: batch.column(name) for name in ("body", "properties", "name", "via", "time")}
    bodies = [body or b"" for body in cast("Iterable[bytes | None]", columns["body"].to_pylist())]
    properties = [data or EMPTY for data in columns["properties"].to_pylist()]
    topics = [
        Topic("", "" if via is None else exchange_of(via), name)
        for via, name in zip(columns["via"].to_pylist(), columns["name"].to_pylist(), strict=True)
    ]
    return Elements(
        range(first, first + batch.num_rows),
        reader.tables(bodies, properties),
        bodies,
        properties,
        topics,
        columns["time"].cast(pa.int64()).to_pylist(),
    )
