"""The process that runs pipelines: `python -m penstock.spark.pipelines.driver`, given jobs through its standard input.

    job   {"url", "user", "password", "patience", "folder", "master", "memory", "conf", "pipelines": [...],
           "name", "path", "once", "openlineage"}

One Spark session, one StreamingQuery a pipeline.  A query that fails starts again from its checkpoint after a pause
that grows; what another try cannot mend, and ten failures without a batch between them, leave it failed until its
definition or its code changes.  A job that comes later takes the place of the one before, as far as a running process
can take it up (`inbox.FOLLOWED`).
`<folder>/status.json` says how each is, and the server is told the same by a thread of its own, so that one that is
slow or gone holds up no pipeline (`Reporter`).  The process ends when its standard input does, and when Java has not
answered for minutes (`Pulse`): its parent starts another one, and the queries go on from their checkpoints.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from penstock.client.urls import split_address
from penstock.errors import DataFolderInUse, PenstockError, Refused, SettingsError
from penstock.spark.pipelines.code import quieten
from penstock.spark.pipelines.code import short as short
from penstock.spark.pipelines.definition import Definition, with_vhost
from penstock.spark.pipelines.folders import FOLLOWED, Inbox, Place, itself, locked
from penstock.spark.pipelines.lineage import Lineage
from penstock.spark.pipelines.pipeline import Pipeline, Planned
from penstock.spark.pipelines.reset import BackfillCheckpoint, backfilled
from penstock.spark.pipelines.running import FAILURES_MAX as FAILURES_MAX
from penstock.spark.pipelines.running import Running
from penstock.spark.remote import DEFAULT_PATIENCE_S, Remote, Where
from penstock.spark.sessions import session
from penstock.spark.tokens import TaskLogins
from penstock.spark.view_pipeline import ViewPipeline

if TYPE_CHECKING:
    from penstock.spark.pipelines.openlineage import Teller


logger = logging.getLogger("penstock.pipelines")

TELL_S = 1.0
PATIENCE_S = 0.1


class Reporter:
    """Tells the server, and a file, how the pipelines of one driver are."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lag: dict[str, dict[str, int]] = {}  # by pipeline and input
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._state = "starting"
        self._pipelines: dict[str, Any] = {}  # as told last; replaced, never changed

    def start(self) -> None:
        """Begin to tell the server."""
        self._thread = threading.Thread(target=self._serve, name="penstock-report", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Tell for the last time."""
        self.tell("stopped")
        self._ended.set()
        if self._thread is not None:
            self._thread.join(2.0)

    def told(self) -> dict[str, Any]:
        """How each pipeline is.  For the driver's thread, which alone changes what it is made of."""
        now = time.monotonic()
        stopped = self._state == "stopped"
        told: dict[str, Any] = {}
        for one in list(self._driver.all):
            status = one.status(now)
            if stopped and status["state"] not in ("failed", "done"):
                status["state"] = "stopped"
            lag = self._lag.get(one.name, {})
            told[one.name] = {**status, "lag": sum(lag.values()) if lag else None, "lag_by_input": lag}
        return told

    def tell(self, state: str) -> None:
        """Write the status file, whole or not at all."""
        self._state = state
        folder, name = self._driver.folder, self._driver.name
        self._pipelines = self.told()
        told = {"state": state, "pid": os.getpid(), "time": time.time(), "pipelines": self._pipelines}
        file = folder / ("status.json" if name == "driver" else f"status-{name}.json")
        aside = file.with_suffix(".part")
        aside.write_text(json.dumps(told))
        os.replace(aside, file)

    def _serve(self) -> None:
        where, server = None, None
        complaint: str | None = None
        while True:
            ended = self._ended.wait(TELL_S)
            try:
                job = self._driver.job  # address and password may change while it runs
                wanted = Where(job["url"], job.get("user"), job.get("password"), PATIENCE_S)
                if server is None or wanted != where:
                    if server is not None:
                        server.close()
                    where, server = wanted, Remote(wanted)
                if not ended:
                    self._look_at_streams(server)
                server.act("pipeline_report", driver=self._driver.name, host=socket.gethostname(), pid=os.getpid(),
                           state=self._state, pipelines=self._pipelines)  # fmt: skip
                complaint = None
            except PenstockError as error:
                if complaint != error.code:
                    logger.warning("the server is not told how the pipelines are: %s", error)
                complaint = error.code
            if ended:
                return

    def _look_at_streams(self, server: Remote) -> None:
        """What each stream has yet to read, as the server counts it."""
        try:
            found = server.act("streams")["streams"]
            lags = {str(one["stream"]): int(one["lag_messages"]) for one in found if one["lag_messages"] is not None}
        except Refused:
            lags = {}  # a user who may not see streams
        for one in list(self._driver.all):
            definition = one.pipeline.definition
            names = {source.name: definition.stream_of(source) for source in definition.streams}
            self._lag[one.name] = {name: lags[stream] for name, stream in names.items() if stream in lags}


class Pulse:
    """Whether the driver's loop goes round.  It asks Java at each turn, and a Java that hangs does not even refuse.

    Looks are counted, and no time: who stops this process for an hour, or lets the machine sleep, has stopped them too.
    """

    def __init__(self, lost: Callable[[], object]) -> None:
        """lost: called once, by another thread, when there was no beat between so many looks."""
        self._lost = lost
        self._beats = self._seen = self._without = 0
        self._ended = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._watch, name="penstock-pulse", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def beat(self) -> None:
        """The loop has come round."""
        self._beats += 1

    def is_lost(self) -> bool:
        """One look."""
        self._without = 0 if self._beats != self._seen else self._without + 1
        self._seen = self._beats
        return self._without >= LOOKS

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            if self.is_lost():
                self._lost()
                return


logger = logging.getLogger("penstock.pipelines")

BEAT_S = 0.25
LOOK_S, LOOKS = 5.0, 24
"""Between two looks at the loop, and how many without a beat are too many: a full collection of Java takes seconds."""

STATUS_S = 1.0
STARTS_AT_ONCE = 4
STOP_S = 8.0
"""How long queries may take to stop; Spark takes them up where they were."""

CONF = {"spark.scheduler.mode": "FAIR", "spark.sql.streaming.stopTimeout": "5s"}


class BackfillPipeline(Pipeline):
    """One run over a past range, under a key of its own, which ends with it; started again it goes on where it was."""

    def __init__(self, given: Mapping[str, Any], place: Place) -> None:
        """`given`: the JSON form of a `[[pipeline]]`, and `range`: what `backfilled` takes."""
        live = Definition.of(given)
        self._range: Mapping[str, Any] = given["range"]
        self._live = live.name
        where = Where(with_vhost(place.where.url, live.vhost), place.where.user, place.where.password)
        super().__init__(backfilled(given, self._range, where, place.folder), place)
        self.checkpoint = BackfillCheckpoint(self.checkpoint.folder)

    def start(self, spark: Any, *, once: bool = True) -> Any:
        """A running StreamingQuery that ends with the range."""
        return super().start(spark, once=True)

    def plan(self, spark: Any, columns: Mapping[str, str | None], patience: float | None = None) -> Planned:
        """As `Pipeline.plan`; SettingsError for a whole result that would replace the live table."""
        planned = super().plan(spark, columns, patience)
        tables = [one for one in self.definition.to if one.table is not None]
        if planned.mode == "complete" and tables and not self._range.get("outputs"):
            raise SettingsError(
                f"pipeline {self._live} gives whole results, and the past would replace those in the {tables[0].text}: "
                "name another output"
            )
        return planned

    @property
    def lineage(self) -> Lineage:
        """Of the pipeline, as batches of this backfill."""
        return replace(Lineage.of(self.definition), pipeline=self._live, backfill=str(self._range["id"]))


class Driver:
    """All pipelines of a job."""

    pipeline_class: type[Pipeline] = Pipeline

    def __init__(self, job: dict[str, Any], newer: Callable[[], dict[str, Any] | None] = lambda: None) -> None:
        """newer: the job that has come since it was asked last, if one has."""
        self.job = job
        self.folder = Path(job["folder"]).absolute()
        self.name = str(job.get("name") or "driver")
        self.stopping = threading.Event()
        self.once = bool(job.get("once"))
        self.executor = ThreadPoolExecutor(STARTS_AT_ONCE, "penstock-start")
        self.logins = None if str(job.get("master", "local")).startswith("local") else TaskLogins()
        self.all = [self._running(one) for one in self._pipelines(job)]
        self.reporter: Reporter | None = None
        self.teller: Teller | None = None
        self._newer = newer
        self._locks: dict[str, ExitStack] = {}
        self._entering: list[Pipeline] = []  # new ones that another driver still has

    def _pipelines(self, job: dict[str, Any]) -> list[Pipeline]:
        patience = float(job.get("patience") or DEFAULT_PATIENCE_S)
        where = Where(job["url"], job.get("user"), job.get("password"), patience)
        place = Place(where, self.folder, self.logins or itself)
        return [self._pipeline(one, place) for one in cast("list[dict[str, Any]]", job["pipelines"])]

    def _pipeline(self, given: dict[str, Any], place: Place) -> Pipeline:
        if "select" in given:
            return ViewPipeline(given, place)
        if "range" in given:
            return BackfillPipeline(given, place)
        return self.pipeline_class(Definition.of(given), place)

    def _running(self, pipeline: Pipeline) -> Running:
        return Running(pipeline, executor=self.executor, once=self.once)

    def run(self) -> None:
        """Until `stopping` is set, or all is over where each runs once.

        Raises DataFolderInUse when another driver has one of these checkpoints.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in reversed(cast("list[str]", self.job.get("path") or [])):
            if path not in sys.path:
                sys.path.insert(0, path)
        try:
            for one in self.all:
                self._lock(one.name)
            self._run()
        finally:
            for name in list(self._locks):
                self._unlock(name)

    def _lock(self, name: str) -> None:
        held = ExitStack()
        held.enter_context(locked(self.folder, name))
        self._locks[name] = held

    def _unlock(self, name: str) -> None:
        held = self._locks.pop(name, None)
        if held is not None:
            held.close()

    def _run(self) -> None:
        scratch = self.folder / ("scratch" if self.name == "driver" else f"scratch-{self.name}")
        shutil.rmtree(scratch, ignore_errors=True)  # a killed driver leaves its files
        self.reporter = Reporter(self)
        self.reporter.tell("starting")
        self.reporter.start()  # Spark takes seconds to start, and whoever asks should hear so
        if told := self.job.get("openlineage"):
            self.teller = _teller(str(told), str(self.job["url"]))
        conf = {**CONF, **cast("dict[str, str]", self.job.get("conf") or {})}
        spark = session(self.job["master"], memory=self.job["memory"], folder=scratch, conf=conf)
        pulse = Pulse(partial(give_up, spark))
        pulse.start()
        try:
            told = 0.0
            while not self.stopping.is_set():
                pulse.beat()
                now = time.monotonic()
                self._look_at_job()
                self._enter()
                for one in self.all:
                    one.look(spark, now)
                    if self.teller is not None:
                        self.teller.look(one)
                if now - told >= STATUS_S:
                    self.reporter.tell("running")
                    told = now
                if self.once and all(one.is_over for one in self.all):
                    break
                self.stopping.wait(BEAT_S)
        finally:
            pulse.stop()
            self._stop()
            if self.logins is not None:
                self.logins.close()
            self.reporter.stop()
            if self.teller is not None:
                self.teller.close(self.all)
            spark.stop()
            shutil.rmtree(scratch, ignore_errors=True)

    def _stop(self) -> None:
        """All at once; what does not stop in time ends with the process."""
        stops = ThreadPoolExecutor(max(1, len(self.all)), "penstock-stop")
        _, late = wait([stops.submit(one.stop) for one in self.all], STOP_S)
        self.executor.shutdown(wait=False, cancel_futures=True)
        stops.shutdown(wait=False)
        if late:
            logger.warning("%d pipelines did not stop within %g s and end with the process", len(late), STOP_S)

    def _look_at_job(self) -> None:
        """Take in a changed job: pipelines that are new, gone, or otherwise."""
        try:
            job = self._newer()
            if job is not None:
                self.take(job)
        except (ValueError, KeyError, PenstockError) as error:
            logger.error("the changed pipelines are not taken: %s", error)

    def take(self, job: dict[str, Any]) -> None:
        """Go on with these pipelines; what is as it was is left alone.

        Of a job `inbox.FOLLOWED` is taken up; where anything else has changed, the parent starts another process.
        """
        present = {one.name: one for one in self.all}
        wanted = {pipeline.definition.name: pipeline for pipeline in self._pipelines(job)}
        moved = any(job.get(key) != self.job.get(key) for key in FOLLOWED - {"pipelines"})
        for name, pipeline in wanted.items():
            if name not in present:
                self._entering.append(pipeline)
            elif moved or pipeline.definition != present[name].pipeline.definition:
                logger.info("pipeline %s has changed", name)
                present[name].replace(pipeline)
        self._entering = [one for one in self._entering if wanted.get(one.definition.name) is one]
        for name in present.keys() - wanted.keys():
            logger.info("pipeline %s is gone from the settings", name)
            self.all.remove(present[name])
            if self.teller is not None:
                self.teller.gone(present[name])
            self.executor.submit(self._leave, present[name])
        self.job = job

    def _leave(self, one: Running) -> None:
        try:
            one.leave()
        finally:
            self._unlock(one.name)

    def _enter(self) -> None:
        """Begin with new pipelines; one that another driver is still stopping comes with a later look."""
        for pipeline in list(self._entering):
            try:
                self._lock(pipeline.definition.name)
            except DataFolderInUse:
                continue
            self._entering.remove(pipeline)
            logger.info("pipeline %s is new", pipeline.definition.name)
            self.all.append(self._running(pipeline))

    @property
    def exit_status(self) -> int:
        """0, or that of the first failure where each pipeline runs once."""
        failed = [one for one in self.all if one.state == "failed"] if self.once else []
        return next((one.failure.exit_status if one.failure else 1 for one in failed), 0)


def give_up(spark: Any) -> None:
    """End this process and its Java, which may not hear that its parent is gone."""
    logger.error("Java has not answered for %g s: this process ends, and its queries go on in the next", LOOK_S * LOOKS)
    logging.shutdown()
    java = getattr(spark.sparkContext._gateway, "proc", None)
    if java is not None:
        java.kill()
    os._exit(1)


def _teller(where: str, url: str) -> Teller:
    try:
        from penstock.spark.pipelines.openlineage import Target, Teller  # takes half a second
    except ImportError:
        raise SettingsError(
            "openlineage needs openlineage-python, which is not installed: pip install 'penstock[spark]'"
        ) from None
    return Teller(Target(where), f"penstock://{split_address(url).netloc.rpartition('@')[2]}")


def main(driver_class: type[Driver] = Driver) -> int:
    """Run the jobs of the standard input until it ends; 0 when it was told to stop."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    quieten()
    stopping = threading.Event()
    inbox = Inbox(sys.stdin.fileno(), stopping.set)
    try:
        job = inbox.first()  # a parent whose server does not begin ends this process here
    except EOFError as error:
        logger.error("%s", error)
        return 1
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda number, frame: stopping.set())
    driver = driver_class(job, inbox.newer)
    driver.stopping = stopping
    try:
        driver.run()
    except PenstockError as error:
        logger.error("%s", error)
        return error.exit_status
    return driver.exit_status


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    sys.stdout.flush()
    os._exit(status)  # threads that wait for a server that is gone do not hold the process
