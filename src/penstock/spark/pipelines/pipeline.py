"""One pipeline as one streaming query: source, checks, transform, outputs, and the papers beside its checkpoint.

    <folder>/<name>/         Spark's checkpoint
    <folder>/<name>.json     {"digest", "columns"}: what the checkpoint belongs to, and columns that were inferred

A checkpoint knows nothing of options, SQL or code.  With a changed definition it would go on as if nothing had
happened, so a pipeline whose definition no longer fits its checkpoint is refused.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from penstock.errors import SettingsError
from penstock.records.dataclass import dataclass
from penstock.spark.checkpoint import Checkpoint
from penstock.spark.pipelines.checks import checked, refuse_twice
from penstock.spark.pipelines.definition import Definition, with_vhost
from penstock.spark.pipelines.outputs import Outputs
from penstock.spark.reading.options import read_options
from penstock.spark.remote import Where, remote
from penstock.spark.source import examined

logger = logging.getLogger("penstock.pipelines")


@dataclass(frozen=True, slots=True)
class Place:
    """Where pipelines run: the server, and the folder of their checkpoints."""

    where: Where
    folder: Path


class Pipeline:
    """One definition that can be started, again and again, from the same checkpoint."""

    outputs_class: type[Outputs] = Outputs

    def __init__(self, definition: Definition, place: Place) -> None:
        self.definition = definition
        self.place = place
        self.checkpoint = Checkpoint(place.folder / definition.name)
        self._papers = place.folder / f"{definition.name}.json"
        url = with_vhost(place.where.url, definition.vhost)
        self.where = Where(url, place.where.user, place.where.password, place.where.patience)

    def start(self, spark: Any) -> Any:
        """A running StreamingQuery.  SettingsError for what another try would not mend."""
        definition = self.definition
        columns = self._columns()
        self._tell_lost_checkpoint()
        for path in self.checkpoint.sweep():
            logger.warning("pipeline %s: removed the empty file %s, which a power cut leaves", definition.name, path)
        session = spark.newSession()  # `input` is this pipeline's own
        frame = session.readStream.format("penstock").options(**self._options(columns)).load()
        frame = checked(frame, definition.expect, self.where, definition.name)
        result = self._transformed(session, frame)
        plan = str(result._jdf.queryExecution().analyzed().toString())
        refuse_twice(plan, definition.expect, definition.name)
        mode = definition.output_mode or default_mode(plan)
        outputs = self.outputs_class(
            self.where,
            definition.to,
            self.checkpoint,
            settle_stream=definition.name if definition.mode == "queue" else None,
            complete=mode == "complete",
        )
        outputs.check(result.schema)
        writer = result.writeStream.queryName(definition.name).outputMode(mode).foreachBatch(outputs)
        writer = writer.option("checkpointLocation", str(self.checkpoint.folder))
        if definition.trigger_us:
            writer = writer.trigger(processingTime=f"{max(1, definition.trigger_us // 1000)} milliseconds")
        return writer.start()

    def _options(self, columns: str) -> dict[str, str]:
        definition, where = self.definition, self.where
        given = {
            "url": where.url,
            "user": where.user,
            "password": where.password,
            "patience": f"{where.patience:g}s",
            "queue": definition.queue,
            "topic": definition.topic,
            "exchange": definition.exchange,
            "mode": definition.mode,
            "stream": definition.name,
            "filter": definition.filter,
            "maxRowsPerTrigger": str(definition.max_rows),
            "schema": columns,
        }
        return {name: value for name, value in given.items() if value}

    def _columns(self) -> str:
        """DDL of the body's columns: as given, as inferred once, or inferred now.

        Errors: SettingsError for a definition that does not fit the checkpoint; NotFound while there is no message to
        infer from.
        """
        definition, digest = self.definition, self.definition.digest()
        papers = self._read_papers()
        if papers is not None and papers.get("digest") != digest and self.checkpoint.exists:
            raise SettingsError(
                f"pipeline {definition.name} has changed since its checkpoint was made: put the old definition back, "
                f"give the new one another name, or delete {self.checkpoint.folder} to start it anew"
            )
        if papers is not None and papers.get("digest") == digest:
            return str(papers["columns"])
        columns = definition.columns
        if columns == "json":
            given = {
                key: value for key, value in self._options("").items() if key not in ("schema", "maxRowsPerTrigger")
            }
            columns = examined(read_options(given))
        self.place.folder.mkdir(parents=True, exist_ok=True)
        aside = self._papers.with_suffix(".part")
        aside.write_text(json.dumps({"digest": digest, "columns": columns}))
        os.replace(aside, self._papers)
        return columns

    def _read_papers(self) -> dict[str, Any] | None:
        try:
            found: Any = json.loads(self._papers.read_text())
        except FileNotFoundError:
            return None
        except ValueError:
            if self.checkpoint.exists:
                raise SettingsError(
                    f"{self._papers} cannot be read, so the checkpoint may not fit: delete both to start anew"
                ) from None
            return None
        return cast("dict[str, Any]", found)

    def _tell_lost_checkpoint(self) -> None:
        """A stream that has moved on without the checkpoint: say which batch comes again."""
        if self.checkpoint.exists:
            return
        for stream in remote(self.where).act("streams")["streams"]:
            if stream["stream"] == self.definition.name and stream["planned"] > stream["floor"]:
                logger.warning(
                    "pipeline %s starts without its checkpoint, and its stream is settled up to batch %d: batch %d was "
                    "planned before and is delivered again",
                    self.definition.name,
                    stream["floor"],
                    stream["planned"],
                )

    def _transformed(self, session: Any, frame: Any) -> Any:
        definition = self.definition
        if definition.sql is not None:
            frame.createOrReplaceTempView("input")
            return session.sql(definition.sql)
        return load_function(str(definition.python), definition.name)(frame)


def default_mode(plan: str) -> str:
    """`complete` for an aggregate without a watermark, `append` for everything else."""
    aggregate = "Aggregate [" in plan
    return "complete" if aggregate and "EventTimeWatermark" not in plan else "append"


def load_function(text: str, pipeline: str) -> Callable[[Any], Any]:
    """`module:function` of the settings.  SettingsError when it is not there."""
    module, _, name = text.partition(":")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise SettingsError(f"pipeline {pipeline}: python = {text!r} cannot be loaded: {error}") from error
    return cast("Callable[[Any], Any]", found)
