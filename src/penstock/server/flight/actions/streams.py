"""Actions of durable streams and of sinks: the steps on which exactly-once rests.

Each is one durable step: it may be asked again after a crash and gives the same answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from penstock.core.state.decided import DecidedPart
from penstock.core.state.durable import Ints
from penstock.core.streams.changes import available, difference
from penstock.core.streams.sinks import Committed
from penstock.errors import LogBroken, LogDamaged, NotFound, Refused
from penstock.records.entries import Publishes
from penstock.server.flight.calls import Caller
from penstock.server.flight.handover import Answer
from penstock.server.flight.publish import refusal
from penstock.server.flight.reading.contents import Part, snapshot
from penstock.server.flight.sinks.stage_files import StageInfo
from penstock.server.flight.sinks.stages import parts_of, stage_publishes
from penstock.wire.flight.codec import Upload
from penstock.wire.flight.fields import LSN_MAX, Fields
from penstock.wire.flight.tickets import DEFAULT_VHOST

if TYPE_CHECKING:
    from penstock.server.flight.handover import Handover
    from penstock.server.flight.sinks.copier import Copier
    from penstock.server.flight.sinks.stages import Stages

T = TypeVar("T")
Reply = Mapping[str, object]
Settlement: TypeAlias = "tuple[str, Callable[[], int], int]"
"""The input of a commit: stream, its epoch as the loop knows it, batch."""

PLAN_POLL_S = 0.02
"""How often a waiting `plan` looks again."""

PLAN_WAIT_MAX_US = 10_000_000
ROWS_DEFAULT = 10_000


class StreamActions:
    """Streams, stages and sink commits; and how any action runs on the loop."""

    def __init__(self, handover: Handover, stages: Stages, copier: Copier, vhosts: Container[str]) -> None:
        self.engine = handover.engine
        self.stages = stages
        self.copier = copier
        self.vhosts = vhosts
        self._handover = handover
        self.stream_table: dict[str, tuple[Callable[[Caller, Fields], Reply], str]] = {
            "stream_open": (self._stream_open, "stream, queue, mode, instance: a new epoch of a durable reader"),
            "plan": (self._plan, "stream, epoch, start, max_rows, wait: settle up to start, grant the next batch"),
            "plan_range": (self._plan_range, "stream, epoch, start, max_rows: log mode: the end of the next range"),
            "plan_changes": (
                self._plan_changes,
                "stream, epoch, start, queue, vhost, max_rows: what went and what came since the batch `start`",
            ),
            "settle": (self._settle, "stream, epoch, batch: settle up to that batch"),
            "stream_release": (self._stream_release, "stream: give back what is planned and not settled"),
            "streams": (self._streams, "every durable reader"),
            "stages": (self._stages, "every stage that waits for its commit"),
            "stage_drop": (self._stage_drop, "stages: remove them"),
            "sink_commit": (self._sink_commit, "query, batch, stages, settle: make a batch visible, once"),
            "sink": (self._sink, "query: its highest committed batch"),
        }

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

    # -- streams

    def _stream_open(self, caller: Caller, f: Fields) -> Reply:
        stream, vhost, queue = f.name("stream"), self._vhost(f), f.optional_text("queue")
        mode, instance = f.text("mode", "log" if queue is None else "queue"), f.text("instance")
        anew = f.flag("anew")
        f.finish()

        def work() -> Reply:
            core = self.engine.core
            source = core.queue(vhost, queue) if queue is not None else None
            opened = core.streams.open(self.engine.now(), stream, source, instance, mode, anew=anew)
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
            last = self.engine.core.streams.ranges.plan_range(self.engine.now(), stream, epoch(), start, last)
            return {"stream": stream, "start": start, "end": last}

        return self._do(caller, work)

    def _plan_changes(self, caller: Caller, f: Fields) -> Reply:
        """What is available is looked at on the loop, compared here, and written down on the loop."""
        stream, vhost, name = f.name("stream"), self._vhost(f), f.name("queue")
        epoch = self._epoch(f, stream)
        start, most = f.number("start"), f.count("max_rows", ROWS_DEFAULT, 1, 10_000_000)
        f.finish()
        core = self.engine.core

        def look() -> tuple[int | None, int, Ints, list[Part]]:
            planned = core.streams.changes.planned(stream, epoch(), start)
            try:
                queue = core.queue(vhost, name)
            except NotFound:
                return planned, 0, core.streams.changes.counted(stream), []
            parts = [] if planned is not None else snapshot(queue, ("ready", "held"), None)
            return planned, queue.id, core.streams.changes.counted(stream), parts

        planned, queue, counted, parts = self._do(caller, look, durable=False)
        if planned is None:
            found = difference(counted, available(part.chunk for part in parts), most)
            planned = self._do(
                caller, lambda: core.streams.changes.plan(self.engine.now(), stream, epoch(), start, queue, found)
            )
        return {"stream": stream, "batch": planned}

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
        lineage = f.table("lineage") or None
        inner = f.inner("settle")
        settle: Settlement | None = None
        if inner is not None:
            stream = inner.name("stream")
            settle = (stream, self._epoch(inner, stream), inner.number("batch", 1))
            inner.finish()
        f.finish()
        self._catch_up(caller, query, batch)
        highest = self._do(caller, lambda: self.engine.core.sink_state(query), durable=False)
        found = self.stages.find(query, batch, stages) if highest is None or batch > highest else []
        parts = parts_of(found)
        if parts and sum(info.bytes for _, info in found) > self.copier.limits.group_bytes:
            committed = self._decide(caller, query, batch, parts, settle, lineage)
        else:
            uploads = self.stages.uploads(found)
            committed = self._handover.submit(partial(self._commit, query, batch, uploads, settle, lineage, [])).wait(
                None
            )
        if committed.already:
            self._catch_up(caller, query, batch)
        self.stages.drop_batch(query, batch)
        return {
            "already": committed.already,
            "stored": committed.stored,
            "lsn": committed.lsn,
            "outputs": [list(one) for one in committed.told],
        }

    def _catch_up(self, caller: Caller, query: str, batch: int) -> None:
        """Wait until no batch of the query up to this one is decided and not copied."""

        def unfinished() -> int | None:
            state = self.engine.core.decided.get(query)
            return None if state is None else state.batch

        while (decided := self._do(caller, unfinished, durable=False)) is not None and decided <= batch:
            self.copier.finish(query, decided).wait(caller.gone)

    def _decide(
        self,
        caller: Caller,
        query: str,
        batch: int,
        parts: list[DecidedPart],
        settle: Settlement | None,
        lineage: Mapping[str, object] | None,
    ) -> Committed:
        """A batch too large for one group: decided, then copied; answered when its last row is durable."""
        names = [part.stage for part in parts]

        def job(answer: Answer[Committed]) -> None:
            why = refusal(self.engine)
            if why is not None:
                raise why
            core = self.engine.core
            for vhost, exchange in {(part.vhost, part.exchange) for part in parts}:
                core.topic(vhost, exchange, "")
            settled = None if settle is None else (settle[0], settle[1](), settle[2])
            committed = core.sink_decide(self.engine.now(), query, batch, parts, settled, lineage)
            self._handover.when_durable(committed.lsn, answer, committed)

        self.stages.hold(names)
        try:
            for part in parts:
                self.stages.check(part)  # what is decided cannot be refused any more
            committed = self._handover.submit(job).wait(None)
        except (Refused, LogDamaged):
            self.stages.release(names)
            raise
        if committed.already:
            self.stages.release(names)
            return committed
        return self.copier.finish(query, batch).wait(caller.gone)

    def _commit(
        self,
        query: str,
        batch: int,
        uploads: list[tuple[StageInfo, Upload]],
        settle: Settlement | None,
        lineage: Mapping[str, object] | None,
        before: list[Publishes],
        answer: Answer[Committed],
    ) -> None:
        """On the loop: one group, answered when it is durable.  `before`: the rows, if content filters judged them."""
        why = refusal(self.engine)
        if why is not None:
            raise why
        core = self.engine.core
        publishes = stage_publishes(self.engine, uploads)
        for rows, judged in zip(publishes, before, strict=bool(before)):
            rows.judged = judged.judged
        again = partial(
            self._handover.again, partial(self._commit, query, batch, uploads, settle, lineage, publishes), answer
        )
        if not self.engine.judges.ready(publishes, again):
            return
        committed = core.sink_commit(
            self.engine.now(),
            query,
            batch,
            publishes,
            settle=None if settle is None else (settle[0], settle[1](), settle[2]),
            lineage=lineage,
        )
        self._handover.when_durable(committed.lsn, answer, committed)

    def _sink(self, caller: Caller, f: Fields) -> Reply:
        query = f.name("query")
        f.finish()
        batch = self._do(caller, lambda: self.engine.core.sink_state(query), durable=False)
        return {"query": query, "batch": batch}
