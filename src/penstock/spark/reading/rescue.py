"""What of a body has no column: fields that the schema does not name, and values that their columns cannot hold.

It is kept as JSON in a column of its own, with all digits of its numbers, so that a schema that is behind its
publishers loses nothing.  Of a struct it is the part that has no field; of a list or a map the whole, if anything in it
has none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import pyarrow as pa

from penstock.spark.reading.json_types import Unfit, json_text

if TYPE_CHECKING:
    from penstock.spark.record_batches import Column

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
        return None if inner is None else _of_many(inner)
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


def _of_many(inner: Left) -> Left:
    def left(given: object) -> Any:
        value: Any = given
        items: list[Any] = list(value.values()) if type(given) is dict else value if type(given) is list else []
        return value if any(inner(one) is not None for one in items) else None

    return left
