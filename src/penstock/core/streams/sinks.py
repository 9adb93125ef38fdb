"""Sinks: the outputs of a query's batch become visible once, all of them together.

The key is (query id, batch id): a batch that was committed is answered "already", whatever it brings this time.  One
with a lower number than the highest is refused, or answered so too where the query's numbers may come late.  The same
group may settle the input batch of a stream, so a queue-to-queue pipeline has no window in which it could repeat.

All rows are taken or none: what a queue or a topic would refuse is looked at before the first record.  A batch too
large for one group is looked at in steps and then decided: one record names its parts and counts as the commit, and
its rows follow in chunks, each with a record of how far it brings them.  What is decided is never refused any more.

A query belongs to who committed its first batch.  Queries are remembered as `memory` says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import TypeAlias

from penstock.core.effects import Effect
from penstock.core.outbox import Outbox
from penstock.core.publishing import Preflight, Publisher
from penstock.core.publishing.published import Published, Terms
from penstock.core.state.durable import DurableState
from penstock.core.state.pending import MARK, DecidedPart, DecidedState, SinkMark, decided_copies
from penstock.core.streams import Streams
from penstock.errors import InvalidArgument, PreconditionFailed
from penstock.records.chunks import Now
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes, Topic
from penstock.records.kinds import Kind
from penstock.records.schema import GROUP_BYTES_MAX

SHARE = 2
"""Queries of one user are forgotten first beyond what is kept divided by this."""

KEPT = 10_000
"""Queries of streams that are remembered, about."""

AT_ONCE = 500
"""Queries that one record forgets at most."""

WRITES_KEPT = 10_000
"""Batch writes that are remembered, about; those of the last `WAITED_US` on top."""

ONCE_US = 86_400_000_000
"""How long a batch write is remembered; a start begins the time anew."""

WAITED_US = 3_600_000_000
"""How long the driver of a batch write may wait for the answer, whatever patience it has: by then nobody does."""


class Remembered:
    """The highest committed batch of each query, and what else is known of it."""

    def __init__(self) -> None:
        self.batches: dict[str, int] = {}
        self.marks: dict[str, SinkMark] = {}
        self._lasting: dict[str, None] = {}  # queries of streams, in the order of their last commit
        self._once: dict[str, int] = {}  # batch writes in their order, and when they committed; 0: before this process

    def load(self, batches: Mapping[str, int], marks: Mapping[str, SinkMark]) -> None:
        """Go on from a durable state."""
        self.batches = dict(batches)
        self.marks = dict(marks)
        for query in sorted(batches, key=lambda one: marks[one].lsn if one in marks else 0):
            mark = marks.get(query)
            if mark is not None and mark.once:
                self._once[query] = 0
            else:
                self._lasting[query] = None

    def add(self, wall: int, query: str, batch: int, mark: SinkMark, keep: Container[str]) -> list[str]:
        """Note a commit at `wall` microseconds; the queries that are forgotten for it, but for those in `keep`."""
        self.batches[query] = batch
        self.marks[query] = mark
        if mark.once:
            self._once.pop(query, None)
            self._once[query] = wall
        else:
            self._lasting.pop(query, None)
            self._lasting[query] = None
        return self._forget(wall, keep)

    def _forget(self, wall: int, keep: Container[str]) -> list[str]:
        gone: list[str] = []
        few = AT_ONCE // 5  # they go a few at a time, and not with every commit
        many = len(self._once) - WRITES_KEPT
        over = many if many >= few else 0
        for query, time in self._once.items():
            if not time:
                self._once[query] = wall
            elif time + (WAITED_US if len(gone) < over else ONCE_US) > wall or len(gone) == AT_ONCE:
                break
            elif query not in keep:
                gone.append(query)
        excess = len(self._lasting) - KEPT
        if excess >= few:
            gone += self._oldest(min(excess, AT_ONCE - len(gone)), keep)
        for query in gone:
            self.batches.pop(query)
            self.marks.pop(query)
            self._once.pop(query, None)
            self._lasting.pop(query, None)
        return gone

    def _oldest(self, count: int, keep: Container[str]) -> list[str]:
        """So many queries of streams, those of who has more than his share first."""
        left = Counter(self.owner(query) for query in self._lasting)
        gone = dict[str, None]()
        for query in self._lasting:
            owner = self.owner(query)
            if len(gone) < count and left[owner] > KEPT // SHARE and query not in keep:
                gone[query] = None
                left[owner] -= 1
        for query in self._lasting:
            if len(gone) < count and query not in keep:
                gone[query] = None
        return list(gone)

    def owner(self, query: str) -> str:
        """Whose it is; "" for nobody's, and for one that is not known."""
        mark = self.marks.get(query)
        return "" if mark is None else mark.user


Output: TypeAlias = "tuple[str, str, str, int, int, int]"
"""What a commit gave to one topic: vhost, exchange, key, first LSN, last LSN, rows.  A group's LSNs are its own, so the
messages of that topic in this range are these."""


Settled: TypeAlias = "tuple[str, int, int]"
"""An input of a commit: stream, epoch, batch."""


Owner: TypeAlias = "Callable[[str], str]"
"""Whose a query is when this batch of it is committed, by whose it was; nobody's is "".  Raises AccessRefused."""


def kept(owner: str) -> str:
    """It stays whose it is."""
    return owner


@dataclass(frozen=True, slots=True)
class Batch:
    """What a commit is about, beside its rows.

    settle: the inputs, all settled in the same group or none.
    """

    query: str
    number: int
    settle: Sequence[Settled] = ()
    name: str = ""  # of the query, for people
    once: bool = False  # the query has no other batch, so it need not be remembered for long
    mandatory: bool = False  # a topic that nobody keeps refuses the batch
    skip_late: bool = False  # whatever is not above the highest committed batch counts as committed
    lineage: Mapping[str, object] | None = None  # what it was made of, written down beside what became of it
    owner: Owner = kept
    target: str = ""  # where all its rows go, in words; empty: not said
    before: Callable[[Now], object] | None = None  # what else belongs to the group, done before rows are published


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
        self.known = Remembered()
        self.decided: dict[str, DecidedState] = {}  # unfinished ones: at most one a query

    def load(self, state: DurableState) -> None:
        """Go on from what the log said."""
        self.known.load(state.sinks, state.sink_marks)
        self.decided = decided_copies(state.decided)

    def save(self, state: DurableState) -> None:
        """Write it into a durable state."""
        state.sinks, state.sink_marks = dict(self.known.batches), dict(self.known.marks)
        state.decided = decided_copies(self.decided)

    def commit(self, now: Now, batch: Batch, outputs: Sequence[Publishes]) -> Committed:
        """Publish the outputs of a batch, once.

        Errors: AccessRefused for another's query; PreconditionFailed when a later batch of this query was committed
        (unless `skip_late`), or an earlier one is decided and not yet copied; Fenced and others as `Streams.settle`;
        what `look` raises.  Nothing is written then.
        """
        if self._already(batch):
            return Committed(True, self._outbox.last_lsn)
        size = sum(output.size for output in outputs)
        if size > GROUP_BYTES_MAX:
            raise InvalidArgument(
                f"query '{batch.query}' batch {batch.number} has {size} bytes, a group at most {GROUP_BYTES_MAX}"
            )
        now = self._outbox.at(now)
        whole = self.whole(batch)
        for output in outputs:
            whole.look(now, output)
        whole.room()
        self._outbox.begin()
        mark = self._mark(batch)
        rows = sum(map(len, outputs))
        self._outbox.record(Kind.SINK_COMMIT, batch.query, {"batch": batch.number, "rows": rows, **MARK.dump(mark)})
        self._remember(now, batch, mark)
        if batch.before is not None:
            batch.before(now)
        published = self._publish(now, outputs)
        told: list[Output] = []
        if batch.lineage is not None:
            told = outputs_of(outputs, published)
            self._outbox.record(
                Kind.LINEAGE, batch.query, {"batch": batch.number, "of": batch.lineage, "outputs": told}
            )
        for settled in batch.settle:
            self._streams.settle(now, *settled, (batch.query, batch.number))
        self._outbox.end()
        return Committed(False, self._outbox.last_lsn, sum(one.stored for one in published), published, tuple(told))

    def whole(self, batch: Batch) -> Preflight:
        """For looking at the rows of a batch before it is committed; `commit` does so by itself."""
        return Preflight(self._publisher, f"batch {batch.number} of query '{batch.query}'", mandatory=batch.mandatory)

    def decide(self, now: Now, batch: Batch, parts: Sequence[DecidedPart]) -> Committed:
        """Commit a batch by naming its parts, which have rows and were looked at; `copy` brings these, in this order.

        The input is settled with the decision.  Errors as `commit`, without what is said of rows.
        """
        if self._already(batch):
            return Committed(True, self._outbox.last_lsn)
        now = self._outbox.at(now)
        told = tuple((stream, number) for stream, _, number in batch.settle)
        state = DecidedState(batch.number, self._outbox.next_lsn, tuple(parts), told)
        if state.complete:
            raise InvalidArgument(f"query '{batch.query}' batch {batch.number}: there are no rows to decide about")
        self._outbox.begin()
        mark = self._mark(batch)
        self._outbox.record(Kind.DECIDED, batch.query, {**state.header(), **MARK.dump(mark)})
        self.decided[batch.query] = state
        self._remember(now, batch, mark)
        if batch.before is not None:
            batch.before(now)
        if batch.lineage is not None:
            self._outbox.record(Kind.LINEAGE, batch.query, {"batch": batch.number, "of": batch.lineage})
        for settled in batch.settle:
            self._streams.settle(now, *settled, (batch.query, batch.number))
        self._outbox.end()
        return Committed(False, self._outbox.last_lsn)

    def copy(self, now: Now, query: str, rows: int, outputs: Sequence[Publishes]) -> Committed:
        """The next chunk of a decided batch: one group, whatever limits say by now.

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
        told = list[Published]()
        for output in outputs:
            output.checked = True  # when they were looked at, which was decided on
            if len(output):
                told.append(self._publisher.publish(now, output, Terms(persistent=True, admitted=True)))
        return tuple(told)

    def _mark(self, batch: Batch) -> SinkMark:
        owner = batch.owner(self.known.owner(batch.query))
        return SinkMark(self._outbox.next_lsn, batch.once, batch.name, owner, batch.target)

    def _remember(self, now: Now, batch: Batch, mark: SinkMark) -> None:
        gone = self.known.add(now.wall, batch.query, batch.number, mark, keep=self.decided)
        if gone:
            self._outbox.record(Kind.SINK_FORGET, "", {"queries": gone})

    def _already(self, batch: Batch) -> bool:
        """Whether a batch was committed before; raises what stands in its way."""
        query, number = batch.query, batch.number
        if not query or number < 0:
            raise InvalidArgument(
                f"a sink commit needs a query id and a batch of 0 or more, not {query!r} and {number}"
            )
        batch.owner(self.known.owner(query))
        highest = self.known.batches.get(query, -1)
        if number < highest and not batch.skip_late:
            raise PreconditionFailed(
                f"query '{query}' has committed batch {highest}; batch {number} comes too late: its checkpoint is an "
                "older copy, or two queries have it. Put the newest one back, or begin with a new one"
            )
        if number <= highest:
            self._refuse_elsewhere(batch)
            return True
        unfinished = self.decided.get(query)
        if unfinished is not None:
            raise PreconditionFailed(
                f"query '{query}' has decided batch {unfinished.batch}, and {unfinished.rows} of its "
                f"{unfinished.total} rows are written; batch {number} comes after them"
            )
        for settled in batch.settle:
            self._streams.check(*settled, query)
        return False

    def _refuse_elsewhere(self, batch: Batch) -> None:
        """PreconditionFailed for a committed batch that goes to another target now: its rows are not there."""
        mark = self.known.marks.get(batch.query)
        if batch.target and mark is not None and mark.target not in ("", batch.target):
            raise PreconditionFailed(
                f"query '{batch.query}' has committed batch {batch.number} to {mark.target}, and now it goes to "
                f"{batch.target}: two queries have this checkpoint, of which one needs its own; or its target was "
                "changed before Spark knew of that batch, and it has to be started once more with the former one"
            )


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
    stored = (batch.topics[row] for row in became.stored_rows(len(batch)))
    by_topic: dict[int, tuple[Topic, int, int, int]] = {}
    for topic, lsn in zip(stored, lsns, strict=True):
        before = by_topic.get(id(topic))
        by_topic[id(topic)] = (topic, lsn, lsn, 1) if before is None else (topic, before[1], lsn, before[3] + 1)
    yield from by_topic.values()
