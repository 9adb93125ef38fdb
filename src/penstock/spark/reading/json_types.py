"""What a JSON value is in a column of a type: the value that Arrow takes for it, or why it has no place there.

One function for each type, a judge, which every way of reading a column asks.  A judge gets any JSON value and raises
`Unfit` and nothing else; what it gives has a place in a column of its type.  None, which a judge does not get where a
column may be null, is unfit.  A wary judge raises `Rough` as well, where the value may not be all that is written.

The rules are those of Spark's `from_json`, or stricter where that would change a value without a word: a number beyond
a column's limits is unfit and never infinity or another number.  Whole numbers may be written with a fraction of zero.

Where every value of a body is a text, as in XML, a column of numbers takes one that is a number as a whole, and a list
what came once.

What of a body has no column, fields that the schema does not name and values that their columns cannot hold, is kept as
JSON in a column of its own, with all digits of its numbers, so that a schema that is behind its publishers loses
nothing.  Of a struct it is the part that has no field; of a list or a map the whole, if anything in it has none.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

import orjson
import pyarrow as pa

if TYPE_CHECKING:
    from penstock.spark.record_batches import Column


Judge: TypeAlias = Callable[[Any], Any]

RULES = 3
"""Which rules these are: another number when another body is bad, so that those who put bodies aside are told apart."""

SHOWN = 60
"""Letters of a value, or of its place, that a reason has."""


class Unfit(Exception):
    """A value has no place in its column: which one, why, and where below the column it is."""

    def __init__(self, value: object, why: str, path: str = "") -> None:
        super().__init__(value, why, path)
        self.value, self.why, self.path = value, why, path

    def below(self, step: str) -> Unfit:
        """The same, of the whole that has it at this step."""
        return Unfit(self.value, self.why, step + self.path)

    def of(self, name: str) -> str:
        """The reason, for a person."""
        return f"field {(name + self.path)[:SHOWN]!r} is {shown(self.value)}, {self.why}"


class Rough(Exception):
    """A double may have lost digits that this column would have: read the bodies again, with `Number`."""


class Number(str):
    """A number as it is written, where neither a double nor 64 bits need hold all of its digits."""

    __slots__ = ()


def shown(value: object) -> str:
    """A JSON value in short."""
    if value is None:
        return "null or missing"
    if isinstance(value, Number):
        return str(value)[:SHOWN]
    if isinstance(value, str):
        return repr(value[:SHOWN])[:SHOWN]
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return ("true" if value is True else "false" if value is False else repr(value))[:SHOWN]


WHOLE = {8: "tinyint", 16: "smallint", 32: "int", 64: "bigint"}
"""Spark's names by bits."""


class Given(NamedTuple):
    """What values a judge is given."""

    wary: bool
    truths: Mapping[str, bool] | None


def judge_of(kind: Any, *, wary: bool, truths: Mapping[str, bool] | None = None) -> Judge:
    """The judge of an Arrow type.  TypeError for a type that no JSON value is.

    wary: of values of a reader that makes a double of every number with a fraction, an exponent or too many digits.
    truths: of bodies whose every value is a text, the texts that are true or false; what came once there is no list.
    """
    for fits, make in _JUDGES:
        if fits(kind):
            judge = make(kind, Given(wary, truths))
            return judge if truths is None else _of_texts(kind, judge, truths)
    raise TypeError(f"a JSON body gives no {kind}")


def _of_texts(kind: Any, judge: Judge, truths: Mapping[str, bool]) -> Judge:
    """The judge of a type where every value is a text, of one for JSON."""
    if _TYPES.is_boolean(kind):
        return lambda value: judge(truths.get(value, value) if type(value) is str else value)
    if _TYPES.is_list(kind):
        return lambda value: judge([value] if value is not None and type(value) is not list else value)
    if _TYPES.is_signed_integer(kind) or _TYPES.is_floating(kind):
        return lambda value: judge(_number(value) if type(value) is str else value)
    if _TYPES.is_struct(kind) or _TYPES.is_map(kind):
        beside = _TYPES.is_struct(kind) and kind.get_field_index(BESIDE) >= 0
        return lambda value: judge(_object(value, beside) if type(value) is str else value)
    return judge


BESIDE = "#text"
"""The field of an object of XML that has its text."""


def _object(text: str, beside: bool) -> Any:
    """What an element is that has text alone, where others have attributes or elements; any other text as it is."""
    return {} if not text.strip() else {BESIDE: text} if beside else text


def _number(text: str) -> int | str:
    """A text as the number that it is as a whole; any other as it is."""
    if len(text) < SHORT and text.isascii() and text.isdigit():
        return int(text)
    return Number(text) if _DECIMAL.fullmatch(text) else text


SHORT = 16
"""Digits: a number with fewer is exact in every type."""


def _wary_text(value: Any) -> str:
    if type(value) is str:
        return value
    if type(value) is float or type(value) is list or type(value) is dict:
        raise Rough
    return _text(value)


def _text(value: Any) -> str:
    """Text as it is, anything else as JSON."""
    if type(value) is str:
        return value
    if type(value) is Number:
        return str(value)
    if value is None:
        raise Unfit(value, "not string")
    return json_text(value)


def json_text(value: Any) -> str:
    """A value as JSON, with all digits of a `Number`.  Unfit where it is nested too deeply."""
    try:
        return orjson.dumps(value, _fragment, orjson.OPT_PASSTHROUGH_SUBCLASS).decode()
    except TypeError:
        raise Unfit(value, "nested too deeply for a text") from None


def _fragment(value: object) -> object:
    if isinstance(value, Number):
        return orjson.Fragment(value.encode())
    raise TypeError(f"no JSON value: {type(value).__name__}")


def _bytes(value: Any) -> bytes:
    if type(value) is not str:
        raise Unfit(value, "not binary, which is text in base64")
    try:
        found = base64.b64decode(value, validate=True)
    except ValueError:
        found = None
    if found is None or len(value) != (len(found) + 2) // 3 * 4:  # before 3.14 it let padding stand where none belongs
        raise Unfit(value, "not binary: it is no base64")
    return found


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise Unfit(value, "not boolean")
    return value


def _whole(bits: int, wary: bool) -> Judge:
    name, least, most = WHOLE[bits], -1 << (bits - 1), 1 << (bits - 1)

    def judge(value: Any) -> int:
        if type(value) is int:
            number = value
        elif type(value) is float and wary:
            raise Rough
        elif type(value) is float and value.is_integer():
            number = int(Decimal(repr(value)))  # the digits that were written: beyond 2^53 a double is near them alone
        elif type(value) is Number and (exact := _exact(value)) == exact.to_integral_value():
            number = int(exact) if least <= exact < most else most  # its exponent may be anything
        else:
            raise Unfit(value, f"not {name}")
        if least <= number < most:
            return number
        raise Unfit(value, f"more than {name} holds")

    return judge


NOT_FINITE = {
    "NaN": math.nan,
    **dict.fromkeys(("Infinity", "+Infinity", "+INF"), math.inf),
    **dict.fromkeys(("-Infinity", "-INF"), -math.inf),
}
"""Texts that are numbers in floating columns, as Spark writes and reads them."""


def _double(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value)
    if type(value) is Number:
        if math.isfinite(number := float(value)):
            return number
        raise Unfit(value, "more than double holds")
    if type(value) is str and (found := NOT_FINITE.get(value)) is not None:
        return found
    raise Unfit(value, "not double")


FLOAT_ENDS = 2.0**128 - 2.0**103
"""What is at least so large becomes infinity as a float of 32 bits."""


def _float(value: Any) -> float:
    if type(value) is str and (found := NOT_FINITE.get(value)) is not None:
        return found
    if type(value) is not float and type(value) is not int and type(value) is not Number:
        raise Unfit(value, "not float")
    number = float(value)
    if abs(number) < FLOAT_ENDS:
        return number
    raise Unfit(value, "more than float holds")


def _zoned(value: Any) -> datetime:
    """A moment: UTC where it names no zone."""
    moment = _moment(value)
    if moment.tzinfo is UTC:
        return moment
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:
        raise Unfit(value, "not between the years 1 and 9999 UTC") from None


def _naive(value: Any) -> datetime:
    """The time that it says; of one with a zone the time in UTC."""
    moment = _moment(value)
    return moment if moment.tzinfo is None else _zoned(value).replace(tzinfo=None)


_BETWEEN = frozenset({"T", " ", ""})


def _moment(value: Any) -> datetime:
    """A date, and a time behind `T` or a space: what else stands between two numbers may mean something else."""
    if type(value) is str and len(value) > 9 and (value[10:11] in _BETWEEN if value[4] == "-" else value[8] == "T"):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            pass
    raise Unfit(value, "no time such as 2026-11-20T08:00:00Z")


def _date(value: Any) -> date:
    if type(value) is str and len(value) == 10 and value[4] == "-" == value[7]:
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    raise Unfit(value, "no date such as 2026-11-20")


_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def _decimal(precision: int, scale: int, wary: bool) -> Judge:
    """Digits beyond the scale are rounded, half of one away from zero."""
    name = f"decimal({precision},{scale})"
    context = Context(precision, ROUND_HALF_UP, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[InvalidOperation])
    unit = Decimal(1).scaleb(-scale)

    def judge(value: Any) -> Decimal:
        if type(value) is float and wary:
            raise Rough
        if type(value) is float or type(value) is int:
            number = Decimal(repr(value))
        elif type(value) is Number or (type(value) is str and _DECIMAL.fullmatch(value)):
            number = _exact(value)
        else:
            raise Unfit(value, f"not {name}")
        try:
            return context.quantize(number, unit)
        except InvalidOperation:
            raise Unfit(value, f"more than {name} holds") from None

    return judge


def _exact(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise Unfit(Number(text), "and its exponent is out of all bounds") from None


def _list(field: Any, given: Given) -> Judge:
    item, nullable = judge_of(field.type, **given._asdict()), field.nullable

    def judge(value: Any) -> list[Any]:
        if type(value) is not list:
            raise Unfit(value, "not a list")
        items: list[Any] = value  # pyright: ignore[reportUnknownVariableType] - its items are of any kind
        try:
            return [None if one is None and nullable else item(one) for one in items]
        except Unfit:
            raise _first((f"[{place}]", item, nullable, one) for place, one in enumerate(items)) from None

    return judge


def _map(field: Any, given: Given) -> Judge:
    item, nullable = judge_of(field.type, **given._asdict()), field.nullable

    def judge(value: Any) -> list[tuple[str, Any]]:
        if type(value) is not dict:
            raise Unfit(value, "not an object")
        items = cast("dict[str, Any]", value)
        try:
            return [(name, None if one is None and nullable else item(one)) for name, one in items.items()]
        except Unfit:
            raise _first((f".{name}", item, nullable, one) for name, one in items.items()) from None

    return judge


def _struct(fields: list[Any], given: Given) -> Judge:
    parts = [(field.name, judge_of(field.type, **given._asdict()), field.nullable) for field in fields]

    def judge(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise Unfit(value, "not an object")
        get = cast("dict[str, Any]", value).get
        try:
            return {name: None if (one := get(name)) is None and null else part(one) for name, part, null in parts}
        except Unfit:
            raise _first((f".{name}", part, nullable, get(name)) for name, part, nullable in parts) from None

    return judge


def _first(parts: Iterable[tuple[str, Judge, bool, Any]]) -> Unfit:
    """Of the parts of a value the first that is unfit: where it is, its judge, whether it may be null, and itself."""
    for step, judge, nullable, one in parts:
        try:
            if one is not None or not nullable:
                judge(one)
        except Unfit as unfit:
            return unfit.below(step)
    raise AssertionError("a judge said two things of one value")


_TYPES: Any = pa.types

_JUDGES: Sequence[tuple[Callable[[Any], bool], Callable[[Any, Given], Judge]]] = (
    (_TYPES.is_string, lambda kind, given: _wary_text if given.wary else _text),
    (_TYPES.is_binary, lambda kind, given: _bytes),
    (_TYPES.is_boolean, lambda kind, given: _flag),
    (_TYPES.is_signed_integer, lambda kind, given: _whole(kind.bit_width, given.wary)),
    (_TYPES.is_float64, lambda kind, given: _double),
    (_TYPES.is_float32, lambda kind, given: _float),
    (_TYPES.is_timestamp, lambda kind, given: _naive if kind.tz is None else _zoned),
    (_TYPES.is_date, lambda kind, given: _date),
    (_TYPES.is_decimal, lambda kind, given: _decimal(kind.precision, kind.scale, given.wary)),
    (
        lambda kind: _TYPES.is_map(kind) and _TYPES.is_string(kind.key_type),
        lambda kind, given: _map(kind.item_field, given),
    ),
    (_TYPES.is_list, lambda kind, given: _list(kind.value_field, given)),
    (_TYPES.is_struct, lambda kind, given: _struct([kind.field(place) for place in range(kind.num_fields)], given)),
)
"""Judges of the types that a JSON value may be, by what tells a type."""


Left: TypeAlias = Callable[[Any], Any]
"""What of a value has no place in a type; None: nothing."""

Misfits: TypeAlias = "dict[int, set[str]]"
"""By row the fields whose values had no place in their columns."""


class Rows(Protocol):
    """The bodies of a batch (`bodies.Rows`)."""

    @property
    def errors(self) -> Sequence[object]:
        """By row why its body is bad; None where it is not."""
        ...

    def exact_objects(self) -> Sequence[dict[str, Any]]:
        """All rows, with every digit of their numbers."""
        ...

    def text(self, place: int) -> str:
        """A body as JSON."""
        ...


class Rescue:
    """The column of one read."""

    def __init__(self, fields: Sequence[Any], known: Collection[str]) -> None:
        """fields: of Arrow, those that are read.  known: names of columns that are not read this time, too."""
        self._known = frozenset({*known, *(field.name for field in fields)})
        lefts = {str(field.name): _left(field.type) for field in fields}
        self._within = {name: left for name, left in lefts.items() if left is not None}

    def column(self, rows: Rows, misfits: Misfits) -> Column:
        """For each row what it has beside its columns, as JSON; null: nothing, or the body is bad."""
        found, known = list[str | None](), self._known
        for place, row in enumerate(rows.exact_objects()):
            names, unfit = row.keys() - known, misfits.get(place)
            if rows.errors[place] is not None or not (names or unfit or self._within):
                found.append(None)
                continue
            left = {name: row[name] for name in row if name in names or (unfit is not None and name in unfit)}
            for name, within in self._within.items():
                if name not in left and (part := within(row.get(name))) is not None:
                    left[name] = part
            found.append(self._text(rows, place, left) if left else None)
        return cast("Column", pa.array(found, pa.string()))

    @staticmethod
    def _text(rows: Rows, place: int, left: dict[str, Any]) -> str:
        try:
            return json_text(left)
        except Unfit:  # nested too deeply to be written again
            return rows.text(place)


def _left(kind: Any) -> Left | None:
    """For values that have a place in a column of this type; None where nothing can be left of them."""
    types: Any = pa.types
    if types.is_struct(kind):
        return _of_struct([kind.field(place) for place in range(kind.num_fields)])
    if types.is_list(kind) or types.is_map(kind):
        inner = _left(kind.value_field.type if types.is_list(kind) else kind.item_type)
        return None if inner is None else _of_many(inner, named=types.is_map(kind))
    return None


def _of_struct(fields: Sequence[Any]) -> Left:
    names = frozenset(str(field.name) for field in fields)
    lefts = {str(field.name): _left(field.type) for field in fields}
    within = {name: left for name, left in lefts.items() if left is not None}

    def left(value: Any) -> Any:
        if type(value) is not dict:
            return None
        given = cast("dict[str, Any]", value)
        found = {name: one for name, one in given.items() if name not in names}
        for name, inner in within.items():
            if (part := inner(given.get(name))) is not None:
                found[name] = part
        return found or None

    return left


def _of_many(inner: Left, *, named: bool) -> Left:
    def left(given: object) -> Any:
        value: Any = given
        kind: type = type(given)
        items: list[Any] = value if kind is list else [value]
        if named:
            items = list(value.values()) if kind is dict else []
        return value if any(inner(one) is not None for one in items) else None

    return left
