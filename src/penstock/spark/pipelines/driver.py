"""The process that runs all pipelines: `python -m penstock.spark.pipelines.driver JOB.json`.

    JOB.json   {"url", "user", "password", "patience", "folder", "master", "memory", "conf", "pipelines": [...]}

One Spark session, one StreamingQuery a pipeline.  A query that fails starts again from its checkpoint after a pause
that grows; what another try cannot mend, and ten failures without a batch between them, leave it failed.
`<folder>/status.json` says how each is.  With `--with-parent` the process ends when its standard input does.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, cast

from penstock.errors import DataFolderInUse, PenstockError, SettingsError
from penstock.records.dataclass import dataclass
from penstock.spark.local import session
from penstock.spark.pipelines.definition import Definition
from penstock.spark.pipelines.pipeline import Pipeline, Place
from penstock.spark.remote import DEFAULT_PATIENCE_S, Where

logger = logging.getLogger("penstock.pipelines")

BEAT_S = 0.25
STATUS_S = 1.0
PAUSE_S = (0.5, 30.0)
FAILURES_MAX = 10
"""Failures without a finished batch between them after which a pipeline is left alone."""


@dataclass
class Running:
    """One pipeline and how it is."""

    pipeline: Pipeline
    state: str = "waiting"  # waiting, running, failed
    query: Any = None
    failures: int = 0  # since the last finished batch
    starts: int = 0
    error: str | None = None
    batch: int | None = None
    rows: int = 0  # of finished batches, in this process
    progress: dict[str, Any] = field(default_factory=dict[str, Any])
    next_try: float = 0.0

    def look(self, spark: Any, now: float) -> None:
        """Start it, or see how it goes."""
        if self.state == "failed":
            return
        if self.query is None:
            if now >= self.next_try:
                self._start(spark, now)
            return
        self._note_progress()
        if not self.query.isActive:
            failure = self.query.exception()
            self.query = None
            self._failed("the query ended by itself" if failure is None else short(str(failure)), now)

    def _start(self, spark: Any, now: float) -> None:
        self.starts += 1
        try:
            self.query = self.pipeline.start(spark)
        except SettingsError as error:
            self.state, self.error = "failed", str(error)
            logger.error("%s", error)
        except Exception as error:  # noqa: BLE001 - Spark raises what it likes, and one pipeline must not stop the others
            self._failed(str(error) if isinstance(error, PenstockError) else short(str(error)), now)
        else:
            self.state = "running"

    def _failed(self, error: str, now: float) -> None:
        self.failures += 1
        self.error = error
        pause = min(PAUSE_S[0] * 2 ** (self.failures - 1), PAUSE_S[1])
        self.next_try = now + pause
        self.state = "failed" if self.failures >= FAILURES_MAX else "waiting"
        logger.error("pipeline %s: %s", self.pipeline.definition.name, error)

    def _note_progress(self) -> None:
        last: Any = self.query.lastProgress
        if last is None or (self.batch == last["batchId"] and not last["numInputRows"]):
            return
        if last["batchId"] != self.batch:
            self.batch = int(last["batchId"])
            self.rows += int(last["numInputRows"] or 0)
            self.failures = 0
            self.error = None
        source = last["sources"][0]
        self.progress = {
            "input_rows": last["numInputRows"],
            "rows_per_second": last["processedRowsPerSecond"],
            "duration_ms": last["durationMs"].get("triggerExecution"),
            "offset": source["endOffset"],
            "latest": source["latestOffset"],
        }

    def status(self) -> dict[str, Any]:
        """As the status file has it."""
        return {
            "state": self.state,
            "batch": self.batch,
            "rows": self.rows,
            "failures": self.failures,
            "starts": self.starts,
            "error": self.error,
            "query": str(self.query.id) if self.query is not None else None,
            **self.progress,
        }


def short(text: str) -> str:
    """The sentence that matters of a Spark error: our own last one, else the last line of the Python part."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("penstock.errors.")]
    if ours:
        return ours[-1].partition(": ")[2]
    return next((line for line in lines if not line.startswith(("at ", "File ", "Traceback"))), text)[:500]


class Driver:
    """All pipelines of a job."""

    pipeline_class: type[Pipeline] = Pipeline

    def __init__(self, job: dict[str, Any]) -> None:
        patience = float(job.get("patience") or DEFAULT_PATIENCE_S)
        self.job = job
        self.folder = Path(job["folder"]).absolute()
        self.stopping = threading.Event()
        place = Place(Where(job["url"], job.get("user"), job.get("password"), patience), self.folder)
        definitions = [Definition.of(one) for one in cast("list[dict[str, Any]]", job["pipelines"])]
        self.all = [Running(self.pipeline_class(definition, place)) for definition in definitions]

    def run(self) -> None:
        """Until `stopping` is set.  DataFolderInUse when another driver has these checkpoints."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "driver.lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise DataFolderInUse(f"another process runs the pipelines of {self.folder}") from None
            self._run()

    def _run(self) -> None:
        scratch = self.folder / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)  # a killed driver leaves its files
        self.write_status("starting")
        spark = session(self.job["master"], memory=self.job["memory"], folder=scratch, conf=self.job.get("conf"))
        try:
            told = 0.0
            while not self.stopping.is_set():
                now = time.monotonic()
                for one in self.all:
                    one.look(spark, now)
                if now - told >= STATUS_S:
                    self.write_status("running")
                    told = now
                self.stopping.wait(BEAT_S)
        finally:
            for one in self.all:
                if one.query is not None:
                    one.query.stop()
            self.write_status("stopped")
            spark.stop()

    def write_status(self, state: str) -> None:
        """For `penstock pipeline status` and whoever else looks."""
        told = {
            "state": state,
            "pid": os.getpid(),
            "time": time.time(),
            "pipelines": {one.pipeline.definition.name: one.status() for one in self.all},
        }
        aside = self.folder / "status.json.part"
        aside.write_text(json.dumps(told))
        os.replace(aside, self.folder / "status.json")


def main(arguments: Sequence[str], driver_class: type[Driver] = Driver) -> int:
    """Run the job file; 0 when it was told to stop."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    with_parent = "--with-parent" in arguments
    [job_file] = [one for one in arguments if one != "--with-parent"]
    driver = driver_class(json.loads(Path(job_file).read_text()))
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda number, frame: driver.stopping.set())
    if with_parent:
        threading.Thread(target=_watch, args=(driver.stopping,), daemon=True).start()
    try:
        driver.run()
    except PenstockError as error:
        logger.error("%s", error)
        return error.exit_status
    return 0


def _watch(stopping: threading.Event) -> None:
    """The parent is gone when our standard input ends."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    stopping.set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
