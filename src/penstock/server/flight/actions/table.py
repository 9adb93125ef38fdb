"""DoAction: JSON in, JSON out.  Declaring, looking, and the steps of durable streams and sinks.

Each action is one function of `Actions` that takes its fields and gives a JSON object.  What changes something is
answered when it is durable.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from penstock.config.arguments import given_names, queue_settings_from_mapping
from penstock.config.queue_words import in_line, written
from penstock.config.queues import QUEUE_KEYS
from penstock.errors import InvalidArgument, NotFound, PreconditionFailed
from penstock.history.history import History
from penstock.records.policies import ruling_of
from penstock.records.rights import LOGIN, MONITORS, SEES, TENDS, USES, sees, uses
from penstock.records.settings import QueueSettings
from penstock.server.flight.actions.action import Action, Table
from penstock.server.flight.actions.sinks import SinkActions
from penstock.server.flight.actions.streams import Reply
from penstock.server.flight.calls import Caller, Calls
from penstock.server.flight.entitled import Gatekeeper, shown
from penstock.server.flight.publish import refusal
from penstock.server.recovering import time_of
from penstock.server.settings_shown import settings_in_force
from penstock.wire.flight.bookmarks import format_bookmark, parse_span
from penstock.wire.flight.commands import DEFAULT_VHOST
from penstock.wire.flight.fields import Fields, nearest, read_json
from penstock.wire.flight.tickets import TEXT_LIMIT

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.queue.view import Queue
    from penstock.server.engine import Engine
    from penstock.server.flight.handover import Handover
    from penstock.server.flight.sinks.copier import Copier
    from penstock.server.flight.sinks.stages import Stages


def find(core: Core, vhost: str, name: str) -> Queue | None:
    """A queue that anybody may use, if it is there.  Raises ResourceLocked for an exclusive one."""
    try:
        return core.queue(vhost, name)
    except NotFound:
        return None


def refuse_different(queue: Queue, settings: QueueSettings, durable: bool, auto_delete: bool) -> None:
    """PreconditionFailed unless the queue is what was asked for, whatever policies make of it."""
    keys = [field.name for field in fields(settings)]
    own = ruling_of(queue.settings, queue.ruling).own
    for key, asked, present in (
        ("durable", durable, queue.durable),
        ("auto_delete", auto_delete, queue.auto_delete),
        *((key, getattr(settings, key), getattr(own, key)) for key in keys),
    ):
        if asked != present:
            raise PreconditionFailed(
                f"queue '{queue.name}' in vhost '{queue.vhost}' is there with {key} = {_told(key, present)}, "
                f"not {_told(key, asked)}; alter it, or ask for what is there"
            )


def _told(key: str, value: object) -> str:
    """A setting as people write it: durations with their unit."""
    known = QUEUE_KEYS.get(key)
    return in_line(value if known is None else written(known, value, "file"))


def status(engine: Engine) -> str:
    """How a server is that can store messages."""
    return "draining" if engine.core.draining else "ok"


class Actions(SinkActions):
    """All actions of a server."""

    def __init__(self, handover: Handover, stages: Stages, copier: Copier, calls: Calls, gate: Gatekeeper) -> None:
        """gate: judges rights."""
        super().__init__(handover, stages, copier, gate)
        self.calls = calls
        self.table: Table = {
            "declare": Action(
                self._declare,
                "queue, settings: make a queue, or find that it is there as asked",
                USES,
                Gatekeeper.declare,
            ),
            "alter": Action(self._alter, "queue, settings: change settings of a queue", TENDS),
            "delete": Action(
                self._delete,
                "queue, if_unused, if_empty: remove a queue and what waits in it",
                uses(("configure", "queue", "queue")),
            ),
            "purge": Action(self._purge, "queue: remove what is ready", uses(("read all", "queue", "queue"))),
            "declare_exchange": Action(
                self._declare_exchange,
                "exchange, type, durable, auto_delete, internal",
                USES,
                Gatekeeper.declare_exchange,
            ),
            "delete_exchange": Action(
                self._delete_exchange, "exchange, if_unused", uses(("configure", "exchange", "exchange"))
            ),
            "declare_topic": Action(self._declare_topic, "topic, exchange: keep what no queue takes", TENDS),
            "bind": Action(
                self._bind, "exchange, queue or destination (an exchange), key, arguments", USES, Gatekeeper.bind
            ),
            "unbind": Action(self._unbind, "the same", USES, Gatekeeper.bind),
            "stats": Action(self._stats, "queue: its counts", sees("queue", "queue")),
            "list": Action(self._list, "every queue of a vhost with its counts", SEES),
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
        self.gate.act(caller, name, found, values)
        return found.run(caller, Fields(name, values))

    # -- topology

    def _declare(self, caller: Caller, f: Fields) -> Reply:
        name, vhost = f.name("queue"), f.text("vhost", DEFAULT_VHOST)
        durable, auto_delete, passive = f.flag("durable", True), f.flag("auto_delete"), f.flag("passive")
        values = f.table("settings")
        settings = queue_settings_from_mapping(values, name)
        f.finish()

        def work() -> Reply:
            core = self.engine.core
            queue = find(core, vhost, name)
            if queue is None and passive:
                raise NotFound(f"no queue '{name}' in vhost '{vhost}'")
            if queue is None:
                queue = core.declare_queue(
                    self.engine.now(), vhost, name, settings, durable=durable, auto_delete=auto_delete,
                    given=given_names(values),
                )  # fmt: skip
            else:
                if not passive:
                    refuse_different(queue, settings, durable, auto_delete)
                core.used_queue(self.engine.now(), queue)
            return self.counts(queue)

        return self._do(caller, work)

    def _alter(self, caller: Caller, f: Fields) -> Reply:
        name, vhost, values = f.name("queue"), f.text("vhost", DEFAULT_VHOST), f.table("settings")
        f.finish()
        point = {key: value for key, value in values.items() if "recovery_point" in given_names({key: value})}
        time = time_of(queue_settings_from_mapping(point, name).recovery_point)
        places = dict[int, int]()
        if time is not None and time <= self.engine.clock.wall():
            places[time] = self.engine.recoveries.lsn_at(time)  # in this thread: it reads the log

        def work() -> Reply:
            queue = self.engine.core.queue(vhost, name)
            present = self.engine.core.ruling(queue)
            own = queue_settings_from_mapping(values, name, base=present.own)
            given = given_names(values, present.given)
            left = self.engine.core.alter_queue(self.engine.now(), queue, own, given, places)
            return {"queue": name, "left": left}

        return self._do(caller, work)

    def _delete(self, caller: Caller, f: Fields) -> Reply:
        name, vhost = f.name("queue"), f.text("vhost", DEFAULT_VHOST)
        if_unused, if_empty = f.flag("if_unused"), f.flag("if_empty")
        f.finish()

        def work() -> Reply:
            core = self.engine.core
            queue = core.queue(vhost, name)
            return {"messages": core.delete_queue(self.engine.now(), queue, if_unused=if_unused, if_empty=if_empty)}

        return self._do(caller, work)

    def _purge(self, caller: Caller, f: Fields) -> Reply:
        name, vhost = f.name("queue"), f.text("vhost", DEFAULT_VHOST)
        f.finish()
        core = self.engine.core
        return self._do(caller, lambda: {"messages": core.purge_queue(self.engine.now(), core.queue(vhost, name))})

    def _declare_exchange(self, caller: Caller, f: Fields) -> Reply:
        name, vhost, kind = f.name("exchange"), f.text("vhost", DEFAULT_VHOST), f.text("type", "direct")
        durable, auto_delete, internal = f.flag("durable", True), f.flag("auto_delete"), f.flag("internal")
        arguments = f.table("arguments")
        f.finish()
        self._do(
            caller,
            lambda: self.engine.core.declare_exchange(
                self.engine.now(),
                vhost,
                name,
                kind,
                durable=durable,
                auto_delete=auto_delete,
                internal=internal,
                arguments=arguments,
                passive=False,
            ),
        )
        return {"exchange": name}

    def _delete_exchange(self, caller: Caller, f: Fields) -> Reply:
        name, vhost, if_unused = f.name("exchange"), f.text("vhost", DEFAULT_VHOST), f.flag("if_unused")
        f.finish()
        self._do(caller, lambda: self.engine.core.delete_exchange(self.engine.now(), vhost, name, if_unused=if_unused))
        return {"exchange": name}

    def _declare_topic(self, caller: Caller, f: Fields) -> Reply:
        name, exchange, vhost = f.name("topic"), f.text("exchange"), f.text("vhost", DEFAULT_VHOST)
        f.finish()
        self._do(caller, lambda: self.engine.core.declare_topic(self.engine.now(), vhost, exchange, name))
        return {"topic": name}

    def _bind(self, caller: Caller, f: Fields) -> Reply:
        vhost, source, kind, name, key, arguments = self._binding(f)
        core = self.engine.core
        self._do(caller, lambda: core.bind(self.engine.now(), vhost, source, name, kind, key, arguments))
        return {kind: name}

    def _unbind(self, caller: Caller, f: Fields) -> Reply:
        vhost, source, kind, name, key, arguments = self._binding(f)
        core = self.engine.core
        self._do(caller, lambda: core.unbind(self.engine.now(), vhost, source, name, kind, key, arguments))
        return {kind: name}

    def _binding(self, f: Fields) -> tuple[str, str, str, str, str, dict[str, object]]:
        """Vhost, source, kind and name of the destination, key and arguments."""
        source, vhost = f.name("exchange"), f.text("vhost", DEFAULT_VHOST)
        kind = "exchange" if f.has("destination") else "queue"
        name = f.name("destination" if kind == "exchange" else "queue")
        key, arguments = f.text("key"), f.table("arguments")
        f.finish()
        return vhost, source, kind, name, key, arguments

    # -- looking

    def counts(self, queue: Queue) -> dict[str, object]:
        """A queue and its counts; on the loop."""
        return {"queue": queue.name, "vhost": queue.vhost, **self.engine.core.stats(queue, self.engine.now())}

    def _stats(self, caller: Caller, f: Fields) -> Reply:
        name, vhost = f.name("queue"), f.text("vhost", DEFAULT_VHOST)
        f.finish()

        def work() -> Reply:
            core = self.engine.core
            queue = core.queue(vhost, name)
            settings = settings_in_force(core, queue)
            return {**self.counts(queue), **core.policy_facts(queue), "settings": settings}

        return self._do(caller, work, durable=False)

    def _list(self, caller: Caller, f: Fields) -> Reply:
        vhost = f.text("vhost", DEFAULT_VHOST)
        f.finish()
        return self._do(caller, lambda: {"queues": shown(caller, self.queues(vhost))}, durable=False)

    def queues(self, vhost: str) -> list[dict[str, object]]:
        """Every queue of a vhost with its counts; on the loop."""
        found = [queue for queue in self.engine.core.queues() if queue.vhost == vhost]
        return [self.counts(queue) for queue in sorted(found, key=lambda queue: queue.name)]

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
