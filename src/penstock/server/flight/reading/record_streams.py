"""DoGet subscribe: the records of a SOW topic, then what becomes of them, until the client goes.

    Flight thread   sends what is queued; a beat when all is quiet, so that a client that has vanished is noticed
    loop            a `Follow` queues events up to a bound; below it, it goes on

Column `event` is `sow` for records that were there, `publish`, or `oof` with its `reason`.  Metadata beside a batch,
JSON: `{"completed": true}` when all records that were there have come, `{"heartbeat": true}`.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from penstock.core.sow.select import SelectList, narrowed_select, order_of, parse_select
from penstock.errors import Unavailable
from penstock.records.schema import TIMESTAMP
from penstock.server.flight.calls import Caller, Slot
from penstock.server.flight.reading.outlet import Outlet, Piece
from penstock.server.follow import Follow
from penstock.server.sow.record_events import Event, Wish, selected
from penstock.server.views.row_source import interval_of
from penstock.wire.flight.codec import bookmark_column, lsn_column, message_batch, text_column
from penstock.wire.flight.commands import EVENTS, EVENTS_DEFAULT, Subscribe, select

if TYPE_CHECKING:
    from penstock.server.flight.handover import Handover

EVENT_COST = 200


class Watching:
    """The subscriptions to records of one door."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover
        self.open = set[EventOutlet]()

    def read(self, caller: Caller, slot: Slot, command: Subscribe) -> tuple[pa.Schema, Iterator[Piece]]:
        """Schema and batches.  Refusals are raised here, not with the first batch."""
        wish = Wish(
            command.sow, command.filter, command.delta, command.no_empties, command.oof,
            order_of(command.order_by or None), command.top_n, command.skip_n,
            interval_of(command.conflation), command.conflation_key, command.projection, command.grouping,
            narrowed_select(parse_select(command.select), parse_select(command.shown)),
        )  # fmt: skip
        engine = self._handover.engine
        outlet = EventOutlet(engine.log.origin)

        def begin() -> tuple[Follow[list[Event]], SelectList | None]:
            name = command.vhost, command.exchange, command.topic
            follow = Follow(engine.views.events(*name, wish), outlet)
            self.open.add(outlet)
            sow = engine.core.sows.by_name.get(name)
            if wish.select is None or sow is None or not wish.delta:
                return follow, wish.select
            return follow, wish.select.with_paths(sow.rule.paths)

        live, sent = self._handover.call(begin, caller.gone, durable=False)
        slot.floor = None  # the subscription holds what it needs
        schema = select(EVENTS, command.columns or EVENTS_DEFAULT)
        rows = self._rows(caller, outlet, live, schema)
        return schema, rows if sent is None else selected(rows, sent)

    def _rows(
        self, caller: Caller, outlet: EventOutlet, live: Follow[list[Event]], schema: pa.Schema
    ) -> Iterator[Piece]:
        ended = _Ended(lambda: self._handover.post(partial(self._end, outlet, live)))
        try:
            yield from outlet.batches(schema, caller.gone, lambda: self._handover.post(live.step))
        finally:
            ended.now()

    def _end(self, outlet: EventOutlet, live: Follow[list[Event]]) -> None:
        live.close()
        outlet.drop()
        self.open.discard(outlet)

    def stop(self) -> None:
        for outlet in list(self.open):
            outlet.ended(Unavailable("the server stops"))


class _Ended:
    """Ends a subscription once, also when its rows were never asked for."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end: Callable[[], None] | None = end

    def now(self) -> None:
        end, self._end = self._end, None
        if end is not None:
            end()

    def __del__(self) -> None:
        self.now()


class EventOutlet(Outlet[list[Event]]):
    """Events on their way to a client."""

    def cost(self, portion: list[Event]) -> int:
        return sum(EVENT_COST + len(event.body) + len(event.properties) for event in portion)

    def completed(self, *, last: bool) -> bytes:
        return b'{"completed": true}'

    def batch(self, portions: list[list[Event]], schema: pa.Schema) -> pa.RecordBatch:
        events = [event for portion in portions for event in portion]
        rows = len(events)
        lsns = lsn_column([event.lsn for event in events])

        def texts(values: Sequence[str | None]) -> pa.Array[Any]:
            return text_column(values, rows)

        return message_batch(
            schema,
            rows,
            [event.properties for event in events],
            {
                "event": lambda: texts([event.kind for event in events]),
                "reason": lambda: texts([event.reason for event in events]),
                "sow_key": lambda: texts([event.key or None for event in events]),
                "lsn": lambda: lsns,
                "bookmark": lambda: bookmark_column(self._origin, lsns),
                "topic": lambda: texts([event.topic.name for event in events]),
                "exchange": lambda: texts([event.topic.exchange for event in events]),
                "time": lambda: cast("pa.Array[Any]", pa.array([event.time for event in events], TIMESTAMP)),
                "body": lambda: cast("pa.Array[Any]", pa.array([event.body for event in events], pa.binary())),
            },
        )
