"""`expect`: conditions on input rows, how many rows do not meet each, and what becomes of those.

A condition that is NULL is not met.  A row meets the rules in order and goes at the first that removes it, so a rule
counts the rows that came as far as it.  Dead letters are published by the task that meets them, numbered within their
batch, so a batch that runs again publishes them once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyspark import TaskContext

from penstock.errors import SettingsError
from penstock.spark.arrow import column, values
from penstock.spark.pipelines.definition import Check
from penstock.spark.reading.fetching import Publisher
from penstock.spark.remote import Where, remote

compute: Any = pyarrow.compute

MET = "__penstock_met"

OBSERVED = "penstock expect "
"""What the counts of an input are called in Spark's progress, with the input's name after it."""


class Separator:
    """Runs in tasks: good rows pass, the bodies of the others go to a topic."""

    def __init__(self, where: Where, name: str, check: Check) -> None:
        self._where = where
        self._name = name
        self._check = check

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of one partition that meet the condition."""
        context: Any = TaskContext.get()
        publisher = Publisher(remote(self._where), f"{self._name}/{context.partitionId()}")
        for batch in batches:
            met = column(batch, MET)
            rows = batch.drop_columns([MET])
            bad = rows.filter(compute.invert(met))
            if bad.num_rows:
                bodies = values(bad, "body")
                headers = {"x-failed-check": self._check.name or self._check.that}
                publisher.publish(str(self._check.topic), bodies, [headers] * len(bodies))
            yield rows.filter(met)


def checked(frame: Any, checks: Sequence[Check], where: Where, pipeline: str, source: str = "input") -> Any:
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
            text = functions.lit(f"pipeline {pipeline}: a row fails the check {check.name or check.that}")
            frame = frame.where(functions.when(functions.expr(met), True).otherwise(functions.raise_error(text)))
        elif check.otherwise == "dead-letter":
            schema = frame.schema
            if "body" not in schema.names:
                raise SettingsError(f"pipeline {pipeline}: a dead letter is the message's body, and a column hides it")
            name = f"expect/{pipeline}/{place}" if source == "input" else f"expect/{pipeline}.{source}/{place}"
            frame = frame.withColumn(MET, functions.expr(met)).mapInArrow(Separator(where, name, check), schema)
    return frame


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
    """Rows are counted, and dead letters numbered by task: a checked input must be read once by a query."""
    wanted = sum(check.otherwise == "dead-letter" for check in checks)
    if wanted and plan.count("MapInArrow Separator") > wanted:
        raise SettingsError(f"pipeline {pipeline}: with dead letters the query may name its input once")
