"""What each kind of DoGet leads to: the past, the content of a queue, records, a view, a statement, or a stream.

Large reads come from the bulk child (`server.bulk.relay`), small ones from this process; both give the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pyarrow as pa

from penstock.core.sow.select import narrowed_select, parse_select
from penstock.core.streams.poison import Link
from penstock.errors import InvalidArgument
from penstock.history.history import Batches, History
from penstock.server.flight.calls import Caller, Guarded, Slot
from penstock.server.flight.reading.followed_replays import Following
from penstock.server.flight.reading.outlet import Piece
from penstock.server.flight.reading.queue_contents import content, planned, snapshot
from penstock.server.flight.reading.record_queries import hold, records, with_stats
from penstock.server.flight.reading.record_streams import Watching
from penstock.server.flight.reading.view_queries import Viewing
from penstock.server.sow.query import Counts
from penstock.server.sow.record_events import selected
from penstock.wire.flight.commands import (
    EVENTS,
    EVENTS_DEFAULT,
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
                chunks = self._handover.call(partial(read_batch, self._engine.core.streams, wanted), how.gone)
                there = how.large(lambda relay: relay.planned(wanted, chunks, how.gone))
                return there or planned(wanted, chunks, self._engine.log, how.history)

    def _content(self, how: _Reading, wanted: QueueContent) -> tuple[pa.Schema, Batches]:
        core, limit = self._engine.core, wanted.limit if wanted.filter is None else None
        parts = self._handover.call(
            lambda: snapshot(core.queue(wanted.vhost, wanted.name), wanted.states, limit), how.gone
        )
        there = how.large(lambda relay: relay.content(wanted, parts, how.gone))
        return there or content(wanted, parts, self._engine.log, how.history)

    def _records(self, how: _Reading, wanted: Sow) -> tuple[pa.Schema, Batches]:
        if self.viewing.concerns(wanted):
            return self.viewing.read(how.caller, wanted, how.counts)
        held = self._handover.call(partial(hold, self._engine, wanted), how.gone)()
        there = how.large(lambda relay: relay.sow(wanted, held, how.gone, how.counts))
        return there or records(wanted, held, self._engine.log, how.history, how.counts)


def _sent(wanted: Get, rows: Iterator[Piece]) -> Iterator[Piece]:
    """Rows with the fields that a select list says."""
    if not isinstance(wanted, Sow | Replay):
        return rows
    chosen = narrowed_select(parse_select(wanted.select), parse_select(wanted.shown))
    if chosen is not None and isinstance(wanted, Sow) and (wanted.projection or wanted.grouping is not None):
        raise InvalidArgument("select does not go with projection and grouping: those say which fields there are")
    return rows if chosen is None else selected(rows, chosen)
