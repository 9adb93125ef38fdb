"""A view on Spark as one streaming query: the changes of its queue, gathered by group, into a topic with a key.

Checkpoint and state belong to one definition: `<folder>/view.<name>.<digest>`.  A view without its checkpoint, lost or
of another definition, counts everything anew; its first batch replaces all rows, in one commit.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

import orjson
import pyarrow as pa

from penstock.errors import SettingsError
from penstock.expr.gathering.view_definition import Definition as View
from penstock.spark.arrow import values
from penstock.spark.checkpoint import Checkpoint
from penstock.spark.pipelines.anew import request_of
from penstock.spark.pipelines.definition import ONLY, Definition, Input, Output
from penstock.spark.pipelines.outputs import Outputs
from penstock.spark.pipelines.pipeline import Pipeline, lineage_of
from penstock.spark.pipelines.place import Place
from penstock.spark.remote import Where, remote
from penstock.spark.views.groups import COLUMNS, Gatherer, Merger
from penstock.spark.writing.outgoing import Outgoing
from penstock.spark.writing.sink import stage

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
        """One partition."""
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
        stager = ViewStager(self.where, query, batch, target)
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
        session = spark.newSession()
        frame = self.grouped(session, {**self.inputs.options(source, None), "stream": stream})
        outputs = ViewOutputs(
            self.where, (to,), self.checkpoint, settles=(), complete=False, lineage=lineage_of(definition)
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
        """Count everything again."""
        self._forget_others()
        request_of(self.place.folder, self.definition.name).unlink(missing_ok=True)

    def grouped(self, session: Any, options: Mapping[str, str]) -> Any:
        """Rows (name, body): groups that changed, without a body where they are empty."""
        from penstock.spark.reading.columns import CHANGES, MESSAGE, MORE

        kinds = {**MESSAGE, **MORE, **CHANGES}
        wanted = ", ".join(f"{name} {kinds[name]}" for name in COLUMNS)
        reader = session.readStream.format("penstock").schema(wanted)
        changes = reader.options(**options).load()
        deltas = changes.mapInArrow(Gatherer(self.view), "name string, delta binary")
        return deltas.groupBy("name").applyInPandasWithState(
            Merger(self.view), "name string, body binary", "state binary", "update", "NoTimeout"
        )

    def _forget_others(self) -> None:
        """Checkpoints of earlier definitions."""
        own, mine = self.checkpoint.folder, re.compile(re.escape(self.definition.name) + r"\.[0-9a-f]{8}")
        for folder in self.place.folder.iterdir() if self.place.folder.is_dir() else ():
            if folder != own and mine.fullmatch(folder.name) and folder.is_dir():
                shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(own, ignore_errors=True)
