"""One pipeline as one streaming query: inputs, transform, outputs, and the manifest beside its checkpoint.

<folder>/<name>/         Spark's checkpoint
<folder>/<name>.json     what it was made for (`Manifest`)
<folder>/<name>.lock     held by the process that runs it

Its inputs are frames: streams of queues and topics, and tables that are read when it starts.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from penstock.errors import NotFound, PenstockError, SettingsError
from penstock.records.dataclass import dataclass
from penstock.spark.checkpoint import Checkpoint, Manifest, remembered
from penstock.spark.options import read_options
from penstock.spark.pipelines import code, expectations
from penstock.spark.pipelines.definition import ONLY, PROVIDER, STORES, Definition, Input, with_vhost
from penstock.spark.pipelines.expectations import Letters, Post, Thresholds, checked, refuse_twice
from penstock.spark.pipelines.folders import Place as Place
from penstock.spark.pipelines.folders import refuse_unshared
from penstock.spark.pipelines.lineage import Lineage
from penstock.spark.pipelines.outputs import INTERPRETING, Committed, Outputs
from penstock.spark.pipelines.reset import carry_out, handover, places_of, request_of
from penstock.spark.reading.inference import NO_MESSAGE
from penstock.spark.remote import Where, remote
from penstock.spark.sessions import apart
from penstock.spark.source import examined

OF_BATCHES = frozenset({"maxRowsPerTrigger", "minRowsPerTrigger", "maxTriggerDelay", "rescuedDataColumn"})
"""Options of a stream, which say nothing of its first messages."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of one pipeline, on one server."""

    definition: Definition
    where: Where
    until: int | None = None  # the LSN at which a backfill hands over to the live stream
    places: Mapping[str, str] = field(default_factory=dict[str, str])  # where topics begin instead, by stream
    blame: bool = True  # whether rows may be to blame for what ended the run before
    tasks: Where | None = None  # as whom tasks log in, if not as the driver

    def columns(self, one: Input, patience: float | None = None) -> str | None:
        """DDL of the columns of its bodies: as given, or by its first messages.  None for files that tell their own.

        Raises NotFound with the reason NO_MESSAGE while there is no message to tell by, Unavailable when no server
        answers within the patience.
        """
        if one.columns != "json":
            return one.columns
        if one.table is not None or one.log:
            return None
        where = self.where if patience is None else replace(self.where, patience=patience)
        given = {name: value for name, value in self.options(one, None, where).items() if name not in OF_BATCHES}
        try:
            return examined(read_options(given))
        except NotFound as error:
            if error.reason != NO_MESSAGE:
                raise
            told = f"{one.text} has no message yet whose JSON could tell its columns"
            raise NotFound(told, reason=NO_MESSAGE) from None

    def options(self, one: Input, columns: str | None, where: Where | None = None) -> dict[str, str]:
        where, stream = where or (not one.log and self.tasks) or self.where, self.definition.stream_of(one)
        given: dict[str, str | None] = {
            "url": where.url,
            "user": where.user,
            "password": where.password,
            "patience": f"{where.patience:g}s",
            "queue": one.queue,
            "topic": one.topic,
            "view": one.view,
            "log": "true" if one.log else None,
            "exchange": one.exchange,
            "filter": one.filter,
            "startingBookmark": self.places.get(stream, one.start),
            "schema": columns,
        }
        if one.is_stream:
            given |= self._of_stream(one, stream) | self._range(one, stream)
        if one.mode == "queue":  # a lost checkpoint is told of at the start, and deleted as our own errors advise
            given["onLostCheckpoint"] = "continue"
            if self.definition.poison_after:
                given["poisonAfter"] = str(self.definition.poison_after)
                given["poisonBlame"] = "true" if self.blame else "false"
        return {name: value for name, value in given.items() if value}

    def _of_stream(self, one: Input, stream: str) -> dict[str, str | None]:
        """Whose stream it is, and how large its batches are."""
        definition = self.definition
        others = (name for name in map(definition.stream_of, definition.streams) if name != stream)
        return {
            "mode": one.mode,
            "stream": stream,
            "pipeline": definition.owner,
            "abandon_after": f"{definition.abandon_us // 1000}ms" if definition.abandon_us else "off",
            "maxRowsPerTrigger": str(one.max_rows),
            "minRowsPerTrigger": None if one.min_rows is None else str(one.min_rows),
            "maxTriggerDelay": None if one.max_delay_us is None else f"{one.max_delay_us // 1000}ms",
            "rescuedDataColumn": one.rescued,
            "beside": ",".join(others),
        }

    def _range(self, one: Input, stream: str) -> dict[str, str | None]:
        """Where a backfill, or the first run over the past of a topic, begins and ends."""
        past = self.definition.past
        if one.end is not None:
            return {
                "backfillUntil": str(one.end),
                "backfillMaxRows": str(one.max_rows),
                "backfillOnly": "true",
            }
        if past is None or self.until is None or stream in self.places:
            return {}
        return {
            "startingBookmark": past.start,
            "backfillUntil": str(self.until),
            "backfillMaxRows": str(past.max_rows),
        }

    def frames(self, session: Any, columns: Mapping[str, str | None], post: Post) -> dict[str, Any]:
        """A frame for each input, by name; `columns` as told before.  post: who takes its dead letters."""
        return {one.name: self.frame(session, one, columns.get(one.name), post) for one in self.definition.inputs}

    def frame(self, session: Any, one: Input, columns: str | None, post: Post) -> Any:
        """Its rows: checked, with their watermark, each once where that is asked for."""
        if not one.is_stream:
            return self._table(session, one, columns)
        given = self.options(one, columns)
        self.refuse(one, given)
        frame = session.readStream.format("penstock").options(**given).load()
        frame = checked(frame, one.expect, post, self.definition.name, one.name)
        if one.watermark is not None:
            column, delay_us = one.watermark
            frame = frame.withWatermark(column, f"{delay_us} microseconds")
        return frame.dropDuplicatesWithinWatermark(list(one.dedup)) if one.dedup else frame

    def refuse(self, one: Input, given: Mapping[str, str]) -> None:
        """SettingsError in the words of the settings for options that cannot be read."""
        past = self.definition.past
        try:
            read_options(given)
            if past is not None:
                read_options({**given, "startingBookmark": past.start})
        except PenstockError as error:
            start = "start" if past is None else "backfill.from"
            said = str(error).replace("option startingBookmark", start).replace("option ", "", 1)
            raise SettingsError(f"pipeline {self.definition.name}: {one.name}: {said}") from None

    def _table(self, session: Any, one: Input, columns: str | None) -> Any:
        if one.table is None:
            return session.read.format("penstock").options(**self.options(one, columns)).load()
        reader = session.read.format(file_format(one)).options(**one.options)
        if columns is not None:
            reader = reader.schema(columns)
        return reader.load(location(one.table))


def file_format(one: Input) -> str:
    """As it is given, or as the name ends."""
    if one.format is not None:
        return one.format
    name = str(one.table).lower().removesuffix(".gz")
    return next((kind for kind in ("csv", "json") if name.endswith(f".{kind}")), "parquet")


def location(table: str) -> str:
    """A folder as Spark takes it: one of this machine unless it says otherwise."""
    return table if "://" in table else f"file://{Path(table).absolute()}"


logger = logging.getLogger("penstock.pipelines")

PROCESSOR = "TransformWithState"
"""How the steps of `transformWithState` are called in a plan."""

_UPDATES = re.compile(r"~FlatMapGroupsInPandasWithState .*, Update, ")
"""The step of an `applyInPandasWithState` that says `update`."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A pipeline that Spark has understood."""

    frame: Any  # the result, a streaming DataFrame
    mode: str
    outputs: Outputs
    manifest: Manifest


class Pipeline:
    """One definition that can be started, again and again, from the same checkpoint."""

    outputs_class: type[Outputs] = Outputs

    def __init__(self, definition: Definition, place: Place) -> None:
        self.definition = definition
        self.place = place
        self.checkpoint = Checkpoint(place.folder / definition.name)
        self._manifest = place.folder / f"{definition.name}.json"
        url = with_vhost(place.where.url, definition.vhost)
        self.where = Where(url, place.where.user, place.where.password, place.where.patience, place.where.by)
        self.inputs = Inputs(definition, self.where)
        self.blame = True  # whether rows may be to blame for what ended the run before the next start
        self._stamp: code.Stamp = ()
        self.outputs: Outputs | None = None  # of the running query
        self.input_fields: dict[str, list[tuple[str, str]]] = {}  # names and types of columns, by input
        self.output_fields: list[tuple[str, str]] = []

    def start(self, spark: Any, *, once: bool = False) -> Any:
        """A running StreamingQuery; with `once` it ends when it has read what there is now.

        Errors: SettingsError for what another try would not mend; NotFound with the reason `inference.NO_MESSAGE` while
        there is no message to tell the columns by.
        """
        definition = self.definition
        self.note_code()
        if self.anew_asked():
            self.begin_anew()
        self.inputs = replace(self.inputs, tasks=self.place.tasks(self.where))
        self.inputs = replace(self.inputs, places=places_of(self.place.folder, definition.name), blame=self.blame)
        if definition.past is not None:
            self.inputs = replace(self.inputs, until=handover(self.where, self.checkpoint, self._manifest))
        old = self.old_manifest()
        planned = self.plan(spark, {} if old is None else old.columns)
        self.refuse_misfit(old, planned.manifest)
        shared = [Path(table).parent for table in planned.outputs.tables]
        refuse_unshared(spark, [*shared, self.place.folder] if planned.manifest.state else shared, definition.name)
        self._tell_lost_checkpoint()
        for path in self.checkpoint.sweep():
            logger.warning("pipeline %s: removed the empty file %s, which a power cut leaves", definition.name, path)
        planned.outputs.declare(dict.fromkeys(c.topic for one in definition.inputs for c in one.expect if c.topic))
        self.outputs = planned.outputs
        self.output_fields = fields_of(planned.frame.schema)
        self.input_fields = fields_by_input(planned.manifest.columns)
        if old != planned.manifest:
            planned.manifest.write(self._manifest)
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", definition.name)
        query = self._writer(planned, once=once).start()
        if planned.outputs.thresholds is not None:
            planned.outputs.thresholds.started(query)
        return query

    def _writer(self, planned: Planned, *, once: bool) -> Any:
        definition = self.definition
        writer = planned.frame.writeStream.queryName(definition.name).outputMode(planned.mode)
        # A cluster may have another file system for paths that do not say which.
        location = f"file://{self.checkpoint.folder.absolute()}"
        writer = writer.foreachBatch(planned.outputs).option("checkpointLocation", location)
        if once or definition.schedule is not None:
            return writer.trigger(availableNow=True)
        if definition.trigger_us:
            return writer.trigger(processingTime=f"{max(1, definition.trigger_us // 1000)} milliseconds")
        return writer

    def plan(self, spark: Any, columns: Mapping[str, str | None], patience: float | None = None) -> Planned:
        """Let Spark understand it, without running it.  Raises what is wrong with it.

        columns: of inputs, as they were inferred before; `patience`: seconds to wait for a server that could tell them.
        """
        definition = self.definition
        session = apart(spark)  # names of inputs and settings are this pipeline's own
        for name in filter(lambda name: name.startswith("spark.sql."), definition.conf):
            session.conf.set(name, definition.conf[name])
        if interpreted := self._interpreted(spark):
            for name, value in INTERPRETING.items():
                session.conf.set(name, value)
        known = {
            one.name: columns[one.name] if one.columns == "json" and columns.get(one.name) else
            self.inputs.columns(one, patience)
            for one in definition.inputs
        }  # fmt: skip
        letters = Letters(self.inputs.tasks or self.where, session.sparkContext, self.checkpoint.key)
        frame, digest = self._transformed(session, self.inputs.frames(session, known, letters.post))
        analyzed = frame._jdf.queryExecution().analyzed()
        plan = str(analyzed.toString())
        for one in definition.inputs:
            refuse_twice(plan, one.expect, definition.name)
        if not frame.isStreaming:
            raise SettingsError(
                f"pipeline {definition.name}: what it makes does not come from {_names(definition)}, so nothing new "
                "would ever come"
            )
        expectations.refuse_inexact(session, analyzed, definition)
        fitting = default_mode(plan, definition)
        mode = definition.output_mode or fitting
        if PROCESSOR in plan:
            keep_in_rocksdb(session, definition)
        refuse_unsupported(spark, analyzed, mode, definition.name, fitting)
        thresholds = Thresholds(definition)
        outputs = self.outputs_class(
            self.where,
            definition.to,
            self.checkpoint,
            settles=definition.settles,
            complete=mode == "complete",
            mandatory=definition.mandatory,
            lineage=self.lineage,
            letters=letters,
            thresholds=thresholds if thresholds.wanted else None,
            tasks=self.inputs.tasks,
            interpreted=interpreted,
        )
        outputs.check(frame.schema)
        return Planned(frame, mode, outputs, self._made_for(session, plan, known, mode, digest))

    def _interpreted(self, spark: Any) -> bool:
        """Whether Spark begins without code for it: nobody said otherwise, and no rules, whose counts need code."""
        conf = spark.sparkContext.getConf()
        if any(name in self.definition.conf or conf.contains(name) for name in INTERPRETING):
            return False
        return not any(one.expect for one in self.definition.inputs)

    def _made_for(
        self, session: Any, plan: str, known: dict[str, str | None], mode: str, digest: str | None
    ) -> Manifest:
        """What its checkpoint is made for: filters and the store of the state count where there is a state."""
        state, reads = remembered(plan), self.definition.reads
        if not state:
            return Manifest(reads, known, (), mode, "", digest)
        filters = [f"filter {one.name} {one.filter}" for one in self.definition.streams if one.filter]
        store = str(session.conf.get(PROVIDER, "")).rpartition(".")[2]
        return Manifest(reads, known, (*state, *filters), mode, "" if store.startswith("HDFS") else store, digest)

    @property
    def committed(self) -> list[Committed]:
        """The newest batches of the running query."""
        return [] if self.outputs is None else self.outputs.committed

    @property
    def lineage(self) -> Lineage:
        """What its batches are made of, as their commits tell it."""
        return Lineage.of(self.definition)

    def note_code(self) -> None:
        """Remember which of the user's files this run is made of."""
        if self.definition.python is not None:
            self._stamp = code.watched(self.definition.python)

    def code_changed(self) -> bool:
        """Whether the user's files are not those of the last start any more."""
        python = self.definition.python
        return python is not None and code.watched(python) != self._stamp

    def anew_asked(self) -> bool:
        """Whether somebody wants it to begin anew."""
        return request_of(self.place.folder, self.definition.name).exists()

    def begin_anew(self) -> None:
        """Forget the checkpoint and what goes with it."""
        carry_out(self)
        logger.info("pipeline %s begins anew", self.definition.name)

    def old_manifest(self) -> Manifest | None:
        """What the checkpoint was made for, and columns that were inferred before.  SettingsError when unreadable."""
        try:
            found = Manifest.read(self._manifest)
        except (ValueError, TypeError, KeyError) as error:
            if self.checkpoint.exists:
                raise SettingsError(
                    f"{self._manifest} cannot be read ({error}), so the checkpoint may not fit: delete both to start "
                    "anew"
                ) from None
            return None
        return found if self.checkpoint.exists or found is None else Manifest((), found.columns)

    def refuse_misfit(self, old: Manifest | None, new: Manifest) -> None:
        """SettingsError with the reason and the choices, where the checkpoint is none for this definition."""
        why = old.misfit(new) if old is not None and self.checkpoint.exists else None
        if why is not None:
            raise SettingsError(
                f"pipeline {self.definition.name} has changed since its checkpoint was made: {why}; put the old "
                "definition back, give the new one another name, or begin anew: "
                f"penstock pipeline reset {self.definition.name}"
            )

    def _tell_lost_checkpoint(self) -> None:
        """A stream that has moved on without the checkpoint: say which batch comes again."""
        if self.checkpoint.exists:
            return
        mine = {self.definition.stream_of(one) for one in self.definition.streams if one.mode == "queue"}
        if not mine:
            return
        for stream in remote(self.where).act("streams")["streams"]:
            if stream["stream"] in mine and stream["planned"] > stream["floor"]:
                logger.warning(
                    "pipeline %s starts without its checkpoint, and its stream is settled up to batch %d: batch %d was "
                    "planned before and is delivered again",
                    self.definition.name,
                    stream["floor"],
                    stream["planned"],
                )

    def _transformed(self, session: Any, frames: Mapping[str, Any]) -> tuple[Any, str | None]:
        """The result, and the hash of the user's code if there is any."""
        definition = self.definition
        if definition.sql is not None:
            for name, frame in frames.items():
                frame.createOrReplaceTempView(name)
            return self._queried(session, definition.sql), None
        try:
            loaded = code.load(str(definition.python), definition.name)
        finally:
            self.note_code()
        whose = f"pipeline {definition.name}: python = {definition.python!r}"
        if list(frames) == [ONLY]:
            result = loaded.called(whose, frames[ONLY])
        else:
            result = loaded.called(whose, **frames)
        if not hasattr(result, "writeStream"):
            raise SettingsError(
                f"pipeline {definition.name}: {definition.python} gives {type(result).__name__} and should give a "
                "DataFrame"
            )
        return result, loaded.digest

    def _queried(self, session: Any, sql: str) -> Any:
        """The frame of the SQL.  SettingsError with the inputs' names for a table that is none of them."""
        try:
            return session.sql(sql)
        except Exception as error:
            if not str(error).startswith("[TABLE_OR_VIEW_NOT_FOUND]"):
                raise
            known = [one.name for one in self.definition.inputs]
            found = re.search(r"`[^ ]+`", str(error))
            name = "what it reads" if found is None else found[0].replace("`", "")
            raise SettingsError(
                f"pipeline {self.definition.name}: the SQL reads {name!r}, and there is {' and '.join(known)} to read"
            ) from None


def fields_of(schema: Any) -> list[tuple[str, str]]:
    """Names and types of a `StructType`."""
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


def fields_by_input(columns: Mapping[str, str | None]) -> dict[str, list[tuple[str, str]]]:
    """The same of inputs whose columns are known as DDL."""
    from pyspark.sql.types import StructType

    return {name: fields_of(StructType.fromDDL(ddl)) for name, ddl in columns.items() if ddl}


def _names(definition: Definition) -> str:
    return " and ".join(one.name for one in definition.streams)


def default_mode(plan: str, definition: Definition) -> str:
    """For an aggregate without a watermark `complete`, or `update` where all it has are views; else `append`.

    With a watermark and views alone `update` too: a view shows a window while it grows.  A function with state of its
    own has said which.
    """
    if _UPDATES.search(plan):
        return "update"
    if "~Aggregate [" not in plan and "~Distinct" not in plan:
        return "append"
    if all(to.view for to in definition.to):
        return "update"
    return "append" if "EventTimeWatermark" in plan else "complete" if "~Aggregate [" in plan else "update"


def keep_in_rocksdb(session: Any, definition: Definition) -> None:
    """The one place where Spark keeps the state of `transformWithState`.  SettingsError where it cannot."""
    name = definition.name
    if definition.conf.get(PROVIDER, STORES["rocksdb"]) != STORES["rocksdb"]:
        raise SettingsError(
            f"pipeline {name}: transformWithState keeps its state in RocksDB alone: leave out state = 'memory'"
        )
    if find_spec("google") is None or find_spec("google.protobuf") is None:
        raise SettingsError(f"pipeline {name}: transformWithState needs protobuf: pip install protobuf")
    session.conf.set(PROVIDER, STORES["rocksdb"])


def refuse_unsupported(spark: Any, analyzed: Any, mode: str, pipeline: str, fitting: str) -> None:
    """SettingsError for what Spark cannot do on a stream, which it says only when a query starts.

    fitting: the mode that goes with the query if it may be left out.
    """
    jvm: Any = spark._jvm
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(analyzed, getattr(modes, mode.capitalize())())
    except Exception as error:  # noqa: BLE001 - py4j's or pyspark's, by what Spark raises
        from penstock.spark.pipelines.code import short

        said = short(str(error))
        if mode != fitting:
            said = f"output_mode = {mode!r} does not go with this query; leave it out, which means {fitting!r} ({said})"
        raise SettingsError(f"pipeline {pipeline}: {said}") from None
