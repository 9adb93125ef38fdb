"""DoAction: JSON in, JSON out.  Declaring, looking, and the steps of durable streams and sinks.

Each action is one function of `Actions` that takes its fields and gives a JSON object.  What changes something is
answered when it is durable.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from penstock.config.arguments import queue_settings_from_mapping
from penstock.core.sinks import Committed
from penstock.errors import InvalidArgument, LogBroken, NotFound, PreconditionFailed
from penstock.records.settings import QueueSettings
from penstock.server.flight.calls import Caller, Calls
from penstock.server.flight.handover import Answer
from penstock.server.flight.history import History
from penstock.server.flight.publish import refusal
from penstock.server.flight.stages import StageInfo, stage_publishes
from penstock.wire.flight.bookmarks import format_bookmark, parse_span
from penstock.wire.flight.codec import Upload
from penstock.wire.flight.fields import LSN_MAX, Fields, nearest, read_json
from penstock.wire.flight.tickets import DEFAULT_VHOST, TEXT_LIMIT

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.queue import Queue
    from penstock.server.flight.handover import Handover
    from penstock.server.flight.stages import Stages

T = TypeVar("T")
Reply = Mapping[str, object]

PLAN_POLL_S = 0.02
"""How often a waiting `plan` looks again."""

PLAN_WAIT_MAX_US = 10_000_000
ROWS_DEFAULT = 10_000


def find(core: Core, vhost: str, name: str) -> Queue | None:
    """A queue that anybody may use, if it is there.  Raises ResourceLocked for an exclusive one."""
    try:
        return core.queue(vhost, name)
    except NotFound:
        return None


def refuse_different(queue: Queue, settings: QueueSettings, durable: bool, auto_delete: bool) -> None:
    """PreconditionFailed unless the queue is what was asked for."""
    keys = [field.name for field in fields(settings)]
    for key, asked, present in (
        ("durable", durable, queue.durable),
        ("auto_delete", auto_delete, queue.auto_delete),
        *((key, getattr(settings, key), getattr(queue.settings, key)) for key in keys),
    ):
        if asked != present:
            raise PreconditionFailed(
                f"queue '{queue.name}' in vhost '{queue.vhost}' is there with {key} = {present!r}, not {asked!r}; "
                "alter it, or ask for what is there"
            )


class Actions:
    """All actions of a server."""

    def __init__(self, handover: Handover, stages: Stages, calls: Calls, vhosts: frozenset[str]) -> None:
        self.engine = handover.engine
        self.stages = stages
        self.calls = calls
        self.vhosts = vhosts
        self._handover = handover
        self.table: dict[str, tuple[Callable[[Caller, Fields], Reply], str]] = {
            "declare": (self._declare, "queue, settings: make a queue, or find that it is there as asked"),
            "alter": (self._alter, "queue, settings: change settings of a queue"),
            "delete": (self._delete, "queue, if_unused, if_empty: remove a queue and what waits in it"),
            "purge": (self._purge, "queue: remove what is ready"),
            "declare_exchange": (self._declare_exchange, "exchange, type, durable, auto_delete, internal"),
            "delete_exchange": (self._delete_exchange, "exchange, if_unused"),
            "declare_topic": (self._declare_topic, "topic, exchange: keep what no queue takes"),
            "bind": (self._bind, "exchange, queue, key, arguments"),
            "unbind": (self._unbind, "exchange, queue, key, arguments"),
            "stats": (self._stats, "queue: its counts"),
            "list": (self._list, "every queue of a vhost with its counts"),
            "health": (self._health, "whether the server confirms, and how far"),
            "position": (self._position, "bookmark: its LSN now; the first and the durable LSN"),
            "stream_open": (self._stream_open, "stream, queue, mode, instance: a new epoch of a durable reader"),
            "plan": (self._plan, "stream, epoch, start, max_rows, wait: settle up to start, grant the next batch"),
            "plan_range": (self._plan_range, "stream, epoch, start, max_rows: log mode: the end of the next range"),
            "settle": (self._settle, "stream, epoch, batch: settle up to that batch"),
            "stream_release": (self._stream_release, "stream: give back what is planned and not settled"),
            "streams": (self._streams, "every durable reader"),
            "stages": (self._stages, "every stage that waits for its commit"),
            "stage_drop": (self._stage_drop, "stages: remove them"),
            "sink_commit": (self._sink_commit, "query, batch, stages, settle: make a batch visible, once"),
            "sink": (self._sink, "query: its highest committed batch"),
        }

    def run(self, caller: Caller, name: str, body: bytes) -> Reply:
        """Carry out one action; raises what is wrong with it."""
        found = self.table.get(name)
        if found is None:
            raise InvalidArgument(f"no action {name[:60]!r}{nearest(name, self.table)}")
        return found[0](caller, Fields(name, read_json(body, f"action {name}") if body else {}))

    # -- helpers

    def _vhost(self, fields: Fields) -> str:
        vhost = fields.text("vhost", DEFAULT_VHOST)
        self.check_vhost(vhost)
        return vhost

    def check_vhost(self, vhost: str) -> None:
        """NotFound for a vhost that is not there."""
        if vhost not in self.vhosts:
            raise NotFound(f"no vhost {vhost!r}")

    def _do(self, caller: Caller, work: Callable[[], T], *, durable: bool = True) -> T:
        """Run on the loop; answered when what was decided is durable."""

        def checked() -> T:
            if durable and self.engine.broken is not None:
                raise LogBroken(f"the log is broken: {self.engine.broken}")
            return work()

        return self._handover.call(checked, caller.gone, durable=durable)

    # -- topology

    def _declare(self, caller: Caller, f: Fields) -> Reply:
        name, vhost = f.name("queue"), self._vhost(f)
        durable, auto_delete, passive = f.flag("durable", True), f.flag("auto_delete"), f.flag("passive")
        settings = queue_settings_from_mapping(f.table("settings"), name)
        f.finish()

        def work() -> Reply:
            core = self.engine.core
            queue = find(core, vhost, name)
            if queue is None and passive:
                raise NotFound(f"no queue '{name}' in vhost '{vhost}'")
            if queue is None:
                queue = core.declare_queue(
                    self.engine.now(), vhost, name, settings, durable=durable, auto_delete=auto_delete
                )
            elif not passive:
                refuse_different(queue, settings, durable, auto_delete)
            return self.counts(queue)

        return self._do(caller, work)

    def _alter(self, caller: Caller, f: Fields) -> Reply:
        name, vhost, values = f.name("queue"), self._vhost(f), f.table("settings")
        f.finish()

        def work() -> Reply:
            queue = self.engine.core.queue(vhost, name)
            settings: QueueSettings = queue_settings_from_mapping(values, name, base=queue.settings)
            self.engine.core.alter_queue(self.engine.now(), queue, settings)
            return {"queue": name}

        return self._do(caller, work)

    def _delete(self, caller: Caller, f: Fields) -> Reply:
        name, vhost = f.name("queue"), self._vhost(f)
        if_unused, if_empty = f.flag("if_unused"), f.flag("if_empty")
        f.finish()

        def work() -> Reply:
            core = self.engine.core
            queue = core.queue(vhost, name)
            return {"messages": core.delete_queue(self.engine.now(), queue, if_unused=if_unused, if_empty=if_empty)}

        return self._do(caller, work)

    def _purge(self, caller: Caller, f: Fields) -> Reply:
        name, vhost = f.name("queue"), self._vhost(f)
        f.finish()
        core = self.engine.core
        return self._do(
            caller, lambda: {"messages": core.purge_queue(self.engine.now(), core.queue(vhost, name))}
        )

    def _declare_exchange(self, caller: Caller, f: Fields) -> Reply:
        name, vhost, kind = f.name("exchange"), self._vhost(f), f.text("type", "direct")
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
        name, vhost, if_unused = f.name("exchange"), self._vhost(f), f.flag("if_unused")
        f.finish()
        self._do(
            caller, lambda: self.engine.core.delete_exchange(self.engine.now(), vhost, name, if_unused=if_unused)
        )
        return {"exchange": name}

    def _declare_topic(self, caller: Caller, f: Fields) -> Reply:
        name, exchange, vhost = f.name("topic"), f.text("exchange"), self._vhost(f)
        f.finish()
        self._do(caller, lambda: self.engine.core.declare_topic(self.engine.now(), vhost, exchange, name))
        return {"topic": name}

    def _bind(self, caller: Caller, f: Fields) -> Reply:
        source, queue, vhost, key = f.name("exchange"), f.name("queue"), self._vhost(f), f.text("key")
        arguments = f.table("arguments")
        f.finish()
        self._do(
            caller,
            lambda: self.engine.core.bind(self.engine.now(), vhost, source, queue, "queue", key, arguments),
        )
        return {"queue": queue}

    def _unbind(self, caller: Caller, f: Fields) -> Reply:
        source, queue, vhost, key = f.name("exchange"), f.name("queue"), self._vhost(f), f.text("key")
        arguments = f.table("arguments")
        f.finish()
        self._do(
            caller,
            lambda: self.engine.core.unbind(self.engine.now(), vhost, source, queue, "queue", key, arguments),
        )
        return {"queue": queue}

    # -- looking

    def counts(self, queue: Queue) -> dict[str, object]:
        """A queue and its counts; on the loop."""
        return {"queue": queue.name, "vhost": queue.vhost, **self.engine.core.stats(queue)}

    def _stats(self, caller: Caller, f: Fields) -> Reply:
        name, vhost = f.name("queue"), self._vhost(f)
        f.finish()
        return self._do(caller, lambda: self.counts(self.engine.core.queue(vhost, name)), durable=False)

    def _list(self, caller: Caller, f: Fields) -> Reply:
        vhost = self._vhost(f)
        f.finish()
        return self._do(caller, lambda: {"queues": self.queues(vhost)}, durable=False)

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
                "status": "broken" if engine.broken is not None else "full" if why is not None else "ok",
                "why": str(why) if why is not None else None,
                "durable": engine.log.durable,
                "last": engine.core.last_lsn,
                "origin": engine.log.origin,
                "sync": engine.log.settings.sync,
                "streams": calls.streams,
                "abandoned_streams": calls.abandoned,
                "streams_max": calls.streams_max,
            }

        return self._do(caller, work, durable=False)

    def _position(self, caller: Caller, f: Fields) -> Reply:
        text = f.text("bookmark", "NOW", TEXT_LIMIT)
        f.finish()
        log = self.engine.log
        start, end = History(log, caller.gone).resolve(parse_span(text))
        return {
            "origin": log.origin,
            "first": log.first_lsn,
            "durable": log.durable,
            "start": start,
            "end": end,
            "bookmark": format_bookmark(log.origin, start - 1),
        }

    # -- streams

    def _stream_open(self, caller: Caller, f: Fields) -> Reply:
        stream, vhost, queue = f.name("stream"), self._vhost(f), f.optional_text("queue")
        mode, instance = f.text("mode", "log" if queue is None else "queue"), f.text("instance")
        f.finish()

        def work() -> Reply:
            core = self.engine.core
            source = core.queue(vhost, queue) if queue is not None else None
            opened = core.streams.open(self.engine.now(), stream, source, instance, mode)
            return {"stream": stream, "epoch": opened.epoch, "floor": opened.floor, "planned": opened.planned}

        return self._do(caller, work)

    def _epoch(self, f: Fields, stream: str) -> Callable[[], int]:
        """The epoch that was named, or on the loop the present one."""
        named = f.optional_count("epoch")
        streams = self.engine.core.streams
        return lambda: streams.state(stream).epoch if named is None else named

    def _plan(self, caller: Caller, f: Fields) -> Reply:
        stream = f.name("stream")
        epoch = self._epoch(f, stream)
        start, rows = f.number("start"), f.count("max_rows", ROWS_DEFAULT, 1, 10_000_000)
        wait = min(f.duration("wait", 0), PLAN_WAIT_MAX_US) / 1e6
        f.finish()
        deadline = time.monotonic() + wait

        def work() -> Reply:
            plan = self.engine.core.streams.plan(self.engine.now(), stream, epoch(), start, rows)
            chunks = [chunk for chunk in plan.chunks if len(chunk)]
            return {
                "stream": stream,
                "batch": plan.batch,
                "rows": sum(map(len, chunks)),
                "first": chunks[0][0] if chunks else None,
                "last": chunks[-1][-1] if chunks else None,
            }

        while True:
            reply = self._do(caller, work)
            if reply["batch"] != start or caller.gone() or time.monotonic() >= deadline:
                return reply
            time.sleep(PLAN_POLL_S)

    def _plan_range(self, caller: Caller, f: Fields) -> Reply:
        stream = f.name("stream")
        epoch = self._epoch(f, stream)
        start, end = f.number("start"), f.count("end", LSN_MAX)
        f.finish()

        def work() -> Reply:
            last = min(end, self.engine.log.durable + 1)
            last = self.engine.core.streams.plan_range(self.engine.now(), stream, epoch(), start, last)
            return {"stream": stream, "start": start, "end": last}

        return self._do(caller, work)

    def _settle(self, caller: Caller, f: Fields) -> Reply:
        stream = f.name("stream")
        epoch = self._epoch(f, stream)
        batch = f.number("batch")
        f.finish()
        streams = self.engine.core.streams
        self._do(caller, lambda: streams.settle(self.engine.now(), stream, epoch(), batch))
        return {"stream": stream, "floor": batch}

    def _stream_release(self, caller: Caller, f: Fields) -> Reply:
        stream = f.name("stream")
        f.finish()
        released = self._do(caller, lambda: self.engine.core.streams.release(self.engine.now(), stream))
        return {"stream": stream, "released": released}

    def _streams(self, caller: Caller, f: Fields) -> Reply:
        f.finish()

        def work() -> Reply:
            core = self.engine.core
            names = {queue.id: queue.name for queue in core.queues()}
            return {
                "streams": [
                    {
                        "stream": name,
                        "mode": state.mode,
                        "queue": names.get(state.queue),
                        "epoch": state.epoch,
                        "floor": state.floor,
                        "planned": state.planned,
                    }
                    for name, state in sorted(core.streams.states.items())
                ]
            }

        return self._do(caller, work, durable=False)

    # -- sinks

    def _stages(self, caller: Caller, f: Fields) -> Reply:
        f.finish()
        return {"stages": self.stages.listing(), "bytes": self.stages.used, "quota": self.stages.quota}

    def _stage_drop(self, caller: Caller, f: Fields) -> Reply:
        stages = f.texts("stages")
        f.finish()
        return {"dropped": self.stages.drop(stages)}

    def _sink_commit(self, caller: Caller, f: Fields) -> Reply:
        query, batch, stages = f.name("query"), f.number("batch"), f.texts("stages")
        inner = f.inner("settle")
        settle = None
        if inner is not None:
            stream = inner.name("stream")
            settle = (stream, self._epoch(inner, stream), inner.number("batch", 1))
            inner.finish()
        f.finish()
        highest = self._do(caller, lambda: self.engine.core.sink_state(query), durable=False)
        uploads = self.stages.uploads(query, batch, stages) if highest is None or batch > highest else []
        committed = self._handover.submit(partial(self._commit, query, batch, uploads, settle)).wait(None)
        self.stages.drop_batch(query, batch)
        return {"already": committed.already, "stored": committed.stored, "lsn": committed.lsn}

    def _commit(
        self,
        query: str,
        batch: int,
        uploads: list[tuple[StageInfo, Upload]],
        settle: tuple[str, Callable[[], int], int] | None,
        answer: Answer[Committed],
    ) -> None:
        """On the loop: one group, answered when it is durable."""
        why = refusal(self.engine)
        if why is not None:
            raise why
        core = self.engine.core
        committed = core.sink_commit(
            self.engine.now(),
            query,
            batch,
            stage_publishes(self.engine, uploads),
            settle=None if settle is None else (settle[0], settle[1](), settle[2]),
        )
        self._handover.when_durable(committed.lsn, answer, committed)

    def _sink(self, caller: Caller, f: Fields) -> Reply:
        query = f.name("query")
        f.finish()
        batch = self._do(caller, lambda: self.engine.core.sink_state(query), durable=False)
        return {"query": query, "batch": batch}
