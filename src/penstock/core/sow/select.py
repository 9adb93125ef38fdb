"""Results of a query of records: which fields are sent, in which order, which page; and bodies as trees of fields.

Select lists say which fields of a JSON body are sent:

    -/, +/id, +/ship/to        nothing but the id, and where it goes
    -/notes                    all but the notes

`/` is the whole body; `-` leaves out, `+` sends.  The longest path that fits a field decides, and without `-/` a field
that no path names is sent.  A path goes through an array to each of its elements.  An object or an array of which
nothing is sent is not sent either.  A body that is no JSON object has no fields, and is sent as it is.  The list of a
right comes first: what it leaves out no list of a reader brings back, and of a body that is no JSON object nothing is
sent.

An order is `/total DESC, /id`: NULL first when ascending, numbers before text; ties by key.  A page has of all records
that match, in an order, those between `skip` and `skip + top`: a place for each record that matches, not its body.

Merging what a delta brings: a field is merged where both sides have an object, else it is replaced; arrays are replaced
whole, and nothing can be taken away.  Bodies are objects of their type; anything else is refused in a sentence.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import field
from functools import total_ordering
from math import isnan
from operator import itemgetter
from typing import cast

from penstock.errors import InvalidArgument
from penstock.expr import Value, compile_value
from penstock.expr.bodies import body_type
from penstock.expr.tree import Scalar
from penstock.records.dataclass import dataclass
from penstock.records.message_types import JSON, MessageType

Fields = dict[str, object]


def read_object(body: bytes, what: str, kind: MessageType = JSON) -> Fields:
    """The fields of a body.  InvalidArgument, naming `what`, for one that is no object of its type."""
    return body_type(kind).object(body, what)


def write_object(fields: Fields, kind: MessageType = JSON) -> bytes:
    """The inverse of `read_object`, without spaces.  InvalidArgument for what the type cannot hold."""
    row = body_type(kind)
    if row.write is None:
        raise row.unwritten()
    try:
        return row.write(fields)
    except ValueError as error:
        raise InvalidArgument(f"{row.title} cannot hold this: {str(error)[:100]}") from None


def merged(record: Fields, delta: Fields) -> Fields:
    """A record with the fields of a delta; neither is changed."""
    out = dict(record)
    for name, value in delta.items():
        present = out.get(name)
        if isinstance(present, dict) and isinstance(value, dict):
            out[name] = merged(cast("Fields", present), cast("Fields", value))
        else:
            out[name] = value
    return out


def merge(record: bytes | None, delta: bytes, kind: MessageType = JSON) -> bytes:
    """A record's body with the fields of a delta; None: there is none yet.  InvalidArgument unless both are objects."""
    changes = read_object(delta, "a delta", kind)
    before = {} if record is None else read_object(record, "the present record", kind)
    return write_object(merged(before, changes), kind)


def changed(before: Fields, after: Fields) -> Fields:
    """The fields of `after` that `before` has not, or with another value; objects field by field."""
    out: Fields = {}
    for name, value in after.items():
        if name not in before:
            out[name] = value
            continue
        present = before[name]
        if isinstance(present, dict) and isinstance(value, dict):
            inner = changed(cast("Fields", present), cast("Fields", value))
            if inner:
                out[name] = inner
        elif not _same(before[name], after[name]):
            out[name] = value
    return out


def _same(a: object, b: object) -> bool:
    return type(a) is type(b) and a == b


def with_key(changes: Fields, record: Fields, paths: Sequence[Sequence[str]]) -> Fields:
    """The key fields of the record, which say whose they are, and the changes."""
    out: Fields = {}
    for path in paths:
        _copy(out, record, path)
    return merged(out, changes)


def _copy(out: Fields, record: Fields, path: Sequence[str]) -> None:
    name = path[0]
    if name not in record:
        return
    if len(path) == 1:
        out[name] = record[name]
        return
    inner, source = out.get(name), record[name]
    if isinstance(source, dict):
        own: Fields = {**cast("Fields", inner)} if isinstance(inner, dict) else {}
        _copy(own, cast("Fields", source), path[1:])
        out[name] = own


PARTS_MOST = 1000
STEPS_MOST = 32
"""Parts of one list, and names of one of its paths."""

NESTED_MOST = 32
"""Arrays directly within arrays that a path goes through; what lies deeper counts as one value."""

_NOTHING = object()


@dataclass(slots=True)
class _Node:
    """A place that paths lead to."""

    sent: bool | None = None  # None: as what holds it
    inner: dict[str, _Node] = field(default_factory=dict["str", "_Node"])


class SelectList:
    """A list that was read.  Unchanging; any thread."""

    __slots__ = ("_first", "_kind", "_paths", "_root")

    def __init__(
        self,
        paths: Sequence[tuple[bool, tuple[str, ...]]],
        first: SelectList | None = None,
        kind: MessageType = JSON,
    ) -> None:
        """paths: whether what stands there is sent, and the names that lead there.  first: the list of a right.

        kind: of the bodies.
        """
        self._paths = tuple(paths)
        self._first = first
        self._kind = kind
        self._root = _Node()
        for sent, path in paths:
            node = self._root
            for name in path:
                node = node.inner.setdefault(name, _Node())
            node.sent = sent

    def with_paths(self, paths: Sequence[tuple[str, ...]]) -> SelectList:
        """The same, and these fields, which a delta needs: the key says whose the changes are."""
        own = {path for _, path in self._paths} - set(paths)
        kept = [one for one in self._paths if one[1] in own]
        return SelectList(kept + [(True, path) for path in paths], self._first, self._kind)

    @property
    def parts(self) -> tuple[str, ...]:
        """The list as it is written, without that of a right."""
        return tuple(f"{'+' if sent else '-'}/{'/'.join(path)}" for sent, path in self._paths)

    def within(self, right: SelectList) -> SelectList:
        """The same, of what a right lets a reader see."""
        return SelectList(self._paths, right, self._kind)

    def reading(self, kind: MessageType) -> SelectList:
        """The same of bodies of a type.  InvalidArgument for one that cannot be written again."""
        row = body_type(kind)
        if row.write is None:
            raise InvalidArgument(f"select: {row.title} is not written here, so its bodies are sent whole")
        return self if kind == self._kind else SelectList(self._paths, self._first, kind)

    def shows(self, path: Sequence[str]) -> bool:
        """Whether all is sent that stands at a path."""
        node, on = self._root, True
        for name in (None, *path):
            if name is not None:
                if name not in node.inner:
                    return on
                node = node.inner[name]
            on = on if node.sent is None else node.sent
        return on and all(inner.sent is not False for inner in _below(node))

    def fields(self, record: Fields) -> Fields:
        """The fields of a body that are sent; it is not changed."""
        if self._first is not None:
            record = self._first.fields(record)
        found = _sent(record, self._root, on=True, nested=0)
        return {} if found is _NOTHING else cast("Fields", found)

    def body(self, body: bytes) -> bytes:
        """A body as it is sent."""
        try:
            record = read_object(body, "a body", self._kind)
        except InvalidArgument:
            return body if self._first is None else b""
        return write_object(self.fields(record), self._kind)


def _below(node: _Node) -> Iterator[_Node]:
    for inner in node.inner.values():
        yield inner
        yield from _below(inner)


def _sent(value: object, node: _Node, *, on: bool, nested: int) -> object:
    """What of a value is sent; `_NOTHING` when that is nothing.  on: whether what holds it is sent."""
    on = on if node.sent is None else node.sent
    whole = value if on else _NOTHING
    if not node.inner:
        return whole
    kept: Fields | list[object]
    if isinstance(value, dict):
        kept = _sent_fields(cast("Fields", value), node, on=on)
    elif isinstance(value, list) and nested < NESTED_MOST:
        each: list[object] = [_sent(one, node, on=on, nested=nested + 1) for one in cast("list[object]", value)]
        kept = [one for one in each if one is not _NOTHING]
    else:
        return whole
    return kept if on or kept else _NOTHING


def _sent_fields(value: Fields, node: _Node, *, on: bool) -> Fields:
    """Of an object the fields that are sent, each as far as it is."""
    out: Fields = {}
    for name, one in value.items():
        inner = node.inner.get(name)
        if inner is not None:
            one = _sent(one, inner, on=on, nested=0)
        elif not on:
            continue
        if one is not _NOTHING:
            out[name] = one
    return out


def parse_select(parts: Sequence[str]) -> SelectList | None:
    """Read a list, in one text or in several, with or without the brackets around it; None: there is none.

    InvalidArgument for a part that is none, and for a path that is there twice.
    """
    paths: dict[tuple[str, ...], bool] = {}
    for part in _split(parts):
        sign, path = part[:1], part[1:]
        names = () if path == "/" else tuple(path[1:].split("/"))
        if sign not in ("+", "-") or path[:1] != "/" or not all(names):
            raise InvalidArgument(
                f"select: {part[:60]!r} is no part of a list: write +/id, -/customer/name, or -/ first"
            )
        if len(names) > STEPS_MOST:
            raise InvalidArgument(f"select: {part[:60]!r} has {len(names)} names, the most is {STEPS_MOST}")
        if names in paths:
            raise InvalidArgument(f"select: {path[:60]} is there twice")
        if len(paths) >= PARTS_MOST:
            raise InvalidArgument(f"select: the list has more than {PARTS_MOST} parts")
        paths[names] = sign == "+"
    return SelectList([(sent, names) for names, sent in paths.items()]) if paths else None


def narrowed_select(wanted: SelectList | None, right: SelectList | None) -> SelectList | None:
    """What a reader asks for, of what his right lets him see; None: all is sent."""
    return wanted if right is None else (wanted or SelectList(())).within(right)


def _split(parts: Sequence[str]) -> Iterator[str]:
    for whole in parts:
        text = whole.strip()
        if text.startswith("[") and text.endswith("]"):
            text = text[1:-1]
        for part in text.split(","):
            if not part.strip():
                raise InvalidArgument(
                    f"select: {whole[:60]!r} has an empty part: write +/id, -/customer/name, or -/ first"
                )
            yield part.strip()


TERMS_MOST = 16
"""Expressions of one order."""


@dataclass(frozen=True, slots=True)
class Term:
    """One expression of an order."""

    value: Value
    descending: bool = False


def parse_order(order: str | Sequence[str] | None) -> tuple[Term, ...]:
    """An order as text with commas or as a list, each part an expression and perhaps ASC or DESC.

    Raises ExpressionError for an expression, InvalidArgument for an empty or too long list.
    """
    if order is None:
        return ()
    parts = _terms(order) if isinstance(order, str) else [part for one in order for part in _terms(one)]
    if not parts or not all(parts):
        raise InvalidArgument("order_by has an empty part: write '/total DESC, /id'")
    if len(parts) > TERMS_MOST:
        raise InvalidArgument(f"order_by has {len(parts)} parts, {TERMS_MOST} are allowed")
    terms: list[Term] = []
    for part in parts:
        text, _, last = part.rpartition(" ")
        word = last.upper()
        if text and word in ("ASC", "DESC"):
            terms.append(Term(compile_value(text.strip()), word == "DESC"))
        else:
            terms.append(Term(compile_value(part)))
    return tuple(terms)


def order_of(order_by: str | Sequence[str] | None) -> tuple[str, ...]:
    """An order as a list of its parts, checked.  Errors as `parse_order`."""
    return tuple(f"{term.value.text} {'DESC' if term.descending else 'ASC'}" for term in parse_order(order_by))


def _terms(text: str) -> list[str]:
    """Parts between commas that stand outside of quotes and parentheses."""
    parts: list[str] = []
    depth, quote, start = 0, "", 0
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([":
            depth += 1
        elif letter in ")]":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]


Rank = tuple[int, object]


def rank(value: Scalar) -> Rank:
    """A value as something that compares with every other: NULL, truth, numbers, NaN, text."""
    if value is None:
        return 0, 0
    if isinstance(value, bool):
        return 1, value
    if isinstance(value, str):
        return 4, value.encode("utf-8", "surrogateescape")
    if isinstance(value, float) and isnan(value):
        return 3, 0
    return 2, value


class Ordered:
    """Rows in an order, of which the first so many are kept."""

    __slots__ = ("_most", "_rows", "_terms")

    def __init__(self, terms: Sequence[Term], most: int | None) -> None:
        """most: so many are kept, those that come first; None: all."""
        self._terms = terms
        self._most = most
        self._rows: list[tuple[int, int, tuple[Rank, ...]]] = []  # key's number, LSN, values

    def add(self, numbers: Sequence[int], lsns: Sequence[int], values: Sequence[Sequence[Scalar]]) -> None:
        """Rows; values: for each term one a row."""
        if values:
            ranks = zip(*([rank(value) for value in column] for column in values), strict=True)
            self._rows += zip(numbers, lsns, ranks, strict=True)
        else:
            self._rows += [(number, lsn, ()) for number, lsn in zip(numbers, lsns, strict=True)]
        if self._most is not None and len(self._rows) > 2 * self._most + 4096:
            self._sort()
            del self._rows[self._most :]

    def lsns(self) -> list[int]:
        """The LSNs of the rows kept, in order."""
        self._sort()
        if self._most is not None:
            del self._rows[self._most :]
        return [lsn for _, lsn, _ in self._rows]

    def _sort(self) -> None:
        self._rows.sort(key=itemgetter(0))
        for place in range(len(self._terms) - 1, -1, -1):

            def value(row: tuple[int, int, tuple[Rank, ...]], place: int = place) -> Rank:
                return row[2][place]

            self._rows.sort(key=value, reverse=self._terms[place].descending)


@total_ordering
class _Down:
    """A rank that sorts from the highest to the lowest."""

    __slots__ = ("rank",)

    def __init__(self, value: Rank) -> None:
        self.rank = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Down) and self.rank == other.rank

    def __hash__(self) -> int:
        return hash(self.rank)

    def __lt__(self, other: _Down) -> bool:
        return bool(other.rank < self.rank)


Place = tuple[tuple[object, ...], int]


class Window:
    """The page of one subscriber."""

    def __init__(self, terms: Sequence[Term], top: int, skip: int) -> None:
        self._down = [term.descending for term in terms]
        self._low, self._high = skip, skip + top
        self._order: list[Place] = []
        self._places: dict[int, Place] = {}  # by key's number
        self._lsns: dict[int, int] = {}

    def fill(self, rows: Sequence[tuple[int, int, Sequence[Scalar]]]) -> list[int]:
        """All records that match: key's number, LSN, the value of each term.  The LSNs of the page, in order."""
        for number, lsn, values in rows:
            self._places[number] = self._place(number, values)
            self._lsns[number] = lsn
        self._order = sorted(self._places.values())
        return [self._lsns[number] for number in self.page()]

    def page(self) -> list[int]:
        """The keys' numbers on the page, in order."""
        return [number for _, number in self._order[self._low : self._high]]

    def has(self, number: int) -> bool:
        """Whether a record is on the page."""
        place = self._places.get(number)
        return place is not None and self._low <= bisect_left(self._order, place) < self._high

    def change(self, number: int, lsn: int, values: Sequence[Scalar] | None) -> tuple[list[int], list[int]]:
        """A record matches with these values, or (None) no longer.

        Returns the keys that left the page, and the LSNs of records that came to it, without `number` itself.
        """
        before = set(self.page())
        place = self._places.pop(number, None)
        if place is not None:
            del self._order[bisect_left(self._order, place)]
            del self._lsns[number]
        if values is not None:
            place = self._places[number] = self._place(number, values)
            self._lsns[number] = lsn
            insort(self._order, place)
        after = self.page()
        came = [self._lsns[one] for one in after if one not in before and one != number]
        return sorted(before.difference(after) - {number}), came

    def lsn(self, number: int) -> int:
        """Where a record that matches is."""
        return self._lsns[number]

    def _place(self, number: int, values: Sequence[Scalar]) -> Place:
        ranks = [rank(value) for value in values]
        return tuple(_Down(one) if down else one for one, down in zip(ranks, self._down, strict=True)), number
