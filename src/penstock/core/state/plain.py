"""Control headers as JSON: what an AMQP table may hold, written so that reading it gives the same values and types.

JSON has no bytes, decimals or times, and one kind of number.  Values it lacks become an object with one key that starts
with `$`; a table whose own key starts with `$` is wrapped the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from decimal import Decimal
from operator import attrgetter
from typing import Any, cast

import orjson

from penstock.records.field_tables import Timestamp
from penstock.records.queue_settings import QueueSettings, Retry

_SAFE = 2**63


_TAGGED: tuple[tuple[type | tuple[type, ...], Callable[[Any], object]], ...] = (
    (Timestamp, lambda value: {"$time": int(value)}),
    (int, lambda value: int(value) if -_SAFE <= value < _SAFE else {"$int": str(int(value))}),
    (float, lambda value: {"$float": value.hex()}),
    ((bytes, bytearray), lambda value: {"$bytes": bytes(value).hex()}),
    (datetime, lambda value: {"$time": int(value.timestamp())}),  # AMQP knows whole seconds alone
    (Decimal, lambda value: {"$decimal": str(value)}),
)
"""What JSON lacks or changes; the first that a value is an instance of counts."""


def wrap(value: object) -> object:
    """An AMQP table value as something JSON holds without loss."""
    if value is None or isinstance(value, bool | str):
        return value
    for kind, write in _TAGGED:
        if isinstance(value, kind):
            return write(value)
    if isinstance(value, Mapping):
        table = {str(key): wrap(item) for key, item in cast("Mapping[object, object]", value).items()}
        return {"$table": table} if any(key.startswith("$") for key in table) else table
    if isinstance(value, Sequence):
        return [wrap(item) for item in cast("Sequence[object]", value)]
    raise TypeError(f"a value of type {type(value).__name__} cannot be kept in the log")


def unwrap(value: object) -> object:
    """The inverse of `wrap`; lists come back as lists, tables as dicts."""
    if isinstance(value, list):
        return [unwrap(item) for item in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    table = cast("dict[str, object]", value)
    if len(table) == 1:
        ((key, item),) = table.items()
        if key.startswith("$"):
            return _special(key, item)
    return {key: unwrap(item) for key, item in table.items()}


def _special(key: str, item: object) -> object:
    match key, item:
        case "$int", str():
            return int(item)
        case "$float", str():
            return float.fromhex(item)
        case "$bytes", str():
            return bytes.fromhex(item)
        case "$time", int():
            return Timestamp(item)
        case "$decimal", str():
            return Decimal(item)
        case "$table", dict():
            return {name: unwrap(value) for name, value in cast("dict[str, object]", item).items()}
        case _:
            raise ValueError(f"{key!r} is no known form of a value in a control record")


def dump(header: Mapping[str, object]) -> bytes:
    """A control header as JSON.  Tables in it must have gone through `wrap`."""
    return orjson.dumps(header)


def load(header: bytes) -> dict[str, object]:
    """A control header back from JSON; an empty one is an empty dict."""
    if not header:
        return {}
    value: object = orjson.loads(header)
    if not isinstance(value, dict):
        raise ValueError("a control header must be a JSON object")
    return cast("dict[str, object]", value)


def as_table(value: object) -> dict[str, object]:
    """The arguments table of a header, unwrapped."""
    table = unwrap(value)
    return cast("dict[str, object]", table) if isinstance(table, dict) else {}


_NAMES = tuple([one.name for one in fields(QueueSettings)])
_values = attrgetter(*_NAMES)
_RESTING = dict(zip(_NAMES, _values(QueueSettings()), strict=True))

_ALWAYS_TOLD = frozenset(
    {
        "underlying_topic", "exchange", "default_publish_target", "filter", "semantics", "lease_period", "leasing",
        "max_backlog", "max_per_subscription_backlog", "fairness_model", "max_deliveries", "max_cancels",
        "delivery_limit", "retry", "expiration", "expiration_model", "message_ttl", "dead_letter_exchange",
        "dead_letter_routing_key", "deliver", "deferred_ack_expiration", "barrier_expression",
        "barrier_without_subscribers", "priority_expression", "target_queue_depth", "file_backed_metadata",
        "recovery_point", "kind", "initial_owner", "group_local_queue_domain",
    }
)  # fmt: skip
"""Settings of the first versions.  Their defaults may change, and must not change what an old log says."""


def dump_settings(settings: QueueSettings) -> dict[str, object]:
    """Settings as JSON holds them.  Those that came later are left out at rest, which is off for ever: they are many,
    and every queue is in every checkpoint.
    """
    told = zip(_NAMES, _values(settings), strict=True)
    return {key: plain(value) for key, value in told if key in _ALWAYS_TOLD or value != _RESTING[key]}


def plain(value: object) -> object:
    """One setting as JSON holds it."""
    return asdict(value) if isinstance(value, Retry) else value


def load_settings(value: object) -> QueueSettings:
    """The inverse of `dump_settings`.  Raises ValueError for keys that this version does not know."""
    table = dict(cast("dict[str, object]", value)) if isinstance(value, dict) else {}
    unknown = table.keys() - _RESTING.keys()
    if unknown:
        raise ValueError(f"queue settings in the log have the unknown keys {', '.join(sorted(unknown))}")
    retry = table.pop("retry", None)
    if isinstance(retry, dict):
        table["retry"] = Retry(**cast("dict[str, int]", retry))
    for key in ("max_leased", "rate_limit"):
        if key in table:
            table[key] = tuple(cast("list[int]", table[key]))
    if "weights" in table:
        table["weights"] = tuple([(name, weight) for name, weight in cast("list[tuple[str, float]]", table["weights"])])
    return QueueSettings(**cast("dict[str, int]", table))  # type: ignore[arg-type]
