"""Actions of sinks: a batch's stages become visible once, whole, or are refused with nothing of them visible.

A commit may be asked again after a crash of either side and is answered "already" then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from penstock.core.state.pending import DecidedPart, DecidedState, SinkMark
from penstock.core.streams.sinks import Batch, Committed
from penstock.errors import InvalidArgument, LogDamaged, NotFound, PreconditionFailed, Refused
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes
from penstock.records.rights import LOGIN, WATCHES
from penstock.server.flight.calls import Caller
from penstock.server.flight.decided import Chunk, Dropping, alike, chunk_publishes, chunks_of, staged_publishes, texts
from penstock.server.flight.gatekeeper import Action, Gatekeeper, Table
from penstock.server.flight.handover import Answer, Handover
from penstock.server.flight.sink_stages import Found, Stages, anybodys, parts_of
from penstock.server.flight.stage_files import StageInfo, path_of
from penstock.server.flight.stream_actions import BATCH, ORIGIN, Reply, StreamActions
from penstock.wire.fields import NUMBER_MOST, Field, Fields, count, flag, name, table, text
from penstock.wire.fields import texts as texts_of
from penstock.wire.flight.codec import Upload
from penstock.wire.flight.commands import DEFAULT_VHOST

if TYPE_CHECKING:
    from penstock.core.commands.transactions import Drop
    from penstock.server.flight.copier import Copier

Settlement: TypeAlias = "tuple[str, Callable[[], int], int]"
"""An input of a commit: stream, its epoch as the loop knows it, batch."""

Uploads: TypeAlias = "list[tuple[StageInfo, Upload]]"

LISTED = 1000
LISTED_MOST = 10_000
"""Stages or queries that are listed, unless more are asked for, and at most."""

TARGET_MOST = 1_024
"""Bytes of the words for where a batch goes: three names of up to 255 are in it."""

_STAGES = texts_of("stages", default=())

ROW = 32
"""Bytes that a row counts for in a group beside those of its stage: the log has more columns, and a body may be empty.
"""


@dataclass(frozen=True, slots=True)
class Goes:
    """Which records go with a commit; all of the topic when nothing is named."""

    topic: tuple[str, str, str]  # vhost, exchange, key
    keys: Sequence[str]
    stages: Sequence[str]  # with a key in each body


@dataclass(frozen=True, slots=True)
class Asked:
    """A commit as it was asked for."""

    batch: Batch  # but for its inputs
    settle: Sequence[Settlement]
    drop: Dropping | None = None  # records that go with it
    mine: Callable[[str], bool] = anybodys  # whose stages may be used
    kept: frozenset[tuple[str, str, str]] = frozenset()  # (vhost, exchange, key) of topics that somebody must keep

    def of_core(self) -> Batch:
        """On the loop: as the core takes it, the inputs with the epochs that their streams have now."""
        return replace(self.batch, settle=[(stream, epoch(), batch) for stream, epoch, batch in self.settle])

    @property
    def behind(self) -> bool:
        """On the loop: whether what goes with it is to be looked at again first."""
        return self.drop is not None and self.drop.behind

    def dropped(self) -> Drop | None:
        """On the loop: the records that go with it."""
        return None if self.drop is None else self.drop.now()


Brought: TypeAlias = "tuple[Asked, list[Found]]"
"""A commit with the stages that it names."""


class SinkActions(StreamActions):
    def __init__(self, handover: Handover, stages: Stages, copier: Copier, gate: Gatekeeper) -> None:
        super().__init__(handover, gate)
        self.stages = stages
        self.copier = copier
        limit = count("limit", 1, LISTED_MOST, LISTED)
        self.sink_table: Table = {
            "stages": Action(
                self._stages, "limit: the stages that wait for their commit, oldest first", WATCHES, (limit,)
            ),
            "stage_drop": Action(
                self._stage_drop, "stages: remove those of them that the user wrote", LOGIN, (_STAGES,),
                Gatekeeper.stage_drop,
            ),
            "sink_commit": Action(
                self._sink_commit,
                "query, batch, stages, settle, lineage, query_name, once, mandatory, skip_late, target: make a batch "
                "visible",
                LOGIN,
                (
                    name("query"), count("batch", high=NUMBER_MOST, needed=True), _STAGES, table("lineage"),
                    Field("settle", "inners", ()), Field("drop", "inner"), text("query_name", ""), flag("once"),
                    flag("mandatory"), flag("skip_late"), text("target", "", TARGET_MOST),
                ),
                Gatekeeper.sink_commit,
            ),
            "sink": Action(
                self._sink, "query: its highest committed batch, if it is the user's", LOGIN, (name("query"),)
            ),
            "sinks": Action(
                self._sinks, "limit: the queries that committed last, with what of them is on its way", WATCHES,
                (limit,),
            ),
        }  # fmt: skip

    def void(self, caller: Caller, query: str, batch: int) -> None:
        """The caller's stages up to this batch of a query are of no use any more."""
        self.stages.drop_batch(query, batch, partial(self.gate.owns, caller))

    def _stages(self, caller: Caller, limit: int) -> Reply:
        known = self.stages.listing()
        return {
            "stages": known[:limit],
            "left_off": max(0, len(known) - limit),
            "bytes": self.stages.used,
            "quota": self.stages.quota,
        }

    def _stage_drop(self, caller: Caller, stages: Sequence[str]) -> Reply:
        return {"dropped": self.stages.drop(stages, partial(self.gate.owns, caller))}

    def _sink(self, caller: Caller, query: str) -> Reply:
        sinks = self.engine.core.sinks
        owner, batch = self.do(caller, lambda: (sinks.owner(query), sinks.batches.get(query)), durable=False)
        if not self.gate.owns(caller, owner):
            batch = None  # as one that has committed nothing
        return {"query": query, "batch": batch}

    def _sinks(self, caller: Caller, limit: int) -> Reply:
        core = self.engine.core
        batches, marks, copying = self.do(
            caller,
            lambda: (
                dict(core.sinks.batches),
                dict(core.sinks.marks),
                {query: (state.rows, state.total) for query, state in core.decided.items()},
            ),
            durable=False,
        )
        staged: dict[str, list[int]] = {}
        for stage in self.stages.known():
            counts = staged.setdefault(stage.query, [0, 0, 0])
            for place, value in enumerate((1, stage.rows, stage.bytes)):
                counts[place] += value
        busy = staged.keys() | copying.keys()
        nothing = SinkMark()
        last = sorted(
            batches.keys() | staged.keys(),
            key=lambda query: (query in busy, marks.get(query, nothing).lsn, query),
            reverse=True,
        )
        rows: list[dict[str, object]] = []
        for query in sorted(last[:limit]):
            mark = marks.get(query, nothing)
            copied, total = copying.get(query, (None, None))
            stages, staged_rows, staged_bytes = staged.get(query, [0, 0, 0])
            rows.append(
                {
                    "query": query,
                    "name": mark.name,
                    "user": mark.user,
                    "batch": batches.get(query),
                    "lsn": mark.lsn,
                    "once": mark.once,
                    "copied": copied,
                    "rows": total,
                    "stages": stages,
                    "staged_rows": staged_rows,
                    "staged_bytes": staged_bytes,
                }
            )
        return {"sinks": rows, "left_off": max(0, len(last) - limit)}

    # -- the commit

    def _sink_commit(
        self, caller: Caller, query: str, batch: int, stages: Sequence[str], lineage: Mapping[str, object],
        settle: Sequence[Fields], drop: Fields | None, query_name: str, once: bool, mandatory: bool, skip_late: bool,
        target: str,
    ) -> Reply:  # fmt: skip
        settled = list[Settlement]()
        for one in (inner.read((name("stream"), ORIGIN, count("epoch"), BATCH)) for inner in settle):
            if one["origin"] in {None, self.engine.core.origin}:  # else it is read from another server
                settled.append((one["stream"], self.epoch(one["stream"], one["epoch"]), one["batch"]))
        goes = self._goes(drop)
        owner = self.gate.owner(caller, query)
        whole = Batch(query, batch, (), query_name, once, mandatory, skip_late, lineage or None, owner, target)
        asked = Asked(whole, settled, mine=partial(self.gate.owns, caller))
        self.do(caller, lambda: owner(self.engine.core.sinks.owner(query)), durable=False)
        committed: Committed | None = None
        while committed is None:
            self._catch_up(caller, query, batch)
            highest = self._highest(caller, query)
            try:
                brought: Brought = self._brought(caller, asked, stages, goes) if batch > highest else (asked, [])
                committed = self._committed(caller, brought)
            except (NotFound, LogDamaged, PreconditionFailed) as error:
                copying = isinstance(error, LogDamaged) and self._unfinished(caller, query) == batch
                if copying or self._highest(caller, query) == highest:
                    raise  # else another writer came in between, whose commit takes the stages of this one
        if committed.already:
            self._catch_up(caller, query, batch)
        self.stages.drop_batch(query, batch)
        return {
            "already": committed.already,
            "stored": committed.stored,
            "lsn": committed.lsn,
            "outputs": [list(one) for one in committed.told],
        }

    def _highest(self, caller: Caller, query: str) -> int:
        """The highest batch of a query that is committed; -1 for none."""
        state = self.do(caller, lambda: self.engine.core.sink_state(query), durable=False)
        return -1 if state is None else state

    def _brought(self, caller: Caller, asked: Asked, stages: Sequence[str], goes: Goes | None) -> Brought:
        """What a batch that is not committed brings.  NotFound and others as `Stages.find` and `Stages.judge`."""
        found = self.stages.find(asked.batch.query, asked.batch.number, stages, asked.mine)
        self.stages.judge(caller, found, self.gate)
        must = {(i.vhost, i.exchange, str(i.topic)) for _, i in found if i.mandatory and i.rows}
        return replace(asked, kept=frozenset(must), drop=self._dropping(asked, goes)), found

    def _committed(self, caller: Caller, brought: Brought) -> Committed:
        """Commit it, in one group or decided first."""
        asked, found = brought
        large = sum(info.bytes + ROW * info.rows for _, info in found) > self.copier.limits.group_bytes
        committed = None if large else self._at_once(asked, found)
        return self._decide(caller, asked, found) if committed is None else committed

    def _at_once(self, asked: Asked, found: Sequence[Found]) -> Committed | None:
        """A batch that is one group; None, with nothing done, when the loop would work on it for too long."""
        with self.stages.intake.holding(sum(info.bytes for _, info in found)):
            uploads = self.stages.uploads(found)
            if parts_of(found) and self._slow(uploads):
                return None
            return self._tried(asked, partial(self._commit, asked, uploads, []))

    def _tried(self, asked: Asked, job: Callable[[Answer[Committed | None]], None]) -> Committed:
        """What a job of the loop answers, which gives None as long as `asked` is behind."""
        while True:
            committed = self._handover.submit(job).wait(None)
            if committed is not None:
                return committed
            assert asked.drop is not None
            asked.drop.look()

    def _goes(self, f: Fields | None) -> Goes | None:
        """Records that go with the commit: those of `keys`, or of the keys in `stages`, or all."""
        if f is None:
            return None
        name, exchange, vhost = f.name("topic"), f.text("exchange"), f.text("vhost", DEFAULT_VHOST)
        keys, stages, every = f.texts("keys"), f.texts("stages"), f.flag("all")
        f.finish()
        if bool(keys) + bool(stages) + every != 1:
            raise InvalidArgument(
                f"sink_commit: drop takes keys of topic '{name}', stages with keys, or all of them, and one of these"
            )
        return Goes((vhost, exchange, name), keys, stages)

    def _dropping(self, asked: Asked, goes: Goes | None) -> Dropping | None:
        """Records that go with the commit, worked out."""
        if goes is None:
            return None
        dropping = Dropping(self.engine, partial(self._handover.call, durable=False), *goes.topic)
        found = self.stages.find(asked.batch.query, asked.batch.number, goes.stages, asked.mine)
        for stem, info in found:
            if (info.vhost, info.exchange, info.topic) != goes.topic:
                raise InvalidArgument(f"sink_commit: stage {stem} of drop is of another topic than '{goes.topic[2]}'")
        if found:
            dropping.find(texts(bodies) for bodies in self.stages.bodies(found))
        else:
            dropping.find([goes.keys] if goes.keys else None)
        return dropping

    def _catch_up(self, caller: Caller, query: str, batch: int) -> None:
        """Wait until no batch of the query up to this one is decided and not copied."""
        while (decided := self._unfinished(caller, query)) is not None and decided <= batch:
            self.copier.finish(query, decided).wait(caller.gone)

    def _unfinished(self, caller: Caller, query: str) -> int | None:
        """The batch of a query that is decided and not copied."""

        def decided() -> int | None:
            state = self.engine.core.decided.get(query)
            return None if state is None else state.batch

        return self.do(caller, decided, durable=False)

    def _slow(self, uploads: Uploads) -> bool:
        """Whether the loop would work on these rows for long in one piece: rows that differ, records of keys."""
        by_name, limits = self.engine.core.sows.by_name, self.copier.limits
        if sum(len(upload) for _, upload in uploads if not alike(upload)) > limits.group_rows:
            return True
        if not by_name:
            return False
        rows = [
            (len(upload), info.delta)
            for info, upload in uploads
            if any((info.vhost, info.exchange, name) in by_name for name in upload.names)
        ]
        return sum(count for count, _ in rows) > (
            limits.delta_rows if any(delta for _, delta in rows) else limits.chunk_rows
        )

    def _decide(self, caller: Caller, asked: Asked, found: Sequence[Found]) -> Committed:
        """A batch too large for one group: decided, then copied; answered when its last row is durable."""
        given = [stem for stem, _ in found]
        parts: list[DecidedPart] = []

        def job(answer: Answer[Committed | None]) -> None:
            why = self.engine.refusal(new=not asked.settle)
            if why is not None:
                raise why
            if asked.behind:
                answer.give(None)
                return
            core = self.engine.core
            for vhost, exchange in {(part.vhost, part.exchange) for part in parts}:
                core.topic(vhost, exchange, "")
            self._refuse_unkept(asked)
            committed = core.sink_decide(self.engine.now(), asked.of_core(), parts, drop=asked.dropped())
            self._handover.when_persisted(committed.lsn, answer, committed)

        self.stages.hold(given)
        try:
            line = self.stages.in_order(found)
            parts = parts_of(line)
            self.stages.hold([part.stage for part in parts])
            for part in parts:
                self.stages.check(part)  # what is decided cannot be refused any more
            self._look(caller, asked, line)
            self.have_copied(caller, [part.stage for part in parts])
        except BaseException:  # nothing is decided, whatever it is: the client may have left
            self._let_go(given, parts)
            raise
        try:
            committed = self._tried(asked, job)
        except (Refused, LogDamaged):
            self._let_go(given, parts)
            raise
        if committed.already:
            self._let_go(given, parts)
            return committed
        self.stages.release([stem for stem in given if all(stem != part.stage for part in parts)])
        return self.copier.finish(asked.batch.query, asked.batch.number, sound=True).wait(caller.gone)

    def _let_go(self, given: Sequence[str], parts: Sequence[DecidedPart]) -> None:
        """As it was before; stages that were made of others go."""
        made = [part.stage for part in parts if part.stage not in given]
        self.stages.release([*given, *made])
        self.stages.drop(made)

    def have_copied(self, caller: Caller, stages: Sequence[str]) -> None:
        """Return when every server that may take over has these stages: their commit may be asked of that one."""
        if (copies := self.engine.copies) is None:
            return
        names = [path_of(stage) for stage in stages]

        def job(answer: Answer[None]) -> None:
            def done() -> None:
                self._handover.forget(answer)
                answer.give(None)

            self._handover.keep(answer)
            copies.keep(names, done)

        self._handover.submit(job).wait(caller.gone)

    def _look(self, caller: Caller, asked: Asked, line: Sequence[Found]) -> None:
        """Refuse a large batch as a small one would be, a chunk in a turn of the loop.

        Rows of which only the topic matters are not read where they all have one.
        """
        core = self.engine.core
        closely = self.do(caller, core.sink_asks, durable=False)
        if not (closely or asked.batch.mandatory):
            return
        whole = core.sink_whole(asked.batch.query, asked.batch.number, mandatory=asked.batch.mandatory)
        if not closely:
            places = {(i.vhost, i.exchange, str(i.topic)) for _, i in line if i.uniform and i.rows}
            line = [one for one in line if not one[1].uniform]
            self.do(caller, lambda: whole.refuse_unwanted({core.topic(*one) for one in places}), durable=False)
        state = DecidedState(asked.batch.number, 0, tuple(parts_of(line)))

        def look(chunk: Chunk) -> None:
            core.sink_look(self.engine.now(), whole, chunk_publishes(self.engine, asked.batch.query, chunk))

        for chunk in chunks_of(self.copier.disk, asked.batch.query, state, self.copier.limits, core.sows.by_name):
            self.do(caller, partial(look, chunk), durable=False)
        self.do(caller, whole.room, durable=False)

    def _refuse_unkept(self, asked: Asked) -> None:
        """On the loop: NotFound for a topic that somebody must keep, and nobody does."""
        core = self.engine.core
        if asked.kept:
            core.sink_whole(asked.batch.query, asked.batch.number).refuse_unwanted(
                {core.topic(*one) for one in asked.kept}
            )

    def _commit(
        self, asked: Asked, uploads: Uploads, before: list[Publishes], answer: Answer[Committed | None]
    ) -> None:
        """On the loop: one group, answered when it is durable, or with None when `asked` is behind.

        before: the rows, if content filters judged them.
        """
        engine = self.engine
        if not self._handover.has_room(partial(self._commit, asked, uploads, before), answer):
            return
        why = engine.refusal(new=not asked.settle)
        if why is not None:
            raise why
        self._refuse_unkept(asked)
        publishes = [staged_publishes(engine, info.user, info, upload) for info, upload in uploads]
        for rows, judged in zip(publishes, before, strict=bool(before)):
            rows.take_judged(judged)
        again = partial(self._handover.again, partial(self._commit, asked, uploads, publishes), answer)
        if not engine.judges.ready(publishes, again):
            return
        if asked.behind:
            answer.give(None)
            return
        committed = engine.core.sink_commit(engine.now(), asked.of_core(), publishes, drop=asked.dropped())
        self._handover.when_persisted(committed.lsn, answer, committed)
