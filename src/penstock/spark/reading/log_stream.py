"""Mode log: every message of a topic, from a bookmark on.

Offset {"lsn": n}: the next LSN to read.  Nothing is consumed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from penstock.errors import InvalidArgument, PreconditionFailed
from penstock.spark.reading.batch import cut_evenly
from penstock.spark.reading.fetching import ReplayPart, parts_for, span
from penstock.spark.reading.stream import IDLE_S, POLL_S, SAMPLE_ROWS, Offset, StreamReader

if TYPE_CHECKING:
    from penstock.spark.reading.columns import Layout
    from penstock.spark.reading.options import ReadOptions


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
