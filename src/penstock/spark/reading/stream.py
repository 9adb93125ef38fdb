"""What all modes of a stream share.  It says which rows the next batch has; executors read them (`fetching`).

Spark keeps offsets in its checkpoint without syncing them, may ask again for a batch that it forgot, and never says
that the last batch of a run is done.  So the server plans: an answer for the same start is the same whoever asks again,
and asking for what follows a batch is what settles it.

    log mode     offset {"lsn": n, "origin": o, "stream": s, "reads": what}: the next LSN to read.  Nothing is consumed.
    queue mode   offset {"batch": n}: a dense number of the stream's own.  {"batch": 0} is "wherever the stream stands".

Spark makes these objects in several processes: constructors connect to nothing.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.errors import InvalidArgument, PenstockError, PreconditionFailed
from penstock.records.message_types import MESSAGE_TYPE
from penstock.spark.reading.parts import ReplayPart
from penstock.spark.remote import Remote, remote
from penstock.wire.flight.tickets import BATCH_ROWS_MOST

if TYPE_CHECKING:
    from penstock.spark.options import ReadOptions
    from penstock.spark.reading.columns import Layout


IDLE_S = 0.5
"""How long a question for more waits for a first message before it says that there is none."""

BACKLOG_S = 1.0
"""How old the backlog in a progress report may be."""

Offset = dict[str, Any]
"""As Spark keeps it."""


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # pyspark is untyped here
    """In the place of a reader whose options were refused: it says so when it is asked for anything.

    Of one that was never made Spark looks for a way to stop it, and says last that it finds none.
    """

    def __init__(self, error: PenstockError) -> None:
        self._error = error

    def _refuse(self, *_: object) -> NoReturn:
        raise self._error

    getDefaultReadLimit = prepareForTriggerAvailableNow = _refuse  # noqa: N815  # pyright: ignore[reportAssignmentType]
    initialOffset = latestOffset = partitions = read = _refuse  # noqa: N815  # pyright: ignore[reportAssignmentType]


ANEW = "begin with a new one, a pipeline with penstock pipeline reset"


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
        self._due = 0.0  # when a batch may have fewer messages than `minRowsPerTrigger` says; at once the first time
        self.floor = 0
        self.origin = 0  # the server's own number
        self.planned_before = 0  # the highest batch that was planned before this run

    @property
    def server(self) -> Remote:
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

    def asked(self, action: str, **fields: object) -> dict[str, Any]:
        """What the server answers about the stream to this run."""
        return self.server.act(action, stream=self.stream, epoch=self.opened(), **fields)

    def place(self, offset: Offset, name: str) -> int:
        """What an offset says under this name.

        PreconditionFailed for one of another stream or mode, of what is not read here, or of another log: going on at
        its number would pass over what nobody has read.
        """
        checkpoint, reads = f"the checkpoint of stream {self.stream!r}", self.options.what_and_where(self.server.vhost)
        if offset.get("reads", reads) != reads:
            raise PreconditionFailed(
                f"{checkpoint} belongs to a query that reads {offset['reads']}, and this one reads {reads}, of which "
                f"it would pass over what lies before; put the right one there, or {ANEW}"
            )
        if name not in offset or offset.get("stream", self.stream) != self.stream:
            raise PreconditionFailed(
                f"the checkpoint is at {json.dumps(offset)}, which is no place of stream {self.stream!r} in mode "
                f"{self.mode}: it belongs to a query that reads something else; put the right one there, or {ANEW}"
            )
        self.opened()
        if int(offset.get("origin", self.origin)) != self.origin:
            raise PreconditionFailed(
                f"{checkpoint} is at {name.replace('lsn', 'LSN')} {offset[name]} of log {offset['origin']}, and this "
                f"server has log {self.origin}: it is another server, or was restored from a backup; {ANEW}"
            )
        return int(offset[name])

    def definition(self) -> dict[str, object]:
        """What else the server keeps with the stream."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """`maxRowsPerTrigger`, or about that many as `maxBytesPerTrigger` holds."""
        return ReadMaxRows(self.options.max_rows)

    def rows_min(self, limit: ReadLimit) -> int | None:
        """Messages that the next batch waits for; None where it takes what there is."""
        wanted = self.options.min_rows
        if wanted is None or self._until is not None or not isinstance(limit, ReadMaxRows):
            return None  # a run that ends with what there is waits for nothing
        return wanted if time.monotonic() < self._due else None

    def taken(self) -> None:
        """There is a batch: the next one waits for its messages anew."""
        self._due = time.monotonic() + self.options.max_delay_s

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from penstock.spark.reading.fetching import fetch  # for tasks: who plans batches need not load it

        return fetch(self.options, self.layout, partition)

    def commit(self, end: Offset) -> None:
        """Spark's, and too late to rely on: the next `latestOffset` settles."""

    def stop(self) -> None:
        """Spark's: nothing depends on it."""


class LimitedStreamReader(StreamReader):
    """A reader of a queue."""

    def __init__(self, options: ReadOptions, layout: Layout) -> None:
        super().__init__(options, layout)
        if options.direct == "true":
            raise InvalidArgument(
                f"option direct is true, and mode {self.mode} reads through Flight alone: the server must hear which "
                "query has which batch; leave the option out"
            )

    def rows_max(self, limit: ReadLimit) -> int:
        """Rows of the next batch at most."""
        return limit.max_rows if isinstance(limit, ReadMaxRows) else BATCH_ROWS_MOST  # `once` asks for all


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
        begin, lossless = self.options.starting or "EPOCH", self.options.fail_on_data_loss
        return self._at(int(self.asked("stream_begin", bookmark=begin, fail_on_data_loss=lossless)["start"]))

    def _at(self, lsn: int) -> Offset:
        reads = self.options.what_and_where(self.server.vhost)
        return {"lsn": lsn, "origin": self.origin, "stream": self.stream, "reads": reads}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """The end of the next range; `start` again when there is no message after it."""
        lsn, past = self.place(start, "lsn"), self.options.backfill_until
        answer: Answer | None = None
        if past is not None and lsn < past:
            until = past if self._until is None else min(past, self._until)
            answer = self._planned(lsn, limit, until, self.options.backfill_rows)  # a batch ends exactly there
        if (answer is None or int(answer["end"]) <= lsn) and not self.options.backfill_only:
            answer = self._planned(lsn, limit, self._until)
        if answer is None:
            return start
        self._reported = (time.monotonic(), int(answer["durable"]) + 1)
        self._warn(lsn, answer)
        if int(answer["end"]) <= lsn:
            return start
        self._found = answer
        self.taken()
        return self._at(int(answer["end"]))

    def _planned(self, lsn: int, limit: ReadLimit, until: int | None, least: int = 0) -> Answer:
        """The range that begins there, of at most so many messages."""
        most = max(limit.max_rows, least) if isinstance(limit, ReadMaxRows) else least or None
        return self.asked(
            "plan_range",
            start=lsn,
            max_rows=most,
            min_rows=None if until is not None else self.rows_min(limit),  # what is past waits for nothing
            max_bytes=limit.max_bytes if isinstance(limit, ReadMaxBytes) else self.options.max_bytes,
            parts=self.options.min_partitions,
            until=until,
            wait=None if until is not None else f"{round(IDLE_S * 1000)}ms",
            beside=self.options.beside or None,
            fail_on_data_loss=self.options.fail_on_data_loss,
        )

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The range in parts of about equal weight; those it was planned in, if the server remembers it."""
        a, b = self.place(start, "lsn"), self.place(end, "lsn")
        if a >= b:
            return []
        found = self._found
        if found is None or (int(found["start"]), int(found["end"])) != (a, b):
            found = self.server.act(
                "range_parts", stream=self.stream, start=a, end=b, parts=self.options.min_partitions
            )
            if self.options.fail_on_data_loss and (lost := found.get("lost")):
                raise PreconditionFailed(lost)
        asked: dict[str, object] = {name: value for name, value in found["asked"].items() if name != "vhost"}
        parts = [(int(x), int(y)) for x, y in found["parts"]]
        origin, kind = int(found["origin"]), found.get(MESSAGE_TYPE)
        return [ReplayPart(origin, x, y, i, asked=asked, kind=kind) for i, (x, y) in enumerate(parts)]

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

    def _warn(self, lsn: int, answer: Answer) -> None:
        first, lost = int(answer["first"]), answer.get("lost")
        if lost and lsn >= first:
            log.warning("%s: it goes on with those that are left", lost.partition("; ")[0])
        if lsn < first and not self._told:
            self._told = True
            said = "stream %r goes on at LSN %d: retention has removed what lay from LSN %d on"
            log.warning(said, self.stream, first, lsn)
