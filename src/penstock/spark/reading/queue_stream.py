"""Streams over a queue: mode queue, which settles what it read, and mode changes, which tells what came and went.

Mode queue is a competing consumer whose batches are the same each time they are read.

Offset {"batch": n, "stream": name, "origin": o}: a dense number of the stream's own, and whose it is, so that a sink
that finds it in the checkpoint can settle the batch with its own commit.  {"batch": 0} is "wherever the stream stands".
Asking for the batch after it settles a batch, and Spark asks with each trigger: where triggers are rare, or there is
none after it, the batch would stay leased for as long.  `settle_on_progress` settles it with Spark's progress event,
which comes when it is in the commit log.

Mode changes leases and settles nothing.  Offset {"batch": n, "origin": o}: batches of what went have odd numbers, those
of what came even ones (`core.streams.stream_table`), and both have the messages with their bodies.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.streaming.listener import StreamingQueryListener

from penstock.errors import InvalidArgument, PenstockError, PreconditionFailed
from penstock.records.message_types import MESSAGE_TYPE, MessageType, typed
from penstock.spark.reading.parts import ChangePart, PlanPart, parts_for
from penstock.spark.reading.stream import BACKLOG_S, IDLE_S, LimitedStreamReader, Offset
from penstock.spark.record_batches import values
from penstock.spark.remote import Where, remote
from penstock.spark.taker import Taker

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.options import ReadOptions
    from penstock.spark.reading.columns import Layout


logger = logging.getLogger("penstock.spark")


class Planned(NamedTuple):
    """What this reader knows of a batch."""

    rows: int
    revision: int  # how often it was narrowed
    kind: MessageType | None  # what its bodies are, where the server tells it


def _planned(answer: Mapping[str, Any]) -> Planned:
    return Planned(int(answer["rows"]), int(answer["revision"]), answer.get(MESSAGE_TYPE))


class QueueStreamReader(LimitedStreamReader):
    """A competing consumer whose batches are the same each time they are read."""

    mode = "queue"

    def __init__(self, options: ReadOptions, layout: Layout) -> None:
        super().__init__(options, layout)
        if options.queue is None:
            raise InvalidArgument("mode queue reads a queue: name it with option queue")
        if options.filter is not None:
            raise InvalidArgument(
                "option filter: in mode queue the queue's own filter decides, because what a stream takes it also "
                "settles; set it on the queue, or filter the rows in Spark"
            )
        self._known = dict[int, Planned]()  # the newest batch
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
        batch = self.place(start, "batch")
        lost = self._is_elsewhere(batch)
        most = self.rows_max(limit)
        wait = f"{int(IDLE_S * 1000)}ms"
        if self._until is not None:
            wait = "0s"
            most = max(1, min(most, self._until))
            if self._until <= 0 and (batch or self.floor) >= self.planned_before:
                self._settle(batch)  # nothing more is taken, and what is done is settled
                return start
        least = self.rows_min(limit)
        answer = self._plan(batch, most, None if least is None else min(least, most), wait, lost=lost)
        end, rows = int(answer["batch"]), int(answer["rows"])
        if not rows and end <= (batch or self.floor):
            return start
        if self._until is not None and end > self.planned_before:
            self._until -= rows
        self._known = {end: _planned(answer)}
        self.taken()
        return {"batch": end, "stream": self.stream, "origin": self.origin}

    def _is_elsewhere(self, batch: int) -> bool:
        """Whether the query has no checkpoint of a stream that has moved on, the first time that this is seen."""
        if batch or not self.floor:
            return False
        if not self.options.continue_lost:
            raise PreconditionFailed(self._lost())
        first, self._elsewhere = not self._elsewhere, True
        return first

    def _plan(self, batch: int, most: int, least: int | None, wait: str, *, lost: bool) -> dict[str, Any]:
        return self.asked(
            "plan", start=batch or self.floor, max_rows=most, min_rows=least, max_bytes=self.options.max_bytes,
            wait=wait, lost=lost or None, beside=self.options.beside or None,
        )  # fmt: skip

    def _lost(self) -> str:
        again = ", which was given out before and comes again" if self.planned_before > self.floor else ""
        return (
            f"stream '{self.stream}' has settled {self.floor} batches, and this query starts without a checkpoint: it "
            "was lost, or this is another query. Put the checkpoint back; or delete what is left of it and set option "
            f"onLostCheckpoint to continue, and the query goes on with batch {self.floor + 1}{again}"
        )

    def _settle(self, batch: int) -> None:
        if batch:
            self.asked("settle", batch=batch)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The batch that ends at `end`: a plan answers with one batch, whatever `start` says."""
        batch = self.place(end, "batch")
        if batch == self.place(start, "batch"):
            return []
        known = self._known.get(batch)
        if known is None:
            known = self._resume(batch)
        parts, order = parts_for(known.rows, self.options.min_partitions), self.options.order_by
        if order is not None:
            from penstock.spark.reading.bodies import type_of

            order = typed(order, type_of(self.server, self.options, known.kind))
        return [
            PlanPart(self.stream, batch, part, parts, known.revision, order, self.opened(), known.kind)
            for part in range(parts)
        ]

    def _resume(self, batch: int) -> Planned:
        """A batch that is in the checkpoint's offsets already: an earlier run came to nothing with it."""
        limit, blame = self.options.poison_after, self.options.poison_blame
        answer = self.asked("stream_resume", batch=batch, poison_after=limit, blame=blame)
        known = _planned(answer)
        self._known = {batch: known}
        if answer["left"]:
            if self._until is not None:
                self._until += int(answer["left"])
            logger.warning(
                "stream %s: batch %d has failed again and again; it has %d rows now, and %d come in smaller batches",
                self.stream, batch, known.rows, answer["left"],
            )  # fmt: skip
        elif answer.get("poison") is not None:
            logger.warning(
                "stream %s: batch %d has failed because of the message at LSN %d, which is put aside as poison",
                self.stream, batch, answer["poison"],
            )  # fmt: skip
        return known

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's name
        """The newest batch and how many messages are ready beyond it."""
        seen, ready = self._reported
        now = time.monotonic()
        if now - seen > BACKLOG_S:
            ready = int(self.server.act("stats", queue=self.options.queue, vhost=self.server.vhost)["ready"])
            self._reported = (now, ready)
        newest = max(self._known, default=self.floor)
        return {"batch": newest, "ready": ready}


POLL_S = 0.25
"""How often a batch that waits looks again: a look compares all that is available, nothing tells of changes."""

PARTS = 4
"""Of each batch, unless `minPartitions` asks for more."""

SAMPLE_ROWS = 200
"""Messages whose size stands for that of all, where a batch of changes is limited by bytes."""


class ChangesStreamReader(LimitedStreamReader):
    """What came and what went."""

    mode = "changes"

    def __init__(self, options: ReadOptions, layout: Layout) -> None:
        super().__init__(options, layout)
        if options.queue is None:
            raise InvalidArgument("mode changes is of a queue: name it with option queue")
        self._target: int | None = None  # AvailableNow: rounds that are left
        self._kind: MessageType | None = None  # what the bodies are, as the newest answer has it
        self._limit: int | None = None  # rows that `maxBytesPerTrigger` holds, once there was a sample

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """End when nothing more has changed."""
        self._target = 1

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        return {"batch": 0}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """The next difference; `start` again when there is none."""
        batch, queue, vhost = self.place(start, "batch"), self.options.queue, self.server.vhost
        deadline = time.monotonic() + (0 if self._target is not None else IDLE_S)
        while True:
            most = self.rows_max(limit)
            answer = self.asked("plan_changes", start=batch, queue=queue, vhost=vhost, max_rows=most)
            end, self._kind = int(answer["batch"]), answer.get(MESSAGE_TYPE)
            if end != batch:
                self._reported = (time.monotonic(), end)
                return {"batch": end, "origin": self.origin}
            if time.monotonic() >= deadline:
                return start
            time.sleep(POLL_S)

    def rows_max(self, limit: ReadLimit) -> int:
        """Of what went and came, about as many as `maxBytesPerTrigger` holds, by what waited first."""
        rows = super().rows_max(limit)
        if self.options.max_bytes is not None:
            if self._limit is None:
                size = self.mean_size()
                if size is None:
                    return min(rows, self.options.max_rows)
                self._limit = max(1, int(self.options.max_bytes / max(size, 1)))
            rows = min(rows, self._limit)
        return rows

    def mean_size(self) -> float | None:
        """Bytes of a body, by a sample; None when there is none."""
        sizes = [len(body) for batch in self.sample() for body in values(batch, "body")]
        return sum(sizes) / len(sizes) if sizes else None

    def sample(self) -> Iterator[pa.RecordBatch]:
        """The bodies of the first messages that wait."""
        return self.server.rows(
            "queue", name=self.options.queue, vhost=self.server.vhost, columns=["body"], limit=SAMPLE_ROWS
        )

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        parts = max(PARTS, self.options.min_partitions or 1)
        return [
            ChangePart(self.stream, batch, part, parts, kind=self._kind, change=1 if batch % 2 == 0 else -1)
            for batch in range(self.place(start, "batch") + 1, self.place(end, "batch") + 1)
            for part in range(parts)
        ]

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's name
        """The newest batch that was planned."""
        return {"batch": self._reported[1]} if self._reported[1] else None


logger = logging.getLogger("penstock.spark")

PATIENCE_S = 2.0
"""How long a server that is away is waited for: Spark tells all listeners in one thread; the next batch settles too."""


class SettleOnProgress(StreamingQueryListener):  # type: ignore[misc]  # pyspark is untyped here
    """Settles what a progress event says is done, of all streams in mode `queue` that read this server."""

    def __init__(self, where: Where) -> None:
        self.where = where

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        ...

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """A batch is in the commit log."""
        for source in event.progress.sources:
            settle_source(self.where, source.endOffset)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """What is not done stays planned."""


def settle_source(where: Where, end: str | None) -> None:
    """Settle up to a source's end offset, JSON as progress has it, if it is one of this server's in mode `queue`.

    It may be said twice and late; what the server does not take, it says in the log of the driver.
    """
    try:
        found: Any = json.loads(end or "null")
    except ValueError:
        return
    offset = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    stream, batch, origin = offset.get("stream"), offset.get("batch"), offset.get("origin")
    if not isinstance(stream, str) or not isinstance(batch, int) or not batch:
        return
    try:
        remote(where).act("settle", stream=stream, batch=batch, origin=origin if isinstance(origin, int) else None)
    except PenstockError as error:
        logger.warning("batch %d of stream %s is done and could not be settled now: %s", batch, stream, error)


def settle_on_progress(
    spark: Any, url: str | None = None, user: str | None = None, password: str | None = None
) -> SettleOnProgress:
    """Settle finished batches of all queries of a session soon, also when no other batch follows.

    The server is named as by the options of the same names.  The listener is returned for `removeListener` of the
    session's streams.  Pipelines and Penstock's own sink settle in their commit and need it not.
    """
    given = {"url": url, "user": user, "password": password}
    where = Taker({name: value for name, value in given.items() if value}, tuple(given)).where(PATIENCE_S)
    listener = SettleOnProgress(where)
    spark.streams.addListener(listener)
    return listener
