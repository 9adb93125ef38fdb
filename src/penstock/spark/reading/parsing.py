"""JSON bodies as typed columns, and the columns that bodies seem to have.

A body is bad when it is no JSON object or when a value cannot be what its column is declared as; all its columns are
null then and the reason is told.  A missing field is null.  The last of equal keys wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, cast

import orjson
import pyarrow as pa

from penstock.spark.arrow import Column

Convert = Callable[[Any], Any]

_WRONG = (pa.ArrowException, TypeError, ValueError, OverflowError, InvalidOperation)


class BodyParser:
    """Bodies into the columns of a schema."""

    def __init__(self, schema: pa.Schema, names: Sequence[str]) -> None:
        given: Any = schema
        self.fields = cast("list[pa.Field[Any]]", [given.field(name) for name in names])
        self._convert = [converter(field.type) for field in self.fields]

    def parse(self, bodies: Column) -> tuple[dict[str, Column], list[str | None]]:
        """Columns by name, and for each row why it is bad (None: it is good)."""
        errors: list[str | None] = [None] * len(bodies)
        texts = cast("list[Any]", bodies.to_pylist())
        try:
            rows = cast("list[dict[str, Any]]", list(map(orjson.loads, texts)))
            whole = {*map(type, rows)} <= {dict}
        except ValueError:
            rows, whole = [], False
        if not whole:
            rows = objects(texts, errors)
        columns = self._columns(rows, errors)
        if columns is None:  # some rows went bad over their types: they have no column at all
            for place, error in enumerate(errors):
                if error is not None:
                    rows[place] = {}
            columns = self._columns(rows, errors)
        return cast("dict[str, Column]", columns), errors

    def _columns(self, rows: list[dict[str, Any]], errors: list[str | None]) -> dict[str, Column] | None:
        out = dict[str, "Column"]()
        failed = False
        for field, convert in zip(self.fields, self._convert, strict=True):
            name = field.name
            values = [row.get(name) for row in rows]
            try:
                if pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
                    out[name] = numbers(values, field.type)
                elif convert is not None and convert in (_text, _flag):
                    out[name] = _alike(values, convert, field.type)
                elif convert is not None:
                    out[name] = pa.array([None if v is None else convert(v) for v in values], field.type)
                else:
                    out[name] = pa.array(values, field.type)
            except _WRONG:
                failed = True
                self._blame(field, convert, values, errors)
        return None if failed else out

    @staticmethod
    def _blame(field: pa.Field[Any], convert: Convert | None, values: list[Any], errors: list[str | None]) -> None:
        for place, value in enumerate(values):
            if value is None or errors[place] is not None:
                continue
            try:
                pa.array([value if convert is None else convert(value)], field.type)
            except _WRONG:
                text = repr(value)
                errors[place] = f"field {field.name!r} is {text[:60]}, not {field.type}"


def objects(texts: Sequence[Any], errors: list[str | None]) -> list[dict[str, Any]]:
    """The object of each body; nothing, and an error at its place, of those that are none."""
    rows: list[dict[str, Any]] = []
    for place, text in enumerate(texts):
        row: Any = None
        try:
            row = orjson.loads(text)
            if type(row) is not dict:
                errors[place] = f"JSON, but no object: {type(row).__name__}"
        except ValueError as wrong:
            errors[place] = f"no JSON: {wrong}"
        rows.append(cast("dict[str, Any]", row if errors[place] is None else {}))
    return rows


def _alike(values: list[Any], convert: Convert, kind: Any) -> Column:
    """Texts, or truth values, as a column: at once where all are what they should be, which Arrow finds out."""
    try:
        return cast("Column", pa.array(values, kind))
    except (pa.ArrowException, TypeError):
        return cast("Column", pa.array([None if v is None else convert(v) for v in values], kind))


def numbers(values: list[Any], kind: Any) -> Column:
    """JSON numbers as a column.  Raises for what is no number, no whole one where that is wanted, or too large.

    Arrow finds the kind of all values at once, which costs less than a look at each; told the type at once it would cut
    5.5 to 5 and take true for 1.
    """
    found: Any = pa.array(values)
    if pa.types.is_integer(kind):
        if not (pa.types.is_integer(found.type) or pa.types.is_floating(found.type) or pa.types.is_null(found.type)):
            raise TypeError("not all are numbers")
        return cast("Column", found.cast(kind))
    if pa.types.is_integer(found.type) or pa.types.is_null(found.type):
        return cast("Column", pa.array(values, kind))
    if not pa.types.is_floating(found.type):
        raise TypeError("not all are numbers")
    return cast("Column", found if found.type == kind else found.cast(kind))


def converter(kind: Any) -> Convert | None:
    """A function from a JSON value (never None) to what Arrow takes for `kind`; None: the value itself."""
    types: Any = pa.types
    if types.is_string(kind):
        return _text
    if types.is_binary(kind):
        return _bytes
    if types.is_boolean(kind):
        return _flag
    if types.is_integer(kind):
        return _whole
    if types.is_floating(kind):
        return _number
    if types.is_timestamp(kind):
        return _zoned if kind.tz is not None else _naive
    if types.is_date(kind):
        return date.fromisoformat
    if types.is_decimal(kind):
        return lambda value: Decimal(str(value)).quantize(Decimal(1).scaleb(-kind.scale))
    if types.is_map(kind):
        inner = converter(kind.item_type)
        return lambda value: [(k, v if v is None or inner is None else inner(v)) for k, v in value.items()]
    if types.is_list(kind):
        item = converter(kind.value_type)
        return None if item is None else lambda value: [None if v is None else item(v) for v in _list(value)]
    if types.is_struct(kind):
        fields = [(field.name, converter(field.type)) for field in kind]
        return lambda value: {
            name: v if (v := value.get(name)) is None or inner is None else inner(v) for name, inner in fields
        }
    raise TypeError(f"a JSON body gives no {kind}")


def _text(value: Any) -> str:
    return value if type(value) is str else orjson.dumps(value).decode()


def _bytes(value: Any) -> bytes:
    if type(value) is not str:
        raise TypeError("not text")
    return value.encode()


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError("not true or false")
    return value


def _whole(value: Any) -> int:
    if type(value) is int or (type(value) is float and value.is_integer()):
        return int(value)
    raise TypeError("no whole number")


def _number(value: Any) -> float:
    if type(value) is int or type(value) is float:
        return float(value)
    raise TypeError("no number")


def _list(value: Any) -> list[Any]:
    if type(value) is list:
        return value  # pyright: ignore[reportUnknownVariableType] - its items are of any kind
    raise TypeError("not a list")


def _zoned(value: Any) -> datetime:
    moment = datetime.fromisoformat(value)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _naive(value: Any) -> datetime:
    moment = datetime.fromisoformat(value)
    return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)


# -- columns from examples


def infer(bodies: Iterable[bytes | None]) -> str | None:
    """DDL of the columns that the bodies seem to have; None when no body is a JSON object with a field.

    Whole numbers are bigint, other numbers double, what is several kinds is string; times stay string.
    """
    found = dict[str, Any]()
    for body in bodies:
        try:
            row: Any = orjson.loads(body or b"")
        except ValueError:
            continue
        if type(row) is dict:
            found = _merged(found, _kind(row))
    return ", ".join(f"{_quoted(name)} {_ddl(kind)}" for name, kind in found.items()) or None


def _kind(value: Any) -> Any:
    """None, a Spark type as text, a dict of fields, or a list of one kind."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "bigint" if -(2**63) <= value < 2**63 else "string"
    if isinstance(value, float):
        return "double"
    if isinstance(value, dict):
        return {name: _kind(item) for name, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        kind: Any = None
        for item in _list(value):
            kind = _merged(kind, _kind(item))
        return [kind]
    return "string"


def _merged(one: Any, other: Any) -> Any:
    if one is None or other is None or one == other:
        return other if one is None else one
    if isinstance(one, dict) and isinstance(other, dict):
        left, right = cast("dict[str, Any]", one), cast("dict[str, Any]", other)
        return {name: _merged(left.get(name), right.get(name)) for name in {**left, **right}}
    if isinstance(one, list) and isinstance(other, list):
        return [_merged(one[0], other[0])]
    if one in ("bigint", "double") and other in ("bigint", "double"):
        return "double"
    return "string"


def _ddl(kind: Any) -> str:
    if isinstance(kind, dict):
        fields = cast("dict[str, Any]", kind)
        inner = ", ".join(f"{_quoted(name)}: {_ddl(item)}" for name, item in fields.items())
        return f"struct<{inner}>" if inner else "string"
    if isinstance(kind, list):
        return f"array<{_ddl(kind[0])}>"
    return kind or "string"


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
