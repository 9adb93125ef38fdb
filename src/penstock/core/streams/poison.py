"""Batches that fail again and again: narrowed to the row that is to blame, and that row put aside.

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
from collections.abc import Callable

from penstock.core.effects import Verb
from penstock.core.state.streams import StreamState
from penstock.core.streams.table import StreamTable, chunks_of
from penstock.errors import Fenced, PreconditionFailed
from penstock.records.chunks import Chunk, Now, pack_pairs
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
        behind, and when it was narrowed since; PreconditionFailed when it would be a batch of its query that was
        another batch of the stream before.
        """
        state = self._streams.state(name)
        if epoch is not None and batch not in state.plans:
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
