"""What is worked out about a page of messages for a subscriber to records, off the loop: keys, matches, changes.

Also what a subscriber asks for (`Wish`), and what it is told (`Event`).
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import pyarrow as pa

from penstock.core.sow.holding import KeyRule
from penstock.core.sow.rows import SOW_KEY
from penstock.core.sow.select import Fields, SelectList, Term, changed, read_object, with_key, write_object
from penstock.errors import InvalidArgument
from penstock.expr import Filter
from penstock.expr.tree import Scalar
from penstock.records import properties as header_codec
from penstock.records.dataclass import dataclass
from penstock.records.entries import Topic
from penstock.server.judging import Ask, breathe, look, slices
from penstock.server.replaying.page import Page

if TYPE_CHECKING:
    from penstock.core.sow.holding import Sow


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
    body: bytes  # of an `oof` that was deleted or expired: what the record was
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
        number = rule.of_text(key) if rule.given else rule.of_body(body)
        numbers.append(-1 if isinstance(number, str) else number)
        keys.append(key if rule.given else str(number))
    n = len(page)
    lsns, times = list(page.lsns), [page.time_of(row) for row in range(n)]
    matches = [filter is None] * n
    if filter is not None:
        hits = look([filter], page.bodies, page.properties, page.topics, lsns=lsns, times=times, ask=ask)[0]
        for hit in hits:
            matches[hit] = True
    values: list[list[Scalar]] = [[] for _ in range(n)]
    for term in terms:
        found = term.value.values(page.bodies, page.properties, page.topics, lsns=lsns, times=times)
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
                record, before_it = read_object(event.body, "a record"), read_object(previous, "a record")
                seen = select.fields if select is not None else _whole
                changes = changed(seen(before_it), seen(record))
            except InvalidArgument:
                out.append(event)  # no objects: the whole is the change
                continue
            if not changes and not empties:
                continue
            event.body = write_object(with_key(changes, record, rule.paths))
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
    timestamp: bool = False  # the time is sent with each; who takes events does it

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
