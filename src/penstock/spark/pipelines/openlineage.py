"""OpenLineage events of pipelines, as the specification 2.0.2 has them: START, RUNNING per batch, COMPLETE or FAIL.

`[spark] openlineage` names where they go: `http://host:5000` (posted to /api/v1/lineage unless it has a path) or
`file:events.jsonl`, a line each.  A thread of its own sends them: a receiver that is slow or gone holds up no pipeline,
and what it did not take after some tries is dropped and counted.  The log's own lineage (`lineage`) has everything.
"""

from __future__ import annotations

import logging
import queue
import threading
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from http.client import HTTPException
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from urllib.parse import urlsplit

import pyspark
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState, set_producer
from openlineage.client.facet_v2 import (
    DatasetFacet,
    JobFacet,
    OutputDatasetFacet,
    RunFacet,
    error_message_run,
    job_type_job,
    output_statistics_output_dataset,
    processing_engine_run,
    schema_dataset,
    sql_job,
)
from openlineage.client.transport.file import FileConfig, FileTransport
from openlineage.client.transport.http import HttpConfig, HttpTransport

from penstock.records.dataclass import dataclass
from penstock.spark.pipelines.definition import Input, Output
from penstock.units import shown_address

if TYPE_CHECKING:
    from penstock.spark.pipelines.outputs import Committed
    from penstock.spark.pipelines.running import Running

logger = logging.getLogger("penstock.pipelines")

PRODUCER = f"urn:penstock:{version('penstock')}"
NAMESPACE = "penstock"
"""Of jobs."""

HELD_MOST = 1000
"""Events that wait for the receiver; of more the newest are dropped."""

PAUSES_S = (0.2, 0.4)
"""Between the tries of one event: long enough for a connection that was reset, not for a receiver that starts."""

TIMEOUT_S = 5.0

Fields: TypeAlias = Sequence[tuple[str, str]]
"""Names and types of columns."""

set_producer(PRODUCER)


def transport_to(where: str) -> FileTransport | HttpTransport:
    """What takes events to `file:PATH` or to an address.  Raises OSError, and ValueError for what is no address."""
    if where.startswith("file:"):
        file = Path(where.removeprefix("file:")).absolute()
        file.parent.mkdir(parents=True, exist_ok=True)
        return FileTransport(FileConfig(log_file_path=str(file), append=True))
    once = {"total": 0}  # `Target` tries again
    if urlsplit(where).path.strip("/"):
        return HttpTransport(HttpConfig(where, endpoint="", timeout=TIMEOUT_S, retry=once))
    return HttpTransport(HttpConfig(where, timeout=TIMEOUT_S, retry=once))


class Target:
    def __init__(self, where: str) -> None:
        self.where = where
        self.dropped = 0
        self._queue: queue.Queue[RunEvent | None] = queue.Queue(HELD_MOST)
        self._thread = threading.Thread(target=self._run, name="penstock-openlineage", daemon=True)
        self._complained = False
        self._closing = threading.Event()  # nobody waits for a receiver any more
        self._thread.start()

    @cached_property
    def transport(self) -> FileTransport | HttpTransport:
        """Made with the first event, so that an address that is none is told with what it does not take."""
        return transport_to(self.where)

    def tell(self, event: RunEvent) -> None:
        """Send an event, by and by."""
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            self._drop("too many wait")

    def close(self, patience: float = 5.0) -> None:
        """Send what waits, each event with as many tries as ever but at once, and end."""
        self._closing.set()
        try:
            self._queue.put(None, timeout=patience)
        except queue.Full:
            return
        self._thread.join(patience)

    def _run(self) -> None:
        while (event := self._queue.get()) is not None:
            for pause in (*PAUSES_S, None):
                try:
                    self.transport.emit(event)
                except (OSError, HTTPException, RuntimeError, ValueError) as error:
                    if pause is None:
                        self._drop(str(error) or type(error).__name__)
                    else:
                        self._closing.wait(pause)
                else:
                    self._complained = False
                    break

    def _drop(self, why: str) -> None:
        self.dropped += 1
        if not self._complained:
            self._complained = True
            logger.warning("OpenLineage events do not reach %s and are dropped: %s", shown_address(self.where), why)


@dataclass
class _Told:
    """What was said of one pipeline."""

    run: str | None = None
    query: Any = None
    batch: int = -1
    failures: int = 0


class Teller:
    """Watches the pipelines of a driver and tells of them."""

    def __init__(self, target: Target, server: str) -> None:
        """server: its URL without a login, the namespace of its queues and topics."""
        self._target = target
        self._server = server
        self._told: dict[str, _Told] = {}

    def look(self, one: Running) -> None:
        """What has happened to a pipeline since the last look."""
        told = self._told.setdefault(one.name, _Told())
        if one.query is not None and one.query is not told.query:
            if told.run is not None:
                self._event("COMPLETE", one, told, None)
            told.query, told.run, told.batch = one.query, str(uuid.uuid4()), -1
            self._event("START", one, told, None)
        failures, told.failures = told.failures, one.failures_total
        if told.run is None:
            if one.failures_total > failures and one.query is None:  # it did not come so far as to run
                told.run = str(uuid.uuid4())
                self._event("START", one, told, None)
                self._event("FAIL", one, told, None)
                told.run = None
            return
        for done in one.pipeline.committed:
            if done.batch > told.batch:
                told.batch = done.batch
                self._event("RUNNING", one, told, done)
        if one.query is None and one.state not in ("running", "starting"):
            self._event("FAIL" if one.error is not None else "COMPLETE", one, told, None)
            told.run = told.query = None

    def gone(self, one: Running) -> None:
        """A pipeline is stopped for good."""
        told = self._told.pop(one.name, None)
        if told is not None and told.run is not None:
            self._event("COMPLETE", one, told, None)

    def close(self, all_: Sequence[Running]) -> None:
        """Send what waits, for a few seconds at most: the driver stops."""
        for one in all_:
            self.gone(one)
        self._target.close()

    def _event(self, kind: str, one: Running, told: _Told, done: Committed | None) -> None:
        definition, pipeline = one.pipeline.definition, one.pipeline
        run: dict[str, RunFacet] = {
            "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
                str(pyspark.__version__), "spark", version("penstock")
            )
        }
        if kind == "FAIL":
            run["errorMessage"] = error_message_run.ErrorMessageRunFacet(str(one.error), "PYTHON")
        job: dict[str, JobFacet] = {"jobType": job_type_job.JobTypeJobFacet("STREAMING", "PENSTOCK", "QUERY")}
        if definition.sql is not None:
            job["sql"] = sql_job.SQLJobFacet(definition.sql)
        self._target.tell(
            RunEvent(
                eventType=RunState(kind),
                eventTime=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                run=Run(str(told.run), run),
                job=Job(NAMESPACE, definition.name, job),
                inputs=[
                    self._input(given, pipeline.input_fields.get(given.name, ()), done) for given in definition.inputs
                ],
                outputs=[self._output(to, pipeline.output_fields, done) for to in definition.to],
            )
        )

    def _input(self, given: Input, fields: Fields, done: Committed | None) -> InputDataset:
        facets = _schema(fields)
        read = cast("Sequence[Mapping[str, object]]", done.lineage.get("inputs") or ()) if done is not None else ()
        name = str(given.queue or given.topic)
        mine = [one for one in read if name in (one.get("queue"), one.get("topic"))]
        if mine and given.is_stream:
            facets["penstock_read"] = _own("read", **mine[0])
        return InputDataset(*self._named(given.table, given.vhost, given.text), facets=facets)

    def _output(self, to: Output, fields: Fields, done: Committed | None) -> OutputDataset:
        facets, counted = _schema(fields), dict[str, OutputDatasetFacet]()
        answered = done.answer.get("outputs") or () if done is not None and to.table is None else ()
        wrote = [one for one in answered if one[2] == to.topic and one[0] == to.vhost]
        if wrote:
            rows = sum(one[5] for one in wrote)
            counted["outputStatistics"] = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rows)
            facets["penstock_wrote"] = _own("wrote", ranges=[[one[3], one[4]] for one in wrote])
        return OutputDataset(*self._named(to.table, to.vhost, to.text), facets=facets, outputFacets=counted)

    def _named(self, table: str | None, vhost: str, text: str) -> tuple[str, str]:
        """Namespace and name of a data set."""
        return ("file", str(Path(table).absolute())) if table is not None else (self._server, named(vhost, text))


def _schema(fields: Fields) -> dict[str, DatasetFacet]:
    """Columns of a data set as a facet, where they are known."""
    columns = [schema_dataset.SchemaDatasetFacetFields(name, kind, fields=None) for name, kind in fields]
    return {"schema": schema_dataset.SchemaDatasetFacet(columns)} if columns else {}


def _own(kind: str, **values: object) -> DatasetFacet:
    """A facet that the specification does not know: a client sends plain tables as they are."""
    return cast("DatasetFacet", {"_producer": PRODUCER, "_schemaURL": f"{PRODUCER}:{kind}", **values})


def named(vhost: str, text: str) -> str:
    """A queue or topic as the name of a data set: `queue/to-ship`."""
    name = text.replace(" ", "/", 1)
    return name if vhost == "/" else f"{vhost}/{name}"
