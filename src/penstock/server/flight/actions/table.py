"""DoAction: JSON in, JSON out.  Where the log is, and the steps of durable streams and sinks.

Each action is one function of `Actions` that takes its fields and gives a JSON object.  What changes something is
answered when it is durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import InvalidArgument
from penstock.history.history import History
from penstock.records.rights import LOGIN, MONITORS
from penstock.server.flight.actions.action import Action, Table
from penstock.server.flight.actions.sinks import SinkActions
from penstock.server.flight.actions.streams import Reply
from penstock.server.flight.calls import Caller, Calls
from penstock.server.flight.entitled import Gatekeeper
from penstock.server.flight.publish import refusal
from penstock.wire.fields import Fields, nearest, read_json
from penstock.wire.flight.bookmarks import format_bookmark, parse_span
from penstock.wire.flight.tickets import TEXT_LIMIT

if TYPE_CHECKING:
    from penstock.server.engine import Engine
    from penstock.server.flight.handover import Handover
    from penstock.server.flight.sinks.copier import Copier
    from penstock.server.flight.sinks.stages import Stages


def status(engine: Engine) -> str:
    """How a server is that can store messages."""
    return "draining" if engine.core.draining else "ok"


class Actions(SinkActions):
    """All actions of a server."""

    def __init__(self, handover: Handover, stages: Stages, copier: Copier, calls: Calls, gate: Gatekeeper) -> None:
        super().__init__(handover, stages, copier, gate)
        self.calls = calls
        self.table: Table = {
            "health": Action(self._health, "whether the server confirms, and how far", LOGIN),
            "position": Action(self._position, "bookmark: its LSN now; the first and the durable LSN", LOGIN),
            "segments": Action(self._segments, "the files of the log", MONITORS),
            **self.stream_table,
            **self.sink_table,
        }

    def run(self, caller: Caller, name: str, body: bytes) -> Reply:
        """Carry out one action; raises what is wrong with it."""
        found = self.table.get(name)
        if found is None:
            raise InvalidArgument(f"no action {name[:60]!r}{nearest(name, self.table)}")
        values = read_json(body, f"action {name}") if body else {}
        self.gate.act(caller, name, found.right_of(values), values, found.asks)
        return found.run(caller, Fields(name, values))

    # -- looking

    def _health(self, caller: Caller, f: Fields) -> Reply:
        f.finish()
        engine, calls = self.engine, self.calls

        def work() -> Reply:
            why = refusal(engine)
            return {
                "status": "broken" if engine.broken is not None else "full" if why is not None else status(engine),
                "why": str(why) if why is not None else None,
                "durable": engine.log.durable,
                "last": engine.core.last_lsn,
                "origin": engine.log.origin,
                "sync": engine.log.settings.sync,
                "retention": None if engine.keeper is None else engine.keeper.rule,
                "streams": calls.streams,
                "abandoned_streams": calls.abandoned,
                "streams_max": calls.streams_max,
            }

        return self._do(caller, work, durable=False)

    def _segments(self, caller: Caller, f: Fields) -> Reply:
        f.finish()
        return self._do(
            caller,
            lambda: {
                "segments": [one._asdict() for one in self.engine.log.segments()],
                "archive": None if self.engine.archive is None else self.engine.archive.told(),
            },
            durable=False,
        )

    def _position(self, caller: Caller, f: Fields) -> Reply:
        text = f.text("bookmark", "NOW", TEXT_LIMIT)
        f.finish()
        log = self.engine.log
        past = self.engine.past
        start, end = History(past, caller.gone).resolve(parse_span(text))
        return {
            "origin": log.origin,
            "first": past.first_lsn,
            "whole_from": log.whole_from,  # what is below may be in the archive alone
            "durable": log.durable,
            "start": start,
            "end": end,
            "bookmark": format_bookmark(log.origin, start - 1),
        }
