"""The reading half of the client: queue contents, replay, log ranges, planned batches.  It leases nothing."""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import pyarrow as pa

from penstock.client.admin import Administration
from penstock.client.link import translated
from penstock.client.messages import Message, Rows
from penstock.wire.flight.tickets import command


class Reading(Administration):
    """Calls that look at messages."""

    def peek(
        self, queue: str, count: int = 10, *, states: Sequence[str] = ("ready",), filter: str | None = None
    ) -> list[Message]:
        """Messages that wait in a queue, oldest first.  Takes and changes nothing."""
        return list(_messages(self.queue_batches(queue, states=states, limit=count, filter=filter)))

    def queue_batches(
        self,
        queue: str,
        *,
        states: Sequence[str] = ("ready",),
        limit: int | None = None,
        filter: str | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """What waits in a queue, as Arrow batches."""
        return self._batches(
            command(
                "queue",
                name=queue,
                vhost=self._vhost,
                states=list(states),
                limit=limit,
                filter=filter,
                columns=_list(columns),
            )
        )

    def replay(
        self,
        topic: str | None = None,
        bookmark: str | datetime = "EPOCH",
        *,
        pattern: str | None = None,
        exchange: str = "",
        filter: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Message]:
        """Messages of a topic after a bookmark, settled or not, up to now.  Leases nothing; nothing can be settled.

        bookmark    of a message, EPOCH, NOW, an ISO time or a datetime, or a range `[a:b)`
        pattern     a regular expression for topics, in place of one topic
        """
        return _messages(
            self.replay_batches(topic, bookmark, pattern=pattern, exchange=exchange, filter=filter, limit=limit)
        )

    def replay_batches(
        self,
        topic: str | None = None,
        bookmark: str | datetime = "EPOCH",
        *,
        pattern: str | None = None,
        exchange: str = "",
        filter: str | None = None,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The same as Arrow batches.  Errors come with the first batch."""
        return self._batches(
            command(
                "replay",
                topic=topic,
                pattern=pattern,
                exchange=exchange or None,
                vhost=self._vhost,
                bookmark=bookmark.isoformat() if isinstance(bookmark, datetime) else bookmark,
                filter=filter,
                limit=limit,
                columns=_list(columns),
            )
        )

    def log_batches(
        self, start: int = 1, end: int | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Records of the log with start <= lsn < end, as they are stored."""
        return self._batches(command("log", **{"from": start, "to": end, "columns": _list(columns)}))

    def _batches(self, ticket: bytes) -> Iterator[pa.RecordBatch]:
        reader = self._link.get(ticket)
        try:
            while True:
                with translated():
                    try:
                        chunk = reader.read_chunk()
                    except StopIteration:
                        return
                if chunk.data is not None:
                    yield chunk.data
        finally:
            reader.cancel()

    def plan_batches(
        self, stream: str, batch: int, part: int = 0, parts: int = 1, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """One part of the rows of a planned batch of a durable stream."""
        return self._batches(
            command("plan", stream=stream, batch=batch, part=part, parts=parts, columns=_list(columns))
        )


def _messages(batches: Iterator[pa.RecordBatch]) -> Iterator[Message]:
    for batch in batches:
        rows = Rows(batch)
        for row in range(len(rows)):
            yield Message(rows, row)


def _list(columns: Sequence[str] | None) -> list[str] | None:
    return None if columns is None else list(columns)
