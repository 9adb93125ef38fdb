"""The columns that bodies seem to have, for readers that are told none."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, repeat
from typing import Any, cast

from penstock.expr.bodies import body_type
from penstock.records.ddl import COLUMNS_MOST, DEPTH_MOST, quoted_name
from penstock.records.message_types import JSON, MessageType
from penstock.records.properties import EMPTY
from penstock.spark.reading.bodies import exactly
from penstock.spark.reading.json_types import Number

NO_MESSAGE = "no-message"
"""The reason of a NotFound that the next message may mend: nothing could tell the columns yet."""

NAME_MOST = 255
"""Letters of a column's name: longer ones, and the empty one, name no column."""


def infer(
    bodies: Iterable[bytes | None], kind: MessageType = JSON, properties: Iterable[bytes | None] | None = None
) -> str | None:
    """DDL of the columns that bodies of a type seem to have; None when no body is an object with a field.

    properties: the header of each, where the type needs it.

    Whole numbers are bigint, or string where one is larger than that, other numbers double; what is several kinds is
    string, and so is what lies too deep or has too many fields; times stay string.  Where bodies do not tell one value
    from a list of one, it is a list if it is one in any of them.  Of names that differ only in case,
    which are one to Spark, the first counts, and of more columns than a schema may have the first ones.
    """
    found = dict[str, Any]()
    reader = body_type(kind)
    once = reader.truths is not None
    for body, head in zip(bodies, repeat(None) if properties is None else properties, strict=False):
        try:
            row: Any = exactly(reader.json(reader.one_whole(body or b"", head or EMPTY)))
        except ValueError:
            continue
        if type(row) is dict:
            found = _merged(found, _kind(row, 0, once=once), once=once)
    columns, room = list[str](), COLUMNS_MOST
    for name, kind in _fields(found).items():
        size = 1 + _size(kind)
        if size > room:
            kind, size = "string", 1
        if not room:
            break
        room -= size
        columns.append(f"{quoted_name(name)} {_ddl(kind)}")
    return ", ".join(columns) or None


def _kind(value: Any, depth: int, *, once: bool) -> Any:
    """None, a Spark type as text, a dict of fields, or a list of one kind."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "bigint"
    if isinstance(value, Number):
        return "string" if value.lstrip("-").isdigit() else "double"
    if isinstance(value, str) or depth >= DEPTH_MOST:
        return "string"
    if isinstance(value, dict):
        return {name: _kind(item, depth + 1, once=once) for name, item in cast("dict[str, Any]", value).items()}
    kind: Any = None
    for item in cast("list[Any]", value):
        kind = _merged(kind, _kind(item, depth + 1, once=once), once=once)
    return [kind]


def _merged(one: Any, other: Any, *, once: bool) -> Any:
    """The kind of a value that is either.  once: a list of one is no list in a body."""
    if one is None or other is None or one == other:
        return other if one is None else one
    if isinstance(one, dict) and isinstance(other, dict):
        left, right = cast("dict[str, Any]", one), cast("dict[str, Any]", other)
        names = islice({**left, **right}, COLUMNS_MOST)
        return {name: _merged(left.get(name), right.get(name), once=once) for name in names}
    lists = isinstance(one, list) + isinstance(other, list)
    if lists == 2 or (once and lists):
        return [_merged(_item(one), _item(other), once=once)]
    if one in ("bigint", "double") and other in ("bigint", "double"):
        return "double"
    return "string"


def _item(kind: Any) -> Any:
    """Of what there is a list of, or one."""
    items: Any = kind
    return items[0] if type(kind) is list else kind


def _fields(found: dict[str, Any]) -> dict[str, Any]:
    """Those that can be columns: Spark compares names without their case."""
    first: dict[str, str] = {}
    for name in found:
        first.setdefault(name.lower(), name)
    return {name: found[name] for name in first.values() if 0 < len(name) <= NAME_MOST}


def _size(kind: Any) -> int:
    if isinstance(kind, list):
        return _size(kind[0])
    if isinstance(kind, dict):
        return sum(1 + _size(item) for item in _fields(cast("dict[str, Any]", kind)).values())
    return 0


def _ddl(kind: Any, depth: int = 0) -> str:
    if depth >= DEPTH_MOST and isinstance(kind, dict | list):  # it lay less deep before it was a list
        return "string"
    if isinstance(kind, dict):
        fields = _fields(cast("dict[str, Any]", kind))
        inner = ", ".join(f"{quoted_name(name)}: {_ddl(item, depth + 1)}" for name, item in fields.items())
        return f"struct<{inner}>" if inner else "string"
    if isinstance(kind, list):
        return f"array<{_ddl(kind[0], depth + 1)}>"
    return kind or "string"
