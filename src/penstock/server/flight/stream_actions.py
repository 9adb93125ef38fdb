"""Actions of durable streams: the steps on which exactly-once rests.

Each is one durable step: it may be asked again after a crash and gives the same answer.  Beside them: replays are
halted and go on, and a publisher learns where it has got to.

Streams in log mode have steps of their own (`RangeActions`): where they begin, and their ranges.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from penstock.core.queue.places import AVAILABLE
from penstock.core.state.lsns import Ints
from penstock.core.streams import Resumed
from penstock.core.streams.stream_table import Range, available, difference
from penstock.errors import InvalidArgument, LogBroken, NotFound
from penstock.history.reach import Limits, Measured
from penstock.records.chunks import Chunk
from penstock.records.rights import LOGIN, USES
from penstock.server.flight.calls import Caller
from penstock.server.flight.gatekeeper import Action, Gatekeeper, Table
from penstock.server.replaying.log_source import parse_rate
from penstock.server.streams import SOON_S, Planner, Question, Siblings
from penstock.units import format_duration
from penstock.wire.fields import LSN_MAX, Fields
from penstock.wire.flight.commands import DEFAULT_VHOST
from penstock.wire.flight.tickets import TEXT_LIMIT

if TYPE_CHECKING:
    from penstock.server.bulk.relay import Relay
    from penstock.server.flight.followed import Following, Handle
    from penstock.server.flight.handover import Handover


T = TypeVar("T")
Reply = Mapping[str, object]

PLAN_POLL_S = 0.02
"""How often a waiting `plan` looks again.  Messages become ready in many ways (published, returned, due), none of
which knows of plans; a look at a queue without ready messages costs the loop little."""

PLAN_WAIT_MAX_US = 10_000_000
SIBLINGS_MOST = 100
ROWS_DEFAULT = 10_000


class StreamActions:
    """Streams; and how any action runs on the loop."""

    def __init__(self, handover: Handover, gate: Gatekeeper) -> None:
        self.engine = handover.engine
        self.gate = gate
        self._handover = handover
        self.siblings = Siblings(handover.engine)
        self.stream_table: Table = {
            "stream_open": Action(
                self._stream_open,
                "stream, queue or topic or pattern, ...: a new epoch of a durable reader",
                USES,
                Gatekeeper.stream_open,
            ),
            "plan": Action(
                self._plan,
                "stream, epoch, start, max_rows, min_rows, wait, beside, lost: settle to start, grant the next batch",
                LOGIN,
                Gatekeeper.stream,
            ),
            "stream_resume": Action(
                self._stream_resume,
                "stream, epoch, batch, poison_after, blame: go on with a batch that an earlier reader did not settle",
                LOGIN,
                Gatekeeper.stream,
            ),
            "plan_changes": Action(
                self._plan_changes,
                "stream, epoch, start, queue, vhost, max_rows: what went and what came since the batch `start`",
                USES,
                Gatekeeper.stream_open,
            ),
            "settle": Action(
                self._settle,
                "stream, epoch, batch, origin: settle up to that batch, if this log is the one meant",
                LOGIN,
                Gatekeeper.stream,
            ),
        }

    # -- helpers

    def do(self, caller: Caller, work: Callable[[], T], *, durable: bool = True) -> T:
        """Run on the loop; answered when what was decided is durable."""

        def checked() -> T:
            if durable and self.engine.broken is not None:
                raise LogBroken(f"the log is broken: {self.engine.broken}")
            return work()

        return self._handover.call(checked, caller.gone, durable=durable)

    # -- streams

    def _stream_open(self, caller: Caller, f: Fields) -> Reply:
        stream, vhost, queue = f.name("stream"), f.text("vhost", DEFAULT_VHOST), f.optional_text("queue")
        mode, instance = f.text("mode", "log" if queue is None else "queue"), f.text("instance")
        anew, pipeline = f.flag("anew"), f.optional_text("pipeline")
        asked, abandon_after = definition(f, vhost), f.duration("abandon_after", 0) if f.has("abandon_after") else None
        f.finish()
        if asked is not None and mode != "log":
            raise InvalidArgument(f"stream '{stream}': a topic is read in mode 'log', a queue in mode 'queue'")

        def work() -> Reply:
            core = self.engine.core
            source = core.queue(vhost, queue) if queue is not None and mode != "changes" else None
            now, state = self.engine.now(), core.streams.states.get(stream)
            owner = None
            if asked is not None and "pattern" in asked:
                owner = self.gate.owner_after(caller, "" if state is None else state.owner)
            opened = core.streams.open(
                now, stream, source, instance, mode, anew=anew, asked=asked, abandon_after=abandon_after,
                pipeline=pipeline, owner=owner,
            )  # fmt: skip
            return {
                "stream": stream,
                "epoch": opened.epoch,
                "floor": opened.floor,
                "planned": opened.planned,
                "origin": core.origin,
            }

        return self.do(caller, work)

    def epoch(self, f: Fields, stream: str) -> Callable[[], int]:
        """The epoch that was named, or on the loop the present one."""
        named = f.optional_count("epoch")
        streams = self.engine.core.streams
        return lambda: streams.state(stream).epoch if named is None else named

    def _plan(self, caller: Caller, f: Fields) -> Reply:
        stream = f.name("stream")
        epoch = self.epoch(f, stream)
        start, rows = f.number("start"), f.count("max_rows", ROWS_DEFAULT, 1, 10_000_000)
        wait = min(f.duration("wait", 0), PLAN_WAIT_MAX_US) / 1e6
        least = f.count("min_rows", high=10_000_000)
        lost, beside = f.flag("lost"), f.texts("beside", SIBLINGS_MOST)
        f.finish()
        began = time.monotonic()
        deadline = began if self.siblings.turn(stream, beside) else began + wait
        soon = began + min(wait, SOON_S)
        others = False  # whether something may have come for one of them

        def work() -> Reply:
            nonlocal others
            if lost:
                self.engine.core.streams.poison.take_over(self.engine.now(), stream, epoch())
            plan = self.engine.core.streams.plan(self.engine.now(), stream, epoch(), start, rows, least)
            chunks = [chunk for chunk in plan.chunks if len(chunk)]
            if beside and plan.batch == start and time.monotonic() >= soon:
                others = self.siblings.may_have(beside)
            return {
                "stream": stream,
                "batch": plan.batch,
                "revision": plan.revision,
                "rows": sum(map(len, chunks)),
                "first": chunks[0][0] if chunks else None,
                "last": chunks[-1][-1] if chunks else None,
            }

        while True:
            reply = self.do(caller, work)
            if reply["batch"] != start:
                self.siblings.had(stream)
                return reply
            if others or caller.gone() or time.monotonic() >= deadline:
                return reply
            time.sleep(PLAN_POLL_S)

    def void(self, caller: Caller, query: str, batch: int) -> None:
        """What was staged up to this batch of a query was made of rows that it has no longer."""

    def _stream_resume(self, caller: Caller, f: Fields) -> Reply:
        stream = f.name("stream")
        epoch = self.epoch(f, stream)
        batch, limit, blame = f.number("batch", 1), f.count("poison_after"), f.flag("blame", True)
        f.finish()

        def work() -> Resumed:
            return self.engine.core.streams.poison.resume(self.engine.now(), stream, epoch(), batch, limit, blame=blame)

        resumed = self.do(caller, work)
        if resumed.link is not None:
            self.void(caller, resumed.link.query, resumed.link.query_batch)
        return {
            "stream": stream,
            "batch": batch,
            "rows": resumed.rows,
            "revision": resumed.revision,
            "tries": resumed.tries,
            "left": resumed.left,
            "poison": resumed.poison,
        }

    def _plan_changes(self, caller: Caller, f: Fields) -> Reply:
        """What is available is looked at on the loop, compared here, and written down on the loop."""
        stream, vhost, name = f.name("stream"), f.text("vhost", DEFAULT_VHOST), f.name("queue")
        epoch = self.epoch(f, stream)
        start, most = f.number("start"), f.count("max_rows", ROWS_DEFAULT, 1, 10_000_000)
        f.finish()
        core = self.engine.core

        def look() -> tuple[int | None, int, Ints, list[Chunk]]:
            planned = core.streams.changes.planned(stream, epoch(), start)
            try:
                queue = core.queue(vhost, name)
            except NotFound:
                return planned, 0, core.streams.changes.counted(stream), []
            chunks = [] if planned is not None else list(queue.chunks(*AVAILABLE))
            return planned, queue.id, core.streams.changes.counted(stream), chunks

        planned, queue, counted, chunks = self.do(caller, look, durable=False)
        if planned is None:
            found = difference(counted, available(chunks), most)
            planned = self.do(
                caller, lambda: core.streams.changes.plan(self.engine.now(), stream, epoch(), start, queue, found)
            )
        return {"stream": stream, "batch": planned}

    def _settle(self, caller: Caller, f: Fields) -> Reply:
        stream = f.name("stream")
        epoch = self.epoch(f, stream)
        batch, origin = f.number("batch"), f.optional_count("origin", high=2**63 - 1)
        f.finish()
        if origin is not None and origin != self.engine.core.origin:
            return {"stream": stream, "floor": None}  # another server has a stream of this name, and that one is meant
        streams = self.engine.core.streams
        self.do(caller, lambda: streams.settle(self.engine.now(), stream, epoch(), batch))
        return {"stream": stream, "floor": batch}


def definition(f: Fields, vhost: str) -> dict[str, object] | None:
    """What a stream in log mode reads, if it is said."""
    topic, pattern = f.optional_text("topic"), f.optional_text("pattern", TEXT_LIMIT)
    exchange, filter = f.text("exchange"), f.optional_text("filter", TEXT_LIMIT)
    if topic is None and pattern is None:
        return None
    if topic is not None and pattern is not None:
        raise InvalidArgument("a stream reads a topic or a pattern of topics, not both")
    asked = {"vhost": vhost, "exchange": exchange, "topic": topic, "pattern": pattern, "filter": filter}
    return {name: value for name, value in asked.items() if value is not None}


class ReplayActions:
    """These actions, as rows of the table of all actions."""

    def __init__(self, handover: Handover, following: Following) -> None:
        self._handover = handover
        self._following = following
        self.table: Table = {
            "replay_pause": Action(self._pause, "id: send nothing more of this replay until it is resumed", LOGIN),
            "replay_resume": Action(self._resume, "id, rate: go on, from now on at this rate if one is given", LOGIN),
            "publisher": Action(self._publisher, "publisher: the highest sequence that is stored of it", LOGIN),
        }

    def _pause(self, caller: Caller, f: Fields) -> Reply:
        name = f.name("id")
        f.finish()
        return self._handled(caller, name, lambda handle: handle.pause(), paused=True)

    def _resume(self, caller: Caller, f: Fields) -> Reply:
        name, text = f.name("id"), f.optional_text("rate")
        f.finish()
        rate = None if text is None else parse_rate(text)
        return self._handled(caller, name, lambda handle: handle.resume(rate), paused=False)

    def _handled(self, caller: Caller, name: str, work: Callable[[Handle], None], *, paused: bool) -> Reply:
        self._handover.call(lambda: work(self._following.named(caller, name)), caller.gone, durable=False)
        return {"id": name, "paused": paused}

    def _publisher(self, caller: Caller, f: Fields) -> Reply:
        """Answered when everything that was decided is durable, so a client resends nothing that is stored."""
        name = f.name("publisher")
        f.finish()
        core = self._handover.engine.core
        return self._handover.call(lambda: {"publisher": name, "sequence": core.publishers.get(name, 0)}, caller.gone)


logger = logging.getLogger("penstock.server")

WAIT_MAX_US = 10_000_000

PARTS_MOST = 10_000


class RangeActions:
    """These actions, as rows of the table of all actions."""

    def __init__(self, handover: Handover, streams: StreamActions, gate: Gatekeeper, relay: Relay | None) -> None:
        self._engine = handover.engine
        self._streams = streams
        self.planner = Planner(handover, gate, relay, streams.siblings)
        self.table: Table = {
            "stream_begin": Action(
                self._begin, "stream, epoch, bookmark: log mode: where a new reader begins", LOGIN, Gatekeeper.stream
            ),
            "plan_range": Action(
                self._plan_range,
                "stream, epoch, start, max_rows, max_bytes, min_rows, parts, wait, beside: log mode: the next range",
                LOGIN,
                Gatekeeper.stream,
            ),
            "range_parts": Action(
                self._range_parts,
                "stream, start, end, parts: the parts of a range, planned or not",
                LOGIN,
                Gatekeeper.stream,
            ),
            "stream_lag": Action(
                self._lag, "stream: messages that it has not read, as far as they are counted", LOGIN, Gatekeeper.stream
            ),
            "stream_release": Action(
                self._release, "stream, drop: give back what it holds; and forget it", LOGIN, Gatekeeper.stream
            ),
        }

    def tell_abandoned(self) -> None:
        """Into the server's log: which streams let go because nobody read them.  On the loop."""
        streams = self._engine.core.streams
        names, streams.keeping.abandoned = streams.keeping.abandoned, []
        for name in names:
            state = streams.states.get(name)
            after = "" if state is None else f" for {format_duration(state.abandon_after)}"
            logger.warning("stream '%s' is abandoned: nobody has read it%s, and it holds nothing any more", name, after)

    def _begin(self, caller: Caller, f: Fields) -> Reply:
        stream = f.name("stream")
        epoch, text = self._streams.epoch(f, stream), f.text("bookmark", "EPOCH", TEXT_LIMIT)
        fail = f.flag("fail_on_data_loss", True)
        f.finish()
        start = self.planner.begin(caller, stream, epoch, text, fail)
        return {"stream": stream, "start": start, **self._log()}

    def _plan_range(self, caller: Caller, f: Fields) -> Reply:
        stream = f.name("stream")
        epoch = self._streams.epoch(f, stream)
        start = f.number("start")
        if f.has("end"):
            return self._named(caller, f, stream, epoch, start)
        limits = Limits(
            f.count("max_rows", 1 << 53, 1, 1 << 53),
            f.count("max_bytes", 1 << 53, 1, 1 << 53),
            f.count("parts", 1, 1, PARTS_MOST),
        )
        least = f.count("min_rows", high=1 << 53)
        until, wait = f.count("until", LSN_MAX), min(f.duration("wait", 0), WAIT_MAX_US) / 1e6
        fail, beside = f.flag("fail_on_data_loss", True), f.texts("beside", SIBLINGS_MOST)
        f.finish()
        asked = Question(stream, start, limits, until, wait, fail, epoch, tuple(beside), least)
        return {"stream": stream, "start": start, **self._told(start, *self.planner.plan(caller, asked))}

    def _named(self, caller: Caller, f: Fields, stream: str, epoch: Callable[[], int], start: int) -> Reply:
        """A range whose end the reader has found itself."""
        end = f.count("end", LSN_MAX)
        f.finish()

        def work() -> Reply:
            last = min(end, self._engine.log.durable + 1)
            last = self._engine.core.streams.ranges.plan_range(self._engine.now(), stream, epoch(), start, last)
            return {"stream": stream, "start": start, "end": last}

        return self._streams.do(caller, work)

    def _range_parts(self, caller: Caller, f: Fields) -> Reply:
        stream, start, end = f.name("stream"), f.number("start"), f.number("end")
        least = f.count("parts", 1, 1, PARTS_MOST)
        f.finish()
        found = self.planner.parts(caller, stream, start, end, least)
        return {"stream": stream, "start": start, **self._told(start, found, None)}

    def _told(self, start: int, found: Range | None, measured: Measured | None) -> Mapping[str, object]:
        if found is None:
            return {"end": start, "parts": [], **self._log()}
        figures = {} if measured is None else {"rows": measured.rows, "bytes": measured.bytes}
        return {
            "end": found.end,
            "batch": found.batch,
            "parts": found.parts,
            "asked": found.asked,
            **figures,
            **self._log(),
        }

    def _log(self) -> Mapping[str, object]:
        log = self._engine.past
        return {"origin": log.origin, "first": log.first_lsn, "durable": log.durable}

    def _lag(self, caller: Caller, f: Fields) -> Reply:
        stream = f.name("stream")
        f.finish()

        def work() -> Reply:
            self._engine.core.streams.state(stream)
            return {"stream": stream, "messages": self._engine.walked.ahead.look().get(stream)}

        return self._streams.do(caller, work, durable=False)

    def _release(self, caller: Caller, f: Fields) -> Reply:
        stream, drop = f.name("stream"), f.flag("drop")
        f.finish()

        def work() -> int:
            return self._engine.core.streams.release(self._engine.now(), stream, drop=drop)

        return {"stream": stream, "released": self._streams.do(caller, work), "dropped": drop}
