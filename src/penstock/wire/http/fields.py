"""What a request brings: its JSON body within a bound."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

import orjson
from starlette.requests import ClientDisconnect, Request

from penstock.errors import InvalidArgument
from penstock.units import format_size
from penstock.wire.fields import kind_of, shown

BODY_MOST = 1 << 20
"""Bytes of a request's body where a path says nothing else."""

LARGE_MOST = 20_000_000
"""Bytes of a body that holds a message or definitions: what RabbitMQ allows by default."""


async def read_body(request: Request, most: int) -> bytes:
    """The body.  InvalidArgument when it is longer; no more than the bound is ever held."""
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and len(announced) < 20 and int(announced) > most:
        raise too_long(int(announced), most)
    parts, size = list[bytes](), 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise too_long(size, most)
            parts.append(part)
    except ClientDisconnect:
        raise InvalidArgument("the body ended before its announced length") from None
    return b"".join(parts)


def too_long(size: int, most: int) -> InvalidArgument:
    """The refusal."""
    return InvalidArgument(f"the request's body has {size} bytes or more, {format_size(most)} are allowed")


def read_object(body: bytes, what: str = "the request's body") -> Mapping[str, object]:
    """A JSON object; an empty body and `null` are an empty one; a byte order mark is tolerated."""
    text = body.removeprefix(b"\xef\xbb\xbf").strip()
    if text in {b"", b"null", b"undefined"}:
        return {}
    try:
        value: object = orjson.loads(text)
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise InvalidArgument(f"{what} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidArgument(f"{what} is {kind_of(value)}, not a JSON object")
    return cast("dict[str, object]", value)


def read_once(body: bytes) -> Mapping[str, object]:
    """The same, where a key that is there twice is no mistake to pass over: the second would silently win."""
    values = read_object(body)
    if values:
        try:
            json.loads(body.removeprefix(b"\xef\xbb\xbf"), object_pairs_hook=_once)
        except (RecursionError, ValueError) as error:  # it goes less deep, and takes fewer digits
            raise InvalidArgument(f"the request's body is not JSON that can be read: {error}") from None
    return values


def _once(pairs: list[tuple[str, object]]) -> None:
    seen = set[str]()
    for name, _ in pairs:
        if name in seen:
            raise InvalidArgument(f"the key {shown(name)} is there twice")
        seen.add(name)
