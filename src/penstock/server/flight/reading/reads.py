"""What each kind of DoGet leads to: the past, the content of a queue, records, a view, a statement, or a stream.

Large reads come from the bulk child (`server.bulk.relay`), small ones from this process; both give the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from penstock.core.sow.select import narrowed_select, parse_select
from penstock.core.streams.poison import Link
from penstock.errors import InvalidArgument
from penstock.history.history import Batches, History
from penstock.server.flight.calls import Caller, Guarded, Slot
from penstock.server.flight.reading.contents import content, planned, snapshot
from penstock.server.flight.reading.following import Following
from penstock.server.flight.reading.outlet import Piece
from penstock.server.flight.reading.records import hold, records, with_stats
from penstock.server.flight.reading.viewing import Viewing
from penstock.server.flight.reading.watching import Watching
from penstock.server.sow.query import Counts
from penstock.server.sow.record_events import selected
from penstock.wire.flight.commands import Get, LogRange, Plan, QueueContent, Replay, Sow, Sql, Subscribe
from penstock.wire.flight.schemas import EVENTS, EVENTS_DEFAULT, select

if TYPE_CHECKING:
    from penstock.core.streams.streams import Streams
    from penstock.records.chunks import Chunk
    from penstock.server.bulk.relay import Relay
    from penstock.server.flight.entitled import Gatekeeper
    from penstock.server.flight.handover import Handover
    from penstock.server.sql.queries import Queries
    from penstock.wire.flight.commands import Plan


def read_batch(streams: Streams, command: Plan) -> tuple[Chunk, ...]:
    """Positions of a planned batch; on the loop.  Errors as `Streams.read`."""
    link = None if command.query is None else Link(command.batch, command.query, command.query_batch)
    return streams.poison.read(command.stream, command.batch, command.revision, link, command.epoch)


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
        if isinstance(wanted, Replay) and self._followed(caller, wanted):
            schema, pieces = self.following.read(caller, slot, wanted, self._gate.get)
            return schema, Guarded(pieces, slot)
        wanted = self._gate.get(caller, wanted)
        if isinstance(wanted, Subscribe):
            schema, pieces = self.watching.read(caller, slot, wanted)
            return schema, Guarded(pieces, slot)
        counts = Counts()
        schema, rows = self._read(caller, wanted, counts)
        pieces = _sent(wanted, rows)
        if isinstance(wanted, Sow) and wanted.stats:
            pieces = with_stats(pieces, schema, counts)
        return schema, Guarded(pieces, slot)

    def schema(self, caller: Caller, wanted: Get) -> pa.Schema:
        """That of an answer whose rows nobody wants."""
        return self._read(caller, self._gate.get(caller, wanted), look=True)[0]

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
        counts = counts or Counts()
        log, gone = self._engine.log, caller.gone
        relay = None if look else self.relay
        history = History(self._engine.past, gone)
        match wanted:
            case LogRange():
                return (relay and relay.records(wanted, gone)) or history.records(wanted)
            case Replay():
                return (relay and relay.replay(wanted, gone)) or history.replay(wanted)
            case QueueContent():
                parts = self._handover.call(
                    lambda: snapshot(
                        self._engine.core.queue(wanted.vhost, wanted.name),
                        wanted.states,
                        wanted.limit if wanted.filter is None else None,
                    ),
                    gone,
                )
                return (relay and relay.content(wanted, parts, gone)) or content(wanted, parts, log, history)
            case Sow():
                if self.viewing.concerns(wanted):
                    return self.viewing.read(caller, wanted, counts)
                held = self._handover.call(partial(hold, self._engine, wanted), gone)()
                return (relay and relay.sow(wanted, held, gone, counts)) or records(wanted, held, log, history, counts)
            case Subscribe():
                return select(EVENTS, wanted.columns or EVENTS_DEFAULT), iter(())
            case Sql():
                return self.queries.run(caller, wanted.vhost, wanted.statement)
            case Plan():
                chunks = self._handover.call(partial(read_batch, self._engine.core.streams, wanted), gone)
                return (relay and relay.planned(wanted, chunks, gone)) or planned(wanted, chunks, log, history)


def _sent(wanted: Get, rows: Iterator[Piece]) -> Iterator[Piece]:
    """Rows with the fields that a select list says."""
    if not isinstance(wanted, Sow | Replay):
        return rows
    chosen = narrowed_select(parse_select(wanted.select), parse_select(wanted.shown))
    if chosen is not None and isinstance(wanted, Sow) and (wanted.projection or wanted.grouping is not None):
        raise InvalidArgument("select does not go with projection and grouping: those say which fields there are")
    return rows if chosen is None else selected(rows, chosen)
