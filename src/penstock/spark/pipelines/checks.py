"""`expect`: conditions on input rows, how many rows do not meet each, and what becomes of those.

A condition that is NULL is not met.  A row meets the rules in order, those that drop it last (`definition.in_order`),
and goes at the first that removes it, so a rule counts the rows that came as far as it.  Dead letters become visible
with the commit of their batch (`letters`).

Counts are Spark's observed metrics, in the query itself: they come with the progress of a batch that is done, so one
that fails and comes again counts once.  A rule that stops its pipeline ends the batch and its metrics: the sentence of
the error (`stopping`) tells of it instead, one row each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute

from penstock.errors import SettingsError
from penstock.spark.arrow import column
from penstock.spark.pipelines.definition import ONLY, Check
from penstock.spark.pipelines.letters import Letterbox, Post

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
