"""Reading the past: log ranges, replays, lists of LSNs; and measuring a replay, to read it in parts.  Durable rows
only, and never on the loop.

It runs in a Flight thread for what is small, and in the bulk child for what is not; `server.bulk.relay` decides.

The log's own Arrow batches are handed through: columns chosen, control records masked out by Arrow compute, small
batches joined to about ten thousand rows.  No Python step a row but for a content filter.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidArgument
from penstock.expr.context import RECORDS, Context
from penstock.expr.text_patterns import PatternError, searcher
from penstock.history.spans import Missing, Whole, check_missing, resolve
from penstock.log.catalog import Span as Rows
from penstock.log.name_index import Wanted
from penstock.log.record_batches import column, lengths
from penstock.log.record_batches import joined as as_one
from penstock.records.compute import compute, distinct_numbers
from penstock.records.dataclass import dataclass
from penstock.records.entries import Topic
from penstock.records.kinds import NO_VIA, Kind
from penstock.records.remembered import Memo
from penstock.wire.flight.bookmarks import Span, parse_span
from penstock.wire.flight.codec import present, presented
from penstock.wire.flight.commands import MESSAGES, REPLAY_DEFAULT, LogRange, Replay, log_schema, select

if TYPE_CHECKING:
    from penstock.expr import Filter

NAMES_MOST = 100_000
"""Names of topics of which one read remembers whether it wants them."""

TopicRight: TypeAlias = "tuple[str | None, bool | str]"
"""Which topics (a name, a pattern, None for all), and what of them: all, nothing, or what an expression is TRUE of."""


class TopicRights:
    """The entries of one user about the topics of one exchange, in their order."""

    def __init__(self, entries: Sequence[TopicRight], vhost: str, origin: int) -> None:
        from penstock.expr import TopicPattern  # not needed by most reads of a child

        told = [(None if name is None else TopicPattern(name), right) for name, right in entries]
        self._vhost = vhost
        self._origin = origin

        def right(topic: str) -> bool | str:
            return next((right for named, right in told if named is None or named.matches(topic)), False)

        self._right = Memo(NAMES_MOST, right)

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that may be read, in the log's own columns."""
        from penstock.expr import compile_filter

        for batch in batches:
            names = cast("list[str]", batch.column("name").to_pylist())
            rights = [self._right[name] for name in names]
            keep = np.array([right is True for right in rights], bool)
            for text in {right for right in rights if isinstance(right, str)}:
                places = np.array([place for place, right in enumerate(rights) if right == text], np.int64)
                some = batch.take(cast("Any", pa.array(places)))
                keep[places] = _matches(compile_filter(text), some, self._vhost, self._origin)
            if keep.all():
                yield batch
            elif keep.any():
                yield batch.filter(pa.array(keep))


def _matches(
    matcher: Filter, batch: pa.RecordBatch, vhost: str, origin: int, context: Context | None = None
) -> list[bool]:
    """Which rows of a batch a content filter lets through."""
    names = cast("list[str]", batch.column("name").to_pylist())
    one = names.count(names[0]) == len(names)
    return matcher.matches(
        cast("list[bytes]", batch.column("body").to_pylist()),
        cast("list[bytes]", batch.column("properties").to_pylist()),
        Topic(vhost, "", names[0]) if one else [Topic(vhost, "", name) for name in names],
        lsns=cast("list[int]", batch.column("lsn").to_pylist()),
        times=cast("list[int]", batch.column("time").cast(pa.int64()).to_pylist()),
        origin=origin,
        context=context,
    )


_TELLING = ("kind", "name", "via")
"""Columns that tell whether a row is a message, and of which topic."""

BATCH_ROWS = 20_000
BATCH_BYTES = 16 * 2**20

Batches: TypeAlias = Iterator[pa.RecordBatch]
Ints: TypeAlias = "npt.NDArray[np.int64]"


def joined(
    batches: Iterable[pa.RecordBatch], rows: int = BATCH_ROWS, size: int = BATCH_BYTES, *, whole: bool = False
) -> Batches:
    """The same rows in batches of about `rows` rows: small ones joined, those of more bytes cut.

    whole: none is cut, for whom what one group of the log says has to lie in one.
    """
    held: list[pa.RecordBatch] = []
    held_rows = held_bytes = 0
    for batch in batches if whole else chain.from_iterable(cut(one, size) for one in batches):
        n, b = batch.num_rows, batch.nbytes
        if held and (held_rows + n > rows or held_bytes + b > size):
            yield as_one(held)
            held, held_rows, held_bytes = [], 0, 0
        held.append(batch)
        held_rows += n
        held_bytes += b
    if held:
        yield as_one(held)


def cut(batch: pa.RecordBatch, size: int) -> Batches:
    """The same rows in batches of no more bytes, unless one row has more; none is copied."""
    todo = [batch]
    while todo:
        one = todo.pop()
        if one.num_rows < 2 or one.nbytes <= size:
            yield one
        else:
            half = one.num_rows // 2
            todo += [one.slice(half), one.slice(0, half)]


class Vias(Protocol):
    """What each via id stands for."""

    @property
    def known(self) -> dict[int, tuple[str, str]]: ...
    def topics(self, vias: list[int | None] | None, names: list[str]) -> list[Topic]: ...


class Past(Whole, Protocol):
    """A log to read: the server's own, or what the bulk child sees of it."""

    @property
    def vias(self) -> Vias: ...

    def batches(self, a: int, b: int, columns: Sequence[str] | None = None, names: Wanted | None = None) -> Batches:
        """Durable rows of all kinds with LSNs in [a, b); batches without a message of such a name may be left out."""
        ...

    def outlines(self, a: int, b: int, names: Wanted | None = None) -> Batches:
        """The rows of `batches` for who counts them: the bytes of the bodies mean nothing, their lengths are right."""
        ...


class Spread(Past, Protocol):
    """One that knows where rows lie without reading them."""

    def spans(self, a: int, b: int, names: Wanted | None = None) -> Iterator[Rows]:
        """Where `batches` would find rows, and about how many."""
        ...


PART_ROWS = 50_000
"""About how many messages a part has."""

PART_BYTES = 16 << 20
"""About how many bytes of bodies a part has, where they are large."""

PARTS_MAX = 8
"""More parts only when they are asked for."""

ROW_COST = 100
"""Bytes of a body that weigh as much as the fixed cost of its row."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a range ends, at the latest: at most so many messages and bytes of bodies, but one message in any case."""

    rows: int = 1 << 62
    bytes: int = 1 << 62
    parts: int = 1  # parts there are at least, if there are as many messages


@dataclass(frozen=True, slots=True)
class Measured:
    """A range of messages."""

    end: int  # everything below it was looked at
    rows: int
    bytes: int  # of their bodies
    cuts: tuple[int, ...]  # LSNs at which its parts begin, but for the first
    time: int  # of its last message, microseconds since the epoch; 0 without one


class History:
    """What the log can tell."""

    def __init__(self, log: Past, gone: Callable[[], bool], most: int = BATCH_BYTES) -> None:
        """most: bytes of a batch, unless one row has more."""
        self._log = log
        self._most = most
        self.gone = gone  # whether the reader has left

    def exchange_of(self, via: int) -> str:
        """The exchange of a `via` id."""
        return self._log.vias.known[via][1]

    @property
    def origin(self) -> int:
        """Of the log: what its bookmarks begin with."""
        return self._log.origin

    def present(
        self, batch: pa.RecordBatch, schema: pa.Schema, extra: Mapping[str, Callable[[], pa.Array[Any]]] | None = None
    ) -> pa.RecordBatch:
        """Rows of messages as readers get them: `codec.present`."""
        return present(batch, schema, self.origin, self.exchange_of, extra)

    # -- log ranges

    def records(self, command: LogRange) -> tuple[pa.Schema, Batches]:
        """Records of all kinds with from <= lsn < to."""
        schema = log_schema(command.columns)
        end = min(command.to_lsn, self._log.durable + 1)
        return schema, self._records(command, end)

    def _records(self, command: LogRange, end: int) -> Batches:
        rows = self._log.batches(command.from_lsn, end, command.columns)
        if command.kinds is not None:
            rows = self._of_kinds(command, end)
        for batch in joined(rows, size=self._most):
            if self.gone():
                return
            yield batch.replace_schema_metadata(None)

    def _of_kinds(self, command: LogRange, end: int) -> Batches:
        """Records of some kinds alone."""
        asked = command.columns
        hidden = asked is not None and "kind" not in asked
        for batch in self._log.batches(command.from_lsn, end, (*asked, "kind") if asked and hidden else asked):
            if self.gone():
                return
            mask = np.isin(batch.column("kind").to_numpy(), command.kinds or ())
            if mask.any():
                found = batch if mask.all() else batch.filter(pa.array(mask))
                yield found.drop_columns(["kind"]) if hidden else found

    # -- replay

    def replay(self, command: Replay) -> tuple[pa.Schema, Batches]:
        """Messages of topics from a bookmark on, as far as the log was durable when the reading started."""
        missing = check_missing(command.missing)
        return self.replay_between(command, *self.resolve(parse_span(command.bookmark), missing))

    def replay_between(self, command: Replay, start: int, end: int) -> tuple[pa.Schema, Batches]:
        """The same with the LSNs [start, end) that the command's bookmark stands for."""
        schema = select(MESSAGES, command.columns or REPLAY_DEFAULT)
        rows = self.chosen(command, start, end, presented(schema.names))
        if command.limit is not None:
            rows = limited(rows, command.limit)
        return schema, (self.present(batch, schema) for batch in rows)

    def chosen(self, command: Replay, start: int, end: int, columns: Collection[str] | None = None) -> Batches:
        """The messages of a replay with LSNs in [start, end), in the log's own columns; with these at least."""
        judged = command.rights is not None or command.filter is not None
        rows = self.messages(start, end, self.topics(command), names_wanted(command), None if judged else columns)
        if command.rights is not None:
            rows = TopicRights(command.rights, command.vhost, self._log.origin).rows(rows)
        if command.filter is not None:
            rows = self.matching(rows, command.filter, command.vhost)
        return rows

    def measure(self, command: Replay, start: int, end: int, limits: Limits) -> Measured:
        """The messages of a replay with LSNs in [start, end), as far as the limits reach.

        Every one is looked at once; its body is read where a filter does, else its length alone.  What comes out
        depends on the rows alone, so whoever measures the same range again gets the same.
        """
        lsns, sizes = list[Ints](), list[Ints]()
        rows = size = time = 0
        for some, their, last in self._weighed(command, start, end):
            total = np.cumsum(their)
            fit = min(len(some), limits.rows - rows)
            if size + int(total[-1]) > limits.bytes:
                fit = min(fit, int(np.searchsorted(total, limits.bytes - size, side="right")))
            if not rows:
                fit = max(fit, 1)
            if fit:
                lsns.append(some[:fit])
                sizes.append(their[:fit])
                rows, size, time = rows + fit, size + int(total[fit - 1]), last
            if fit < len(some) or rows == limits.rows:
                end = int(lsns[-1][-1]) + 1
                break
        return Measured(end, rows, size, _cuts(lsns, sizes, rows, size, limits.parts), time)

    def _weighed(self, command: Replay, start: int, end: int) -> Iterator[tuple[Ints, Ints, int]]:
        """LSNs and bytes of bodies of the wanted messages, and the time of the last of them; nothing is empty."""
        if command.filter is not None or command.rights is not None:
            for batch in self.chosen(command, start, end):
                if batch.num_rows:
                    yield column(batch, "lsn", "<i8"), lengths(batch, "body"), _last_time(batch, batch.num_rows - 1)
            return
        keep, last = self.topics(command), int(Kind.PUBLISH_TRANSIENT)
        for batch in self._log.outlines(start, end, names_wanted(command)):
            if self.gone():
                return
            mask: Any = compute.and_(compute.less_equal(batch.column("kind"), last), keep(batch))
            hits = compute.fill_null(mask, False).to_numpy(zero_copy_only=False)
            count = int(np.count_nonzero(hits))
            if not count:
                continue
            lsns, sizes = column(batch, "lsn", "<i8"), lengths(batch, "body")
            lsns = lsns[hits]  # a copy: an outline is good until the next one
            if count < len(hits):
                sizes = sizes[hits]
            yield lsns, sizes, _last_time(batch, int(np.flatnonzero(hits)[-1]))

    def resolve(self, span: Span, missing: Missing | None = None) -> tuple[int, int]:
        """The LSNs [start, end) of a span at this moment; `missing` as in `history.spans.resolve`."""
        found = resolve(self._log, span, missing)
        end = self._log.durable + 1
        if found.end is not None:
            end = min(end, found.end)
        return found.start, max(found.start, end)

    def topics(self, command: Replay) -> Callable[[pa.RecordBatch], pa.Array[Any]]:
        """A mask of the rows whose topic is wanted."""
        known = self._log.vias.known
        vias = [via for via, pair in known.items() if pair == (command.vhost, command.exchange)]
        if command.topic is not None:
            name = pa.scalar(command.topic)
            wanted: Callable[[Any], Any] = lambda names: compute.equal(names, name)  # noqa: E731 - one line, one use
        else:  # somewhere in the name, as `underlying_topic` does
            wanted = partial(named, matches=Memo(NAMES_MOST, search_of(cast("str", command.pattern))).__getitem__)

        def mask(batch: pa.RecordBatch) -> pa.Array[Any]:
            right = of_vias(batch.column("via"), vias)
            return cast("pa.Array[Any]", compute.and_(right, wanted(batch.column("name"))))

        return mask

    def messages(
        self,
        start: int,
        end: int,
        keep: Callable[[pa.RecordBatch], Any] | None = None,
        names: Wanted | None = None,
        columns: Collection[str] | None = None,
    ) -> Batches:
        """Joined batches of the log, in its own columns, with the wanted messages alone; all without `keep`.

        `names`: the names that `keep` can let through, so that the indexes of segments save reading the others.
        `columns`: those that are needed beside what tells which messages are wanted, for each is joined; None: all.
        """
        last = int(Kind.PUBLISH_TRANSIENT)
        needed = None if columns is None else sorted({*columns, *_TELLING})
        for batch in joined(self._log.batches(start, end, needed, names), size=self._most):
            if self.gone():
                return
            mask: Any = compute.less_equal(batch.column("kind"), last)
            if keep is not None:
                mask = compute.and_(mask, keep(batch))
            count = compute.sum(mask).as_py() or 0
            if count == batch.num_rows:
                yield batch
            elif count:
                yield compute.filter(batch, mask)

    def matching(
        self, rows: Batches, text: str, vhost: str, keys: Callable[[pa.RecordBatch], Sequence[str | None]] | None = None
    ) -> Batches:
        """The rows that a content filter lets through.  keys: of the rows of a batch, where they are records."""
        from penstock.expr import compile_filter  # a sixth of the start of a child, most of whose reads have no filter

        matcher = compile_filter(text) if keys is None else compile_filter(text, RECORDS)
        for batch in rows:
            context = None if keys is None else Context(sow_key=keys(batch))
            found = _matches(matcher, batch, vhost, self._log.origin, context)
            if any(found):
                yield batch.filter(pa.array(found, pa.bool_()))

    # -- lists of LSNs

    def rows_at(self, lsns: Sequence[int] | npt.NDArray[np.int64]) -> Batches:
        """The messages at ascending LSNs, in the log's columns; those that the log no longer has are left out."""
        asked = np.asarray(lsns, dtype=np.int64)
        return joined(self._rows_at(asked), size=self._most)

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


def _cuts(lsns: list[Ints], sizes: list[Ints], rows: int, size: int, least: int) -> tuple[int, ...]:
    parts = min(rows, max(least, min(PARTS_MAX, max(-(-rows // PART_ROWS), -(-size // PART_BYTES)))))
    if parts <= 1:
        return ()
    weights = np.cumsum(np.concatenate(sizes) + ROW_COST)
    places = np.searchsorted(weights, np.arange(1, parts) * (int(weights[-1]) / parts)) + 1
    places = distinct_numbers(np.minimum(places, rows - 1))
    return tuple(cast("list[int]", np.concatenate(lsns)[places].tolist()))


def _last_time(batch: pa.RecordBatch, row: int) -> int:
    return int(column(batch, "time", "<i8")[row])


def names_wanted(command: Replay) -> Wanted:
    """What the names of a replay's topics are."""
    if command.topic is not None:
        return command.topic
    return search_of(cast("str", command.pattern))


def search_of(text: str) -> Callable[[str], bool]:
    """What a pattern of topics finds.  InvalidArgument for one that RE2 cannot run."""
    try:
        return searcher(text)
    except PatternError as error:
        raise InvalidArgument(f"pattern {text[:60]!r} is not a regular expression: {error.why}") from None


def named(column: Any, matches: Callable[[str], bool]) -> Any:
    """Which rows of a column of names match; each different name is asked about once."""
    encoded = compute.dictionary_encode(column)
    hits = pa.array([matches(name) for name in encoded.dictionary.to_pylist()], pa.bool_())
    return compute.fill_null(compute.take(hits, encoded.indices), False)


def of_vias(column: Any, vias: Sequence[int]) -> Any:
    """Which rows of a column of `via` ids have one of these."""
    others = [via for via in vias if via != NO_VIA]
    if not others:
        return compute.is_null(column) if vias else pa.scalar(False)
    found = compute.fill_null(compute.is_in(column, value_set=pa.array(others, pa.int32())), False)
    return compute.or_(found, compute.is_null(column)) if NO_VIA in vias else found


def limited(rows: Batches, limit: int) -> Batches:
    """At most `limit` rows."""
    for batch in rows:
        if limit <= 0:
            return
        yield batch.slice(0, limit)
        limit -= batch.num_rows
