"""`expect`: conditions on input rows, how many rows do not meet each, and what becomes of those.

A condition that is NULL is not met.  A row meets the rules in order, those that drop it last (`definition.in_order`),
and goes at the first that removes it, so a rule counts the rows that came as far as it.  Dead letters become visible
with the commit of their batch (`letters`).

Counts are Spark's observed metrics, in the query itself: they come with the progress of a batch that is done, so one
that fails and comes again counts once.  A rule that stops its pipeline ends the batch and its metrics: the sentence of
the error (`stopping`) tells of it instead, one row each time.

Rules count, put aside and refuse rows where tasks read them.  A step of Spark's that stops reading early, or reads its
input again for each part of another one, would leave rows out or meet them twice: `refuse_inexact` refuses those.
Spark's optimizer says which steps there are; a shuffle below such a step reads everything once, and ends the search.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute

from penstock.errors import SettingsError
from penstock.spark.pipelines.definition import ONLY, Check, Definition
from penstock.spark.pipelines.letters import Letterbox, Post
from penstock.spark.record_batches import column

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
            frame = frame.withColumn(MET, functions.expr(met)).mapInArrow(Separator(post, name, check), schema)
    return frame


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
    if kind not in ("Inner", "Cross"):
        return None
    hints = [join.hint().leftHint(), join.hint().rightHint()]
    said = " ".join(str(one.get()) for one in hints if one.isDefined()).lower()
    equal = session._jvm.org.apache.spark.sql.catalyst.planning.ExtractEquiJoinKeys.unapply(join).isDefined()
    if "shuffle_replicate_nl" not in said:
        small = min(int(str(side.stats().sizeInBytes())) for side in (join.left(), join.right()))
        if equal or "broadcast" in said or small <= int(conf.autoBroadcastJoinThreshold()):
            return None
    return (
        "it is joined with something large without equal columns, so Spark reads it once for each part of that; "
        "compare columns for equality too, or say that the other side fits into memory: SELECT /*+ BROADCAST(name) */"
    )


def children(plan: Any) -> Sequence[Any]:
    """Of a node of the JVM."""
    found = plan.children()
    return [found.apply(place) for place in range(found.size())]
