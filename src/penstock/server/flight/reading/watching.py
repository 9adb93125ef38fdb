"""DoGet subscribe: the records of a SOW topic, then what becomes of them, until the client goes.

    Flight thread   sends what is queued; a beat when all is quiet, so that a client that has vanished is noticed
    loop            a `Live` queues events up to a bound; below it, it goes on

Column `event` is `sow` for records that were there, `publish`, or `oof` with its `reason`.  Metadata beside a batch,
JSON: `{"completed": true}` when all records that were there have come, `{"heartbeat": true}`.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import orjson
import pyarrow as pa

from penstock.core.sow.ordering import order_of
from penstock.core.sow.select import SelectList, narrowed_select, parse_select
from penstock.errors import PenstockError, Unavailable
from penstock.records.schema import TIMESTAMP
from penstock.server.flight.calls import Caller, Slot
from penstock.server.flight.handover import Abandoned, Bell
from penstock.server.flight.reading.outlet import BATCH_ROWS, BEAT_S, POLL_S, QUEUED_MOST, Piece
from penstock.server.sow.record_events import Event, Wish, selected
from penstock.server.sow.record_watch import RecordWatch
from penstock.server.sow.unkeyed import Unkeyed
from penstock.server.views.watching import Watch, interval_of, watched
from penstock.wire.flight.codec import bookmark_column, lsn_column, message_batch, text_column
from penstock.wire.flight.commands import Subscribe
from penstock.wire.flight.schemas import EVENTS, EVENTS_DEFAULT, select

if TYPE_CHECKING:
    from penstock.server.flight.handover import Handover

EVENT_COST = 200


class Watching:
    """The subscriptions to records of one door."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover
        self.open = set[Outlet]()

    def read(self, caller: Caller, slot: Slot, command: Subscribe) -> tuple[pa.Schema, Iterator[Piece]]:
        """Schema and batches.  Refusals are raised here, not with the first batch."""
        wish = Wish(
            command.sow, command.filter, command.delta, command.no_empties, command.oof,
            order_of(command.order_by or None), command.top_n, command.skip_n,
            interval_of(command.conflation), command.conflation_key, command.projection, command.grouping,
            narrowed_select(parse_select(command.select), parse_select(command.shown)),
        )  # fmt: skip
        engine = self._handover.engine
        outlet = Outlet(engine.log.origin)
        sent: SelectList | None = wish.select

        def begin() -> Watch:
            nonlocal sent
            watch = None
            if not command.exchange:
                watch = engine.views.watch(command.vhost, command.topic, wish, outlet)
            if watch is None:
                name = command.vhost, command.exchange, command.topic
                sow = engine.core.sows.by_name.get(name)
                if sow is None:
                    watch = watched(
                        engine.views.alarms, wish, outlet, partial(Unkeyed, engine.core, engine.replays, *name, wish)
                    )
                else:
                    watch = watched(
                        engine.views.alarms, wish, outlet, partial(RecordWatch, engine, engine.replays, sow, wish)
                    )
                    if wish.delta and sent is not None:
                        sent = sent.with_paths(sow.rule.paths)
            self.open.add(outlet)
            return watch

        live = self._handover.call(begin, caller.gone, durable=False)
        slot.floor = None  # the subscription holds what it needs
        schema = select(EVENTS, command.columns or EVENTS_DEFAULT)
        rows = self._rows(caller, outlet, live, schema)
        return schema, rows if sent is None else selected(rows, sent)

    def _rows(self, caller: Caller, outlet: Outlet, live: Watch, schema: pa.Schema) -> Iterator[Piece]:
        ended = _Ended(lambda: self._handover.post(partial(self._end, outlet, live)))
        try:
            yield from outlet.batches(schema, caller.gone, lambda: self._handover.post(live.go_on))
        finally:
            ended.now()

    def _end(self, outlet: Outlet, live: Watch) -> None:
        live.close()
        outlet.drop()
        self.open.discard(outlet)

    def stop(self) -> None:
        """The server stops."""
        for outlet in list(self.open):
            outlet.ended(Unavailable("the server stops"))


class _Ended:
    """Ends a subscription once, also when its rows were never asked for."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end: Callable[[], None] | None = end

    def now(self) -> None:
        """It is over."""
        end, self._end = self._end, None
        if end is not None:
            end()

    def __del__(self) -> None:
        self.now()


class Outlet:
    """Events on their way from the loop to the thread that sends them."""

    def __init__(self, origin: int) -> None:
        self._origin = origin
        self._bell = Bell()
        self._guard = threading.Lock()
        self._events: deque[Event | bytes] = deque()
        self.queued = 0  # bytes that wait; changed under `_guard`
        self._error: PenstockError | None = None

    # -- loop: a taker

    def room(self) -> int:
        """Until enough is queued."""
        return 0 if self.queued > QUEUED_MOST or self._error is not None else BATCH_ROWS

    def take(self, events: list[Event]) -> None:
        """Queue them."""
        self._events += events
        self._count(sum(map(_cost, events)))
        self._bell.ring()

    def level(self) -> None:
        """Tell the client."""
        self._events.append(b'{"completed": true}')
        self._bell.ring()

    def ended(self, error: PenstockError) -> None:
        """Tell the client, after what it was sent."""
        self._error = self._error or error
        self._bell.ring()

    def drop(self) -> None:
        """Nobody reads any more."""
        self._events.clear()
        self._count(-self.queued)

    def _count(self, size: int) -> None:
        with self._guard:
            self.queued += size

    # -- the thread that sends

    def batches(self, schema: pa.Schema, gone: Callable[[], bool], go_on: Callable[[], None]) -> Iterator[Piece]:
        """What was queued, until the end."""
        empty = pa.RecordBatch.from_pylist([], schema=schema)
        said = time.monotonic()
        while True:
            events, told = self._some()
            if events:
                said = time.monotonic()
                yield _batch(events, schema, self._origin)
                self._count(-sum(map(_cost, events)))
                go_on()  # whether the loop stopped for want of room is not known here
            if told is not None:
                yield empty, told
            if events or told is not None:
                continue
            if self._error is not None:
                raise self._error
            if not self._bell.wait(POLL_S):
                if gone():
                    raise Abandoned
                if time.monotonic() - said > BEAT_S:
                    said = time.monotonic()
                    yield empty, orjson.dumps({"heartbeat": True})

    def _some(self) -> tuple[list[Event], bytes | None]:
        """Events for one batch, and what is to be told after them."""
        events = list[Event]()
        while self._events and len(events) < BATCH_ROWS:
            one = self._events.popleft()
            if isinstance(one, bytes):
                return events, one
            events.append(one)
        return events, None


def _cost(event: Event) -> int:
    return EVENT_COST + len(event.body) + len(event.properties)


def _batch(events: list[Event], schema: pa.Schema, origin: int) -> pa.RecordBatch:
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
            "bookmark": lambda: bookmark_column(origin, lsns),
            "topic": lambda: texts([event.topic.name for event in events]),
            "exchange": lambda: texts([event.topic.exchange for event in events]),
            "time": lambda: cast("pa.Array[Any]", pa.array([event.time for event in events], TIMESTAMP)),
            "body": lambda: cast("pa.Array[Any]", pa.array([event.body for event in events], pa.binary())),
        },
    )
