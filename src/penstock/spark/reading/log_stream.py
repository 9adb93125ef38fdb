"""Mode log: every message of a topic, from a bookmark on.

Offset {"lsn": n, "origin": o}: the next LSN to read, in the log of that origin.  Nothing is consumed.  The server says
how far a batch reaches and in which parts it is read, and says the same again to whoever asks again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows

from penstock.errors import InvalidArgument, PreconditionFailed
from penstock.spark.reading.parts import ReplayPart
from penstock.spark.reading.stream import BACKLOG_S, IDLE_S, Offset, StreamReader

if TYPE_CHECKING:
    from penstock.spark.options import ReadOptions
    from penstock.spark.reading.columns import Layout

Answer = Mapping[str, Any]
"""The server's: start, end, parts, asked, origin, first, durable."""

log = logging.getLogger("penstock.spark")


class LogStreamReader(StreamReader):
    """Every message of a topic, from a bookmark on."""

    mode = "log"

    def __init__(self, options: ReadOptions, layout: Layout) -> None:
        super().__init__(options, layout)
        if options.topic is None:
            raise InvalidArgument("mode log reads a topic: name the topic, or read the queue in mode queue")
        if options.ending is not None:
            raise InvalidArgument(
                "endingBookmark is for batch reads: a stream goes on, and ends with what there is under "
                "trigger(availableNow=True)"
            )
        self._found: Answer | None = None  # the newest range
        self._told = False  # that something was lost
        self._counted = 0.0  # when the server was asked for the backlog
        self._messages: int | None = None  # what it knew

    def definition(self) -> dict[str, object]:
        """What the server keeps with the stream, and reads it with."""
        return self.options.replay()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """End at what is durable now."""
        self._until = int(self.server.act("position")["durable"]) + 1

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Where a new query starts: resolved once and kept by the server under the stream's name."""
        answer = self.server.act(
            "stream_begin",
            stream=self.stream,
            epoch=self.opened(),
            bookmark=self.options.starting or "EPOCH",
            fail_on_data_loss=self.options.fail_on_data_loss,
        )
        return {"lsn": int(answer["start"]), "origin": int(answer["origin"])}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """The end of the next range; `start` again when there is no message after it."""
        lsn, past = int(start["lsn"]), self.options.backfill_until
        answer: Answer | None = None
        if past is not None and lsn < past:
            until = past if self._until is None else min(past, self._until)
            answer = self._planned(lsn, limit, until, self.options.backfill_rows)  # a batch ends exactly there
        if (answer is None or int(answer["end"]) <= lsn) and not self.options.backfill_only:
            answer = self._planned(lsn, limit, self._until)
        if answer is None:
            return start
        self._same_log(start, answer)
        self._reported = (time.monotonic(), int(answer["durable"]) + 1)
        self._warn(lsn, answer)
        if int(answer["end"]) <= lsn:
            return start
        self._found = answer
        return {"lsn": int(answer["end"]), "origin": int(answer["origin"])}

    def _planned(self, lsn: int, limit: ReadLimit, until: int | None, least: int = 0) -> Answer:
        """The range that begins there, of at most so many messages."""
        most = max(limit.max_rows, least) if isinstance(limit, ReadMaxRows) else least or None
        return self.server.act(
            "plan_range",
            stream=self.stream,
            epoch=self.opened(),
            start=lsn,
            max_rows=most,
            max_bytes=limit.max_bytes if isinstance(limit, ReadMaxBytes) else self.options.max_bytes,
            parts=self.options.min_partitions,
            until=until,
            wait=None if until is not None else f"{round(IDLE_S * 1000)}ms",
            beside=self.options.beside or None,
            fail_on_data_loss=self.options.fail_on_data_loss,
        )

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The range in parts of about equal weight; those it was planned in, if the server remembers it."""
        a, b = int(start["lsn"]), int(end["lsn"])
        if a >= b:
            return []
        found = self._found
        if found is None or (int(found["start"]), int(found["end"])) != (a, b):
            self.opened()
            found = self.server.act(
                "range_parts", stream=self.stream, start=a, end=b, parts=self.options.min_partitions
            )
            self._same_log(start, found)
        asked: dict[str, object] = {name: value for name, value in found["asked"].items() if name != "vhost"}
        parts = [(int(x), int(y)) for x, y in found["parts"]]
        return [ReplayPart(int(found["origin"]), x, y, i, asked=asked) for i, (x, y) in enumerate(parts)]

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's name
        """How far the log goes, and how many messages of the topic are before the reader, where that is counted."""
        if not self._reported[1]:
            return None
        now = time.monotonic()
        if now - self._counted >= BACKLOG_S:
            self._counted = now
            self._messages = self.server.act("stream_lag", stream=self.stream)["messages"]
        known = {} if self._messages is None else {"messages": self._messages}
        return {"lsn": self._reported[1], **known}

    def _same_log(self, start: Offset, answer: Answer) -> None:
        """PreconditionFailed when the checkpoint names a place in another log."""
        origin = start.get("origin")
        if origin is not None and int(origin) != int(answer["origin"]):
            raise PreconditionFailed(
                f"the checkpoint of stream {self.stream!r} is at LSN {start['lsn']} of log {origin}, and this server "
                f"has log {answer['origin']}: it is another server, or was restored from a backup; begin with a new "
                "checkpoint"
            )

    def _warn(self, lsn: int, answer: Answer) -> None:
        first = int(answer["first"])
        if lsn < first and not self._told:
            self._told = True
            said = "stream %r goes on at LSN %d: retention has removed what lay from LSN %d on"
            log.warning(said, self.stream, first, lsn)
