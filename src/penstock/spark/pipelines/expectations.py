"""`expect`: conditions on input rows, how many rows do not meet each, and what becomes of those.

A condition that is NULL is not met.  A row meets the rules in order, those that drop it last (`definition.in_order`),
and goes at the first that removes it, so a rule counts the rows that came as far as it.  Dead letters become visible
with the commit of their batch.

Counts are Spark's observed metrics, in the query itself: they come with the progress of a batch that is done, so one
that fails and comes again counts once.  A rule that stops its pipeline ends the batch and its metrics: the sentence of
the error (`stopping`) tells of it instead, one row each time.

`fail_above` stops a batch when too many of its rows do not meet a rule.  The counts are those that Spark observes while
it computes the batch, read between the last of its rows and the commit that would make its outputs visible: a batch
that has too many leaves nothing, and comes again when the pipeline is started again.  The share is of the rows that
came as far as the rule.

Rules count, put aside and refuse rows where tasks read them.  A step of Spark's that stops reading early, or reads its
input again for each part of another one, would leave rows out or meet them twice: `refuse_inexact` refuses those.
Spark's optimizer says which steps there are; a shuffle below such a step reads everything once, and ends the search.

Dead letters of `expect`: staged by the tasks that meet them, visible with the commit of their batch.

A task puts the letters of its partition on the server, where nobody sees them, and reports the names of these stages
when it has come to the end of its rows.  Reports are an accumulator of Spark's: that of a task arrives with its success
and before its job ends, and a task that fails has none.  The driver names the stages of one attempt of each partition
in the commit that makes the outputs visible and settles the input.

So a row that is settled with a batch has its letter once, and no row has one whose batch is not committed:

- another attempt of a task (a failure, speculation, lost shuffle files) reports for the same partition, and one of
  them is taken, all of it.  A condition that is not the same each time (`rand()`) has the letters of one attempt.
- a batch that runs again, after a kill at any moment, with fewer rows (`core.streams`) or under other rules,
  has letters of that run alone: reports are kept in the driver, apart for each start.  Stages of earlier tries are
  dropped when the batch is narrowed or committed, at the latest after a day, as those of outputs are.
- a batch that is committed already has no letters any more, whatever its tasks stage.
- letters that their topic does not take (nobody keeps it, a queue is full) refuse the batch as outputs do.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeAlias
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute
from pyspark import TaskContext
from pyspark.accumulators import AccumulatorParam

from penstock.errors import PreconditionFailed, SettingsError
from penstock.records.dataclass import dataclass
from penstock.spark.executor import task_of
from penstock.spark.pipelines.code import short
from penstock.spark.pipelines.definition import ONLY, Check, Definition
from penstock.spark.record_batches import Column, column, in_arrow
from penstock.spark.remote import Where, remote
from penstock.spark.sink import put_stage
from penstock.spark.sink_rows import HEADERS, PIECE_BYTES, PIECE_ROWS

Place: TypeAlias = "tuple[str, int, str, int]"
"""What has letters: start of the pipeline, Spark's batch, rule, partition."""

Reports: TypeAlias = "dict[Place, dict[int, list[str]]]"
"""Stages, by the attempt of a task that put them there."""


class Merge(AccumulatorParam):  # type: ignore[misc]  # pyspark is untyped here
    """How reports come together.  An attempt that computes several parts of an input reports for each."""

    def zero(self, value: Reports) -> Reports:
        return {}

    def addInPlace(self, value1: Reports, value2: Reports) -> Reports:  # noqa: N802 - Spark's name
        """The first, with those of the second in it."""
        for place, attempts in value2.items():
            mine = value1.setdefault(place, {})
            for attempt, stages in attempts.items():
                mine[attempt] = [*mine.get(attempt, ()), *stages]
        return value1


@dataclass(frozen=True, slots=True)
class Post:
    """What goes with the tasks of one start."""

    where: Where
    start: str
    reports: Any  # an accumulator of `Reports`
    key: str | None = None  # what batches are committed by, where that is not Spark's id of the query


class Letters:
    """On the driver: what the tasks of one start of a pipeline have reported."""

    def __init__(self, where: Where, context: Any, key: str | None = None) -> None:
        """context: the SparkContext, or whatever else makes accumulators.  key: as of `Post`."""
        self.post = Post(where, uuid4().hex, reports_of(context), key)

    def stages(self, batch: int) -> list[str]:
        """The letters of a batch that has been computed."""
        out: list[str] = []
        for (_, number, _, _), attempts in self._reported():
            if number == batch:
                out += next(iter(attempts.values()))
        return out

    def forget(self) -> None:
        """A batch is committed: the server has dropped what the commit did not name."""
        for place, _ in self._reported():
            del self.post.reports.value[place]

    def discard(self) -> None:
        """Remove all that was reported from the server.  Unavailable: it is away, and nobody waits for it."""
        gone = [stage for _, attempts in self._reported() for stages in attempts.values() for stage in stages]
        self.forget()
        if gone:
            remote(replace(self.post.where, patience=0.0)).act("stage_drop", stages=gone)

    def _reported(self) -> list[tuple[Place, dict[int, list[str]]]]:
        """Another thread may add to it meanwhile, for tasks that are not waited for."""
        return [one for one in list(self.post.reports.value.items()) if one[0][0] == self.post.start]


@lru_cache(maxsize=2)
def reports_of(context: Any) -> Any:
    """The one accumulator of reports: Spark forgets none as long as it lives."""
    return context.accumulator({}, Merge())


class Letterbox:
    """In a task: the letters of one partition under one rule."""

    def __init__(self, post: Post, rule: str, topic: str) -> None:
        task = task_of()
        if task is None:
            raise TypeError("only a task of a streaming query has dead letters")
        context: Any = TaskContext.get()
        self._post = post
        self._query, self._batch = post.key or task[0], task[1]
        self._rule, self._topic = rule, topic
        self._partition, self._attempt = int(context.partitionId()), int(context.taskAttemptId())
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self._stages: list[str] = []

    def put(self, bodies: Column, headers: Mapping[str, str]) -> None:
        """Letters, in order, all with these headers; a null is an empty body."""
        size = len(bodies)
        whole: Any = bodies.cast(pa.binary()).fill_null(b"")
        heads: Any = pa.repeat(pa.scalar(list(headers.items()), HEADERS), size)
        piece = pa.record_batch({"body": whole, "headers": heads})
        self._waiting.append(piece)
        self._rows += size
        self._bytes += piece.nbytes
        if self._rows >= PIECE_ROWS or self._bytes >= PIECE_BYTES:
            self._send()

    def close(self) -> None:
        """The partition has no more rows: report."""
        if self._waiting:
            self._send()
        if self._stages:
            place = (self._post.start, self._batch, self._rule, self._partition)
            self._post.reports.add({place: {self._attempt: self._stages}})

    def _send(self) -> None:
        where = self._post.where
        answer = put_stage(
            where,
            self._waiting,
            query=self._query,
            batch=self._batch,
            partition=self._partition,
            attempt=len(self._stages),
            topic=self._topic,
            vhost=remote(where).vhost,
            mandatory=True,
        )
        self._stages.append(str(answer["stage"]))
        self._waiting, self._rows, self._bytes = [], 0, 0


compute: Any = pyarrow.compute

MET = "__penstock_met"

OBSERVED = "penstock expect "
"""What the counts of an input are called in Spark's progress, with the input's name after it."""


class Separator:
    """Runs in tasks: good rows pass, the bodies of the others are dead letters."""

    def __init__(self, post: Post, name: str, check: Check) -> None:
        """`name`: of the rule, which no other rule of the pipeline has."""
        self._post = post
        self._name = name
        self._check = check

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of one partition that meet the condition."""
        box = Letterbox(self._post, self._name, str(self._check.topic))
        why = self._check.name
        for batch in batches:
            met = column(batch, MET)
            rows = batch.drop_columns([MET])
            bad = rows.filter(compute.invert(met))
            if bad.num_rows:
                box.put(column(bad, "body"), {"x-failed-check": why})
            yield rows.filter(met)
        box.close()


def checked(frame: Any, checks: Sequence[Check], post: Post, pipeline: str, source: str = ONLY) -> Any:
    """The frame without the rows that a rule removes; counts of all rules come with Spark's progress."""
    from pyspark.sql import functions

    if not checks:
        return frame
    for check in checks:
        _refuse_unreadable(frame, check, pipeline, source)
    frame = frame.observe(f"{OBSERVED}{source}", *_counts(checks))
    for place, check in enumerate(checks):
        met = f"coalesce(({check.that}), false)"
        if check.otherwise == "drop":
            frame = frame.where(met)
        elif check.otherwise == "fail":
            text = functions.lit(stopping(check, pipeline, source))
            frame = frame.where(functions.when(functions.expr(met), True).otherwise(functions.raise_error(text)))
        elif check.otherwise == "dead-letter":
            schema = frame.schema
            if "body" not in schema.names:
                raise SettingsError(f"pipeline {pipeline}: a dead letter is the message's body, and a column hides it")
            name = f"expect/{pipeline}/{place}" if source == ONLY else f"expect/{pipeline}.{source}/{place}"
            frame = in_arrow(frame.withColumn(MET, functions.expr(met)), Separator(post, name, check), schema)
    return frame


def _refuse_unreadable(frame: Any, check: Check, pipeline: str, source: str) -> None:
    """SettingsError with the rule's name for a condition that Spark cannot make sense of."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions

    try:
        frame.select(functions.expr(f"coalesce(({check.that}), false)"))
    except AnalysisException as error:
        told = f"the rule {check.name!r} of {source}, {check.that!r}: {short(str(error))}"
        raise SettingsError(f"pipeline {pipeline}: {told}") from None


def stopping(check: Check, pipeline: str, source: str) -> str:
    """What a rule that stops its pipeline says of the row."""
    row = "a row" if source == ONLY else f"a row of {source}"
    return f"pipeline {pipeline}: {row} fails the check {check.name}"


def _counts(checks: Sequence[Check]) -> list[Any]:
    """Rows in all, then for each rule those that came to it and did not meet it."""
    from pyspark.sql import functions

    counts = [functions.count(functions.lit(1)).alias("rows")]
    reached = "true"
    for place, check in enumerate(checks):
        met = f"coalesce(({check.that}), false)"
        counts.append(functions.expr(f"count_if({reached} AND NOT {met})").alias(f"rule_{place}"))
        if check.otherwise != "keep":
            reached = f"{reached} AND {met}"
    return counts


def refuse_twice(plan: str, checks: Sequence[Check], pipeline: str) -> None:
    """Rows are counted, and each has its dead letter once: a checked input must be read once by a query."""
    wanted = sum(check.otherwise == "dead-letter" for check in checks)
    if wanted and plan.count("MapInArrow Separator") > wanted:
        raise SettingsError(f"pipeline {pipeline}: with dead letters the query may name its input once")


SHUFFLES = frozenset(
    {
        "Aggregate", "Distinct", "Deduplicate", "DeduplicateWithinWatermark", "RepartitionByExpression", "Repartition",
        "FlatMapGroupsWithState", "FlatMapGroupsInPandasWithState", "TransformWithState", "TransformWithStateInPySpark",
    }
)  # fmt: skip
"""Steps whose input is read once, whatever reads them."""

Found = tuple[str, str]
"""A checked input, and why not each of its rows is read once."""


def refuse_inexact(session: Any, analyzed: Any, definition: Definition) -> None:
    """SettingsError where a checked input would not be read once.  `analyzed`: the plan, a JVM object."""
    checked = [one.name for one in definition.inputs if one.expect]
    if not checked:
        return
    state = session._jsparkSession.sessionState()
    plan = state.optimizer().execute(analyzed)
    met = set[str]()
    for name, why in visited(session, state.conf(), plan, None, met):
        raise SettingsError(f"pipeline {definition.name}: expect of {name} cannot be exact: {why}")
    for name in checked:
        if name not in met:
            raise SettingsError(
                f"pipeline {definition.name}: expect of {name} would have no rows: no row of {name} can come into the "
                "result, so Spark does not read it"
            )


def visited(session: Any, conf: Any, plan: Any, why: str | None, met: set[str]) -> Iterator[Found]:
    """Checked inputs that a step above reads otherwise than once.  met: takes the checked inputs there are.

    why: what a step above does.
    """
    name = str(plan.nodeName())
    if name == "CollectMetrics" and str(plan.name()).startswith(OBSERVED):
        met.add(str(plan.name()).removeprefix(OBSERVED))
        if why is not None:
            yield str(plan.name()).removeprefix(OBSERVED), why
    if name in SHUFFLES:
        why = None
    elif name in ("LocalLimit", "GlobalLimit"):
        why = "LIMIT stops reading it: take LIMIT out, or put it above a GROUP BY"
    elif name == "Join":
        why = of_join(session, conf, plan) or why
    for child in children(plan):
        yield from visited(session, conf, child, why, met)


def of_join(session: Any, conf: Any, join: Any) -> str | None:
    """Why a join does not read each of its sides once; None if it does."""
    kind = str(join.joinType())
    condition = join.condition()
    if kind in ("LeftSemi", "LeftAnti") and condition.isEmpty():
        return "a SEMI or ANTI join without a condition reads nothing of it while the other side has no row, or has one"
    if kind not in ("Inner", "Cross", "LeftSemi"):
        return None
    said = _hints(join)
    equal = session._jvm.org.apache.spark.sql.catalyst.planning.ExtractEquiJoinKeys.unapply(join).isDefined()
    fits = "broadcast" in said or _small(conf, join)
    sent = fits and ("broadcast" in said or "strategy=" not in said)
    if equal and sent and _interpreted(session, conf, join):
        return (
            "Spark interprets the join, whose code it does not generate with this conf or so many columns, and reads "
            "nothing of it while the other side has no row; say that both are sorted: SELECT /*+ MERGE(name) */"
        )
    if kind == "LeftSemi" or ("shuffle_replicate_nl" not in said and (equal or fits)):
        return None
    return (
        "it is joined with something large without equal columns, so Spark reads it once for each part of that; "
        "compare columns for equality too, or say that the other side fits into memory: SELECT /*+ BROADCAST(name) */"
    )


def _hints(join: Any) -> str:
    """What the query says of how it is to be carried out."""
    hints = [join.hint().leftHint(), join.hint().rightHint()]
    return " ".join(str(one.get()) for one in hints if one.isDefined()).lower()


def _small(conf: Any, join: Any) -> bool:
    """Whether one side is so small that Spark sends it to each task by itself."""
    size = min(int(str(side.stats().sizeInBytes())) for side in (join.left(), join.right()))
    return size <= int(conf.autoBroadcastJoinThreshold())


def _interpreted(session: Any, conf: Any, join: Any) -> bool:
    """Whether Spark runs a join without code made for it; such code reads on where the join itself would end."""
    if not conf.wholeStageEnabled():
        return True
    too_many = session._jvm.org.apache.spark.sql.execution.WholeStageCodegenExec.isTooManyFields
    return any(too_many(conf, side.schema()) for side in (join, join.left(), join.right()))


def children(plan: Any) -> Sequence[Any]:
    """Of a node of the JVM."""
    found = plan.children()
    return [found.apply(place) for place in range(found.size())]


START_S = 60.0
"""A batch may be there before the call that starts its query has come back."""


@dataclass(frozen=True, slots=True)
class Limit:
    """So many rows, or such a share of them."""

    most: float
    share: bool

    @classmethod
    def of(cls, text: str) -> Limit:
        """As the settings have it, `1 %` or `100`."""
        number = text.strip().removesuffix("%")
        return cls(float(number), number != text.strip())

    def passed(self, rows: int, seen: int) -> bool:
        """Whether so many of the rows that were seen are too many."""
        return rows * 100 > self.most * seen if self.share else rows > self.most


class Thresholds:
    """Of one start of a pipeline."""

    def __init__(self, definition: Definition) -> None:
        self._name = definition.name
        self._inputs = [one for one in definition.streams if any(check.fail_above for check in one.expect)]
        self._query: Any = None
        self._started = threading.Event()

    @property
    def wanted(self) -> bool:
        """Whether any input has a rule that may fail a batch."""
        return bool(self._inputs)

    def started(self, query: Any) -> None:
        """Say of which query the batches are that follow."""
        self._query = query
        self._started.set()

    def refuse(self) -> None:
        """On the driver, when the rows of a batch are computed.  PreconditionFailed: it has too many."""
        if not self._started.wait(START_S):
            raise PreconditionFailed(f"pipeline {self._name}: a batch came before its query was known")
        observed = self._query._jsq.streamingQuery().lastExecution().observedMetrics()
        for one in self._inputs:
            name = f"{OBSERVED}{one.name}"
            if not observed.contains(name):
                continue
            row = observed.apply(name)
            counts = [int(row.getLong(place)) for place in range(len(one.expect) + 1)]
            for why in beyond(one.expect, counts, "rows" if one.name == ONLY else f"rows of {one.name}"):
                raise PreconditionFailed(f"pipeline {self._name}: {why}")


def beyond(checks: Sequence[Check], counts: Sequence[int], what: str = "rows") -> Iterator[str]:
    """What is too much; counts: the rows, then for each rule those that did not meet it."""
    seen = counts[0]
    for check, rows in zip(checks, counts[1:], strict=True):
        if check.fail_above and Limit.of(check.fail_above).passed(rows, seen):
            share = f"{100 * rows / max(seen, 1):.3g} %"
            yield (
                f"{rows} of the {seen} {what} in a batch ({share}) fail the check {check.name}, and its fail_above is "
                f"{check.fail_above}"
            )
        if check.otherwise != "keep":
            seen -= rows
