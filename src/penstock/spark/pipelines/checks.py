"""`expect`: conditions on a pipeline's input rows, and what becomes of rows that do not meet them.

A condition that is NULL is not met.  Dead letters are published by the task that meets them, numbered within their
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
                headers = {"x-failed-check": self._check.that}
                publisher.publish(str(self._check.topic), bodies, [headers] * len(bodies))
            yield rows.filter(met)


def checked(frame: Any, checks: Sequence[Check], where: Where, pipeline: str) -> Any:
    """The frame without the rows that fail a check; a row meets them in order and goes at the first it fails."""
    from pyspark.sql import functions

    for place, check in enumerate(checks):
        met = f"coalesce(({check.that}), false)"
        if check.otherwise == "drop":
            frame = frame.where(met)
        elif check.otherwise == "fail":
            text = functions.lit(f"pipeline {pipeline}: a row fails the check {check.that}")
            frame = frame.where(functions.when(functions.expr(met), True).otherwise(functions.raise_error(text)))
        else:
            schema = frame.schema
            if "body" not in schema.names:
                raise SettingsError(f"pipeline {pipeline}: a dead letter is the message's body, and a column hides it")
            separator = Separator(where, f"expect/{pipeline}/{place}", check)
            frame = frame.withColumn(MET, functions.expr(met)).mapInArrow(separator, schema)
    return frame


def refuse_twice(plan: str, checks: Sequence[Check], pipeline: str) -> None:
    """Dead letters are numbered by task, so the checked input must be read once by a query."""
    wanted = sum(check.otherwise == "dead-letter" for check in checks)
    if wanted and plan.count("MapInArrow") > wanted:
        raise SettingsError(f"pipeline {pipeline}: with dead letters the query may name its input once")
