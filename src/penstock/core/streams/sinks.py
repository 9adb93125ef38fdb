"""Sinks: the outputs of a query's batch become visible once, all of them together.

The key is (query id, batch id): a batch that was committed is answered "already", whatever it brings this time.  The
same group may settle the input batch of a stream, so a queue-to-queue pipeline has no window in which it could repeat.

A batch too large for one group is decided first: one record names its parts and counts as the commit, and its rows
follow in chunks, each with a record of how far it brings them.  What is decided is never refused any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from penstock.core.effects import Effect
from penstock.core.outbox import Outbox
from penstock.core.publishing.published import Published
from penstock.core.publishing.publishing import Publisher
from penstock.core.state.decided import DecidedPart, DecidedState
from penstock.core.streams.streams import Streams
from penstock.errors import InvalidArgument, PreconditionFailed
from penstock.records.chunks import Now
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes, Topic
from penstock.records.kinds import Kind
from penstock.records.schema import GROUP_BYTES_MAX

Output: TypeAlias = "tuple[str, str, str, int, int, int]"
"""What a commit gave to one topic: vhost, exchange, key, first LSN, last LSN, rows.  A group's LSNs are its own, so the
messages of that topic in this range are these."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The answer to a sink's commit.  It holds once `lsn` is durable."""

    already: bool
    lsn: int
    stored: int = 0  # rows that some queue or topic took
    outputs: tuple[Published, ...] = ()
    told: tuple[Output, ...] = ()  # where the rows went, if lineage was asked for and they went in this group


class Sinks:
    """The highest committed batch of each query, and of which the rows are still on their way."""

    def __init__(self, outbox: Outbox[Effect], publisher: Publisher, streams: Streams) -> None:
        self._outbox = outbox
        self._publisher = publisher
        self._streams = streams
        self.batches: dict[str, int] = {}
        self.decided: dict[str, DecidedState] = {}  # unfinished ones: at most one a query

    def commit(
        self,
        now: Now,
        query: str,
        batch: int,
        outputs: Sequence[Publishes],
        settle: tuple[str, int, int] | None = None,
        lineage: Mapping[str, object] | None = None,
    ) -> Committed:
        """Publish the outputs of a batch, once.

        settle: (stream, epoch, batch) of the input, settled in the same group.
        lineage: what the batch was made of, written down beside what became of it.
        Errors: PreconditionFailed when a later batch of this query was committed, or an earlier one is decided and not
        yet copied; Fenced and others as `Streams.settle`.  Nothing is written then.
        """
        if self._already(query, batch, settle):
            return Committed(True, self._outbox.last_lsn)
        size = sum(output.size for output in outputs)
        if size > GROUP_BYTES_MAX:
            raise InvalidArgument(f"query '{query}' batch {batch} has {size} bytes, a group at most {GROUP_BYTES_MAX}")
        now = self._outbox.at(now)
        self._outbox.begin()
        rows = sum(map(len, outputs))
        self._outbox.record(Kind.SINK_COMMIT, query, {"batch": batch, "rows": rows})
        self.batches[query] = batch
        published = self._publish(now, outputs)
        told: list[Output] = []
        if lineage is not None:
            told = outputs_of(outputs, published)
            self._outbox.record(Kind.LINEAGE, query, {"batch": batch, "of": lineage, "outputs": told})
        if settle is not None:
            self._streams.settle(now, *settle)
        self._outbox.end()
        return Committed(False, self._outbox.last_lsn, sum(one.stored for one in published), published, tuple(told))

    def decide(
        self,
        now: Now,
        query: str,
        batch: int,
        parts: Sequence[DecidedPart],
        settle: tuple[str, int, int] | None = None,
        lineage: Mapping[str, object] | None = None,
    ) -> Committed:
        """Commit a batch by naming its parts, which have rows; `copy` brings these, in this order.

        The input is settled with the decision.  Errors as `commit`.
        """
        if self._already(query, batch, settle):
            return Committed(True, self._outbox.last_lsn)
        now = self._outbox.at(now)
        told = None if settle is None else (settle[0], settle[2])
        state = DecidedState(batch, self._outbox.next_lsn, tuple(parts), told)
        if state.complete:
            raise InvalidArgument(f"query '{query}' batch {batch}: there are no rows to decide about")
        self._outbox.begin()
        self._outbox.record(Kind.DECIDED, query, state.header())
        self.batches[query] = batch
        self.decided[query] = state
        if lineage is not None:
            self._outbox.record(Kind.LINEAGE, query, {"batch": batch, "of": lineage})
        if settle is not None:
            self._streams.settle(now, *settle)
        self._outbox.end()
        return Committed(False, self._outbox.last_lsn)

    def copy(self, now: Now, query: str, rows: int, outputs: Sequence[Publishes]) -> Committed:
        """The next chunk of a decided batch: one group.

        rows: how many rows of the parts it brings, counted before anything is left out; `outputs`: those of them that
        have a topic to go to.  After the last row the batch is no longer among the decided.
        """
        state = self.decided[query]
        now = self._outbox.at(now)
        header = {"batch": state.batch, "chunk": state.chunks + 1, "rows": state.rows + rows}
        state.copied(header)
        self._outbox.begin()
        self._outbox.record(Kind.CHUNK, query, header)
        published = self._publish(now, outputs)
        if any(one.stored for one in published):
            told = {"batch": state.batch, "chunk": state.chunks, "outputs": outputs_of(outputs, published)}
            self._outbox.record(Kind.LINEAGE, query, told)
        self._outbox.end()
        if state.complete:
            del self.decided[query]
        return Committed(False, self._outbox.last_lsn, sum(one.stored for one in published), published)

    def _publish(self, now: Now, outputs: Sequence[Publishes]) -> tuple[Published, ...]:
        return tuple(self._publisher.publish(now, output, persistent=True) for output in outputs if len(output))

    def _already(self, query: str, batch: int, settle: tuple[str, int, int] | None) -> bool:
        """Whether a batch was committed before; raises what stands in its way."""
        if not query or batch < 0:
            raise InvalidArgument(f"a sink commit needs a query id and a batch of 0 or more, not {query!r} and {batch}")
        highest = self.batches.get(query, -1)
        if batch < highest:
            raise PreconditionFailed(f"query '{query}' has committed batch {highest}; batch {batch} comes too late")
        if batch == highest:
            return True
        unfinished = self.decided.get(query)
        if unfinished is not None:
            raise PreconditionFailed(
                f"query '{query}' has decided batch {unfinished.batch}, and {unfinished.rows} of its "
                f"{unfinished.total} rows are written; batch {batch} comes after them"
            )
        if settle is not None:
            self._streams.check(*settle)
        return False


def outputs_of(batches: Sequence[Publishes], published: Sequence[Published]) -> list[Output]:
    """Where the rows of a commit went, by topic, in order of their first LSN."""
    found: dict[tuple[str, str, str], tuple[int, int, int]] = {}
    for batch, became in zip((one for one in batches if len(one)), published, strict=True):
        for topic, first, last, rows in _ranges(batch, became):
            name = topic.vhost, topic.exchange, topic.name
            low, _, before = found.get(name, (first, 0, 0))
            found[name] = (low, last, before + rows)
    return [(*name, *where) for name, where in sorted(found.items(), key=lambda item: item[1])]


def _ranges(batch: Publishes, became: Published) -> Iterator[tuple[Topic, int, int, int]]:
    """Topic, first LSN, last LSN, rows."""
    if not became.stored:
        return
    lsns = became.positions
    if isinstance(batch.topics, Topic):
        yield batch.topics, lsns[0], lsns[-1], len(lsns)
        return
    lost = became.lost()
    stored: Iterable[Topic] = (topic for row, topic in enumerate(batch.topics) if row not in lost)
    by_topic: dict[int, tuple[Topic, int, int, int]] = {}
    for topic, lsn in zip(stored, lsns, strict=True):
        before = by_topic.get(id(topic))
        by_topic[id(topic)] = (topic, lsn, lsn, 1) if before is None else (topic, before[1], lsn, before[3] + 1)
    yield from by_topic.values()
