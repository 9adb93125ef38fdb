"""What tells the groups of a view apart, and how its rows look as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, cast

import orjson

from penstock.expr.values import NAN, Value, to_bytes
from penstock.records.properties import EMPTY

if TYPE_CHECKING:
    from penstock.expr.fields import Table
    from penstock.expr.gathering.definition import Plan

GroupKey: TypeAlias = tuple[Value, ...]
Row: TypeAlias = tuple[Value, ...]

PLAIN = frozenset((str, int))
"""Values that are their own key."""

_TRUTH = {True: ("true",), False: ("false",)}
_NOT_A_NUMBER = ("nan",)


def key_of(value: Value) -> Value:
    """What tells groups apart: 1 and 1.0 are one group, 1 and TRUE are two; NULL and NaN have groups of their own."""
    if isinstance(value, bool):
        return _TRUTH[value]
    if isinstance(value, float):
        return _NOT_A_NUMBER if value != value else int(value) if value.is_integer() and abs(value) < 1 << 53 else value
    return value or (0 if value == 0 else None)


def shown(key: Value) -> Value:
    """The value of a group key."""
    if isinstance(key, tuple):
        return NAN if key == _NOT_A_NUMBER else key == _TRUTH[True]
    return key


def row_of(plan: Plan, gathered: Table) -> Row:
    """The columns of a row, of what was gathered: the values grouped by as `g0`, `g1` .., the others by their names."""
    out: list[Value] = []
    for column in plan.columns:
        if column.name is not None:
            out.append(gathered[column.name])
        else:
            assert column.run is not None
            out += column.run([b""], [gathered], (EMPTY,), (None,), (0,), (None,), None, None, None)
    return tuple(out)


def body(plan: Plan, row: Row) -> bytes:
    """A row as a JSON object.  NaN and infinities are null, as JSON has none; bytes that are no UTF-8 are replaced."""
    table: dict[str, object] = {}
    for column, value in zip(plan.columns, row, strict=True):
        here = table
        for step in column.path[:-1]:
            here = cast("dict[str, object]", here.setdefault(step, {}))
        here[column.path[-1]] = value
    try:
        return orjson.dumps(table)
    except (TypeError, orjson.JSONEncodeError):
        return orjson.dumps(_clean(table))


def _clean(value: object) -> object:
    if isinstance(value, dict):
        return {cast("str", _clean(key)): _clean(one) for key, one in cast("dict[object, object]", value).items()}
    return to_bytes(value).decode("utf-8", "replace") if isinstance(value, str) else value


def key_text(key: GroupKey) -> str:
    """What tells a row from the others of its view, as text: the values grouped by, as a JSON array."""
    values = [shown(value) for value in key]
    try:
        return orjson.dumps(values).decode()
    except (TypeError, orjson.JSONEncodeError):
        return orjson.dumps([_clean(value) for value in values]).decode()
