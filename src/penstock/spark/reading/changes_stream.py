"""Mode changes: which messages came to a queue and which went, since the batch before.  Nothing is leased or settled.

Offset {"batch": n}.  Batches of what went have odd numbers, those of what came even ones (`core.streams.changes`), and
both have the messages with their bodies.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from penstock.errors import InvalidArgument
from penstock.spark.reading.limited import LimitedStreamReader
from penstock.spark.reading.parts import ChangePart
from penstock.spark.reading.stream import IDLE_S, Offset

if TYPE_CHECKING:
    from penstock.spark.reading.columns import Layout
    from penstock.spark.reading.options import ReadOptions

POLL_S = 0.25
"""How often a batch that waits looks again: a look compares all that is available, nothing tells of changes."""

PARTS = 4
"""Of each batch, unless `minPartitions` asks for more."""


class ChangesStreamReader(LimitedStreamReader):
    """What came and what went."""

    mode = "changes"

    def __init__(self, options: ReadOptions, layout: Layout) -> None:
        super().__init__(options, layout)
        if options.queue is None:
            raise InvalidArgument("mode changes is of a queue: name it with option queue")
        if options.filter is not None or options.starting is not None or options.ending is not None:
            raise InvalidArgument("mode changes takes neither filter nor bookmark: it is about all that is available")
        self._target: int | None = None  # AvailableNow: rounds that are left

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """End when nothing more has changed."""
        self._target = 1

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Nothing is counted."""
        return {"batch": 0}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """The next difference; `start` again when there is none."""
        epoch, batch = self.opened(), int(start["batch"])
        deadline = time.monotonic() + (0 if self._target is not None else IDLE_S)
        while True:
            answer = self.server.act(
                "plan_changes",
                stream=self.stream,
                epoch=epoch,
                start=batch,
                queue=self.options.queue,
                vhost=self.server.vhost,
                max_rows=self.rows_max(limit),
            )
            end = int(answer["batch"])
            if end != batch:
                self._reported = (time.monotonic(), end)
                return {"batch": end}
            if time.monotonic() >= deadline:
                return start
            time.sleep(POLL_S)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Each batch in parts."""
        parts = max(PARTS, self.options.min_partitions or 1)
        return [
            ChangePart(self.stream, batch, part, parts, change=1 if batch % 2 == 0 else -1)
            for batch in range(int(start["batch"]) + 1, int(end["batch"]) + 1)
            for part in range(parts)
        ]

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's name
        """The newest batch that was planned."""
        return {"batch": self._reported[1]} if self._reported[1] else None
