"""What each kind of DoGet leads to: the past, the content of a queue, records, a view, a statement, or a stream.

Large reads come from the bulk child (`server.bulk.relay`), small ones from this process; both give the same rows.

Views: the loop says when a view has all that was decided so far and gives references to its rows; they are written out,
filtered and ordered in the Flight thread.

A subscription gives the records of a SOW topic, then what becomes of them, until the client goes.

    Flight thread   sends what is queued; a beat when all is quiet, so that a client that has vanished is noticed
    loop            a `Follow` queues events up to a bound; below it, it goes on

Column `event` is `sow` for records that were there, `publish`, or `oof` with its `reason`.  Metadata beside a batch,
JSON: `{"completed": true}` when all records that were there have come, `{"heartbeat": true}`.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pyarrow as pa

from penstock.core.sow.select import SelectList, narrowed_select, order_of, parse_select
from penstock.core.streams import Link
from penstock.errors import AccessRefused, InvalidArgument, Unavailable
from penstock.expr import compile_filter
from penstock.history.history import Batches, History
from penstock.records.message_types import JSON, MESSAGE_TYPE, TYPE_IN_SCHEMA, typed
from penstock.records.schema import TIMESTAMP
from penstock.server.asking.judging import breathe
from penstock.server.flight.calls import Caller, Guarded, Slot
from penstock.server.flight.entrance import Info
from penstock.server.flight.followed import Following
from penstock.server.flight.handover import POLL_S, Abandoned, Answer, Handover, Outlet, Piece, longer
from penstock.server.flight.queue_rows import content, planned, snapshot
from penstock.server.flight.record_rows import hold, records, with_stats
from penstock.server.flight.streams import refuse_lost
from penstock.server.follow import Follow
from penstock.server.people.access import Charge
from penstock.server.views.conflated import ConflatedTopic, interval_of
from penstock.server.views.evaluating import adhoc_view, gather, gather_bodies
from penstock.server.views.record_query import Counts, Event, Wish, selected
from penstock.server.views.row_source import chosen, places, positions
from penstock.server.views.shown import Live, Snapshot, snapshot_of
from penstock.wire.flight.bookmarks import parse_span
from penstock.wire.flight.codec import bookmark_column, lsn_column, message_batch, text_column
from penstock.wire.flight.commands import (
    EVENTS,
    EVENTS_DEFAULT,
    RECORDS,
    RECORDS_DEFAULT,
    Get,
    LogRange,
    Plan,
    QueueContent,
    Replay,
    Sow,
    Sql,
    Subscribe,
    select,
)
from penstock.wire.flight.tickets import command

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.view_groups import View
    from penstock.records.chunks import Chunk
    from penstock.server.bulk.relay import Relay
    from penstock.server.engine import Engine
    from penstock.server.flight.gatekeeper import Gatekeeper
    from penstock.server.sql.queries import Queries


GATHERED_AT_ONCE = 2
"""Queries with a projection that are gathered at a time.  Each is Python in a thread of this process, and of sixty at
work the loop, which lets the interpreter go with every call of the system, got it back after seconds."""


class Viewing:
    """Queries about views.  Methods belong to Flight's threads."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover
        self._engine = handover.engine
        self._bytes = handover.engine.shares.of("view_bytes")
        self._gathering = threading.Semaphore(GATHERED_AT_ONCE)

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
        rows: Snapshot | None = None
        if shown is not None:
            rows = self._handover.submit(partial(self._rows, shown)).wait(caller.gone)
        filter, charge = wanted.filter, Charge(self._bytes, caller.who)
        if view is not None:
            with self._gathering_for(caller):
                self._gather(caller, wanted, view, None if rows is None else rows.bodies(), charge)
            rows, filter = snapshot_of(view), None
        assert rows is not None  # a view is shown, or was asked for
        asks = filter is not None or wanted.order_by
        bodies = rows.bodies() if asks else cast("Sequence[bytes]", range(len(rows)))  # nobody looks at them
        found = places(
            bodies, filter=filter, order_by=wanted.order_by or None, top_n=wanted.top_n, skip_n=wanted.skip_n
        )
        counts.compared, counts.returned = len(bodies), len(found)
        counts.matches = len(places(bodies, filter=filter)) if wanted.stats and wanted.top_n is not None else len(found)
        return schema, _batches(schema, wanted, rows.chosen(found), charge)

    @contextmanager
    def _gathering_for(self, caller: Caller) -> Generator[None]:
        """Its turn to gather.  Abandoned where the caller goes before that."""
        pause = POLL_S
        while not self._gathering.acquire(timeout=pause):
            if caller.gone():
                raise Abandoned
            pause = longer(pause)
        try:
            yield
        finally:
            self._gathering.release()

    def _rows(self, shown: Live | ConflatedTopic, answer: Answer[Snapshot]) -> None:
        """Answer once the rows are level; on the loop.

        Unavailable where a fault keeps the view from that.
        """
        self._engine.usable()
        shown.when_current(lambda: answer.give(shown.snapshot()), answer.fail)

    def _gather(self, caller: Caller, wanted: Sow, view: View, bodies: list[bytes] | None, charge: Charge) -> None:
        def pause() -> None:
            charge.to(view.size)
            breathe()

        if bodies is not None:
            filter = None if wanted.filter is None else typed(wanted.filter, JSON)
            gather_bodies(view, chosen(bodies, filter=filter), pause)
            return
        name = wanted.vhost, wanted.exchange, wanted.topic
        lsns, kind = self._handover.call(partial(positions, self._engine.core, *name), caller.gone)
        history = History(self._engine.log, caller.gone)
        rows = history.rows_at(lsns())
        if wanted.filter is not None:
            rows = history.matching(rows, typed(wanted.filter, kind), wanted.vhost)
        gather(view, rows, history.exchange_of, kind, pause)

    def flights(self, caller: Caller, vhost: str) -> list[Info]:
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


def view_info(shown: Live | ConflatedTopic) -> Info:
    """A view or conflated topic as a flight: its rows."""
    vhost, name = shown.vhost, shown.name
    ticket = command("sow", topic=name, vhost=vhost)
    return Info(select(RECORDS, RECORDS_DEFAULT), (vhost, "view", name), ticket, shown.count)


def _batches(schema: pa.Schema, wanted: Sow, rows: Snapshot, charge: Charge) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), wanted.batch_size):
        some = rows.part(start, start + wanted.batch_size)
        columns: dict[str, list[Any]] = {
            "sow_key": [key for key, _ in some],
            "topic": [wanted.topic] * len(some),
            "exchange": [wanted.exchange] * len(some),
            "body": [body for _, body in some],
        }
        yield pa.RecordBatch.from_arrays(
            [pa.array(columns[f.name], f.type) if f.name in columns else pa.nulls(len(some), f.type) for f in schema],
            schema=schema,
        )
    charge.close()


__all__ = ["Viewing", "view_info"]


EVENT_COST = 200


def wish_of(command: Subscribe) -> Wish:
    """What a subscriber asks for.  Raises InvalidArgument, ExpressionError."""
    return Wish(
        command.sow, command.filter, command.delta, command.no_empties, command.oof,
        order_of(command.order_by or None), command.top_n, command.skip_n,
        interval_of(command.conflation), command.conflation_key, command.projection, command.grouping,
        narrowed_select(parse_select(command.select), parse_select(command.shown)), command.within,
    )  # fmt: skip


def fields_sent(core: Core, name: tuple[str, str, str], wish: Wish) -> SelectList | None:
    """Which fields of records or rows, by vhost, exchange and topic, are sent; None: all.  On the loop."""
    sow = core.sows.by_name.get(name)
    if wish.select is None or sow is None:
        return wish.select
    chosen = wish.select.reading(sow.rule.message_type)
    return chosen.with_paths(sow.rule.paths) if wish.delta else chosen


class Watching:
    """The subscriptions to records of one door."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover
        self.open = set[EventOutlet]()

    def read(self, caller: Caller, slot: Slot, command: Subscribe) -> tuple[pa.Schema, Iterator[Piece]]:
        """Schema and batches.  Refusals are raised here, not with the first batch."""
        wish = wish_of(command)
        engine = self._handover.engine
        outlet = EventOutlet(engine.log.origin, self._handover.queued_most, caller.user, caller.peer)

        charge = Charge(engine.shares.of("view_bytes"), caller.who)

        def begin() -> tuple[Follow[list[Event]], SelectList | None]:
            name = command.vhost, command.exchange, command.topic
            follow = Follow(engine.views.events(*name, wish, charge), outlet)
            self.open.add(outlet)
            return follow, fields_sent(engine.core, name, wish)

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


def read_batch(engine: Engine, command: Plan) -> tuple[Chunk, ...]:
    """Positions of a planned batch; on the loop.  Errors as `Poison.read`."""
    streams, name = engine.core.streams, command.stream
    link = None if command.query is None else Link(command.batch, command.query, command.query_batch, command.epoch)
    chunks = streams.poison.read(name, command.batch, command.revision, link, command.epoch)
    streams.keeping.part(engine.now(), name, streams.state(name))
    return chunks


class _Reading(NamedTuple):
    """One read: for whom, and where rows come from."""

    caller: Caller
    relay: Relay | None  # where large reads run; None: in this process
    history: History
    counts: Counts  # what the rows of a sow came to, once they are read

    def large(self, read: Callable[[Relay], tuple[pa.Schema, Batches] | None]) -> tuple[pa.Schema, Batches] | None:
        """The answer of the bulk child; None where there is none, or where the read is small."""
        return None if self.relay is None else read(self.relay)

    @property
    def gone(self) -> Callable[[], bool]:
        return self.caller.gone


class Reads:
    """All that a server gives to read.  Its methods run in Flight's threads."""

    queries: Queries
    """Statements; they read tables through `table`, so they are made after this."""

    def __init__(self, handover: Handover, gate: Gatekeeper, relay: Relay | None) -> None:
        """relay: where large reads run; None: in this process."""
        self._handover = handover
        self._engine = handover.engine
        self._gate = gate
        self.relay = relay
        self.following = Following(handover, relay)
        self.watching = Watching(handover)
        self.viewing = Viewing(handover)

    def get(self, caller: Caller, slot: Slot, wanted: Get) -> tuple[pa.Schema, Any]:
        """Schema and batches of an answer, which gives its slot back when it ends."""
        pieces: Iterator[Piece]
        self._gate.admit(caller, wanted)
        if isinstance(wanted, Replay) and wanted.held_for is not None:
            between = History(self._engine.past, caller.gone).resolve(parse_span(wanted.bookmark))
            refuse_lost(self._handover, caller, wanted.held_for, *between)
        if isinstance(wanted, Replay) and self._followed(caller, wanted):
            schema, pieces = self.following.read(caller, slot, wanted, self._gate.get)
            return schema, Guarded(pieces, slot, caller)
        wanted = self._gate.get(caller, wanted)
        if isinstance(wanted, Subscribe):
            schema, pieces = self.watching.read(caller, slot, wanted)
            return schema, Guarded(pieces, slot, caller)
        counts = Counts()
        schema, rows = self._read(caller, wanted, counts)
        pieces = _sent(wanted, rows)
        if isinstance(wanted, Sow) and wanted.stats:
            pieces = with_stats(pieces, schema, counts)
        return schema, Guarded(pieces, slot, caller)

    def schema(self, caller: Caller, wanted: Get) -> pa.Schema:
        """That of an answer whose rows nobody wants; what the bodies are, if no JSON, in `penstock.message_type`."""
        narrow = self._gate.get(caller, wanted)
        found = self._read(caller, narrow, look=True)[0]
        kind = getattr(narrow, MESSAGE_TYPE, JSON)
        return found if kind == JSON else found.with_metadata({**(found.metadata or {}), TYPE_IN_SCHEMA: kind})

    def table(self, caller: Caller, wanted: Get) -> tuple[pa.Schema, Batches]:
        """A table of a statement, as far as the caller may read it."""
        narrow = self._gate.get(caller, wanted)
        schema, rows = self._read(caller, narrow)
        return schema, cast("Batches", _sent(narrow, rows))

    def _followed(self, caller: Caller, wanted: Replay) -> bool:
        """Whether a replay goes through a follower: it goes on live, keeps to a rate, or names a queue."""
        paced = wanted.follow or wanted.rate is not None or wanted.stream is not None
        return paced or self.following.translates(wanted, caller) or self.following.is_lost(wanted)

    def _read(
        self, caller: Caller, wanted: Get, counts: Counts | None = None, *, look: bool = False
    ) -> tuple[pa.Schema, Batches]:
        """Schema and rows; large reads come from the bulk child.  `look`: the rows are not wanted.

        counts: what the rows of a sow came to, once they are read.
        """
        how = _Reading(
            caller, None if look else self.relay, History(self._engine.past, caller.gone), counts or Counts()
        )
        match wanted:
            case LogRange():
                return how.large(lambda relay: relay.records(wanted, how.gone)) or how.history.records(wanted)
            case Replay():
                return how.large(lambda relay: relay.replay(wanted, how.gone)) or how.history.replay(wanted)
            case QueueContent():
                return self._content(how, wanted)
            case Sow():
                return self._records(how, wanted)
            case Subscribe():
                return select(EVENTS, wanted.columns or EVENTS_DEFAULT), iter(())
            case Sql():
                return self.queries.run(caller, wanted.vhost, wanted.statement)
            case Plan():
                chunks = self._handover.call(partial(read_batch, self._engine, wanted), how.gone)
                there = how.large(lambda relay: relay.planned(wanted, chunks, how.gone))
                return there or planned(wanted, chunks, how.history)

    def _content(self, how: _Reading, wanted: QueueContent) -> tuple[pa.Schema, Batches]:
        core, limit = self._engine.core, wanted.limit
        if wanted.filter is not None:
            compile_filter(wanted.filter)  # what is wrong of it is told of an empty queue, too
            limit = None
        parts = self._handover.call(
            lambda: snapshot(core.queue(wanted.vhost, wanted.name), wanted.states, limit), how.gone
        )
        there = how.large(lambda relay: relay.content(wanted, parts, how.gone))
        return there or content(wanted, parts, how.history)

    def _records(self, how: _Reading, wanted: Sow) -> tuple[pa.Schema, Batches]:
        if self.viewing.concerns(wanted):
            return self.viewing.read(how.caller, wanted, how.counts)
        held = self._handover.call(partial(hold, self._engine, wanted), how.gone)()
        there = how.large(lambda relay: relay.sow(wanted, held, how.gone, how.counts))
        return there or records(wanted, held, how.history, how.counts)


def _sent(wanted: Get, rows: Iterator[Piece]) -> Iterator[Piece]:
    """Rows with the fields that a select list says."""
    if not isinstance(wanted, Sow | Replay):
        return rows
    chosen = narrowed_select(parse_select(wanted.select), parse_select(wanted.shown))
    if chosen is not None and isinstance(wanted, Sow) and (wanted.projection or wanted.grouping is not None):
        raise InvalidArgument("select does not go with projection and grouping: those say which fields there are")
    return rows if chosen is None else selected(rows, chosen.reading(wanted.message_type))
