"""Mode queue: a competing consumer whose batches are the same each time they are read.

Offset {"batch": n, "stream": name, "origin": o}: a dense number of the stream's own, and whose it is, so that a sink
that finds it in the checkpoint can settle the batch with its own commit.  {"batch": 0} is "wherever the stream stands".
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from penstock.errors import InvalidArgument, PreconditionFailed
from penstock.spark.reading.fetching import PlanPart, parts_for
from penstock.spark.reading.stream import BACKLOG_S, IDLE_S, SAMPLE_ROWS, Offset, StreamReader

if TYPE_CHECKING:
    from penstock.spark.reading.columns import Layout
    from penstock.spark.reading.options import ReadOptions


class QueueStreamReader(StreamReader):
    """A competing consumer whose batches are the same each time they are read."""

    mode = "queue"

    def __init__(self, options: ReadOptions, layout: Layout) -> None:
        super().__init__(options, layout)
        if options.queue is None:
            raise InvalidArgument("mode queue reads a queue: name it with option queue")
        if options.filter is not None:
            raise InvalidArgument("option filter: in mode queue the queue's own filter decides; set it on the queue")
        if options.starting is not None or options.ending is not None:
            raise InvalidArgument("mode queue takes what the queue holds: bookmarks and offsets go with mode log")
        self._sizes = dict[int, int]()  # rows of the newest batch
        self._elsewhere = False  # a query without a checkpoint reads a stream that has moved on

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """End when as many messages were taken as are ready now."""
        self.opened()
        self._until = int(self.server.act("stats", queue=self.options.queue, vhost=self.server.vhost)["ready"])

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """The same for ever, so that a replay of a query's first batch starts where it did."""
        return {"batch": 0}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """Settle what ended at `start`, and take the next batch; `start` again when nothing is ready."""
        self.opened()
        batch = int(start["batch"])
        most = self.rows_max(limit)
        wait = f"{int(IDLE_S * 1000)}ms"
        if self._until is not None:
            wait = "0s"
            most = max(1, min(most, self._until))
            if self._until <= 0 and (batch or self.floor) >= self.planned_before:
                self._settle(batch)  # nothing more is taken, and what is done is settled
                return start
        answer = self._plan(batch, most, wait)
        end, rows = int(answer["batch"]), int(answer["rows"])
        if not rows:
            return start
        if self._until is not None and end > self.planned_before:
            self._until -= rows
        self._sizes = {end: rows}
        return {"batch": end, "stream": self.stream, "origin": self.origin}

    def _plan(self, batch: int, most: int, wait: str) -> dict[str, Any]:
        epoch = self.opened()

        def plan(start: int) -> dict[str, Any]:
            return self.server.act("plan", stream=self.stream, epoch=epoch, start=start, max_rows=most, wait=wait)

        if batch or not self.floor or self._elsewhere:
            return plan(batch or self.floor)
        try:
            # A first batch that was planned and settled, but that Spark lost again, is still known and comes back.
            return plan(0)
        except PreconditionFailed:
            self._elsewhere = True
            return plan(self.floor)

    def _settle(self, batch: int) -> None:
        if batch:
            self.server.act("settle", stream=self.stream, epoch=self.opened(), batch=batch)

    def sample(self) -> Iterator[pa.RecordBatch]:
        """The first messages that wait."""
        return self.server.rows(
            "queue", name=self.options.queue, vhost=self.server.vhost, limit=SAMPLE_ROWS, columns=["body"]
        )

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The batch that ends at `end`: a plan answers with one batch, whatever `start` says."""
        batch = int(end["batch"])
        if batch == int(start["batch"]):
            return []
        rows = self._sizes.get(batch)
        if rows is None:
            found = self.server.rows("plan", stream=self.stream, batch=batch, columns=["lsn"])
            rows = sum(one.num_rows for one in found)
        parts = parts_for(rows, self.options.min_partitions)
        return [PlanPart(self.stream, batch, part, parts) for part in range(parts)]

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's name
        """The newest batch and how many messages are ready beyond it."""
        seen, ready = self._reported
        now = time.monotonic()
        if now - seen > BACKLOG_S:
            ready = int(self.server.act("stats", queue=self.options.queue, vhost=self.server.vhost)["ready"])
            self._reported = (now, ready)
        newest = max(self._sizes, default=self.floor)
        return {"batch": newest, "ready": ready}
