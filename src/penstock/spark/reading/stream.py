"""What all modes of a stream share.  It says which rows the next batch has; executors read them (`fetching`).

Spark keeps offsets in its checkpoint without syncing them, may ask again for a batch that it forgot, and never says
that the last batch of a run is done.  So the server plans: an answer for the same start is the same whoever asks again,
and asking for what follows a batch is what settles it.

    log mode     offset {"lsn": n, "origin": o}: the next LSN to read.  Nothing is consumed.
    queue mode   offset {"batch": n}: a dense number of the stream's own.  {"batch": 0} is "wherever the stream stands".

Spark makes these objects in several processes: constructors connect to nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.errors import InvalidArgument
from penstock.spark.reading.fetching import fetch
from penstock.spark.record_batches import values
from penstock.spark.remote import Remote, remote

if TYPE_CHECKING:
    from penstock.spark.options import ReadOptions
    from penstock.spark.reading.columns import Layout


IDLE_S = 0.5
"""How long a question for more waits for a first message before it says that there is none."""

BACKLOG_S = 1.0
"""How old the backlog in a progress report may be."""

Offset = dict[str, Any]
"""As Spark keeps it."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # pyspark is untyped here
    """What all modes share: the opened stream, its limits, and the backlog."""

    mode = ""

    def __init__(self, options: ReadOptions, layout: Layout) -> None:
        self.options = options
        self.layout = layout
        self.stream = str(options.stream)
        self._epoch: int | None = None
        self._reported: tuple[float, int] = (0.0, 0)
        self._until: int | None = None  # AvailableNow: where to end; its meaning is the mode's
        self.floor = 0
        self.origin = 0  # the server's own number
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
                abandon_after=self.options.abandon_after,
                pipeline=self.options.pipeline,
                instance=f"spark on {socket.gethostname()}, process {os.getpid()}",
                **self.definition(),
            )
            self._epoch, self.floor = int(answer["epoch"]), int(answer["floor"])
            self.planned_before = int(answer["planned"])
            self.origin = int(answer.get("origin", 0))
        return self._epoch

    def definition(self) -> dict[str, object]:
        """What else the server keeps with the stream."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """`maxRowsPerTrigger`, or about that many as `maxBytesPerTrigger` holds."""
        return ReadMaxRows(self.options.max_rows)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor."""
        return fetch(self.options, self.layout, partition)

    def commit(self, end: Offset) -> None:
        """Spark's, and too late to rely on: the next `latestOffset` settles."""

    def stop(self) -> None:
        """Spark's: nothing depends on it."""


ROWS_MOST = 10_000_000
"""Messages that a server gives out as one batch at most; Spark asks for all there are with the trigger `once`."""

SAMPLE_ROWS = 200
"""Messages whose size stands for that of all, where a batch is limited by bytes."""


class LimitedStreamReader(StreamReader):
    """A reader of a queue."""

    def __init__(self, options: ReadOptions, layout: Layout) -> None:
        super().__init__(options, layout)
        if options.direct == "true":
            raise InvalidArgument(
                f"option direct is true, and mode {self.mode} reads through Flight alone: the server must hear which "
                "query has which batch; leave the option out"
            )
        self._limit: int | None = None  # rows that `maxBytesPerTrigger` holds, once there was a sample

    def rows_max(self, limit: ReadLimit) -> int:
        """Rows of the next batch at most."""
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else ROWS_MOST
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
        """The bodies of the first messages that wait."""
        return self.server.rows(
            "queue", name=self.options.queue, vhost=self.server.vhost, columns=["body"], limit=SAMPLE_ROWS
        )
