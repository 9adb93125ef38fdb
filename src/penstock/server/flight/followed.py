"""DoGet replay with `follow` or a rate: the past as batches of the log, then a follower of what is live.

    Flight thread   resolves the bookmark, reads the past (History, or the child), then waits for pages and sends
    loop            a follower hands pages to an outlet, up to a bound

Metadata beside a batch, JSON: `{"after": bookmark}` at first, which is where it begins whatever NOW is later;
`{"notice": ...}` for a bookmark that was not found, `{"completed": true, "last": bool}`
when the replay is over (`last`: the end of a range, after which nothing comes), `{"heartbeat": true}` when all is
quiet, so that a client that has vanished is noticed.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import orjson
import pyarrow as pa

from penstock.core.sow.select import narrowed_select, parse_select
from penstock.errors import InvalidArgument, NotFound, PreconditionFailed, Unavailable
from penstock.history.history import History
from penstock.history.spans import Stretch, check_missing, reads, resolve
from penstock.records.one_or_each import joined
from penstock.records.schema import TIMESTAMP
from penstock.server.flight.calls import Caller, Slot
from penstock.server.flight.handover import POLL_S, Abandoned, Handover, Outlet, Piece, longer
from penstock.server.flight.streams import recent
from penstock.server.replaying.log_source import Asked, Follower, Rate, parse_rate
from penstock.server.replaying.page import Page
from penstock.server.replaying.selection import Selection, fields_of, select_of, selection_for, sieve_of
from penstock.server.views.record_query import selected
from penstock.wire.flight.bookmarks import Point, format_bookmark, parse_span
from penstock.wire.flight.codec import bookmark_column, constant, lsn_column, message_batch, topic_columns
from penstock.wire.flight.commands import MESSAGES, REPLAY_DEFAULT, Get, Replay, select

if TYPE_CHECKING:
    from penstock.server.bulk.relay import Relay
    from penstock.server.engine import Engine


PAST_LEAST = 4 << 20
"""Bytes of the log from which on the past is read as Arrow batches; less comes through the follower."""


class PageOutlet(Outlet[Page]):
    """Pages of messages on their way to a client."""

    def cost(self, portion: Page) -> int:
        return portion.size

    def completed(self, *, last: bool) -> bytes:
        return orjson.dumps({"completed": True, "last": last})

    def batch(self, portions: list[Page], schema: pa.Schema) -> pa.RecordBatch:
        """The same for all who follow one feed and ask for these columns: where rows begin and end says which."""
        last, rows = portions[-1], sum(map(len, portions))
        told, shown = (portions[0].first, rows), last.shown  # another thread may put another one there
        if shown is None or shown[0] != told or shown[1].schema != schema:
            last.shown = shown = told, self._batch(portions, schema)
        return shown[1]

    def _batch(self, portions: list[Page], schema: pa.Schema) -> pa.RecordBatch:
        bodies = [body for page in portions for body in page.bodies]
        rows = len(bodies)
        lsns = [lsn_column(page.lsns) for page in portions]
        lsn: Any = lsns[0] if len(lsns) == 1 else pa.concat_arrays(lsns)
        properties = joined([(page.properties, len(page)) for page in portions])
        topics = joined([(page.topics, len(page)) for page in portions])
        times = np.array([page.time_of(row) for page in portions for row in range(len(page))], np.int64)
        return message_batch(
            schema,
            rows,
            properties,
            {
                "lsn": lambda: lsn,
                "bookmark": lambda: bookmark_column(self._origin, lsn),
                **topic_columns(topics, rows),
                "time": lambda: cast("pa.Array[Any]", pa.array(times).cast(TIMESTAMP)),
                "properties": lambda: (
                    constant(pa.binary(), properties, rows)
                    if isinstance(properties, bytes)
                    else cast("pa.Array[Any]", pa.array(properties, pa.binary()))
                ),
                "body": lambda: cast("pa.Array[Any]", pa.array(bodies, pa.binary())),
            },
        )


class Handle:
    """What a client pauses and resumes by its own name for it; also while the past is read."""

    def __init__(self, user: str) -> None:
        self.user = user
        self.going = threading.Event()
        self.going.set()
        self.rate: Rate | None = None  # another one than it began with
        self.follower: Follower | None = None  # None: the past is read

    def pause(self) -> None:
        """Send nothing more.  On the loop."""
        self.going.clear()
        if self.follower is not None:
            self.follower.pause()

    def resume(self, rate: Rate | None) -> None:
        """Go on, at this rate if one is given.  On the loop."""
        self.going.set()
        self.rate = rate or self.rate
        if self.follower is not None:
            if rate is not None:
                self.follower.source.change_rate(rate)
            self.follower.resume()

    def begin(self, follower: Follower) -> None:
        """The past is over.  On the loop."""
        self.follower = follower
        if self.rate is not None:
            follower.source.change_rate(self.rate)
        if not self.going.is_set():
            follower.pause()


class Following:
    """The followed replays of one door."""

    def __init__(self, handover: Handover, relay: Relay | None) -> None:
        """`relay`: where large reads run."""
        self._handover = handover
        self._relay = relay
        self._named: dict[tuple[str, str], Handle] = {}  # by user, and his own name for it
        self.open = set[PageOutlet]()

    # -- Flight's threads

    def translates(self, command: Replay, caller: Caller) -> bool:
        """Whether its topic is the name of a queue that shows something else: then its topics are replayed."""
        if command.topic is None or command.exchange:
            return False
        core = self._handover.engine.core
        name, vhost = command.topic, command.vhost

        def work() -> bool:
            queue = core.find_queue(vhost, name)
            return queue is not None and Selection.of_queue(queue, core.topology) != Selection.topic(vhost, "", name)

        return self._handover.call(work, caller.gone, durable=False)

    def is_lost(self, command: Replay) -> bool:
        """Whether its bookmark is not known, which its reader is told."""
        span = parse_span(command.bookmark)
        log = self._handover.engine.past
        return not reads(span) and bool(resolve(log, span, check_missing(command.missing)).notice)

    def read(
        self, caller: Caller, slot: Slot, command: Replay, gate: Callable[[Caller, Get], Get]
    ) -> tuple[pa.Schema, Iterator[Piece]]:
        """Schema and batches.  Refusals are raised here, not with the first batch.

        gate: narrows a command to what the user may read.
        """
        engine, gone = self._handover.engine, caller.gone
        selection, wall, last = self._handover.call(
            lambda: (
                selection_for(
                    engine.core, caller.rights, command.vhost, command.exchange, command.topic, command.pattern
                ),
                engine.now().wall,
                engine.core.last_lsn,
            ),
            gone,
            durable=False,
        )
        sieve_of(selection, command.filter, caller.rights)
        wanted = narrowed_select(parse_select(command.select), fields_of(selection, caller.rights))
        sent = self._handover.call(lambda: select_of(engine.core, selection, wanted), gone, durable=False)
        if command.rate is not None:
            parse_rate(command.rate, command.rate_max_gap)
        named = command.topic is None or selection == Selection.topic(command.vhost, command.exchange, command.topic)
        past = gate(caller, command) if named and command.rate is None else None
        span = parse_span(command.bookmark, partial(self._recent, engine, command.stream))
        stretch = resolve(engine.past, span, check_missing(command.missing), wall=wall, last=last)
        if not command.follow and stretch.end is None and stretch.until is None:
            stretch = Stretch(stretch.start, max(stretch.start, engine.log.durable + 1), notice=stretch.notice)
        schema = select(MESSAGES, command.columns or REPLAY_DEFAULT)
        asked = Asked(
            selection,
            "",
            command.filter,
            command.rate,
            command.rate_max_gap,
            rights=caller.rights,
            name=command.topic or "",
            client=caller.peer,
            user=caller.user,
            tag=command.id or "",
        )
        outlet = PageOutlet(engine.log.origin, self._handover.queued_most, caller.user, caller.peer)
        rows = self._rows(caller, slot, past, asked, command.id, outlet, stretch, schema)
        if sent is not None:
            rows = selected(rows, sent)
        return schema, rows if command.limit is None else _limited(rows, command.limit)

    def _rows(
        self,
        caller: Caller,
        slot: Slot,
        past: Get | None,
        asked: Asked,
        name: str | None,
        outlet: PageOutlet,
        stretch: Stretch,
        schema: pa.Schema,
    ) -> Iterator[Piece]:
        empty = pa.RecordBatch.from_pylist([], schema=schema)
        handle = Handle(caller.user)
        if name is not None:  # before anything is told: whoever has heard of it may pause it
            self._handover.call(partial(self._name, (caller.user, name), handle), caller.gone, durable=False)
        try:
            if not stretch.since:
                after = format_bookmark(self._handover.engine.log.origin, stretch.start - 1)
                yield empty, orjson.dumps({"after": after})
            if stretch.notice:
                yield empty, orjson.dumps({"notice": stretch.notice})
            if isinstance(past, Replay) and not stretch.since and stretch.until is None:
                for batch, start in self._past(caller, slot, past, stretch):
                    stretch = Stretch(start, stretch.end, stretch.since, stretch.until)
                    pause = POLL_S
                    while not handle.going.wait(pause):
                        if caller.gone():
                            raise Abandoned
                        pause = longer(pause)
                    if batch is not None:
                        slot.touch()
                        yield batch
            follower = self._handover.call(
                lambda: self._begin(slot, handle, asked, outlet, stretch), caller.gone, durable=False
            )
            slot.floor = None  # from here on the follower holds what it needs
            yield from outlet.batches(schema, caller.gone, partial(self._go_on, follower))
        finally:
            self._handover.post(partial(self._end, outlet, handle, name))

    def _past(
        self, caller: Caller, slot: Slot, command: Replay, stretch: Stretch
    ) -> Iterator[tuple[pa.RecordBatch | None, int]]:
        """The past in Arrow's own batches, as long as there is much of it and it is held; and how far it went."""
        log, relay, start = self._handover.engine.past, self._relay, stretch.start
        while relay is not None and slot.state == "open":
            slot.floor = start
            end = log.durable + 1 if stretch.end is None else min(log.durable + 1, stretch.end)
            if relay.bytes_between(start, end) < PAST_LEAST:
                return
            _, rows = relay.replay_between(command, start, end, caller.gone) or History(
                log, caller.gone
            ).replay_between(command, start, end)
            for batch in rows:
                yield batch, start
            if caller.gone():
                raise Abandoned
            start = end
            yield None, start

    def _recent(self, engine: Engine, stream: str | None) -> Point:
        """Where a named stream has got to."""
        if stream is None:
            raise InvalidArgument("MOST_RECENT needs the name of a stream")
        state = engine.core.streams.state(stream)
        if state.mode != "log":
            raise PreconditionFailed(f"stream {stream!r} reads a queue: what it has settled has no place in the log")
        return recent(state, engine.log.origin)

    # -- the loop

    def _name(self, name: tuple[str, str], handle: Handle) -> None:
        if name in self._named:
            raise PreconditionFailed(f"a replay with the id {name[1]!r} is open already")
        self._named[name] = handle

    def _begin(self, slot: Slot, handle: Handle, asked: Asked, outlet: PageOutlet, stretch: Stretch) -> Follower:
        if slot.missed > stretch.start:
            raise NotFound(
                f"this reader stood still before LSN {stretch.start}, and rows below LSN {slot.missed} were left out "
                "by compaction meanwhile"
            )
        follower = self._handover.engine.replays.start(asked, outlet, stretch)
        handle.begin(follower)
        self.open.add(outlet)
        return follower

    def _go_on(self, follower: Follower) -> None:
        self._handover.post(follower.step)

    def _end(self, outlet: PageOutlet, handle: Handle, name: str | None) -> None:
        if handle.follower is not None:
            handle.follower.close()
        outlet.drop()
        self.open.discard(outlet)
        if name is not None and self._named.get(key := (handle.user, name)) is handle:
            del self._named[key]

    def named(self, caller: Caller, name: str) -> Handle:
        """An open replay of the caller's.  NotFound, of another user's too."""
        found = self._named.get((caller.user, name))
        if found is None:
            raise NotFound(f"no replay with the id {name!r} is open")
        return found

    def stop(self) -> None:
        for outlet in list(self.open):
            outlet.ended(Unavailable("the server stops"))


def _limited(rows: Iterator[Piece], limit: int) -> Iterator[Piece]:
    for piece in rows:
        if isinstance(piece, tuple):
            yield piece
            continue
        yield piece.slice(0, limit)
        limit -= piece.num_rows
        if limit <= 0:
            return
