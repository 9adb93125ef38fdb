"""DoGet sow of a view, or with a projection and a grouping; and views as flights.

The loop says when a view has all that was decided so far and gives references to its rows; they are written out,
filtered and ordered in the Flight thread.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import flight

from penstock.core.views.view import body_of
from penstock.errors import AccessRefused, LogBroken
from penstock.expr.gathering.group_rows import key_text
from penstock.history.history import Batches, History
from penstock.server.filters.evaluating import breathe
from penstock.server.sow.query import Counts
from penstock.server.views.row_queries import adhoc_view, chosen, gather, gather_bodies, places, positions
from penstock.wire.flight.commands import RECORDS, RECORDS_DEFAULT, Sow, select
from penstock.wire.flight.tickets import command

if TYPE_CHECKING:
    from penstock.core.views.view import View
    from penstock.server.flight.calls import Caller
    from penstock.server.flight.handover import Answer, Handover
    from penstock.server.views.conflated import ConflatedTopic
    from penstock.server.views.shown import Live


class Viewing:
    """Queries about views.  Methods belong to Flight's threads."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover
        self._engine = handover.engine

    def concerns(self, wanted: Sow) -> bool:
        """Whether the query is about a view, or asks for one."""
        if wanted.projection or wanted.grouping is not None:
            return True
        return not wanted.exchange and self._engine.views.shown(wanted.vhost, wanted.topic) is not None

    def read(self, caller: Caller, wanted: Sow, counts: Counts) -> tuple[pa.Schema, Batches]:
        """Schema and rows, and what they came to.  Errors: NotFound, ExpressionError, InvalidArgument, LogBroken."""
        schema = select(RECORDS, wanted.columns or RECORDS_DEFAULT)
        view = adhoc_view(wanted.topic, wanted.projection or None, wanted.grouping, wanted.vhost)
        shown = None if wanted.exchange else self._engine.views.shown(wanted.vhost, wanted.topic)
        rows = dict[str, bytes]()
        if shown is not None:
            rows = self._handover.submit(partial(self._rows, shown)).wait(caller.gone)()
        filter = wanted.filter
        if view is not None:
            self._gather(caller, wanted, view, None if shown is None else list(rows.values()))
            rows, filter = {key_text(key): body_of(view, row) for key, row in view.rows.items()}, None
        keys, bodies = list(rows), list(rows.values())
        found = places(
            bodies, filter=filter, order_by=wanted.order_by or None, top_n=wanted.top_n, skip_n=wanted.skip_n
        )
        counts.compared, counts.returned = len(bodies), len(found)
        counts.matches = len(places(bodies, filter=filter)) if wanted.stats and wanted.top_n is not None else len(found)
        return schema, _batches(schema, wanted, [keys[place] for place in found], [bodies[place] for place in found])

    def _rows(self, shown: Live | ConflatedTopic, answer: Answer[Callable[[], dict[str, bytes]]]) -> None:
        """Answer once the rows are level, with references to them; on the loop."""
        if self._engine.broken is not None:
            raise LogBroken(f"the log is broken: {self._engine.broken}")
        shown.when_current(lambda: answer.give(shown.held()))

    def _gather(self, caller: Caller, wanted: Sow, view: View, bodies: list[bytes] | None) -> None:
        if bodies is not None:
            gather_bodies(view, chosen(bodies, filter=wanted.filter))
            return
        name = f"{wanted.exchange}/{wanted.topic}" if wanted.exchange else wanted.topic
        lsns = self._handover.call(lambda: positions(self._engine.core, wanted.vhost, name), caller.gone)
        history = History(self._engine.log, caller.gone)
        rows = history.rows_at(lsns)
        if wanted.filter is not None:
            rows = history.matching(rows, wanted.filter, wanted.vhost)
        gather(view, rows, history.exchange_of, breathe)

    def flights(self, caller: Caller, vhost: str) -> list[flight.FlightInfo]:
        """The views of a vhost that the caller may read, as flights; on the loop."""
        shown = [one for one in self._engine.views.all_shown() if one.vhost == vhost]
        return [view_info(one) for one in shown if _readable(caller, one)]


def _readable(caller: Caller, shown: Live | ConflatedTopic) -> bool:
    try:
        if caller.rights is not None:
            caller.rights.read_topic(shown.vhost, "", shown.name, whole=False)
    except AccessRefused:
        return False
    return True


def view_info(shown: Live | ConflatedTopic) -> flight.FlightInfo:
    """A view or conflated topic as a flight: its rows."""
    vhost, name = shown.vhost, shown.name
    return flight.FlightInfo(
        select(RECORDS, RECORDS_DEFAULT),
        flight.FlightDescriptor.for_path(vhost, "view", name),
        [flight.FlightEndpoint(flight.Ticket(command("sow", topic=name, vhost=vhost)), [])],
        shown.count,
        -1,
    )


def _batches(schema: pa.Schema, wanted: Sow, keys: list[str], bodies: list[bytes]) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(bodies), wanted.batch_size):
        some = bodies[start : start + wanted.batch_size]
        columns: dict[str, list[Any]] = {
            "sow_key": list(keys[start : start + len(some)]),
            "topic": [wanted.topic] * len(some),
            "exchange": [wanted.exchange] * len(some),
            "body": list(some),
        }
        yield pa.RecordBatch.from_arrays(
            [pa.array(columns[f.name], f.type) if f.name in columns else pa.nulls(len(some), f.type) for f in schema],
            schema=schema,
        )


__all__ = ["Viewing", "view_info"]
