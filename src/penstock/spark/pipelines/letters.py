"""Dead letters of `expect`: staged by the tasks that meet them, visible with the commit of their batch.

A task puts the letters of its partition on the server, where nobody sees them, and reports the names of these stages
when it has come to the end of its rows.  Reports are an accumulator of Spark's: that of a task arrives with its success
and before its job ends, and a task that fails has none.  The driver names the stages of one attempt of each partition
in the commit that makes the outputs visible and settles the input.

So a row that is settled with a batch has its letter once, and no row has one whose batch is not committed:

- another attempt of a task (a failure, speculation, lost shuffle files) reports for the same partition, and one of
  them is taken, all of it.  A condition that is not the same each time (`rand()`) has the letters of one attempt.
- a batch that runs again, after a kill at any moment, with fewer rows (`core.streams.poison`) or under other rules,
  has letters of that run alone: reports are kept in the driver, apart for each start.  Stages of earlier tries are
  dropped when the batch is narrowed or committed, at the latest after a day, as those of outputs are.
- a batch that is committed already has no letters any more, whatever its tasks stage.
- letters that their topic does not take (nobody keeps it, a queue is full) refuse the batch as outputs do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeAlias
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import AccumulatorParam

from penstock.records.dataclass import dataclass
from penstock.spark.executor import task_of
from penstock.spark.record_batches import Column
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
        """None yet."""
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


class Letters:
    """On the driver: what the tasks of one start of a pipeline have reported."""

    def __init__(self, where: Where, context: Any) -> None:
        """`context`: the SparkContext, or whatever else makes accumulators."""
        self.post = Post(where, uuid4().hex, reports_of(context))

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
        self._query, self._batch = task
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
