"""Actions about durable streams as such, and the steps of those in log mode: where they begin, and their ranges."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from penstock.core.streams.ranges import Range
from penstock.history.measuring import Limits, Measured
from penstock.records.rights import LOGIN
from penstock.server.flight.actions.action import Action, Table
from penstock.server.flight.actions.streams import SIBLINGS_MOST, Reply, StreamActions
from penstock.server.flight.calls import Caller
from penstock.server.flight.entitled import Gatekeeper
from penstock.server.streams.planning import Planner, Question
from penstock.units import format_duration
from penstock.wire.fields import LSN_MAX, Fields
from penstock.wire.flight.tickets import TEXT_LIMIT

if TYPE_CHECKING:
    from penstock.server.bulk.relay import Relay
    from penstock.server.flight.entitled import Gatekeeper
    from penstock.server.flight.handover import Handover

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
                "stream, epoch, start, max_rows, max_bytes, parts, wait, beside: log mode: the next range, its parts",
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
        until, wait = f.count("until", LSN_MAX), min(f.duration("wait", 0), WAIT_MAX_US) / 1e6
        fail, beside = f.flag("fail_on_data_loss", True), f.texts("beside", SIBLINGS_MOST)
        f.finish()
        asked = Question(stream, start, limits, until, wait, fail, epoch, tuple(beside))
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
