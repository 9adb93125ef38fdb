"""Bodies of actions, tickets, descriptors and criteria as a stranger makes them up: JSON of known names, then broken.

Names of fields are those that commands know, values are of every type and size, so that a good part of what is made up
gets past the first check.  Which actions there are the server says itself: a new one is tried without a line here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import orjson

from hostile.arrow_streams import QUEUE
from hostile.flight_wire import action, descriptor, field, path, ticket, varint
from hostile.mutations import changed

NOT_TRIED = frozenset({"drain", "backup"})
"""Actions that do what they say to the whole server, or to the machine's folders, with what is made up here."""

TEXTS = (
    QUEUE, "other", "", "/", "amq.direct", "no such", "é\x00ü", "x" * 256, "a" * 5000, "[", "(a+)+$", "1|2|", "EPOCH",
    "NOW", "[1|1|:1|9|)", "0|18446744073709551616|", "2026-01-01T00:00:00", "/id > 1", "/id >", "guest",
    "direct", "queues", "ready", "1000", "2X", "500KB", "SELECT 1", "-1", "٣",
)  # fmt: skip
NUMBERS = (0, 1, 2, 7, 100, 1 << 31, (1 << 53) - 1, 1 << 53, (1 << 63) - 1, -1, -(1 << 63), 0.5, 1e300, -0.0)
NAMES = (
    "queue", "topic", "exchange", "vhost", "settings", "arguments", "key", "type", "stream", "epoch", "batch", "start",
    "end", "parts", "part", "max_rows", "wait", "filter", "bookmark", "bookmarks", "option", "by", "count", "limit",
    "columns", "states", "name", "pattern", "definition", "priority", "apply_to", "operator", "until", "lsns", "dry",
    "after", "to", "from", "user", "password", "tags", "value", "query", "stages", "settle", "id", "rate", "read",
    "release", "kinds", "order_by", "top_n", "skip_n", "select", "projection", "grouping", "statement", "durable",
    "driver", "pipelines", "state", "keys", "data", "destination", "source", "publisher", "revision", "blame", "once",
)  # fmt: skip
"""Fields of commands; each command knows a few of them."""

PATHS = ("queue", "topic", "/", QUEUE, "", "x" * 300)

TICKETS: dict[str, tuple[str, ...]] = {
    "queue": ("name", "vhost", "states", "limit", "filter", "columns"),
    "replay": ("topic", "pattern", "exchange", "vhost", "bookmark", "filter", "limit", "columns", "select", "stream"),
    "sow": ("topic", "exchange", "filter", "order_by", "top_n", "skip_n", "columns", "projection", "grouping"),
    "log": ("from", "to", "columns", "kinds"),
    "plan": ("stream", "batch", "part", "parts", "columns", "revision", "query", "key"),
}
"""Reads that end by themselves, and their fields."""


def _value(rng: Random, depth: int = 0) -> object:
    match rng.randrange(9 if depth < 3 else 5):
        case 0 | 1:
            return rng.choice(TEXTS)
        case 2:
            return rng.choice(NUMBERS)
        case 3:
            return rng.choice((True, False, None))
        case 4:
            return QUEUE
        case 5:
            return [_value(rng, depth + 1) for _ in range(rng.choice((0, 1, 2, 50)))]
        case 6:
            return {rng.choice(NAMES): _value(rng, depth + 1) for _ in range(rng.randint(0, 3))}
        case 7:
            value: object = 1
            for _ in range(rng.choice((3, 100, 240))):
                value = [value]
            return value
        case _:
            return [rng.choice(TEXTS)] * rng.choice((1, 3, 1000))


def _object(rng: Random, names: Sequence[str]) -> dict[str, object]:
    chosen = {rng.choice(names if rng.random() < 0.9 else NAMES): _value(rng) for _ in range(rng.randint(0, 5))}
    if rng.random() < 0.7 and ("queue" in names or "name" in names):
        chosen["queue" if "queue" in names else "name"] = QUEUE
    return chosen


def _written(rng: Random, value: object) -> bytes:
    data = orjson.dumps(value)
    match rng.randrange(8):
        case 0:
            return changed(rng, data)
        case 1:
            odd = rng.choice((b"[" * 2000, b"1e999,", b"9" * 400 + b",", b'"\\ud800",', b"NaN,", b"-,"))
            return data.replace(b":", b":" + odd, 1)
        case _:
            return data


def _action(rng: Random, actions: Sequence[str], described: Mapping[str, str]) -> tuple[str, str, bytes]:
    kind = rng.choice(actions)
    own = [name for name in NAMES if name in described.get(kind, "")] or list(NAMES)
    name = kind.encode() if rng.random() < 0.97 else changed(rng, kind.encode())
    return "DoAction", kind, action(name, _written(rng, _object(rng, [*own, "vhost"])))


def _ticket(rng: Random) -> tuple[str, str, bytes]:
    kind = rng.choice(list(TICKETS))
    data = _written(rng, {kind: _object(rng, TICKETS[kind])})
    if rng.random() < 0.6:
        return "DoGet", kind, ticket(data)
    return rng.choice(("GetFlightInfo", "GetSchema")), kind, descriptor(data)


def _descriptor(rng: Random) -> tuple[str, str, bytes]:
    method = rng.choice(("GetFlightInfo", "GetSchema"))
    parts = [rng.choice(PATHS).encode() for _ in range(rng.choice((0, 1, 2, 3, 50)))]
    match rng.randrange(4):
        case 0:
            return method, "bytes", changed(rng, path(*parts) + field(2, b"{}"))
        case 1:
            return method, "kind", varint(1 << 3) + varint(rng.getrandbits(40)) + field(3, rng.randbytes(9))
        case 2:
            return method, "text", path(*(rng.randbytes(4) for _ in parts))
        case _:
            return method, "path", path(*parts)


def made_up(rng: Random, described: Mapping[str, str]) -> tuple[str, str, bytes]:
    """Method, what it is about, and the message.  described: the server's actions with what it says of each."""
    actions = [name for name in sorted(described) if name not in NOT_TRIED]
    match rng.randrange(10):
        case 0:
            return _descriptor(rng)
        case 1:
            return (
                "ListFlights",
                "criteria",
                ticket(rng.choice(TEXTS).encode() if rng.random() < 0.5 else rng.randbytes(5)),
            )
        case 2 | 3 | 4:
            return _ticket(rng)
        case _:
            return _action(rng, actions, described)
