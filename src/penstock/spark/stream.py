"""Streaming reads: which rows the next batch has.  Rows themselves are read by executors (`reading`).

Spark keeps offsets in its checkpoint without syncing them, may ask again for a batch that it forgot, and never says
that the last batch of a run is done.  So the server plans: an answer for the same start is the same whoever asks again,
and asking for what follows a batch is what settles it.

    log mode     offset {"lsn": n}: the next LSN to read.  Nothing is consumed.
    queue mode   offset {"batch": n}: a dense number of the stream's own.  {"batch": 0} is "wherever the stream stands".

Spark makes these objects in several processes: constructors connect to nothing.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.errors import InvalidArgument, PreconditionFailed
from penstock.spark.arrow import values
from penstock.spark.batch import cut_evenly
from penstock.spark.reading import PlanPart, ReplayPart, fetch, parts_for, span
from penstock.spark.remote import Remote, remote

if TYPE_CHECKING:
    from penstock.spark.columns import Layout
    from penstock.spark.options import ReadOptions

IDLE_S = 0.5
"""How long a question for more waits for a first message before it says that there is none."""

POLL_S = 0.02
"""How often a batch that waits asks the server for more: Spark calls for its batches, so nobody can tell it."""

BACKLOG_S = 1.0
"""How old the backlog in a progress report may be."""

SAMPLE_ROWS = 200
"""Messages whose size stands for that of all, where a batch is limited by bytes."""

Offset = dict[str, int]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # pyspark is untyped here
    """What both modes share: the opened stream, limits, and the backlog."""

    mode = ""

    def __init__(self, options: ReadOptions, layout: Layout) -> None:
        self.options = options
        self.layout = layout
        self.stream = str(options.stream)
        self._epoch: int | None = None
        self._reported: tuple[float, int] = (0.0, 0)
        self._limit: int | None = None
        self._until: int | None = None  # AvailableNow: where to end; its meaning is the mode's
        self.floor = 0
        self.planned_before = 0  # the highest batch that was planned before this run

    @property
    def server(self) -> Remote:
        """The process's connection."""
        return remote(self.options.where)

    def opened(self) -> int:
        """The epoch of this run; the first call fences earlier runs."""
        if self._epoch is None:
            answer = self.server.act(
                "stream_open",
                stream=self.stream,
                vhost=self.server.vhost,
                queue=self.options.queue,
                mode=self.mode,
                instance=f"spark on {socket.gethostname()}, process {os.getpid()}",
            )
            self._epoch, self.floor = int(answer["epoch"]), int(answer["floor"])
            self.planned_before = int(answer["planned"])
        return self._epoch

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """`maxRowsPerTrigger`, or about that many as `maxBytesPerTrigger` holds."""
        return ReadMaxRows(self.options.max_rows)

    def rows_max(self, limit: ReadLimit) -> int:
        """Rows of the next batch at most."""
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else 2**31
        if self.options.max_bytes is not None:
            if self._limit is None:
                size = self.mean_size()
                if size is None:
                    return min(rows, self.options.max_rows)
                self._limit = max(1, int(self.options.max_bytes / max(size, 1)))
            rows = min(rows, self._limit)
        return int(rows)

    def mean_size(self) -> float | None:
        """Bytes of a body, by a sample; None when there is none."""
        sizes = [len(body) for batch in self.sample() for body in values(batch, "body")]
        return sum(sizes) / len(sizes) if sizes else None

    def sample(self) -> Iterator[pa.RecordBatch]:
        """A few messages with their bodies."""
        raise NotImplementedError

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor."""
        return fetch(self.options, self.layout, partition)

    def commit(self, end: Offset) -> None:
        """Spark's, and too late to rely on: the next `latestOffset` settles."""

    def stop(self) -> None:
        """Spark's: nothing depends on it."""


class LogStreamReader(StreamReader):
    """Every message of a topic, from a bookmark on."""

    mode = "log"

    def __init__(self, options: ReadOptions, layout: Layout) -> None:
        super().__init__(options, layout)
        if options.topic is None:
            raise InvalidArgument("mode log reads a topic: name the topic, or read the queue in mode queue")
        self._origin = 0
        self._scanned: tuple[int, int] = (-1, 0)  # (start, up to where nothing was found)
        self._found: tuple[int, int, Any] | None = None  # (start, end, LSNs) of the newest range
        self._known_start = -1  # the start for which the server has been asked what it answered before

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """End at what is durable now."""
        self._until = int(self.server.act("position")["durable"]) + 1

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Where a new query starts: resolved once and kept by the server, as the range that ends there."""
        epoch = self.opened()
        where = self.server.act("position", bookmark=self._starting())
        self._origin = int(where["origin"])
        answer = self.server.act("plan_range", stream=self.stream, epoch=epoch, start=0, end=int(where["start"]))
        return {"lsn": int(answer["end"])}

    def _starting(self) -> str:
        text = self.options.starting or "EPOCH"
        if text.upper() == "MOST_RECENT":
            raise InvalidArgument(
                "startingBookmark MOST_RECENT: a query goes on from its checkpoint; name another place"
            )
        return text

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """The end of the next range; `start` again when there is no message after it."""
        epoch, lsn = self.opened(), int(start["lsn"])
        if self._known_start != lsn:
            end = int(self._range(epoch, lsn, lsn))
            self._known_start = lsn
            if end > lsn:
                return {"lsn": end}
        deadline = time.monotonic() + (0 if self._until is not None else IDLE_S)
        while True:
            end = self._next(lsn, limit)
            if end > lsn:
                self._known_start = -1
                return {"lsn": self._range(epoch, lsn, end)}
            if time.monotonic() >= deadline:
                return start
            time.sleep(POLL_S)

    def _range(self, epoch: int, start: int, end: int) -> int:
        return int(self.server.act("plan_range", stream=self.stream, epoch=epoch, start=start, end=end)["end"])

    def _next(self, lsn: int, limit: ReadLimit) -> int:
        """Where a range of at most so many messages from `lsn` ends; `lsn` when there is no message."""
        durable = self._look(lsn) + 1
        end = durable if self._until is None else min(durable, self._until)
        begin = self._scanned[1] if self._scanned[0] == lsn else lsn
        if begin >= end:
            return lsn
        most = self.rows_max(limit)
        lsns = self._lsns(begin, end, most)
        if not len(lsns):
            self._scanned = (lsn, end)
            return lsn
        if len(lsns) >= most:
            end = int(lsns[-1]) + 1
        self._found = (lsn, end, lsns)
        return end

    def _look(self, lsn: int) -> int:
        where = self.server.act("position")
        self._origin = int(where["origin"])
        durable, first = int(where["durable"]), int(where["first"])
        self._reported = (time.monotonic(), durable + 1)
        if lsn < first and self.options.fail_on_data_loss:
            raise PreconditionFailed(
                f"stream {self.stream!r} is at LSN {lsn}, and retention has removed what lies before LSN {first}; "
                "set failOnDataLoss to false to go on without it"
            )
        return durable

    def _lsns(self, start: int, end: int, limit: int | None) -> Any:
        rows = self.server.rows(
            "replay",
            vhost=self.server.vhost,
            bookmark=span(self._origin, start, end),
            columns=["lsn"],
            limit=limit,
            **self.options.replay(),
        )
        found = [batch.column("lsn").to_numpy() for batch in rows]
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def sample(self) -> Iterator[pa.RecordBatch]:
        """The newest range's first messages are not known: the topic's first ones serve."""
        return self.server.rows(
            "replay", vhost=self.server.vhost, columns=["body"], limit=SAMPLE_ROWS, **self.options.replay()
        )

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The range in parts of about equal numbers of messages."""
        a, b = int(start["lsn"]), int(end["lsn"])
        if a >= b:
            return []
        if self._found is None or self._found[:2] != (a, b):
            if not self._origin:
                self._origin = int(self.server.act("position")["origin"])
            self._found = (a, b, self._lsns(a, b, None))
        lsns = self._found[2]
        parts = parts_for(len(lsns), self.options.min_partitions)
        cuts = [int(lsns[len(lsns) * i // parts]) for i in range(1, parts)] if len(lsns) else []
        return [ReplayPart(self._origin, x, y, i) for i, (x, y) in enumerate(cut_evenly(a, b, cuts))]

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's name
        """How far the log goes; not fresher than the last look."""
        return {"lsn": self._reported[1]} if self._reported[1] else None


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
        return {"batch": end}

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
