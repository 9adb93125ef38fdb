"""A view that Spark works out: the groups of the view, what each batch of changes does to them, and its pipeline.

It uses the server's own expressions and sums.

A batch says which messages came and which went, both with their bodies.  Tasks gather that by group into stores that
may hold less than nothing (`partial`); the state of a group is such stores merged, and its row is read from them as the
server reads it (`Merger`).  So a group costs what its aggregates need: a count or a sum a few bytes, MIN, MAX, UNIQUE
and GROUP_CONCAT each different value, a field alone and ANY a value for each message.
"""

from __future__ import annotations

import hashlib
import pickle
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, cast

import orjson
import pyarrow as pa

from penstock.errors import SettingsError
from penstock.expr.aggregates import STORES, Store
from penstock.expr.batches import BodyReader
from penstock.expr.bodies import body_type
from penstock.expr.group_rows import Elements, GroupKey, body, given_by, key_of, key_text, row_of, shown
from penstock.expr.values import Value
from penstock.expr.view_definition import Definition as View
from penstock.expr.view_definition import Plan, plan
from penstock.records.dataclass import dataclass
from penstock.records.entries import Topic
from penstock.records.message_types import JSON, MessageType
from penstock.records.properties import EMPTY
from penstock.spark.checkpoint import Checkpoint
from penstock.spark.pipelines.definition import ONLY, Definition, Input, Output
from penstock.spark.pipelines.folders import Place
from penstock.spark.pipelines.lineage import Lineage
from penstock.spark.pipelines.outputs import Outputs
from penstock.spark.pipelines.pipeline import Pipeline
from penstock.spark.pipelines.reset import request_of
from penstock.spark.record_batches import values
from penstock.spark.remote import Where, remote
from penstock.spark.sessions import apart
from penstock.spark.sink import stage
from penstock.spark.sink_rows import Outgoing

COLUMNS = ("lsn", "topic", "exchange", "time", "properties", "body", "change")
"""What is read of each change."""

KEY_BYTES_MOST = 255
"""Of a key that a publisher gives."""

planned = lru_cache(maxsize=64)(plan)


@dataclass(slots=True)
class Group:
    """What is available in a group, or what a batch adds to it."""

    key: GroupKey
    stores: list[Store]
    available: int = 0
    newest: dict[int, tuple[Value, ...] | None] = field(default_factory=dict[int, "tuple[Value, ...] | None"])
    oldest: dict[int, tuple[Value, ...] | None] = field(default_factory=dict[int, "tuple[Value, ...] | None"])
    shown: bytes | None = None  # the row as it was told

    def merge(self, other: Group) -> None:
        """Add what a batch changes; of a message that went the values are None."""
        self.available += other.available
        for mine, theirs in zip(self.stores, other.stores, strict=True):
            mine.merge(theirs)
        for held, told in ((self.newest, other.newest), (self.oldest, other.oldest)):
            for lsn, given in told.items():
                if given is None:
                    del held[lsn]
                else:
                    held[lsn] = given

    def row(self, plan: Plan) -> bytes:
        gathered: dict[str, Any] = {f"g{place}": shown(value) for place, value in enumerate(self.key)}
        for read in plan.reads:
            gathered[read.name] = STORES[read.aggregate][1](self.stores[read.store], read.extra)
        if plan.last:
            newest = cast("tuple[Value, ...]", self.newest[max(self.newest)])
            gathered |= {name: value for (name, _), value in zip(plan.last, newest, strict=True)}
        for place, (name, _) in enumerate(plan.any):
            having = (lsn for lsn, given in self.oldest.items() if given is not None and given[place] is not None)
            lsn = min(having, default=None)
            gathered[name] = None if lsn is None else cast("tuple[Value, ...]", self.oldest[lsn])[place]
        return body(plan, row_of(plan, gathered))


def new_group(plan: Plan, key: GroupKey) -> Group:
    return Group(key, [STORES[name][0]() for name, _ in plan.stores])


def name_of(key: GroupKey) -> str:
    """What tells a group from others: the key of its row, as the server shows it if that says it all and is short."""
    text = key_text(key)
    if any(isinstance(value, tuple) for value in key):
        text = f"{text} {key!r}"  # NaN looks like NULL there
    if len(text.encode("utf-8", "surrogatepass")) <= KEY_BYTES_MOST:
        return text
    return "sha256:" + hashlib.sha256(repr(key).encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Gatherer:
    """Runs in tasks: changes to what they do to each group, as rows (name, delta)."""

    definition: View
    message_type: MessageType = JSON  # of what the view gathers

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        plan, reader = planned(self.definition), body_type(self.message_type)
        groups: dict[GroupKey, Group] = {}
        for batch in batches:
            for change in (1, -1):
                rows = batch.filter(pa.array([one == change for one in values(batch, "change")]))
                if rows.num_rows:
                    gather(plan, rows, change, groups, self.definition.vhost, reader)
        named = {name_of(key): group for key, group in groups.items()}
        yield pa.record_batch(
            {
                "name": pa.array(list(named), pa.string()),
                "delta": pa.array([pickle.dumps(group) for group in named.values()], pa.binary()),
            }
        )


def gather(
    plan: Plan,
    rows: pa.RecordBatch,
    change: int,
    groups: dict[GroupKey, Group],
    vhost: str,
    reader: BodyReader,
) -> None:
    """Add rows that all came (+1), or all went (-1), to their groups.  reader: of their bodies."""
    given = given_by(plan, elements_of(rows, vhost, reader))
    keyed: dict[GroupKey, list[int]] = {}
    columns = given.values[: plan.groups]
    for row in range(len(given.lsns)):
        keyed.setdefault(tuple(key_of(column[row]) for column in columns), []).append(row)
    for key, mine in keyed.items():
        group = groups.get(key)
        if group is None:
            group = groups[key] = new_group(plan, key)
        group.available += change * len(mine)
        for store, (_, place) in zip(group.stores, plan.stores, strict=True):
            column = given.values[place]
            store.change([column[row] for row in mine], change)
        for held, wanted in ((group.newest, plan.last), (group.oldest, plan.any)):
            if wanted:
                for row in mine:
                    there = tuple(given.values[place][row] for _, place in wanted)
                    held[given.lsns[row]] = there if change > 0 else None


def elements_of(rows: pa.RecordBatch, vhost: str, reader: BodyReader) -> Elements:
    """Rows with `COLUMNS` as expressions read them."""
    bodies = [one or b"" for one in cast("Sequence[bytes | None]", values(rows, "body"))]
    properties = [one or EMPTY for one in cast("Sequence[bytes | None]", values(rows, "properties"))]
    times = rows.column("time").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    topics: dict[tuple[str, str], Topic] = {}
    named = zip(values(rows, "exchange"), values(rows, "topic"), strict=True)
    return Elements(
        cast("Sequence[int]", values(rows, "lsn")),
        reader.tables(bodies, properties),
        bodies,
        properties,
        [topics.setdefault((e or "", name), Topic(vhost, e or "", name)) for e, name in named],
        cast("Sequence[int]", times.to_pylist()),
    )


@dataclass(frozen=True, slots=True)
class Merger:
    """Runs in tasks, for each group that a batch touches: its state and its row."""

    definition: View

    def __call__(self, key: tuple[str], frames: Iterable[Any], state: Any) -> Iterator[Any]:
        """`key` and `state` as Spark has them; rows (name, body), body None where the group is empty now."""
        import pandas

        plan = planned(self.definition)
        group: Group | None = pickle.loads(state.get[0]) if state.exists else None
        for frame in frames:
            for delta in frame["delta"]:
                found = cast("Group", pickle.loads(bytes(delta)))
                if group is None:
                    group = new_group(plan, found.key)
                group.merge(found)
        if group is None:
            return
        before = group.shown
        group.shown = group.row(plan) if group.available else None
        if group.available:
            state.update((pickle.dumps(group),))
        elif state.exists:
            state.remove()
        if group.shown != before:
            yield pandas.DataFrame({"name": [key[0]], "body": [group.shown]})


PREFIX = "view."
"""Before the name of a view, where pipelines have theirs."""

MAX_ROWS = 100_000
"""Changes of one batch at most."""

_ROWS = Outgoing(("headers", "content_type"), ())
_KEYS = Outgoing((), ())
_TYPE = "application/json"
SOW_KEY = "x-sow-key"


def view_of(given: Mapping[str, Any]) -> View:
    """From the JSON form of a `[[view]]`."""
    return View(
        str(given["name"]), str(given["source"]), tuple(given["select"]), tuple(given.get("group_by") or ()),
        given.get("filter"), str(given.get("vhost") or "/"),
    )  # fmt: skip


def definition_of(given: Mapping[str, Any]) -> Definition:
    """A view as the driver shows pipelines."""
    view = view_of(given)
    return Definition(
        PREFIX + view.name,
        (Input(ONLY, queue=view.source, vhost=view.vhost, mode="changes", max_rows=MAX_ROWS),),
        (Output(view.name, None, vhost=view.vhost, view=True),),
        orjson.dumps(asdict(view)).decode(),
        trigger_us=int(given.get("trigger") or 0),
        output_mode="update",
    )


class ViewStager:
    """Runs in tasks: rows onto the server, and the names of groups that are empty now; the stages come back as rows."""

    def __init__(self, where: Where, query: str, batch: int, to: Output) -> None:
        self._task = (where, query, batch)
        self._to = to

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        gone: list[bytes] = []

        def rows() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                names, bodies = values(batch, "name"), values(batch, "body")
                gone.extend(name.encode() for name, body in zip(names, bodies, strict=True) if body is None)
                kept = [(name, body) for name, body in zip(names, bodies, strict=True) if body is not None]
                if kept:
                    yield pa.record_batch(
                        {
                            "body": pa.array([body for _, body in kept], pa.binary()),
                            "headers": pa.array(
                                [[(SOW_KEY, name)] for name, _ in kept], pa.map_(pa.string(), pa.string())
                            ),
                            "content_type": pa.array([_TYPE] * len(kept), pa.string()),
                        }
                    )

        where, query, batch = self._task
        to = self._to.topic, self._to.exchange, self._to.vhost
        stages, _ = stage(where, query, batch, rows(), _ROWS, *to)
        keys = [pa.record_batch({"body": pa.array(gone, pa.binary())})] if gone else []
        of_keys, _ = stage(where, query, batch, keys, _KEYS, *to)
        yield pa.record_batch(
            {
                "stage": pa.array([*stages, *of_keys], pa.string()),
                "keys": pa.array([*(False for _ in stages), *(True for _ in of_keys)], pa.bool_()),
            }
        )


class ViewOutputs(Outputs):
    """A batch of a view: rows that are other than before, and groups without a message."""

    _gone: list[str]  # stages with their names

    def staged(self, frame: Any, query: str, batch: int, target: Output) -> list[str]:
        """Rows onto the server, not visible yet."""
        stager = ViewStager(self.tasks or self.where, query, batch, target)
        found = frame.mapInArrow(stager, "stage string, keys boolean").collect()
        self._gone = [str(row[0]) for row in found if row[1]]
        return [str(row[0]) for row in found if not row[1]]

    def drop(self, batch: int) -> Mapping[str, object] | None:
        """The first batch replaces what was there."""
        [to] = self.targets
        where = {"topic": to.topic, "vhost": to.vhost}
        if batch == 0:
            return {**where, "all": True}
        return {**where, "stages": self._gone} if self._gone else None


class ViewPipeline(Pipeline):
    """A view that can be started, again and again, from the same checkpoint."""

    def __init__(self, given: Mapping[str, Any], place: Place) -> None:
        """`given`: the JSON form of a `[[view]]`."""
        super().__init__(definition_of(given), place)
        self.view = view_of(given)
        digest = hashlib.sha256(str(self.definition.sql).encode()).hexdigest()[:8]
        self.checkpoint = Checkpoint(place.folder / f"{self.definition.name}.{digest}")

    def start(self, spark: Any, *, once: bool = False) -> Any:
        """A running StreamingQuery.  SettingsError where pandas is missing."""
        if find_spec("pandas") is None:  # Spark hands groups over in it
            raise SettingsError(f"view {self.view.name}: engine = 'spark' needs pandas: pip install pandas")
        if self.anew_asked():
            self.begin_anew()
        definition = self.definition
        [source], [to] = definition.inputs, definition.to
        server, stream = remote(self.where), definition.name
        server.act("declare_topic", topic=self.view.name, vhost=self.view.vhost, settings={"key_from": "publisher"})
        if not self.checkpoint.exists:
            self._forget_others()
            server.act(
                "stream_open", stream=stream, queue=source.queue, vhost=self.view.vhost, mode="changes", anew=True,
                pipeline=stream,
                instance="a view that counts anew",
            )  # fmt: skip
        self.checkpoint.sweep()
        session = apart(spark)
        told = server.act("stats", queue=source.queue, vhost=self.view.vhost)
        tasks = self.place.tasks(self.where)
        options = {**self.inputs.options(source, None, tasks), "stream": stream}
        frame = self.grouped(session, options, str(told["message_type"]))
        outputs = ViewOutputs(
            self.where, (to,), self.checkpoint, settles=(), complete=False, lineage=Lineage.of(definition), tasks=tasks
        )
        self.outputs = outputs
        writer = frame.writeStream.queryName(definition.name).outputMode("update").foreachBatch(outputs)
        writer = writer.option("checkpointLocation", str(self.checkpoint.folder))
        if once:
            writer = writer.trigger(availableNow=True)
        elif definition.trigger_us:
            writer = writer.trigger(processingTime=f"{max(1, definition.trigger_us // 1000)} milliseconds")
        return writer.start()

    def begin_anew(self) -> None:
        self._forget_others()
        request_of(self.place.folder, self.definition.name).unlink(missing_ok=True)

    def grouped(self, session: Any, options: Mapping[str, str], kind: MessageType) -> Any:
        """Rows (name, body): groups that changed, without a body where they are empty."""
        from penstock.spark.reading.columns import CHANGES, MESSAGE, MORE

        kinds = {**MESSAGE, **MORE, **CHANGES}
        wanted = ", ".join(f"{name} {kinds[name]}" for name in COLUMNS)
        reader = session.readStream.format("penstock").schema(wanted)
        changes = reader.options(**options).load()
        deltas = changes.mapInArrow(Gatherer(self.view, kind), "name string, delta binary")
        return deltas.groupBy("name").applyInPandasWithState(
            Merger(self.view), "name string, body binary", "state binary", "update", "NoTimeout"
        )

    def _forget_others(self) -> None:
        own, mine = self.checkpoint.folder, re.compile(re.escape(self.definition.name) + r"\.[0-9a-f]{8}")
        for folder in self.place.folder.iterdir() if self.place.folder.is_dir() else ():
            if folder != own and mine.fullmatch(folder.name) and folder.is_dir():
                shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(own, ignore_errors=True)
