"""OpenLineage events of pipelines, as the specification 2.0.2 has them: START, RUNNING per batch, COMPLETE or FAIL.

`[spark] openlineage` names where they go: `http://host:5000` (posted to /api/v1/lineage unless it has a path) or
`file:events.jsonl`, a line each.  A thread of its own sends them: a receiver that is slow or gone holds up no pipeline,
and what it did not take after some tries is dropped and counted.  The log's own lineage (`lineage`) has everything.
"""

from __future__ import annotations

import logging
import queue
import threading
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from http.client import HTTPException
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import orjson

from penstock.records.dataclass import dataclass
from penstock.spark.pipelines.definition import Input, Output

if TYPE_CHECKING:
    from penstock.spark.pipelines.outputs import Committed
    from penstock.spark.pipelines.running import Running

logger = logging.getLogger("penstock.pipelines")

PRODUCER = f"urn:penstock:{version('penstock')}"
_SPEC = "https://openlineage.io/spec"
RUN_EVENT = f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"
NAMESPACE = "penstock"
"""Of jobs."""

HELD_MOST = 1000
"""Events that wait for the receiver; of more the newest are dropped."""

PAUSES_S = (0.2, 0.4)
"""Between the tries of one event: long enough for a connection that was reset, not for a receiver that starts."""

TIMEOUT_S = 5.0

Fields = Sequence[tuple[str, str]]
"""Names and types of columns."""


def facet(kind: str, spec: str, **values: object) -> dict[str, object]:
    """A facet of the specification."""
    schema = f"{_SPEC}/facets/{spec}/{kind}.json#/$defs/{kind}"
    return {"_producer": PRODUCER, "_schemaURL": schema, **values}


def schema_facet(fields: Fields) -> dict[str, object]:
    """Columns of a data set."""
    return facet("SchemaDatasetFacet", "1-1-1", fields=[{"name": name, "type": kind} for name, kind in fields])


class Target:
    """Where events go."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.dropped = 0
        self._queue: queue.Queue[bytes | None] = queue.Queue(HELD_MOST)
        self._thread = threading.Thread(target=self._run, name="penstock-openlineage", daemon=True)
        self._complained = False
        self._closing = threading.Event()  # nobody waits for a receiver any more
        self._send: Callable[[bytes], None]
        if where.startswith("file:"):
            self._file = Path(where.removeprefix("file:")).absolute()
            self._send = self._append
        else:
            parts = urlsplit(where)
            self._url = where if parts.path.strip("/") else f"{where.rstrip('/')}/api/v1/lineage"
            self._send = self._post
        self._thread.start()

    def tell(self, event: Mapping[str, object]) -> None:
        """Send an event, by and by."""
        try:
            self._queue.put_nowait(orjson.dumps(event))
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
                    self._send(event)
                except (OSError, HTTPException, ValueError) as error:  # ValueError: what is no address
                    if pause is None:
                        self._drop(str(error) or type(error).__name__)
                    else:
                        self._closing.wait(pause)
                else:
                    self._complained = False
                    break

    def _append(self, event: bytes) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with open(self._file, "ab") as file:
            file.write(event + b"\n")

    def _post(self, event: bytes) -> None:
        request = urllib.request.Request(self._url, event, {"Content-Type": "application/json"}, method="POST")
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            answer.read()

    def _drop(self, why: str) -> None:
        self.dropped += 1
        if not self._complained:
            self._complained = True
            logger.warning("OpenLineage events do not reach %s and are dropped: %s", self.where, why)


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
        """The driver stops."""
        for one in all_:
            self.gone(one)
        self._target.close()

    def _event(self, kind: str, one: Running, told: _Told, done: Committed | None) -> None:
        definition, pipeline = one.pipeline.definition, one.pipeline
        run: dict[str, object] = {
            "processing_engine": facet(
                "ProcessingEngineRunFacet", "1-1-1", version=_spark_version(), name="spark",
                openlineageAdapterVersion=version("penstock"),
            )
        }  # fmt: skip
        if kind == "FAIL":
            run["errorMessage"] = facet(
                "ErrorMessageRunFacet", "1-0-1", message=str(one.error), programmingLanguage="PYTHON"
            )
        job: dict[str, object] = {
            "jobType": facet(
                "JobTypeJobFacet", "2-0-3", processingType="STREAMING", integration="PENSTOCK", jobType="QUERY"
            )
        }
        if definition.sql is not None:
            job["sql"] = facet("SQLJobFacet", "1-0-1", query=definition.sql)
        self._target.tell(
            {
                "eventType": kind,
                "eventTime": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                "producer": PRODUCER,
                "schemaURL": RUN_EVENT,
                "run": {"runId": told.run, "facets": run},
                "job": {"namespace": NAMESPACE, "name": definition.name, "facets": job},
                "inputs": [
                    self._input(given, pipeline.input_fields.get(given.name, ()), place, done)
                    for place, given in enumerate(definition.inputs)
                ],
                "outputs": [self._output(to, pipeline.output_fields, done) for to in definition.to],
            }
        )

    def _input(self, given: Input, fields: Fields, place: int, done: Committed | None) -> dict[str, object]:
        facets: dict[str, object] = {"schema": schema_facet(fields)} if fields else {}
        read = cast("Sequence[Mapping[str, object]]", done.lineage.get("inputs") or ()) if done is not None else ()
        name = str(given.queue or given.topic)
        mine = [one for one in read if name in (one.get("queue"), one.get("topic"))]
        if mine and given.is_stream:
            facets["penstock_read"] = {"_producer": PRODUCER, "_schemaURL": f"{PRODUCER}:read", **mine[0]}
        if given.table is not None:
            return {"namespace": "file", "name": str(Path(given.table).absolute()), "facets": facets}
        return {"namespace": self._server, "name": named(given.vhost, given.text), "facets": facets}

    def _output(self, to: Output, fields: Fields, done: Committed | None) -> dict[str, object]:
        facets: dict[str, object] = {"schema": schema_facet(fields)} if fields else {}
        out: dict[str, object] = {"facets": facets}
        if to.table is not None:
            return {"namespace": "file", "name": str(Path(to.table).absolute()), **out}
        if done is not None:
            wrote = [one for one in done.answer.get("outputs") or () if one[2] == to.topic and one[0] == to.vhost]
            if wrote:
                rows = facet("OutputStatisticsOutputDatasetFacet", "1-0-2", rowCount=sum(one[5] for one in wrote))
                out["outputFacets"] = {"outputStatistics": rows}
                facets["penstock_wrote"] = {
                    "_producer": PRODUCER, "_schemaURL": f"{PRODUCER}:wrote",
                    "ranges": [[one[3], one[4]] for one in wrote],
                }  # fmt: skip
        return {"namespace": self._server, "name": named(to.vhost, to.text), **out}


def named(vhost: str, text: str) -> str:
    """A queue or topic as the name of a data set: `queue/to-ship`."""
    name = text.replace(" ", "/", 1)
    return name if vhost == "/" else f"{vhost}/{name}"


def _spark_version() -> str:
    import pyspark

    return str(pyspark.__version__)
