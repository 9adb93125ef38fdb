"""Batches of plain JSON bodies of like shapes as columns, with no object for a body or a value, and no step for each.

Who publishes by program writes the same names in the same order each time.  The first body of a batch is taken apart:
what is written around its values is the shape, and all bodies that have it are gone over together, one piece after the
other: is what stands here the same in each, and where does the value end that follows.  What stands between are the
columns.  The bodies that are left have another shape, and so on, for a few shapes; they may differ in which fields they
have, in their order, and in what is null.

Each byte of a body is looked at: it belongs to a piece that is the shape's, to a text, which ends with the next quote
as a plain batch has no escapes, or to a number, `null`, `true` or `false`, which are looked at wherever they stand.
So what is taken here is JSON, as the shape is; whatever else is in a batch leaves it to other readers (`bodies`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import field as field_of
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from penstock.records.compute import compute
from penstock.records.dataclass import dataclass
from penstock.spark.reading.json_types import FLOAT_ENDS
from penstock.spark.reading.plain_bodies import BLOCK, ONE, Eights, Places, SecondLook, Text, bytes_before, hits

if TYPE_CHECKING:
    from penstock.spark.record_batches import Column


EIGHT, TEN, HUNDRED, MYRIAD = map(np.uint64, (8, 10, 100, 10_000))
DOT = bytes([ord(".") ^ ord("0")])  # where digits are 0 to 9
ZEROS, SIX, UPPER = np.uint64(0x3030303030303030), np.uint64(0x0606060606060606), np.uint64(0xF0F0F0F0F0F0F0F0)
POWERS = 10.0 ** np.arange(8)
PAIRS, FOURS = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
MINUS, ZERO = b"-0"
NULL, TRUE, FALS = (int.from_bytes(one, "little") for one in (b"null", b"true", b"fals"))


class BareValues:
    """Values that are not texts."""

    def __init__(self, text: Text, starts: Places, ends: Places, eights: Eights) -> None:
        self._text, self._starts, self._ends = text, starts, ends
        self._sizes = ends - starts
        self._eights = np.ascontiguousarray(eights)
        self._letters = self._eights.view(np.uint8).reshape(-1, 8)
        if not self._sizes.all():
            raise SecondLook

    def column(self, kind: Any) -> Any:
        """As a column of this type; None: they are looked at and no more.  Raises where one is something else."""
        first = self._letters[:, 0]
        digits = (first - ZERO < 10) | (first == MINUS)
        if digits.all():
            return self._numbers(kind)
        numbers: Any = None
        if digits.any():
            numbers = BareValues(self._text, self._starts[digits], self._ends[digits], self._eights[digits]).column(
                kind
            )
        nulls, flags = self._words(~digits)
        if kind is None:
            return None
        if pa.types.is_boolean(kind):
            if digits.any():
                raise SecondLook
            return pa.array(flags, mask=nulls)
        if not nulls[~digits].all():
            raise SecondLook
        if numbers is None:
            return cast("Any", pa.nulls(len(first), kind))
        return numbers.take(pa.array(np.cumsum(digits) - 1, mask=~digits))

    def _words(self, which: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Which are null, and which are true.  SecondLook where one of these is no word at all."""
        there, sizes = self._eights & np.uint64((1 << 32) - 1), self._sizes
        nulls, flags = ((there == np.uint64(word)) & (sizes == 4) for word in (NULL, TRUE))
        wrong = (there == np.uint64(FALS)) & (sizes == 5) & (self._letters[:, 4] == ord("e"))
        if not (nulls | flags | wrong)[which].all():
            raise SecondLook
        return nulls, flags

    def _numbers(self, kind: Any) -> Any:
        """All are written as numbers are in JSON, as far as Arrow does not see to it."""
        types: Any = pa.types
        whole = kind is not None and types.is_integer(kind)
        exact = kind is not None and types.is_decimal(kind)
        if not exact and int(self._sizes.max()) <= 8 and (found := self._short(whole=whole)) is not None:
            if whole:
                shorts: Any = pa.array(found)
                return shorts.cast(kind)
            return None if kind is None else floats(pa.array(found), found, kind)
        self._refuse_odd(whole=whole)
        texts = self._text.slices(self._starts, self._ends)
        if exact:
            return decimals(kind, texts)
        if whole:
            return texts.cast(kind)
        if compute.any(compute.match_substring(texts, ".e", ignore_case=True)).as_py():
            raise SecondLook
        doubles = texts.cast(pa.float64())
        values = doubles.to_numpy()
        if not np.isfinite(values).all():
            raise SecondLook
        return None if kind is None else floats(doubles, values, kind)

    def _short(self, *, whole: bool) -> npt.NDArray[Any] | None:
        """Numbers of up to eight letters, all at once; None where one has a sign or something else.

        whole: as they are, without a fraction; else as doubles, which are exact: a whole number through a power of ten.
        """
        sizes = self._sizes
        there = (self._eights ^ ZEROS) << ((8 - sizes) << 3).astype(np.uint64)  # zeros before, and digits are 0 to 9
        zeros = self._letters[:, 0] == ZERO
        fraction: Any = None
        if not whole:
            hit = hits(there, DOT)
            if hit.any():
                dots = bytes_before(hit)
                if ((dots == 7) | (dots == 8 - sizes)).any():
                    raise SecondLook  # nothing before it, or nothing behind
                zeros &= dots != 9 - sizes
                there, fraction = _without_dots(there, dots)
        if zeros.any() and (zeros & (sizes > 1)).any():
            raise SecondLook
        if ((there | (there + SIX)) & UPPER).any():
            return None
        there = (there * TEN + (there >> EIGHT)) & PAIRS
        there = (there * HUNDRED + (there >> np.uint64(16))) & FOURS
        there = (there * MYRIAD + (there >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
        if whole:
            return cast("npt.NDArray[Any]", there.view(np.int64))
        return cast("npt.NDArray[Any]", there.astype(np.float64) if fraction is None else there / POWERS[fraction])

    def _refuse_odd(self, *, whole: bool) -> None:
        """SecondLook for what Arrow takes and JSON does not: 01, 1., 1.e5, 0x1."""
        first, second = self._letters[:, 0], self._letters[:, 1]
        sizes = self._sizes
        minus = first == MINUS
        if minus.any():
            first, second = np.where(minus, second, first), np.where(minus, self._letters[:, 2], second)
            sizes = sizes - minus
        zeros = (first == ZERO) & (sizes > 1)
        after = second[zeros]
        if (
            (first - ZERO > 9).any()
            or (self._text.letters[self._ends - 1] - ZERO > 9).any()
            or (len(after) and (whole or (after - ZERO < 10).any() or (after | 0x20 == ord("x")).any()))
        ):
            raise SecondLook


def _without_dots(there: Eights, dots: Places) -> tuple[Eights, Any]:
    """Numbers whose dots stand behind so many bytes, eight where there is none, without them; and how many digits
    stand behind each.
    """
    first = int(dots[0])
    if (dots == first).all():
        below = np.uint64((1 << 8 * first) - 1)
        return (there & ~(below << EIGHT | np.uint64(255))) | ((there & below) << EIGHT), 7 - first
    bits = (dots << 3).astype(np.uint64)
    above = bits + EIGHT
    moved = ((there >> above) << above) | ((there & ((ONE << bits) - ONE)) << EIGHT)
    has = dots < 8
    return np.where(has, moved, there), np.where(has, 7 - dots, 0)


def floats(column: Any, values: npt.NDArray[np.float64], kind: Any) -> Any:
    """Doubles as a column of this type.  Raises where one may not be what is written."""
    types: Any = pa.types
    if not types.is_floating(kind) or (np.signbit(values) & (values == 0)).any():
        raise SecondLook  # a minus before a zero is lost where it is read as a whole number
    if types.is_float64(kind):
        return column
    if (np.abs(values) >= FLOAT_ENDS).any():
        raise SecondLook
    return pa.array(values.astype(np.float32))


SHAPES_LEAST, SHAPES_MOST, SHAPE_ROWS = 4, 16, 1_000
"""Shapes that a batch may have: one for so many of its rows, but these at least and at most.  Whatever its rows, a
shape costs as much as it takes to read three hundred bodies one by one."""

SHARE_LEAST = 16
"""Of the rows that are left a shape has at least one in so many, or the batch is too mixed."""

VALUES_MOST = 64
"""Of a shape."""

TEXT, BARE = "text", "number, null, true or false"


class Field(Protocol):
    """A column that is wanted of bodies: its name, its type, and whether a body without it is none."""

    name: str
    kind: Any
    needed: bool


@dataclass
class Piece:
    """A value of a shape, and what is written before it."""

    before: bytes
    kind: str
    name: str | None  # of the field of the body that it is; None: it is within one
    ends: bytes = b""  # what may stand behind it in any body, one byte


@dataclass
class Shape:
    """All that bodies have in common but the values."""

    pieces: list[Piece] = field_of(default_factory=list[Piece])
    after: bytes = b""  # what is written behind the last value
    names: list[str] = field_of(default_factory=list[str])  # of its fields

    @cached_property
    def like(self) -> re.Pattern[bytes]:
        """Of bodies that have it, and of some that are no JSON."""
        pieces = (re.escape(one.before) + _VALUES[one.kind] for one in self.pieces)
        return re.compile(b"".join([*pieces, re.escape(self.after)]))


_VALUES = {TEXT: rb'[^"]*', BARE: rb"[-0-9tfn][-+.0-9a-zA-Z]*"}
_TOKEN = re.compile(rb'("[^"]*"\s*:)|("[^"]*")|(%s)|([\[{])|([\]}])|[,\s]+' % _VALUES[BARE])


def shape_of(body: bytes) -> Shape:
    """SecondLook where it is no object, or one with too many values or with a name twice."""
    found = _values_of(body)
    if body[:1] != b"{" or len(found.pieces) > VALUES_MOST or len(set(found.names)) < len(found.names):
        raise SecondLook
    for piece, after in zip(found.pieces, [*(piece.before for piece in found.pieces[1:]), found.after], strict=False):
        piece.ends = b'"' if piece.kind == TEXT else bytes({*b",", after[0]})
    return found


def _values_of(body: bytes) -> Shape:
    """The values of JSON, and what is written between them.  SecondLook where it is none."""
    try:
        orjson.loads(body)
    except ValueError:
        raise SecondLook from None
    found, last, depth = Shape(), 0, 0
    for token in _TOKEN.finditer(body):
        if token[1]:
            if depth == 1:
                found.names.append(token[1][1 : token[1].rindex(b'"')].decode())
        elif token[4] or token[5]:
            depth += 1 if token[4] else -1
        elif token[2] or token[3]:
            start, end = (token.start() + 1, token.end() - 1) if token[2] else token.span()
            name = found.names[-1] if depth == 1 and found.names else None
            found.pieces.append(Piece(body[last:start], TEXT if token[2] else BARE, name))
            last = end
    found.after = body[last:]
    return found


class LikeBodies:
    """The reader of one part."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self._fields = fields
        self._shapes = list[Shape]()  # of the bodies before, the last first

    @classmethod
    def of(cls, fields: Sequence[Field]) -> LikeBodies | None:
        """None where a column is of a type that is not made of texts at once."""
        return cls(fields) if all(map(_is_made, (field.kind for field in fields))) else None

    def columns(self, bodies: Column) -> dict[str, Column]:
        """The columns of a batch that is plain.  Raises where a body or a value needs a second look."""
        text = Text(bodies)
        left = np.arange(len(bodies))
        found = list[tuple[Places, list[Any]]]()
        most = min(max(SHAPES_LEAST, len(bodies) // SHAPE_ROWS), SHAPES_MOST)
        while len(left):
            if len(found) == most:
                raise SecondLook
            rows, values = _Rows(text, left).read(self._shape(text.body(int(left[0]))), self._fields)
            if len(rows) * SHARE_LEAST < len(left):
                raise SecondLook
            found.append((rows, values))
            left = _without(left, rows)
        return dict(zip((field.name for field in self._fields), joined(found), strict=True))

    def _shape(self, body: bytes) -> Shape:
        for shape in self._shapes:
            if shape.like.fullmatch(body):
                return shape
        self._shapes = [shape_of(body), *self._shapes[: SHAPES_MOST - 1]]
        return self._shapes[0]


def _whole(column: Any, field: Field) -> Any:
    """A column that has what is needed."""
    if field.needed and column.null_count:
        raise SecondLook
    return column


def _without(left: Places, rows: Places) -> Places:
    """Those that are left: both ascend, and the others are among them."""
    if len(rows) == len(left):
        return left[:0]
    mask = np.ones(int(left[-1]) + 1, np.bool_)
    mask[rows] = False
    return left[mask[left]]


def joined(found: Sequence[tuple[Places, Sequence[Any]]]) -> Sequence[Any]:
    """Columns of all rows, in their order, of the columns of some at a time; each row is among the places once."""
    if len(found) == 1:
        return found[0][1]
    rows = np.concatenate([rows for rows, _ in found])
    order = np.empty_like(rows)
    order[rows] = np.arange(len(rows))
    places = pa.array(order)
    return [pa.concat_arrays(list(parts)).take(places) for parts in zip(*(values for _, values in found), strict=True)]


_Span: TypeAlias = "tuple[Places, Places, Eights]"
"""Where the values of a piece begin and end, and the eight bytes that they begin with."""


class _Rows:
    """Those rows of a batch that have been like a shape so far."""

    def __init__(self, text: Text, rows: Places) -> None:
        self._text = text
        self._rows = rows
        every = len(rows) == len(text.stops)
        self._stops = text.stops if every else text.stops[rows]
        self._at = text.starts if every else text.starts[rows]
        self._spans = list[_Span]()

    def read(self, shape: Shape, fields: Sequence[Field]) -> tuple[Places, list[Any]]:
        """Which rows have it, and their columns.  Raises where a value needs a second look."""
        self._follow(shape)
        wanted = {field.name: field for field in fields}
        made = dict[str, Any]()
        for piece, span in zip(shape.pieces, self._spans, strict=True):
            field = None if piece.name is None else wanted.get(piece.name)
            if piece.kind == BARE:
                column = BareValues(self._text, *span).column(None if field is None else field.kind)
            else:
                column = None if field is None else _of_texts(self._text.slices(*span[:2]), field.kind)
            if field is not None:
                made[field.name] = _whole(column, field)
        for field in fields:
            if field.name not in made:
                if field.needed or field.name in shape.names:
                    raise SecondLook  # it is missing, or it is a list or an object
                made[field.name] = pa.nulls(len(self._rows), field.kind)
        return self._rows, [made[field.name] for field in fields]

    def _follow(self, shape: Shape) -> None:
        """Find the values of each row; those that are not like the shape are left out.

        A row may be followed into the next one, and is then behind its own end in the end.
        """
        for piece in shape.pieces:
            there = self._pass(piece.before)
            ends = self._text.next(self._at, piece.ends, self._stops, there)
            self._spans.append((self._at, ends, there))
            self._at = ends
        if len(shape.after) <= 8:
            gap = 64 - 8 * len(shape.after)
            alike = self._text.eights[self._at] << np.uint64(gap) == np.uint64(
                int.from_bytes(shape.after, "little") << gap
            )
            self._keep(alike & (self._at + len(shape.after) == self._stops))
        else:
            self._pass(shape.after)
            self._keep(self._at == self._stops)

    def _pass(self, written: bytes) -> Eights:
        """Go on behind what is written, in those rows where it is; the eight bytes that follow."""
        first, last = written[: -(BLOCK - 8)], written[-(BLOCK - 8) :]
        if first:
            self._keep(self._at + len(written) <= self._stops)
        for start in range(0, len(first), BLOCK - 8):
            self._pass_block(first[start : start + BLOCK - 8])
        return self._pass_block(last)

    def _pass_block(self, written: bytes) -> Eights:
        full, rest = divmod(len(written), 8)
        words = self._text.words(self._at, full + 1 + (rest > 0))
        behind, wrong = words[full], None
        for place in range(full):
            other = words[place] ^ np.uint64(int.from_bytes(written[8 * place : 8 * place + 8], "little"))
            wrong = other if wrong is None else np.bitwise_or(wrong, other, out=wrong)
        if rest:
            bits, gap = np.uint64(8 * rest), np.uint64(64 - 8 * rest)
            after = words[full + 1] << gap
            other = (behind << gap) ^ np.uint64(int.from_bytes(written[8 * full :], "little") << int(gap))
            wrong = other if wrong is None else np.bitwise_or(wrong, other, out=wrong)
            after |= behind >> bits
            behind = after
        self._at = self._at + len(written)
        if wrong is None or not wrong.any():
            return behind
        alike = wrong == 0
        self._keep(alike)
        return cast("Eights", behind[alike])

    def _keep(self, which: npt.NDArray[np.bool_]) -> None:
        """Leave out the other rows."""
        if which.all():
            return
        self._rows, self._stops, self._at = self._rows[which], self._stops[which], self._at[which]
        self._spans = [(starts[which], ends[which], there[which]) for starts, ends, there in self._spans]
        if not len(self._rows):
            raise SecondLook


def _is_made(kind: Any) -> bool:
    types: Any = pa.types
    tests: Sequence[Callable[[Any], bool]] = (
        types.is_signed_integer, types.is_float32, types.is_float64, types.is_boolean, types.is_string,
        types.is_timestamp, types.is_date32, types.is_decimal128,
    )  # fmt: skip
    return any(test(kind) for test in tests)


def _of_texts(texts: Any, kind: Any) -> Any:
    types: Any = pa.types
    if types.is_string(kind):
        return texts
    if types.is_timestamp(kind):
        return times(kind, texts)
    if types.is_date32(kind):
        return _written_as(_DATE, texts).cast(kind)
    if types.is_decimal128(kind):
        return decimals(kind, texts)
    raise SecondLook


_DATE, _DECIMAL = r"^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}$", r"^-?[0-9]+(\.[0-9]+)?$"
_TIME = r"^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{3}|\.[0-9]{6})?"
_SHAPES = {True: f"{_TIME}Z$", False: f"{_TIME}$"}
"""Times that Arrow reads as their judge does: of a column with a zone, in UTC, and without."""


def times(kind: Any, texts: Any) -> Any:
    """Texts as times.  Raises where one is written otherwise."""
    return _written_as(_SHAPES[kind.tz is not None], texts).cast(kind)


def decimals(kind: Any, texts: Any) -> Any:
    """Texts as decimals.  Raises where digits would be lost, and where Arrow might not notice that one is too large:
    where there is an exponent, or more letters and digits of the scale than all decimals have.
    """
    longest = compute.max(compute.binary_length(texts)).as_py()
    if longest is not None and longest + kind.scale > DIGITS_MOST:
        raise SecondLook
    return _written_as(_DECIMAL, texts).cast(kind)


DIGITS_MOST = 38


def _written_as(pattern: str, texts: Any) -> Any:
    """The texts, where all are written so.  SecondLook where one is not."""
    if not compute.all(compute.match_substring_regex(texts, pattern=pattern), min_count=0).as_py():
        raise SecondLook
    return texts
