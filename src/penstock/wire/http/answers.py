"""Answers: JSON, RabbitMQ's shape of an error, and long lists encoded a step at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TypeVar

import orjson
from starlette.responses import Response, StreamingResponse

from penstock.errors import (
    AccessRefused,
    DiskFull,
    Draining,
    ExpressionError,
    LogBroken,
    NotFound,
    PenstockError,
    QueueBlocked,
    Refused,
    SettingsError,
    Unavailable,
)

T = TypeVar("T")

STEP_S = 0.004
"""What a list of everything may do at once, in seconds, before others have their turn."""

HEADERS = {"cache-control": "no-cache", "x-content-type-options": "nosniff"}

SLICE = 256
"""Items that are sorted, or encoded, before others have their turn."""


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON; bytes become text with what is no UTF-8 replaced."""
    return json_bytes(orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS), status, headers)


def json_bytes(content: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(content, status, {**HEADERS, **(headers or {})}, media_type="application/json")


def _plain(value: object) -> object:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def created(location: str | None = None) -> Response:
    """201: the object was not there before."""
    return Response(status_code=201, headers=None if location is None else {"location": location})


def done() -> Response:
    """204: changed, deleted, or as it was."""
    return Response(status_code=204)


def made(fresh: bool) -> Response:
    return created() if fresh else done()


def refusal(status: int, error: str, reason: str, headers: Mapping[str, str] | None = None) -> Response:
    """RabbitMQ's shape of an error."""
    return json_response({"error": error, "reason": reason}, status, headers)


def not_found(reason: str = "Not Found") -> Response:
    """An object, or a path, that does not exist."""
    return refusal(404, "Object Not Found", reason)


def of_error(error: PenstockError) -> Response:
    """What the server refused, as a status that RabbitMQ's tools expect for it.

    Who is logged in and may not do something gets 401 as there, but no challenge: another password would not help.
    """
    match error:
        case NotFound():
            return not_found(str(error))
        case AccessRefused():
            return refusal(401, "not_authorized", str(error))
        case DiskFull() | Draining() | LogBroken() | Unavailable() | QueueBlocked():
            return refusal(503, "service_unavailable", str(error), {"retry-after": "1"})
        case ExpressionError():
            return refusal(400, "bad_request", error.pointed())
        case Refused() | SettingsError():
            return refusal(400, "bad_request", str(error))
        case _:
            return refusal(500, "internal_error", str(error))


async def gathered(items: Iterable[T]) -> list[T]:
    """All of them; others have their turn after every few milliseconds."""
    out = list[T]()
    clock = asyncio.get_running_loop().time
    until = clock() + STEP_S
    for item in items:
        out.append(item)
        if clock() > until:
            await asyncio.sleep(0)
            until = clock() + STEP_S
    return out


async def json_list(items: list[object]) -> Response:
    """A long list as JSON, encoded and sent a slice at a time: one write of many megabytes would hold the loop."""
    if len(items) <= SLICE:
        return json_response(items)
    return StreamingResponse(_sliced(items), 200, HEADERS, media_type="application/json")


async def _sliced(items: list[object]) -> AsyncIterator[bytes]:
    for start in range(0, len(items), SLICE):
        part = bytes(json_response(items[start : start + SLICE]).body)
        yield (b"," if start else b"[") + part[1:-1]
        await asyncio.sleep(0)
    yield b"]"


async def encoded(items: list[object]) -> bytes:
    parts = list[bytes]()
    for start in range(0, len(items), SLICE):
        parts.append(bytes(json_response(items[start : start + SLICE]).body)[1:-1])
        await asyncio.sleep(0)
    return b"[" + b",".join(parts) + b"]"
