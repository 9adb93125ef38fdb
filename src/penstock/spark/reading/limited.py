"""How many messages of a queue a batch takes: so many, or about as many as a number of bytes holds, by a sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

from penstock.errors import InvalidArgument
from penstock.spark.arrow import values
from penstock.spark.reading.stream import StreamReader

if TYPE_CHECKING:
    from penstock.spark.reading.columns import Layout
    from penstock.spark.reading.options import ReadOptions

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
