"""Where a message keeps its values: steps into a JSON body, the AMQP header as two tables, where it stands in the log.

Steps into lists: a name is looked up in each element (`/c/x` of `{"c":[{"x":1},{"x":2}]}` is [1, 2]), a subscript picks
from the flattened list, and a scalar counts as a list of one.  What is not there is NULL; so is every field of a body
that is no JSON.  The last of duplicate keys wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import cast

import orjson

from penstock.errors import PenstockError
from penstock.expr.tree import Step
from penstock.expr.values import Value, flatten, from_bytes, to_bytes
from penstock.records.properties import decode

PROPERTIES = (
    "content_type",
    "content_encoding",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
)
"""The AMQP 0-9-1 basic properties that `/@properties/...` may name."""

Table = dict[str, Value]
NOTHING: Table = {}


def parsed(body: bytes) -> Table:
    """The fields of a body; none if it is no JSON."""
    try:
        record = cast("object", orjson.loads(body))
    except orjson.JSONDecodeError:
        return NOTHING
    return cast("Table", record) if record.__class__ is dict else root(record)


def root(value: Value) -> Table:
    """The names at the top of a parsed body; an array of objects gives each name the list of its values."""
    if isinstance(value, dict):
        return cast("Table", value)
    merged: dict[str, Value] = {}
    if isinstance(value, list):
        for item in flatten(cast("Value", value)):
            if isinstance(item, dict):
                for name, found in cast("Table", item).items():
                    cast("list[Value]", merged.setdefault(name, [])).append(found)
    return merged


def walk(value: Value, steps: tuple[Step, ...]) -> Value:
    """What the steps lead to: a scalar, a list, an object, or None."""
    for step in steps:
        if isinstance(step, str):
            if value.__class__ is dict:
                value = cast("Table", value).get(step)
            elif value.__class__ is list:
                tables = [cast("Table", item) for item in flatten(value) if isinstance(item, dict)]
                value = [table[step] for table in tables if step in table]
            else:
                return None
        elif value.__class__ is list:
            items = flatten(value)
            value = items[step] if step < len(items) else None
        elif step != 0:
            return None
    return value


@lru_cache(maxsize=1024)
def header_tables(properties: bytes) -> tuple[Table, Table]:
    """(headers, properties) of an AMQP header in the language's values.

    Remembered, because few distinct headers come with many messages.

    A header that cannot be decoded has no fields.
    """
    try:
        found = decode(properties)
    except PenstockError:
        return NOTHING, NOTHING
    headers = _plain(cast("Value", found.headers or {}))
    return cast("Table", headers), {name: _plain(cast("Value", getattr(found, name))) for name in PROPERTIES}


def _plain(value: Value) -> Value:
    """A decoded AMQP value as the language has it: byte strings, numbers, seconds since the epoch for timestamps."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return from_bytes(to_bytes(value)) if not value.isascii() else value
    if isinstance(value, bytes | bytearray):
        return from_bytes(bytes(value))
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, datetime):
        return int(value.timestamp())
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in cast("Mapping[object, Value]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("list[Value]", value)]
    return None


def topic_name(topic: object) -> str | None:
    """A topic as people write it: the key, behind its exchange when that is not the default one."""
    if topic is None:
        return None
    exchange, name = cast("str", getattr(topic, "exchange", "")), cast("str", getattr(topic, "name", topic))
    return (f"{exchange}/{name}" if exchange else name) or None


def bookmark(origin: object, lsn: object) -> str | None:
    """`<origin>|<lsn>|`."""
    return None if origin is None or lsn is None else f"{origin}|{lsn}|"


def seconds(time: object) -> float | None:
    """Microseconds as seconds."""
    return None if time is None else cast("int", time) / 1_000_000
