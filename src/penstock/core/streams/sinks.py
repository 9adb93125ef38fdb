"""Sinks: the outputs of a query's batch become visible once, all of them together.

The key is (query id, batch id): a batch that was committed is answered "already", whatever it brings this time.  The
same group may settle the input batch of a stream, so a queue-to-queue pipeline has no window in which it could repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.core.effects import Effect
from penstock.core.outbox import Outbox
from penstock.core.publishing.publishing import Published, Publisher
from penstock.core.streams.streams import Streams
from penstock.errors import InvalidArgument, PreconditionFailed
from penstock.records.chunks import Now
from penstock.records.entries import Publishes
from penstock.records.kinds import Kind


@dataclass(frozen=True, slots=True)
class Committed:
    """The answer to a sink's commit.  It holds once `lsn` is durable."""

    already: bool
    lsn: int
    stored: int = 0  # rows that some queue or topic took
    outputs: tuple[Published, ...] = ()


class Sinks:
    """The highest committed batch of each query."""

    def __init__(self, outbox: Outbox[Effect], publisher: Publisher, streams: Streams) -> None:
        self._outbox = outbox
        self._publisher = publisher
        self._streams = streams
        self.batches: dict[str, int] = {}

    def commit(
        self,
        now: Now,
        query: str,
        batch: int,
        outputs: Sequence[Publishes],
        settle: tuple[str, int, int] | None = None,
    ) -> Committed:
        """Publish the outputs of a batch, once.

        settle: (stream, epoch, batch) of the input, settled in the same group.
        Errors: PreconditionFailed when a later batch of this query was committed; Fenced and others as
        `Streams.settle`.  Nothing is written then.
        """
        if not query or batch < 0:
            raise InvalidArgument(f"a sink commit needs a query id and a batch of 0 or more, not {query!r} and {batch}")
        highest = self.batches.get(query, -1)
        if batch < highest:
            raise PreconditionFailed(f"query '{query}' has committed batch {highest}; batch {batch} comes too late")
        if batch == highest:
            return Committed(True, self._outbox.last_lsn)
        if settle is not None:
            self._streams.check(*settle)
        now = self._outbox.at(now)
        self._outbox.begin()
        rows = sum(map(len, outputs))
        self._outbox.record(Kind.SINK_COMMIT, query, {"batch": batch, "rows": rows})
        self.batches[query] = batch
        published = tuple(self._publisher.publish(now, output, persistent=True) for output in outputs if len(output))
        if settle is not None:
            self._streams.settle(now, *settle)
        self._outbox.end()
        return Committed(False, self._outbox.last_lsn, sum(one.stored for one in published), published)
