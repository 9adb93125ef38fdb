"""Records of a SOW topic as they are read: a `sow` query of one moment, and what a page of messages tells a subscriber.

A query shows records that match, in an order, some of them.  The loop gives references to the index; rows are read from
the log in the caller's thread or in the bulk child.  Two passes where an order is asked for: the first keeps values and
places, the second reads what is shown.

A subscriber asks for a `Wish` and is told `Event`s: the records of one moment first, portion after portion, then what
keys, matches and changes of each page give, worked out off the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import pyarrow as pa

from penstock.core.sow.holding import KeyRule, Sow
from penstock.core.sow.index import Ints, Numbers, Snapshot
from penstock.core.sow.rows import SOW_KEY
from penstock.core.sow.select import (
    Fields,
    Ordered,
    SelectList,
    Term,
    Window,
    changed,
    parse_order,
    read_object,
    with_key,
    write_object,
)
from penstock.errors import InvalidArgument
from penstock.expr import Filter
from penstock.expr.tree import Scalar
from penstock.history.history import ROW_COST, Batches, History, Past
from penstock.log.record_batches import column, lengths
from penstock.records import properties as header_codec
from penstock.records.dataclass import dataclass
from penstock.records.entries import Messages, Topic
from penstock.records.message_types import MessageType, typed
from penstock.server.asking.judging import Ask, breathe, look, slices
from penstock.server.replaying.page import Page

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false


Kind = Literal["sow", "publish", "oof"]


@dataclass(slots=True)
class Event:
    """Something a subscriber to records is told."""

    kind: Kind
    number: int
    key: str
    topic: Topic
    lsn: int
    time: int
    properties: bytes
    body: bytes  # of an `oof` that was deleted or expired, or that a right keeps back from now on: what the record was
    reason: str = ""  # of an `oof`: deleted, expired, match


@dataclass(slots=True)
class Read:
    numbers: list[int]  # of the keys; a row without one, which was published before the topic had a key, has -1
    keys: list[str]
    matches: list[bool]
    values: list[list[Scalar]]  # by row the value of each term, for those that match


def given_key(data: bytes) -> str | None:
    """The key that a message's header gives."""
    headers = header_codec.peek(data)[4]
    key = None if headers is None else headers.get(SOW_KEY)
    return key if isinstance(key, str) else None


def read_page(page: Page, rule: KeyRule, filter: Filter | None, terms: Sequence[Term], ask: Ask | None) -> Read:
    """Keys, matches and values of a page.  Any thread."""
    numbers: list[int] = []
    keys: list[str] = []
    for row, body in enumerate(page.bodies):
        key = given_key(page.properties_of(row)) or "" if rule.given else ""
        number = rule.of_text(key) if rule.given else rule.of_body(body, page.properties_of(row))
        numbers.append(-1 if isinstance(number, str) else number)
        keys.append(key if rule.given else str(number))
    n = len(page)
    times = [page.time_of(row) for row in range(n)]
    messages = Messages(page.bodies, page.properties, page.topics, list(page.lsns), times)
    matches = [filter is None] * n
    if filter is not None:
        for hit in look([filter], messages, ask)[0]:
            matches[hit] = True
    values: list[list[Scalar]] = [[] for _ in range(n)]
    for term in terms:
        found = term.value.values(*messages)
        for of_row, value in zip(values, found, strict=True):
            of_row.append(value)
    return Read(numbers, keys, matches, values)


def differences(
    rows: Sequence[tuple[Event, int]],
    bodies: Mapping[int, bytes],
    rule: KeyRule,
    *,
    empties: bool,
    select: SelectList | None = None,
) -> list[Event]:
    """Events whose bodies are changes against the record at an LSN (0: whole), where `bodies` has it.  Any thread.

    empties: whether those without a change are told too.  select: the fields that count as a change.
    """
    out: list[Event] = []
    for event, before in rows:
        previous = bodies.get(before) if before else None
        if previous is not None:
            try:
                kind = rule.message_type
                record, before_it = read_object(event.body, "a record", kind), read_object(previous, "a record", kind)
                seen = select.fields if select is not None else _whole
                changes = changed(seen(before_it), seen(record))
            except InvalidArgument:
                out.append(event)  # no objects: the whole is the change
                continue
            if not changes and not empties:
                continue
            event.body = write_object(with_key(changes, record, rule.paths), rule.message_type)
        out.append(event)
    return out


def _whole(record: Fields) -> Fields:
    return record


def published(page: Page, row: int, number: int, key: str) -> Event:
    """A row of a page as an event."""
    return Event(
        "publish", number, key, page.topic_of(row), page.lsns[row], page.time_of(row), page.properties_of(row),
        page.bodies[row],
    )  # fmt: skip


def bare(kind: str, number: int, lsn: int, sow: Sow, reason: str) -> Event:
    """An event about a record whose body is still to be read."""
    topic = Topic(sow.vhost, sow.exchange, sow.name)
    return Event("oof" if kind == "oof" else "publish", number, str(number), topic, lsn, 0, b"\0\0", b"", reason)


PAGE_MOST = 10_000
"""Rows of the page of a paginated subscription."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a subscriber asks for."""

    sow: bool = True  # the records there are, first
    filter: str | None = None
    delta: bool = False  # changed fields only
    no_empties: bool = False  # of deltas those without a change are left out
    oof: bool = False  # to be told what goes out of focus
    order_by: tuple[str, ...] = ()
    top_n: int | None = None
    skip_n: int = 0
    conflation: int | None = None  # microseconds: of the changes of a key within them only the last (`server.views`)
    conflation_key: tuple[str, ...] = ()  # expressions that tell keys apart for that; empty: the record's own key
    projection: tuple[str, ...] = ()  # with `grouping`: rows as a view with these would have
    grouping: tuple[str, ...] | None = None
    select: SelectList | None = None  # which fields are sent; who takes events keeps to it, `Live` for empty deltas
    within: bool = False  # the filter has a right in it: of a record that it does not match nothing is told

    def reading(self, kind: MessageType) -> Wish:
        """The same of records of a type.  InvalidArgument for what says itself that it reads another."""
        filter = None if self.filter is None else typed(self.filter, kind)
        keys = tuple(typed(key, kind) for key in self.conflation_key)
        order = tuple(typed(one, kind) for one in self.order_by)
        select = None if self.select is None else self.select.reading(kind)
        return replace(self, filter=filter, conflation_key=keys, order_by=order, select=select)

    def __post_init__(self) -> None:
        paged, gathered = self.top_n is not None, self.projection or self.grouping is not None
        for wrong, why in (
            (self.skip_n and not paged, "skip_n needs top_n: it says how many of the first so many are passed over"),
            (
                self.top_n is not None and not 0 < self.top_n <= PAGE_MOST,
                f"top_n of a subscription is {self.top_n}, not in 1..{PAGE_MOST}",
            ),
            (paged and not self.sow, "top_n needs the records there are: ask for sow, too"),
            (
                self.conflation is not None and (self.delta or paged),
                "conflation does not go with deltas, nor with a page: it leaves changes out",
            ),
            (self.conflation_key and self.conflation is None, "conflation_key goes with conflation"),
            (self.no_empties and not self.delta, "no_empties is about deltas: ask for delta, too"),
            (
                self.select is not None and gathered,
                "select does not go with projection and grouping: those say which fields there are",
            ),
        ):
            if wrong:
                raise InvalidArgument(why)

    @property
    def paged(self) -> bool:
        """Whether it follows a page of the records."""
        return self.top_n is not None

    @property
    def focused(self) -> bool:
        """Whether it matters which records the subscriber has: a change is none of one that he might not read."""
        return self.oof or (self.delta and self.within)

    @property
    def knowing(self) -> bool:
        """Whether what comes depends on what came before."""
        return self.delta or self.oof or self.paged


Piece: TypeAlias = "tuple[pa.RecordBatch, bytes] | pa.RecordBatch"


def selected(rows: Iterable[Piece], wanted: SelectList) -> Iterator[Piece]:
    """The same batches, some with metadata beside them, with smaller bodies.  Any thread but the loop's."""
    for piece in rows:
        yield (_batch(piece[0], wanted), piece[1]) if isinstance(piece, tuple) else _batch(piece, wanted)


def _batch(batch: pa.RecordBatch, wanted: SelectList) -> pa.RecordBatch:
    place = batch.schema.get_field_index("body")
    if place < 0 or not batch.num_rows:
        return batch
    column = batch.schema.field(place)
    bodies = sent(cast("list[bytes]", batch.column(place).to_pylist()), wanted)
    return batch.set_column(place, column, pa.array(bodies, column.type))


def sent(bodies: Sequence[bytes], wanted: SelectList) -> list[bytes]:
    """Bodies as they are sent, a slice between two breaths.  Any thread but the loop's."""
    out: list[bytes] = []
    for rows in slices(range(len(bodies)), list(map(len, bodies))):
        out += [wanted.body(bodies[row]) for row in rows]
        breathe()
    return out


# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false


PORTION_BYTES = 16 << 20
"""Bytes of an ordered answer that are read together: for each portion the log is looked through once."""


class _Seen:
    """Rows that were looked at in the log's order, to be read again in another one."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._lsns, self._sizes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]

    def add(self, batch: pa.RecordBatch) -> list[int]:
        """Their LSNs, above all before."""
        lsns = column(batch, "lsn", "<i8").copy()
        self._lsns.append(lsns)
        self._sizes.append(lengths(batch, "body") + lengths(batch, "properties") + ROW_COST)
        return cast("list[int]", lsns.tolist())

    def rows(self, chosen: Sequence[int]) -> Batches:
        """Some of them, in this order; those that the log no longer has are left out."""
        wanted = np.array(chosen, dtype=np.int64)
        places = np.searchsorted(np.concatenate(self._lsns), wanted)
        weights = np.cumsum(np.concatenate(self._sizes)[places])
        start = 0
        while start < len(wanted):
            fits = weights[start - 1] + PORTION_BYTES if start else PORTION_BYTES
            end = max(start + 1, int(np.searchsorted(weights, fits, side="right")))
            yield from self._portion(wanted[start:end])
            start = end

    def _portion(self, wanted: Ints) -> Batches:
        held = list(self._history.rows_at(np.sort(wanted)))
        if held:
            table: Any = pa.Table.from_batches(held).combine_chunks()
            there = cast("Ints", table.column("lsn").to_numpy())
            place = np.minimum(np.searchsorted(there, wanted), len(there) - 1)
            found = table.take(pa.array(place[there[place] == wanted]))
            del held, table, there  # a reader may take his time
            yield from found.to_batches()


@dataclass(frozen=True, slots=True)
class Query:
    filter: str | None = None
    order_by: tuple[str, ...] = ()
    top_n: int | None = None
    skip_n: int = 0
    batch_size: int = 10_000

    def __post_init__(self) -> None:
        if self.skip_n and self.top_n is None:
            raise InvalidArgument("skip_n needs top_n: it says how many of the first so many are passed over")

    def reading(self, kind: MessageType) -> Query:
        """The same of bodies of a type.  InvalidArgument for an expression that says itself that it reads another."""
        filter = None if self.filter is None else typed(self.filter, kind)
        return replace(self, filter=filter, order_by=tuple(typed(one, kind) for one in self.order_by))


@dataclass(slots=True)
class Counts:
    """What a query came to, complete once its rows are."""

    compared: int = 0  # records looked at
    matches: int = 0
    returned: int = 0

    def plain(self) -> dict[str, int]:
        return {"topic_matches": self.compared, "matches": self.matches, "records_returned": self.returned}

    def take(self, told: Mapping[str, int]) -> None:
        """Of an answer that was given elsewhere."""
        self.compared, self.matches, self.returned = (told[name] for name in self.plain())


@dataclass(slots=True)
class Found:
    """The present record of each key of a topic, or messages of a queue, which have no keys; the oldest first."""

    numbers: Numbers  # of keys
    lsns: Ints
    history: History
    vhost: str
    given: bool | None = None  # whether publishers give the keys; None: they are messages

    def __post_init__(self) -> None:
        order = np.argsort(self.lsns)
        self.numbers, self.lsns = self.numbers[order], self.lsns[order]

    def run(self, query: Query, counts: Counts) -> Batches:
        """The rows of an answer, in the log's columns, no more than `batch_size` a batch."""
        rows = _counted(self.history.rows_at(self.lsns), counts)
        if query.filter is not None:
            keys = None if self.given is None else self.keys_of
            rows = self.history.matching(rows, query.filter, self.vhost, keys)
        terms = parse_order(query.order_by or None)
        ordered = terms or query.top_n is not None
        for batch in self._ordered(query, terms, rows, counts) if ordered else _matches(rows, counts):
            counts.returned += batch.num_rows
            for start in range(0, batch.num_rows, query.batch_size):
                yield batch.slice(start, query.batch_size)

    def _ordered(self, query: Query, terms: Sequence[Term], rows: Batches, counts: Counts) -> Batches:
        most = None if query.top_n is None else query.top_n + query.skip_n
        ordered, seen = Ordered(terms, most), _Seen(self.history)
        for batch in rows:
            counts.matches += batch.num_rows
            ordered.add(self.numbers_of(batch), seen.add(batch), values_of(terms, batch, self.vhost))
        return seen.rows(ordered.lsns()[query.skip_n :])

    def page(self, window: Window, filter: str | None, terms: Sequence[Term]) -> Batches:
        """All that match are given their place; the rows of the page."""
        rows: list[tuple[int, int, Sequence[object]]] = []
        seen = _Seen(self.history)
        for batch in self.run(Query(filter), Counts()):
            own, columns = seen.add(batch), values_of(terms, batch, self.vhost)
            values = zip(*columns, strict=True) if columns else [()] * len(own)
            rows += zip(self.numbers_of(batch), own, values, strict=True)
        return seen.rows(window.fill(rows))  # type: ignore[arg-type]  # values of expressions

    def numbers_of(self, batch: pa.RecordBatch) -> list[int]:
        """The key of each row."""
        return cast("list[int]", self.numbers[np.searchsorted(self.lsns, batch.column("lsn").to_numpy())].tolist())

    def keys_of(self, batch: pa.RecordBatch) -> list[str | None]:
        """The key of each row as people see it: the number, or what the publisher gave."""
        if self.given:
            return [given_key(data) for data in cast("list[bytes]", batch.column("properties").to_pylist())]
        return [str(number) for number in self.numbers_of(batch)]


def _counted(rows: Batches, counts: Counts) -> Batches:
    for batch in rows:
        counts.compared += batch.num_rows
        yield batch


def _matches(rows: Batches, counts: Counts) -> Batches:
    for batch in rows:
        counts.matches += batch.num_rows
        yield batch


def values_of(terms: Sequence[Term], batch: pa.RecordBatch, vhost: str) -> list[list[Any]]:
    """For each term the value of each row."""
    if not terms:
        return []
    bodies = cast("list[bytes]", batch.column("body").to_pylist())
    headers = cast("list[bytes]", batch.column("properties").to_pylist())
    topics = [Topic(vhost, "", name) for name in cast("list[str]", batch.column("name").to_pylist())]
    own = cast("list[int]", batch.column("lsn").to_pylist())
    times = cast("list[int]", batch.column("time").cast(pa.int64()).to_pylist())
    return [term.value.values(bodies, headers, topics, lsns=own, times=times) for term in terms]


TOLD_BYTES = 256 << 10
"""Of records that are told together, unless one has more: they wait in memory for a client that may not read."""


def portions(
    taken: object,
    sow: Sow,
    filter: str | None,
    terms: Sequence[Term],
    window: Window | None,
    log: Past,
    gone: Callable[[], bool],
    size: int,
) -> Iterator[list[Event]]:
    """Records that match, or those on the page, which is filled then; in the order that `terms` say."""
    assert isinstance(taken, Snapshot)
    found = Found(*taken.arrays(), History(log, gone, TOLD_BYTES), sow.vhost)
    order = tuple(f"{term.value.text} {'DESC' if term.descending else 'ASC'}" for term in terms)
    query = Query(filter, order, batch_size=size)
    for batch in found.run(query, Counts()) if window is None else found.page(window, filter, terms):
        yield list(_events(batch, found.numbers_of(batch), sow))


def _events(batch: pa.RecordBatch, numbers: Sequence[int], sow: Sow) -> Iterator[Event]:
    topic = Topic(sow.vhost, sow.exchange, sow.name)
    columns = (
        batch.column("lsn").to_pylist(),
        batch.column("time").cast(pa.int64()).to_pylist(),
        batch.column("properties").to_pylist(),
        batch.column("body").to_pylist(),
    )
    rows = cast("Iterator[tuple[int, int, int, bytes, bytes]]", zip(numbers, *columns, strict=True))
    for number, lsn, time, properties, body in rows:
        key = given_key(properties) or "" if sow.rule.given else str(number)
        yield Event("sow", number, key, topic, lsn, time, properties, body)
