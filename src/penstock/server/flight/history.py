"""Reading the past in the Flight thread itself: log ranges, replays, lists of LSNs.  Durable rows only, never the loop.

The log's own Arrow batches are handed through: columns chosen, control records masked out by Arrow compute, small
batches joined to about ten thousand rows.  No Python step a row but for a content filter.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
import re2

from penstock.errors import InvalidArgument
from penstock.expr import compile_filter
from penstock.records.entries import Topic
from penstock.records.kinds import NO_VIA, Kind
from penstock.wire.flight.bookmarks import Point, Span, parse_span
from penstock.wire.flight.codec import present
from penstock.wire.flight.schemas import MESSAGES, REPLAY_DEFAULT, log_schema, select
from penstock.wire.flight.tickets import LogRange, Replay

if TYPE_CHECKING:
    from penstock.log import Log

compute: Any = pyarrow.compute  # the stubs know fewer kinds of arrays than the functions take

BATCH_ROWS = 10_000
BATCH_BYTES = 16 * 2**20

Batches = Iterator[pa.RecordBatch]


def joined(batches: Iterable[pa.RecordBatch], rows: int = BATCH_ROWS, size: int = BATCH_BYTES) -> Batches:
    """The same rows in batches of about `rows` rows: small ones joined, larger ones as they are."""
    held: list[pa.RecordBatch] = []
    held_rows = held_bytes = 0
    for batch in batches:
        n, b = batch.num_rows, batch.nbytes
        if held and (held_rows + n > rows or held_bytes + b > size):
            yield join(held)
            held, held_rows, held_bytes = [], 0, 0
        held.append(batch)
        held_rows += n
        held_bytes += b
    if held:
        yield join(held)


def join(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Several batches as one."""
    concat: Any = getattr(pa, "concat_batches")  # noqa: B009 - the stubs do not know it
    return held[0] if len(held) == 1 else concat(held)


class History:
    """What the log can tell."""

    def __init__(self, log: Log, gone: Callable[[], bool]) -> None:
        self._log = log
        self.gone = gone  # whether the reader has left

    def exchange_of(self, via: int) -> str:
        """The exchange of a `via` id."""
        return self._log.vias.known[via][1]

    # -- log ranges

    def records(self, command: LogRange) -> tuple[pa.Schema, Batches]:
        """Records of all kinds with from <= lsn < to."""
        schema = log_schema(command.columns)
        end = min(command.to_lsn, self._log.durable + 1)
        return schema, self._records(command, end)

    def _records(self, command: LogRange, end: int) -> Batches:
        for batch in joined(self._log.batches(command.from_lsn, end, command.columns)):
            if self.gone():
                return
            yield batch.replace_schema_metadata(None)

    # -- replay

    def replay(self, command: Replay) -> tuple[pa.Schema, Batches]:
        """Messages of topics from a bookmark on, as far as the log was durable when the reading started."""
        schema = select(MESSAGES, command.columns or REPLAY_DEFAULT)
        start, end = self.resolve(parse_span(command.bookmark))
        keep = self._topics(command)
        rows = self._messages(start, end, keep)
        if command.filter is not None:
            rows = self.matching(rows, command.filter, command.vhost)
        if command.limit is not None:
            rows = limited(rows, command.limit)
        origin, exchange_of = self._log.origin, self.exchange_of
        return schema, (present(batch, schema, origin, exchange_of) for batch in rows)

    def resolve(self, span: Span) -> tuple[int, int]:
        """The LSNs [start, end) of a span at this moment."""
        log = self._log
        end = log.durable + 1
        start = self._place(span.start, span.with_start)
        if span.end is not None:
            end = min(end, self._place(span.end, not span.with_end))
        return start, max(start, end)

    def _place(self, point: Point, inclusive: bool) -> int:
        """The first LSN at (inclusive) or after a point."""
        log = self._log
        if point.kind == "epoch":
            return log.first_lsn
        if point.kind == "now":
            return log.durable + 1
        if point.kind == "time":
            return lsn_at(log, point.time if inclusive else point.time + 1)
        if point.origin != log.origin:
            raise InvalidArgument(
                f"bookmark {point.origin}|{point.lsn}| comes from another log; here they begin with {log.origin}|"
            )
        return point.lsn if inclusive else point.lsn + 1

    def _topics(self, command: Replay) -> Callable[[pa.RecordBatch], pa.Array[Any]]:
        """A mask of the rows whose topic is wanted."""
        known = self._log.vias.known
        vias = [via for via, pair in known.items() if pair == (command.vhost, command.exchange)]
        if command.topic is not None:
            name = pa.scalar(command.topic)
            wanted: Callable[[Any], Any] = lambda names: compute.equal(names, name)  # noqa: E731 - one line, one use
        else:
            wanted = _pattern(cast("str", command.pattern))

        def mask(batch: pa.RecordBatch) -> pa.Array[Any]:
            via = batch.column("via")
            if vias == [NO_VIA]:
                right = compute.is_null(via)
            elif not vias:
                right = pa.scalar(False)
            else:
                right = compute.fill_null(compute.is_in(via, value_set=pa.array(vias, pa.int32())), False)
            return cast("pa.Array[Any]", compute.and_(right, wanted(batch.column("name"))))

        return mask

    def _messages(self, start: int, end: int, keep: Callable[[pa.RecordBatch], pa.Array[Any]]) -> Batches:
        """Joined batches of the log with the wanted messages alone."""
        last = int(Kind.PUBLISH_TRANSIENT)
        for batch in joined(self._log.batches(start, end)):
            if self.gone():
                return
            mask: Any = compute.and_(compute.less_equal(batch.column("kind"), last), keep(batch))
            count = compute.sum(mask).as_py() or 0
            if count == batch.num_rows:
                yield batch
            elif count:
                yield batch.filter(mask)

    def matching(self, rows: Batches, text: str, vhost: str) -> Batches:
        """The rows that a content filter lets through."""
        matcher = compile_filter(text)
        for batch in rows:
            names = cast("list[str]", batch.column("name").to_pylist())
            one = names.count(names[0]) == len(names)
            topics = Topic(vhost, "", names[0]) if one else [Topic(vhost, "", name) for name in names]
            found = matcher.matches(
                cast("list[bytes]", batch.column("body").to_pylist()),
                cast("list[bytes]", batch.column("properties").to_pylist()),
                topics,
                lsns=cast("list[int]", batch.column("lsn").to_pylist()),
                times=cast("list[int]", batch.column("time").cast(pa.int64()).to_pylist()),
                origin=self._log.origin,
            )
            if any(found):
                yield batch.filter(pa.array(found, pa.bool_()))

    # -- lists of LSNs

    def rows_at(self, lsns: Sequence[int] | npt.NDArray[np.int64]) -> Batches:
        """The messages at ascending LSNs, in the log's columns; those that the log no longer has are left out."""
        asked = np.asarray(lsns, dtype=np.int64)
        return joined(self._rows_at(asked))

    def _rows_at(self, asked: Any) -> Batches:
        last = int(Kind.PUBLISH_TRANSIENT)
        at, n = 0, len(asked)
        while at < n:
            if self.gone():
                return
            first = int(asked[at])
            batch = next(self._log.batches(first, int(asked[-1]) + 1), None)
            if batch is None:
                return
            there = batch.column("lsn").to_numpy()
            stop = int(np.searchsorted(asked, there[-1], side="right"))
            places = np.searchsorted(there, asked[at:stop])
            hit = places[there[np.minimum(places, len(there) - 1)] == asked[at:stop]]
            kinds = batch.column("kind").to_numpy()[hit]
            hit = hit[kinds <= last]
            if len(hit) == batch.num_rows:
                yield batch
            elif len(hit) and int(hit[-1]) - int(hit[0]) == len(hit) - 1:
                yield batch.slice(int(hit[0]), len(hit))
            elif len(hit):
                yield batch.take(pa.array(hit))
            at = max(stop, at + 1)


def _pattern(text: str) -> Callable[[Any], Any]:
    """Topics that a regular expression matches somewhere, as `underlying_topic` does."""
    try:
        matcher = re2.compile(text)
    except re2.error as error:
        raise InvalidArgument(f"pattern {text[:60]!r} is not a regular expression: {error}") from None
    known = dict[str, bool]()

    def wanted(names: Any) -> Any:
        encoded = compute.dictionary_encode(names)
        hits: list[bool] = []
        for name in encoded.dictionary.to_pylist():
            hit = known.get(name)
            if hit is None:
                if len(known) > 100_000:
                    known.clear()
                hit = known[name] = matcher.search(name) is not None
            hits.append(hit)
        return compute.fill_null(compute.take(pa.array(hits, pa.bool_()), encoded.indices), False)

    return wanted


def lsn_at(log: Log, time: int) -> int:
    """The first LSN whose record is not older than `time`; one past the end when all are older.

    Record times never decrease, so this is a bisection over the LSNs, gaps included.
    """
    low, high = log.first_lsn, log.durable + 1
    while low < high:
        middle = (low + high) // 2
        batch = next(log.batches(middle, high), None)
        if batch is None:
            high = middle
            continue
        times = batch.column("time").cast(pa.int64()).to_numpy()
        lsns = batch.column("lsn").to_numpy()
        if times[-1] < time:
            low = int(lsns[-1]) + 1
        elif times[0] >= time:
            high = middle
        else:
            return int(lsns[int(np.searchsorted(times, time))])
    return low


def limited(rows: Batches, limit: int) -> Batches:
    """At most `limit` rows."""
    for batch in rows:
        if limit <= 0:
            return
        yield batch.slice(0, limit)
        limit -= batch.num_rows
