"""Messages as the expressions of a view read them, what tells its groups apart, and how its rows look as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, TypeAlias, cast

import orjson

from penstock.expr.batches import Table
from penstock.expr.values import NAN, Value, to_bytes
from penstock.records.dataclass import dataclass
from penstock.records.entries import Messages, Topic
from penstock.records.properties import EMPTY

if TYPE_CHECKING:
    from penstock.expr.view_definition import Plan


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
        made = orjson.dumps(table)
    except (TypeError, orjson.JSONEncodeError):
        made = orjson.dumps(_clean(table))
    return bytes(memoryview(made))  # its own lies in 4 KiB however short it is: many rows would take as much


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


Values: TypeAlias = Sequence[Value]

Rank: TypeAlias = tuple[int, ...]
"""How new a combination of rows is: what is higher is newer.  It depends on the rows and on nothing else."""


@dataclass(frozen=True, slots=True)
class Elements:
    """Messages as expressions read them, one element a message; `records` are the parsed bodies."""

    lsns: Sequence[int]
    records: Sequence[Table]
    bodies: Sequence[bytes] = ()  # where an expression asks for their size
    headers: Sequence[bytes] | bytes = EMPTY
    topics: list[Topic] | Topic | None = None
    times: Sequence[int] | int | None = None
    states: bytes = b""  # of each; empty: all are available
    ranks: Sequence[Rank] = ()  # of each, where positions do not say which is newer: in a join

    def arguments(self) -> tuple[object, ...]:
        """What comes first for a function of `compile_parsed`."""
        n = len(self.records)
        return (
            self.bodies or [b""] * n,
            self.records,
            repeat(self.headers) if isinstance(self.headers, bytes) else self.headers,
            self.topics if isinstance(self.topics, list) else repeat(self.topics),
            self.lsns,
            repeat(self.times) if self.times is None or isinstance(self.times, int) else self.times,
            None,
            None,
            None,
        )


@dataclass(frozen=True, slots=True)
class Given:
    """What messages give to a view: those that pass its filter, with the values of its inputs."""

    lsns: Sequence[int]
    values: Sequence[Values]
    states: bytes = b""
    ranks: Sequence[Rank] = ()


def given_by(plan: Plan, elements: Elements) -> Given:
    """What messages give to a view.  Any thread: nothing is changed."""
    lsns: Sequence[int] = elements.lsns
    states, ranks = elements.states, elements.ranks
    values: Sequence[Values] = [
        cast("Values", run(*elements.arguments()))  # type: ignore[arg-type]  # as documented
        for run in plan.inputs
    ]
    if plan.filter is not None:
        bodies = elements.bodies or [b""] * len(lsns)
        passed = plan.filter.matches_parsed(
            elements.records, Messages(bodies, elements.headers, elements.topics, lsns, elements.times)
        )
        if not all(passed):
            rows = [row for row, passes in enumerate(passed) if passes]
            lsns = [lsns[row] for row in rows]
            values = [[column[row] for row in rows] for column in values]
            states = bytes(states[row] for row in rows) if states else states
            ranks = [ranks[row] for row in rows] if ranks else ranks
    return Given(lsns, values, states, ranks)
