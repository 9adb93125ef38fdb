"""What messages give to views: their rows of a batch, or read back from the log, parsed once and read by each view, so
many of them at once as take a few milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from penstock.core.view_contributions import AVAILABLE, AWAY, INACTIVE
from penstock.core.view_feed import Arrived, Moved, Noted
from penstock.core.view_groups import Elements, Given, Side, View
from penstock.expr.batches import Table
from penstock.expr.bodies import body_type
from penstock.records.chunks import as_chunk
from penstock.records.entries import Rows
from penstock.records.message_bodies import listed
from penstock.records.message_types import MessageType

if TYPE_CHECKING:
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
