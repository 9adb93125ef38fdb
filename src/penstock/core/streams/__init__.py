"""Streams: durable readers of a queue that get the same rows when they ask again.

A stream's offset is a dense batch number.  One durable step settles what ended at the start and grants the next batch;
asking twice with the same start gives the same batch, so a reader that lost its last step after a crash loses and
repeats nothing.  Each opening has an epoch that fences older readers.  What a stream holds of a queue are ordinary
leases of a silent consumer (`stream_table`, which also has what becomes of streams that nobody reads).

In `log` mode nothing is granted (`stream_table.Ranges`).

Batches that fail again and again are narrowed to the row that is to blame, and that row is put aside.
Spark runs a batch again with the same rows until it has committed it, so a row on which the user's code raises would
stop its stream for ever.  What a reader says when it goes on with a batch that it did not plan itself (`resume`) tells
that an earlier one came to nothing with it.  After so many tries as the reader allows, the batch keeps its first
sixteenth; the others go back to their places in the queue, uncounted, and come in batches of that size until all of
them have passed.  Inside, one failure is enough to narrow again; a single row has as many tries as the batch had, and
then leaves the queue for the reason `poison`, as the queue's dead letters and actions say.  Its batch is empty from
then on, so that Spark's offsets stay dense.

When a batch may change, since Spark's exactly-once rests on the same rows for the same offsets:

- only between two readers: the first `resume` of a batch under an epoch decides, and from then on the batch is what it
  is as long as that reader lives.  Reads name the revision that they were told, and another one is refused.
- only a batch that is not settled.  A query that settles its input with its output has then shown nothing of it.
- only when the server knows which query's batch it is (its tasks say so when they read) and no sink has committed that
  batch here.  A sink elsewhere is not asked: whoever sets a limit there says that a batch which failed so often in
  a row has not been committed by it.
- never more than `POISON_ROWS` rows in succession: then it is the code, and not the rows.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from operator import le

from penstock.core.effects import Effect, Verb
from penstock.core.outbox import Outbox
from penstock.core.queue.queue import Queue
from penstock.core.state.streams import Asked, StreamState
from penstock.core.streams.stream_table import (
    Changes,
    Holdings,
    Ranges,
    StreamTable,
    chunks_of,
    elsewhere,
    refuse_other_topic,
)
from penstock.errors import Fenced, InvalidArgument, PreconditionFailed
from penstock.records.chunks import Chunk, Now, pack_pairs, pairs_of
from penstock.records.dataclass import dataclass
from penstock.records.kinds import Kind

PARTS = 16
"""A sixteenth stays: as quick to the row as halves, with a fourth of the failures, each of which costs a start of a
query."""

POISON_ROWS = 10
"""Rows of a stream that are put aside without a batch in between that was settled."""


@dataclass(frozen=True, slots=True)
class Link:
    """Which query's batch the rows of a planned batch are."""

    batch: int
    query: str
    query_batch: int
    epoch: int | None = None  # of the reader that planned it, where the task says so


@dataclass(frozen=True, slots=True)
class Resumed:
    """The answer to `resume`: what is left of the batch, and what became of the rest."""

    rows: int
    revision: int
    tries: int  # that came to nothing
    left: int = 0  # rows that went back to the queue just now
    poison: int | None = None  # the LSN that was put aside just now
    link: Link | None = None  # whose stages of earlier tries are void, when the batch was narrowed


class Poison:
    """The batches of all streams that came to nothing, and who reads them."""

    def __init__(self, streams: StreamTable, settle: Callable[[Now, str, int, int], None]) -> None:
        """settle: every batch of a stream up to one, for the reader of this epoch."""
        self._outbox = streams.outbox
        self._holding = streams.holdings
        self._streams = streams
        self._settle = settle
        self._links: dict[str, Link] = {}  # of the batch read last; of this process alone
        self._resumed: dict[str, tuple[int, int]] = {}  # the epoch and the batch that was resumed last; the same
        self.committed: Callable[[str], int] = lambda query: -1  # the highest batch of a query that a sink committed

    def read(
        self, name: str, batch: int, revision: int | None = None, link: Link | None = None, epoch: int | None = None
    ) -> tuple[Chunk, ...]:
        """The messages of a batch, for a reader who was told a revision and who says whose batch it is.

        Errors: NotFound when it is not known; Fenced instead for an older epoch, whose batch another reader has left
        behind or whose messages went back to the queue, and when it was narrowed since; PreconditionFailed when it
        would be a batch of its query that was another batch of the stream before.
        """
        state = self._streams.state(name)
        if epoch is not None and not state.plans.get(batch):
            self._streams.fenced(name, epoch, state.mode)
        chunks = self._streams.batch(name, batch)
        if (link is not None or revision is not None) and batch == state.planned > state.floor:
            if revision is not None and revision != state.doubt.revision:
                raise Fenced(
                    f"stream '{name}' batch {batch} was narrowed, because it failed, and another reader has it now"
                )
            if link is not None:
                _refuse_repeated(name, link, state.doubt.last)
                self._links[name] = link
        return chunks

    def refuse_other(self, name: str, batch: int, query: str) -> None:
        """Whether a commit of this query may settle the batch: its rows are in one commit, however many read them.

        Errors: Fenced when the stream was opened, or released, since its tasks have read the batch: its messages are
        another reader's by now, or back in the queue.  PreconditionFailed when another query has done it.
        """
        state, link = self._streams.state(name), self._links.get(name)
        if batch <= state.floor:
            last = state.doubt.last
            if last is not None and last[0] != query:
                raise PreconditionFailed(
                    f"batch {batch} of stream '{name}' was settled by query {last[0]}, and query {query} brings it "
                    "again: two queries have read the stream. Delete the checkpoint of one of them, or give it a "
                    "stream of its own"
                )
        elif link is not None and link.batch == batch:
            if link.epoch is not None:
                self._streams.fenced(name, link.epoch, "queue")
            if link.query != query:
                raise Fenced(f"batch {batch} of stream '{name}' is now read by query {link.query}, not by {query}")

    def whose(self, name: str, batch: int) -> dict[str, object]:
        """For the record that settles a batch: the query and its batch that it was, if that is known."""
        link = self._links.get(name)
        return {} if link is None or link.batch != batch else {"query": link.query, "query_batch": link.query_batch}

    def resume(self, now: Now, name: str, epoch: int, batch: int, limit: int = 0, *, blame: bool = True) -> Resumed:
        """A reader goes on with a batch that it did not plan: whoever did came to nothing with it.

        limit: tries after which the batch is narrowed; 0: never.
        blame: whether its rows may have been the reason; else the try does not count, and the batch stays as it is.
        Errors: Fenced, InvalidArgument; NotFound for a batch that is not known.
        """
        state = self._streams.fenced(name, epoch, "queue")
        self._streams.batch(name, batch)
        pairs, doubt = state.plans[batch], state.doubt
        rows = rows_of(pairs)
        if batch != state.planned or batch <= state.floor:
            return Resumed(rows, 0, 0)
        if self._resumed.get(name) == (epoch, batch):
            return Resumed(rows, doubt.revision, doubt.tries)
        queue = self._streams.queue(name, state)
        self._resumed[name] = epoch, batch
        if not blame:
            return Resumed(rows, doubt.revision, doubt.tries)
        tries = doubt.tries + 1
        link = self._links.get(name)
        now = self._outbox.at(now)
        header: dict[str, object] = {"batch": batch, "epoch": epoch, "time": now.wall}
        if link is None or not self._may_change(link, batch) or not is_due(state, rows, tries, limit):
            header["tries"] = tries
            self._streams.write(Kind.STREAM_TRY, name, state, header)
            return Resumed(rows, doubt.revision, tries)
        piece = -(-rows // PARTS) if rows > 1 else 0
        kept, others = split(pairs, piece)
        header["revision"] = doubt.revision + 1
        header |= {"level": [piece, rows - piece]} if piece else {"poison": 1}
        body = pack_pairs(state.queue, kept)
        self._outbox.begin()
        self._streams.write(Kind.STREAM_NARROW, name, state, header, body)
        self._holding.settle(now, queue, name, list(chunks_of(others)), Verb.UNSEEN if piece else Verb.EXPIRE)
        self._outbox.end()
        if piece:
            return Resumed(piece, doubt.revision, 0, left=rows - piece, link=link)
        return Resumed(0, doubt.revision, 0, poison=others[0], link=link)

    def take_over(self, now: Now, name: str, epoch: int) -> None:
        """The checkpoint of the query before is lost: settle the batch it had, if a sink of ours has committed that."""
        state = self._streams.fenced(name, epoch, "queue")
        link = self._links.get(name)
        if link is not None and link.batch == state.planned and not self._may_change(link, link.batch):
            self._settle(now, name, epoch, link.batch)

    def forget(self, name: str) -> None:
        self._links.pop(name, None)
        self._resumed.pop(name, None)

    def _may_change(self, link: Link, batch: int) -> bool:
        """Whether we know whose the batch is, and that no sink has committed it."""
        return link.batch == batch and self.committed(link.query) < link.query_batch


def _refuse_repeated(name: str, link: Link, last: tuple[str, int] | None) -> None:
    """Sinks know a query's batch by its number, and would drop these rows as what they have already."""
    if last is not None and link.query == last[0] and link.query_batch <= last[1]:
        raise PreconditionFailed(
            f"batch {link.batch} of stream '{name}' would be batch {link.query_batch} of query {link.query}, which has "
            f"done its batch {last[1]} with earlier messages: its checkpoint has lost entries. Delete what is left of "
            "it and set option onLostCheckpoint to continue"
        )


def is_due(state: StreamState, rows: int, tries: int, limit: int) -> bool:
    """Whether a batch that came to nothing so often is narrowed."""
    if not limit or not rows or (rows == 1 and state.doubt.poisoned >= POISON_ROWS):
        return False
    return tries >= (1 if state.doubt.levels and rows > 1 else limit)


def split(pairs: array[int], rows: int) -> tuple[array[int], array[int]]:
    """The first `rows` messages of these pairs, and the others."""
    kept, others = array("q"), array("q")
    for i in range(0, len(pairs), 2):
        low, high = pairs[i], pairs[i + 1]
        middle = min(high, low + max(rows, 0))
        rows -= middle - low
        if middle > low:
            kept.extend((low, middle))
        if high > middle:
            others.extend((middle, high))
    return kept, others


def rows_of(pairs: array[int]) -> int:
    """How many messages pairs have."""
    return sum(pairs[1::2]) - sum(pairs[::2])


GONE_MOST = 1000
"""Streams that are remembered for a sentence after their queue is gone."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The answer to `open`: what the reader proves itself by, and where the stream is."""

    epoch: int
    floor: int  # the last settled batch: where a reader without a checkpoint starts
    planned: int  # the highest batch that was ever planned


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer to `plan`: the batch to read next, or the start again when nothing is ready."""

    batch: int
    chunks: tuple[Chunk, ...]  # its messages, ascending
    revision: int = 0  # how often it was narrowed


class Streams(StreamTable):
    """All streams of a core."""

    def __init__(self, outbox: Outbox[Effect], holdings: Holdings, queue_of: Callable[[int], Queue | None]) -> None:
        super().__init__(outbox, holdings, queue_of)
        self._dropped: dict[str, int] = {}  # last epochs of streams that are no more; of this process alone
        self.ranges = Ranges(self)
        self.changes = Changes(self)
        self.poison = Poison(self, self.settle)

    def reads(self, queue: int) -> bool:
        """Whether some stream reads the queue of this id."""
        return any(state.queue == queue for state in self.states.values())

    def open(
        self,
        now: Now,
        name: str,
        queue: Queue | None,
        instance: str = "",
        mode: str = "queue",
        *,
        asked: Asked | None = None,
        abandon_after: int | None = None,
        anew: bool = False,
        pipeline: str | None = None,
        owner: str | None = None,
    ) -> Opened:
        """A reader starts: a new epoch, older ones are refused from now on.  `queue` is None in log mode.

        asked: in log mode what is read, as far as it was said; in mode changes which queue.
        abandon_after: microseconds, 0 for never; None: as it is.
        anew: in mode changes nothing is counted yet, and it may be another queue.
        pipeline: whose stream it is; None: as it is.  owner: the same of a user.
        Errors: PreconditionFailed when the stream reads another queue, another topic or in another mode; Unavailable
        for one that a fault has stopped.
        """
        self.refuse_stopped(name)
        _refuse_mode(name, queue, mode)
        number = queue.id if queue is not None else 0
        state = self.states.get(name)
        if state is not None:
            self._refuse_other(name, state, number, mode, None if anew else asked)
        else:
            state = self.states[name] = StreamState(number, self._dropped.get(name, 0), mode=mode)
            self.gone.pop(name, None)
        self.readers[name] = instance
        now = self.outbox.at(now)
        counts = 0 if anew else state.queue  # which queue it counted last: whose rows it still has
        reads = counts if mode == "changes" else number
        header: dict[str, object] = {
            "queue": reads, "epoch": state.epoch + 1, "mode": mode, "floor": state.floor, "time": now.wall
        }  # fmt: skip
        said = {
            "anew": anew or None, "asked": asked or None, "abandon_after": abandon_after, "pipeline": pipeline,
            "owner": None if state.owner == owner else owner,
        }  # fmt: skip
        header |= {key: value for key, value in said.items() if value is not None}
        self.write(Kind.STREAM, name, state, header)
        self.keeping.read(now, name, state)
        return Opened(state.epoch, state.floor, state.planned)

    def _refuse_other(self, name: str, state: StreamState, queue: int, mode: str, asked: Asked | None) -> None:
        """PreconditionFailed for a stream that reads something else."""
        if state.mode != mode or (mode != "changes" and state.queue != queue):
            present = self.queue_of(state.queue)
            what = f"queue '{present.name}' in vhost '{present.vhost}'" if present is not None else "the log"
            raise PreconditionFailed(f"stream '{name}' reads {what}; release and drop it, or use another name")
        if asked:
            refuse_other_topic(name, state.asked, asked)

    def plan(
        self, now: Now, name: str, epoch: int, start: int, rows_max: int, rows_min: int = 0, bytes_max: int = 0
    ) -> Plan:
        """Settle every batch up to `start`, then give the one after it: the planned one unchanged, or a new one.

        rows_min: no new one while fewer messages than that are ready, unless a batch may not have so many.
        bytes_max: of its bodies, where they are given out oldest first; 0: any number.

        Errors: Fenced for an old epoch; PreconditionFailed for a start beyond what was planned, which settles nothing,
        and for one so old that its next batch is no longer known.
        """
        state = self.fenced(name, epoch, "queue")
        if start > state.planned:
            raise PreconditionFailed(
                f"stream '{name}' has planned {state.planned} batches, and was asked to go on after batch {start}: "
                f"{elsewhere(state)}"
            )
        if rows_max < 1:
            raise InvalidArgument(f"stream '{name}': a batch has at least 1 row, not {rows_max}")
        queue = self.queue(name, state)
        planned = [batch for batch in state.plans if batch > start and len(state.plans[batch])]
        if start < state.floor and (start + 1 not in state.plans):
            raise PreconditionFailed(
                f"the checkpoint of stream '{name}' is at batch {start}, the stream at {state.floor}: acknowledged "
                "messages are not delivered again; put the newest checkpoint back, or delete this one and set option "
                f"onLostCheckpoint to continue, to go on at {state.floor + 1}"
            )
        now = self.outbox.at(now)
        self.keeping.read(now, name, state)
        with self.outbox.group():
            self._settle(now, name, state, queue, start)
            if planned:
                batch = min(planned)
                return Plan(batch, chunks_of(state.plans[batch]), state.doubt.revision if batch == state.planned else 0)
            rows_max = min(rows_max, state.doubt.rows_max)
            rows_max = queue.rows_within(bytes_max, rows_max) if bytes_max else rows_max
            if queue.stopped or queue.ready < min(rows_min, rows_max):
                return Plan(start, ())
            chunks = self.holdings.take(now, queue, name, rows_max)
            if not chunks:
                return Plan(start, ())
            return self._new(now, name, state, chunks)

    def settle(self, now: Now, name: str, epoch: int, batch: int, committed: tuple[str, int] | None = None) -> None:
        """Settle every batch up to this one.  committed: the query, and its batch, whose commit does.

        Errors as `plan` and `check`.
        """
        state = self.check(name, epoch, batch, committed and committed[0])
        now = self.outbox.at(now)
        self.keeping.read(now, name, state)
        self.outbox.begin()
        self._settle(now, name, state, self.queue(name, state), batch, committed)
        self.outbox.end()

    def check(self, name: str, epoch: int, batch: int, query: str | None = None) -> StreamState:
        """Whether `settle` would do it, with a commit of this query; raises what it would raise."""
        state = self.fenced(name, epoch, "queue")
        if batch > state.planned:
            raise PreconditionFailed(
                f"stream '{name}' has planned {state.planned} batches; batch {batch} cannot be settled"
            )
        self.queue(name, state)
        if query is not None:
            self.poison.refuse_other(name, batch, query)
        return state

    def release(self, now: Now, name: str, *, drop: bool = False, abandoned: bool = False) -> int:
        """Give back what is planned and not settled, hold nothing of the log; returns the number of messages.

        The reader is fenced; in log mode one that comes back may go on where it was, if the log still has it.
        drop: forget the stream.  abandoned: nobody has read it for `abandon_after`; in log mode nobody is fenced then.
        """
        state = self.state(name)
        held = [chunk for batch in state.plans if batch > state.floor for chunk in chunks_of(state.plans[batch])]
        now = self.outbox.at(now)
        epoch = state.epoch + (0 if abandoned and state.mode == "log" else 1)
        header: dict[str, object] = {"batch": state.planned, "epoch": epoch, "released": now.wall}
        if drop:
            header["dropped"] = True
            self._dropped[name] = epoch
        if abandoned:
            header["abandoned"] = True
        if epoch != state.epoch:
            self.readers.pop(name, None)
        self.outbox.begin()
        self.write(Kind.STREAM_RELEASE, name, state, header)
        if state.dropped:
            del self.states[name]
        queue = self.queue_of(state.queue)
        if queue is not None and held and state.mode == "queue":
            self.holdings.settle(now, queue, name, held, Verb.RELEASE)
        self.outbox.end()
        if abandoned:
            self.keeping.abandoned.append(name)
        return sum(map(len, held)) if state.mode == "queue" else 0

    def held(self, queue: int) -> dict[str, list[Chunk]]:
        """What each stream of a queue has planned and not settled."""
        return {
            name: [chunk for batch in sorted(s.plans) if batch > s.floor for chunk in chunks_of(s.plans[batch])]
            for name, s in self.states.items()
            if s.queue == queue and s.mode == "queue"
        }

    def queue_gone(self, queue: int) -> None:
        """The streams of a queue end with it."""
        for name in [name for name, state in self.states.items() if state.queue == queue and state.mode == "queue"]:
            del self.states[name]
            self.readers.pop(name, None)
            self.poison.forget(name)
            present = self.queue_of(queue)
            if len(self.gone) < GONE_MOST and present is not None:
                self.gone[name] = present.name

    def _settle(
        self, now: Now, name: str, state: StreamState, queue: Queue, batch: int,
        committed: tuple[str, int] | None = None,
    ) -> None:  # fmt: skip
        if batch <= state.floor:
            return
        done = [c for b in range(state.floor + 1, batch + 1) if b in state.plans for c in chunks_of(state.plans[b])]
        whose = self.poison.whose(name, batch)
        if committed is not None:
            whose = {"query": committed[0], "query_batch": committed[1]}
        header: dict[str, object] = {"batch": batch, **whose}
        self.write(Kind.PLAN_SETTLE, name, state, header)
        if done:
            self.holdings.settle(now, queue, name, done, Verb.ACK)

    def _new(self, now: Now, name: str, state: StreamState, chunks: list[Chunk]) -> Plan:
        pairs = joined(chunks)
        header = {"batch": state.planned + 1, "epoch": state.epoch, "queue": state.queue, "time": now.wall}
        body = pack_pairs(state.queue, pairs)
        self.write(Kind.PLAN, name, state, header, body)
        return Plan(state.planned, chunks_of(state.plans[state.planned]))


def _refuse_mode(name: str, queue: Queue | None, mode: str) -> None:
    """What `Streams.open` refuses whatever there is."""
    if not name:
        raise InvalidArgument("a stream needs a name")
    if mode not in ("queue", "log", "changes") or (mode != "changes" and (mode == "queue") is not (queue is not None)):
        raise InvalidArgument(f"stream '{name}': mode '{mode}' is 'queue' with a queue or 'log' without one")
    if mode == "queue" and queue is not None and queue.settings.non_destructive:
        raise PreconditionFailed(
            f"stream '{name}': queue '{queue.name}' is not destructive, so nothing of it can be settled: read its "
            "topic in mode 'log'"
        )


def joined(chunks: Sequence[Chunk]) -> array[int]:
    """Exact pairs of the chunks, ascending: a queue may give out later messages before earlier ones."""
    pairs = array("q")
    for chunk in chunks:
        pairs.extend(pairs_of(chunk, False))
    starts = pairs[::2]
    if all(map(le, starts, starts[1:])):
        return pairs
    out = array("q")
    for low, high in sorted(zip(starts, pairs[1::2], strict=True)):
        if out and out[-1] == low:
            out[-1] = high
        else:
            out.extend((low, high))
    return out
