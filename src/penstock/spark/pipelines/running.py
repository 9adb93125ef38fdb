"""One pipeline and how it is: started, watched, started again after a pause, given up, or waiting for its time.

waiting    will be started, at once, after a pause, or when the first message tells its columns
starting   Spark is planning it
running    its query runs                                  scheduled  waits for its next time
done       a single run has ended                          failed     left alone until it changes
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import field
from datetime import UTC, datetime
from typing import Any, TypeAlias, cast

from penstock.core.streams import PARTS
from penstock.errors import NotFound, PenstockError, SettingsError
from penstock.records.cron import parse_cron
from penstock.records.dataclass import dataclass
from penstock.spark.pipelines.code import may_be_a_row, short, stack_of_java
from penstock.spark.pipelines.definition import Check, Definition, Input
from penstock.spark.pipelines.expectations import OBSERVED, stopping
from penstock.spark.pipelines.pipeline import Pipeline
from penstock.spark.reading.inference import NO_MESSAGE

WINDOW_S = 10.0
"""Rows a second are those of so long."""

WHOLE_BATCH = "triggerExecution"
"""What Spark calls the time of a batch as a whole, beside those of its phases."""

_TOLD = (
    "batch", "batches", "rows", "batch_rows", "batch_ms", "batch_time", "state_rows", "state_bytes", "watermark",
    "late_rows", "phases",
)  # fmt: skip
"""Of the figures of a pipeline those that a status has as they are."""

Rule: TypeAlias = "tuple[str, str, str]"
"""Input, name, and what becomes of rows: a rule whose consequence changes counts anew."""


@dataclass
class Figures:
    """Of one pipeline, in this process.  Each batch is counted once, and none is missed."""

    definition: Definition
    batch: int | None = None  # the last one that is done
    rows: int = 0  # of input, all batches
    batches: int = 0
    batch_rows: int = 0
    batch_ms: int | None = None
    batch_time: float | None = None  # when it was done, seconds since the epoch
    state_rows: int = 0
    state_bytes: int = 0
    watermark: str | None = None
    phases: dict[str, int] = field(default_factory=dict[str, int])  # of the last batch, milliseconds
    late_rows: int = 0  # left out by a watermark, as Spark's steps count them
    failed: dict[Rule, int] = field(default_factory=dict[Rule, int])  # rows
    checked: int = 0
    seen: int = -1  # the last batch of this run that is counted here
    recent: deque[tuple[float, int]] = field(default_factory=deque[tuple[float, int]])

    def begin(self) -> None:
        """Another run begins: its progress has the batches that it runs, and no other."""
        self.seen = -1

    def note(self, query: Any, now: float, wall: float) -> bool:
        """Take in what has ended since the last look; whether a batch did."""
        last: Any = query.lastProgress
        if last is None:
            return False
        number = int(last["batchId"])
        fresh: list[Any] = []
        if number > self.seen:
            if number > self.seen + 1 and number:
                fresh = [one for one in query.recentProgress if self.seen < int(one["batchId"]) < number]
            fresh.append(last)
            self.seen = number if _is_done(last) else number - 1
        done = [one for one in fresh if _is_done(one)]
        for one in done:
            self._batch(one, now, wall)
        return bool(done)

    def _batch(self, progress: Any, now: float, wall: float) -> None:
        rows = int(progress["numInputRows"] or 0)
        self.batch = int(progress["batchId"])
        self.batches += 1
        self.rows += rows
        self.batch_rows = rows
        duration = progress["durationMs"].get(WHOLE_BATCH)
        self.batch_ms = None if duration is None else int(duration)
        self.batch_time = wall
        self.phases = {name: int(spent) for name, spent in progress["durationMs"].items() if name != WHOLE_BATCH}
        self.recent.append((now, rows))
        operators = cast("Sequence[Any]", _get(progress, "stateOperators") or ())
        self.state_rows = sum(int(_get(one, "numRowsTotal") or 0) for one in operators)
        self.state_bytes = sum(int(_get(one, "memoryUsedBytes") or 0) for one in operators)
        self.late_rows += sum(int(_get(one, "numRowsDroppedByWatermark") or 0) for one in operators)
        self.watermark = cast("Mapping[str, str]", _get(progress, "eventTime") or {}).get("watermark")
        self._rules(_get(progress, "observedMetrics") or {})

    def _rules(self, observed: Any) -> None:
        for one in self.definition.streams:
            counts = observed.get(f"{OBSERVED}{one.name}") if one.expect else None
            if counts is None:
                continue
            self.checked += int(counts[0] or 0)
            for place, check in enumerate(one.expect):
                self._failed(one, check, int(counts[place + 1] or 0))

    def _failed(self, one: Input, check: Check, rows: int) -> None:
        rule = one.name, check.name, check.otherwise
        self.failed[rule] = self.failed.get(rule, 0) + rows

    def stopped(self, sentence: str) -> None:
        """A run has ended with this error: count the row, if it was a rule that stopped it."""
        rules = [(one, check) for one in self.definition.streams for check in one.expect if check.otherwise == "fail"]
        said = {stopping(check, self.definition.name, one.name): (one, check) for one, check in rules}
        found = max((text for text in said if text in sentence), key=len, default=None)
        if found is not None:
            self._failed(*said[found], 1)

    def rate(self, now: float) -> float:
        """Rows a second, over the last seconds."""
        while self.recent and self.recent[0][0] < now - WINDOW_S:
            self.recent.popleft()
        return round(sum(rows for _, rows in self.recent) / WINDOW_S, 1)

    def told(self, now: float) -> dict[str, Any]:
        """As a status has them."""
        return {
            **{name: getattr(self, name) for name in _TOLD},
            "rows_per_second": self.rate(now),
            "expect": {
                "rows": self.checked,
                "rules": [
                    {
                        "input": one.name, "rule": check.name, "otherwise": check.otherwise,
                        "rows": self.failed.get((one.name, check.name, check.otherwise), 0),
                    }
                    for one in self.definition.streams for check in one.expect
                ],
            },
        }  # fmt: skip


def _is_done(progress: Any) -> bool:
    """Idle triggers report too, with the number of the batch that would come next."""
    durations = progress["durationMs"]
    return bool(progress["numInputRows"]) or "addBatch" in durations


def _get(progress: Any, name: str) -> Any:
    if isinstance(progress, Mapping):
        return cast("Mapping[str, Any]", progress).get(name)
    return getattr(progress, name, None)


logger = logging.getLogger("penstock.pipelines")

PAUSE_S = (0.5, 30.0)
FAILURES_MAX = 10
"""Failures without a finished batch between them after which a pipeline is left alone."""

LOOK_AT_CODE_S = 1.0

LOOK_FOR_MESSAGE_S = 1.0
"""How often it is looked whether there is a message to tell the columns by."""


class Running:
    """One pipeline and how it is.  `now` is seconds that only grow, `wall` seconds since the epoch."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        executor: Executor | None = None,
        once: bool = False,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """executor: where starts and stops are carried out, so that a slow one holds up nobody else."""
        self.pipeline = pipeline
        self.query: Any = None
        self.failures = 0  # since the last finished batch
        self.failures_total = 0
        self.starts = 0
        self.error: str | None = None
        self.waits_for: str | None = None  # a first message: that there is none yet is no failure
        self.failure: PenstockError | None = None  # of ours, which knows its exit status
        self.next_try = 0.0
        self.figures = Figures(pipeline.definition)
        self._executor = executor
        self._once = once
        self._wall = wall
        self._starting: Future[Any] | None = None
        self._stopping: Future[None] | None = None
        self._wanted: Pipeline | None = None
        self._looked_at_code = 0.0
        self._tried_anew = False  # that it begins anew, before the start that comes next
        self._started = 0.0
        self._stack_of: str | None = None  # the last failure of Spark's, whose stack is in the log
        self._blame = True  # rows may have ended the last run: before the first one, nobody knows
        self._stopped: Any = None  # a query whose last batches are still to be counted
        self._state = "waiting"
        self.since = self._counted_since = wall()
        if pipeline.definition.schedule is not None and not once:
            self._wait_for_time(0.0)

    @property
    def state(self) -> str:
        """As the table above has it."""
        return self._state

    @state.setter
    def state(self, state: str) -> None:
        if state != self._state:
            self._state, self.since = state, self._wall()

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen by itself."""
        return self.state in ("failed", "done") and self._wanted is None and self._stopping is None

    def look(self, spark: Any, now: float) -> None:
        """Start it, or see how it goes."""
        if self._stopping is not None:
            if not self._stopping.done():
                return
            self._stopping = None
        self._count_stopped(now)
        if self._starting is not None:
            if not self._starting.done():
                return
            starting, self._starting = self._starting, None
            self._has_started(starting.result, now)
        if self._wanted is not None:
            self._exchange(now)
            return
        if self._is_outdated(now):
            self.replace(self.pipeline)
        elif self.query is not None:
            self._watch(now)
        elif self.state in ("waiting", "scheduled") and now >= self.next_try:
            self._start(spark, now)

    def _is_outdated(self, now: float) -> bool:
        """Whether it has to be started again: its code has changed, or somebody asked that it begin anew."""
        if now - self._looked_at_code >= LOOK_AT_CODE_S and self.starts:
            self._looked_at_code = now
            if self.pipeline.code_changed():
                logger.info("pipeline %s: its Python code has changed", self.name)
                self.pipeline.note_code()
                return True
        if not self.pipeline.anew_asked():
            self._tried_anew = False
            return False
        return not self._tried_anew

    @property
    def name(self) -> str:
        return self.pipeline.definition.name

    def replace(self, pipeline: Pipeline) -> None:
        """Go on with this definition, or with this code, from the checkpoint; a failed one is tried again."""
        self._wanted = pipeline

    def stop(self) -> None:
        """End the query; what it was doing is done again by the next one."""
        query, self.query = self.query, None
        if query is None:
            return
        self._blame = False
        try:
            query.stop()
        except Exception as error:  # noqa: BLE001 - a query that does not stop goes with its process
            logger.warning("pipeline %s: %s", self.name, short(str(error)))
        self._stopped = query

    def _count_stopped(self, now: float) -> None:
        """Take in what a query had done between the last look and its stop."""
        query, self._stopped = self._stopped, None
        if query is not None:
            self.figures.note(query, now, self._wall())

    def leave(self) -> None:
        """It is looked at no more: end what runs, and what is only just being started or stopped, for good.

        Carried out where starts are, which come to an end before what is asked for later.
        """
        if self._stopping is not None:
            self._stopping.result()
        if self._starting is not None:
            try:
                self.query = self._starting.result()
            except Exception as error:  # noqa: BLE001 - Spark raises what it likes; nothing runs then
                logger.info("pipeline %s had not started: %s", self.name, short(str(error)))
        self.stop()

    def _end(self, anew: bool) -> None:
        self.stop()
        if not anew:
            return
        try:
            self.pipeline.begin_anew()
        except PenstockError as error:  # the next start tries again, and fails with it
            logger.warning("pipeline %s does not begin anew: %s", self.name, error)

    def _exchange(self, now: float) -> None:
        anew = self.pipeline.anew_asked() and not self._tried_anew
        if self.query is not None or anew:
            self._tried_anew |= anew
            if self._executor is not None:
                self._stopping = self._executor.submit(self._end, anew)
                return
            self._end(anew)
        assert self._wanted is not None
        self._count_stopped(now)  # by the rules that it had
        self.pipeline, self._wanted = self._wanted, None
        if self.pipeline.definition is not self.figures.definition:
            self.figures.definition = self.pipeline.definition
        self.failures, self.error, self.waits_for, self.failure, self.next_try = 0, None, None, None, 0.0
        self.state = "waiting"
        if self.pipeline.definition.schedule is not None and not self._once:
            self._wait_for_time(now)

    def _start(self, spark: Any, now: float) -> None:
        self.pipeline.blame = self._blame
        self._looked_at_code = now
        if self.waits_for is None:
            self.state = "starting"

        def start() -> Any:
            return self.pipeline.start(spark, once=self._once)

        if self._executor is None:
            self._has_started(start, now)
        else:
            self._starting = self._executor.submit(start)

    def _has_started(self, result: Callable[[], Any], now: float) -> None:
        try:
            query = result()
        except Exception as error:  # noqa: BLE001 - Spark raises what it likes, and one pipeline must not stop the others
            if isinstance(error, NotFound) and error.reason == NO_MESSAGE:
                self._wait_for_message(str(error), now)
                return
            self.starts += 1
            self.waits_for = None
            if isinstance(error, SettingsError):
                self._give_up(error)
            elif type(error).__name__ in ("AnalysisException", "ParseException"):
                self._give_up(SettingsError(f"pipeline {self.name}: {short(str(error))}"))
            elif isinstance(error, PenstockError):
                self._failed(str(error), now, error)
            else:
                self._failed_in_spark(error, now)
        else:
            self.starts += 1
            self.query, self.waits_for = query, None
            self.state, self._started, self._blame = "running", now, False
            self.figures.begin()

    def _wait_for_message(self, why: str, now: float) -> None:
        """It begins with the first one; a single run is over without any, and a schedule has its next time."""
        if self.waits_for is None:
            logger.info("pipeline %s waits: %s", self.name, why)
        self.waits_for = f'{why}; it starts with the first one, or at once with columns = "..."'
        self.error = self.failure = None
        if self._once:
            self.state = "done"
        elif self.pipeline.definition.schedule is not None:
            self.failures = 0
            self._wait_for_time(now)
        else:
            self.state, self.next_try = "waiting", now + LOOK_FOR_MESSAGE_S

    def _give_up(self, error: PenstockError) -> None:
        """What another try would not mend."""
        self.state, self.error, self.failure = "failed", str(error), error
        self.failures_total += 1
        logger.error("%s", error)

    def _watch(self, now: float) -> None:
        if self.figures.note(self.query, now, self._wall()):
            self.failures, self.error, self.failure = 0, None, None
        if not self.query.isActive:
            failure = self.query.exception()
            self.figures.note(self.query, now, self._wall())
            self.query = None
            definition = self.pipeline.definition
            if failure is not None:
                self._blame = may_be_a_row(str(failure))
                self.figures.stopped(self._failed_in_spark(failure, now))
            elif self._once:
                self.state = "done"
            elif definition.schedule is not None:
                self.failures, self.error = 0, None
                self._wait_for_time(now)
            else:
                self._failed("the query ended by itself", now)
            return
        refresh = self.pipeline.definition.refresh_us
        if refresh is not None and now - self._started >= refresh / 1e6 and not _is_busy(self.query):
            self.replace(self.pipeline)

    def _failed_in_spark(self, error: BaseException, now: float) -> str:
        """The sentence of it.  What Java alone can tell is logged whole, once for failures that say the same."""
        stack = stack_of_java(error)
        said = short(str(error), stack or "")
        if stack is not None and said != self._stack_of:
            logger.error("pipeline %s, all that Java says:\n%s", self.name, stack)
        self._stack_of = said
        self._failed(said, now)
        return said

    def _failed(self, error: str, now: float, failure: PenstockError | None = None) -> None:
        self.failures += 1
        self.failures_total += 1
        self.error, self.failure = error, failure
        logger.error("pipeline %s: %s", self.name, error)
        scheduled = self.pipeline.definition.schedule is not None
        if self._once and not (self._blame and self.failures < searches(self.pipeline)):
            self.state = "failed"
        elif self.failures < FAILURES_MAX + searches(self.pipeline):
            doublings = max(0, self.failures - 1 - (searches(self.pipeline) if self._blame else 0))
            self.next_try = now + min(PAUSE_S[0] * 2**doublings, PAUSE_S[1])
            self.state = "waiting"
        elif scheduled:
            self.failures = 0
            self._wait_for_time(now)
        else:
            self.state = "failed"

    def _wait_for_time(self, now: float) -> None:
        wall = self._wall()
        at = parse_cron(str(self.pipeline.definition.schedule)).after(int(wall * 1e6), None) / 1e6
        self.next_try = (now or time.monotonic()) + at - wall
        self.state = "scheduled"

    def status(self, now: float | None = None) -> dict[str, Any]:
        """As the status file, the server and a person have it."""
        now = time.monotonic() if now is None else now
        definition = self.pipeline.definition
        if self._stopping is None:
            self._count_stopped(now)
        pauses = self.state == "waiting" and self.waits_for is None
        waits = (pauses or self.state == "scheduled") and self.next_try > now
        return {
            "state": self.state,
            "since": told_time(self.since),
            "next_try": told_time(self._wall() + self.next_try - now) if waits else None,
            "waits_for": self.waits_for,
            "error": self.error,
            "failures": self.failures,
            "failures_total": self.failures_total,
            "starts": self.starts,
            "query": str(self.query.id) if self.query is not None else None,
            "reads": [one.text for one in definition.inputs],
            "writes": [one.text for one in definition.to],
            "when": when(self.pipeline),
            "counted_since": told_time(self._counted_since),
            **self.figures.told(now),
        }


def searches(pipeline: Pipeline) -> int:
    """Failures that it takes to find one row and put it aside: they bring it on, and come soon after each other."""
    definition = pipeline.definition
    if not definition.poison_after:
        return 0
    rows = max(one.max_rows for one in definition.streams)
    return 2 * definition.poison_after + math.ceil(math.log(rows, PARTS)) if rows > 1 else definition.poison_after


def _is_busy(query: Any) -> bool:
    return bool(query.status["isTriggerActive"])


def when(pipeline: Pipeline) -> str:
    """How often it runs, for people."""
    definition = pipeline.definition
    if definition.schedule is not None:
        return definition.schedule
    return f"every {definition.trigger_us / 1e6:g}s" if definition.trigger_us else "always"


def told_time(wall: float) -> str:
    """ISO 8601, UTC, to the second."""
    return datetime.fromtimestamp(round(wall), UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
