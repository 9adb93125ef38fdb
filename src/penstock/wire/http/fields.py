"""What a request brings: its JSON body within a bound, and fields of it read by name and kind.

Tools of RabbitMQ send numbers and truths as text too ("5", "true"), and fields that a path does not know; both are
taken as there.  A mistake names the field, its value and what is allowed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import cast

import orjson
from starlette.requests import ClientDisconnect, Request

from penstock.errors import InvalidArgument
from penstock.units import format_size

BODY_MOST = 1 << 20
"""Bytes of a request's body where a path says nothing else."""

LARGE_MOST = 20_000_000
"""Bytes of a body that holds a message or definitions: what RabbitMQ allows by default."""

DEPTH_MOST = 32
"""Objects and lists inside each other: as many as an AMQP table may have."""

SHORT_MOST = 255
"""Bytes of a name or a key."""

SHOWN = 60
"""Characters of a wrong value that are told."""


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


_KINDS = {
    "bool": "true or false",
    "int": "a number",
    "float": "a number",
    "str": "a text",
    "list": "a list",
    "dict": "an object",
}


def kind_of(value: object) -> str:
    """What JSON calls it, for a person."""
    return _KINDS.get(type(value).__name__, "null")


def shown(value: object) -> str:
    """A value, cut."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def short(text: str, what: str) -> str:
    """A name or key as AMQP can carry it.  InvalidArgument names `what`."""
    size = len(text.encode())
    if size > SHORT_MOST:
        raise InvalidArgument(f"{what} has {size} bytes, {SHORT_MOST} are allowed")
    return text


class Fields:
    """Values of one JSON object by name.  Each raises InvalidArgument; null is as absent."""

    def __init__(self, values: Mapping[str, object], where: str = "") -> None:
        self.values = values
        self._where = where

    def holding(self, values: Mapping[str, object]) -> Fields:
        """Other values, at the same place."""
        return Fields(values, self._where)

    def told(self, reason: str) -> str:
        """A reason with the place of these fields before it."""
        return reason if not self._where or reason.startswith(self._where) else f"{self._where}{reason}"

    def _wrong(self, name: str, allowed: str) -> InvalidArgument:
        return InvalidArgument(f"{self._where}{name} is {shown(self.values.get(name))}, not {allowed}")

    def _missing(self, name: str) -> InvalidArgument:
        return InvalidArgument(f"{self._where}{name} is missing")

    def text(self, name: str, default: str | None = None) -> str:
        """A text."""
        value = self.values.get(name)
        if value is None:
            if default is None:
                raise self._missing(name)
            return default
        if not isinstance(value, str):
            raise self._wrong(name, "a text")
        return value

    def choice(self, name: str, allowed: Sequence[str], default: str | None = None) -> str:
        """One of some texts."""
        value = self.text(name, default)
        if value not in allowed:
            raise self._wrong(name, f"one of {', '.join(allowed)}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false, or the same as text."""
        value = self.values.get(name)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        if value in ("true", "false"):
            return value == "true"
        raise self._wrong(name, "true or false")

    def count(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number in a range, or the same as text."""
        value = self.values.get(name)
        if value is None:
            if default is None:
                raise self._missing(name)
            return default
        if isinstance(value, str) and len(value) < 20 and value.removeprefix("-").isdecimal() and value.isascii():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self._wrong(name, f"a whole number from {low} to {high}")
        return value

    def table(self, name: str) -> Mapping[str, object]:
        """An object; an absent one, and the empty list that some tools send, are empty."""
        value = self.values.get(name)
        if value is None or value == []:
            return {}
        if not isinstance(value, dict):
            raise self._wrong(name, "an object")
        if too_deep(cast("object", value), DEPTH_MOST):
            raise InvalidArgument(f"{self._where}{name} nests deeper than {DEPTH_MOST}")
        return cast("dict[str, object]", value)

    def items(self, name: str) -> list[Fields]:
        """The objects of a list; an absent one is empty."""
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._wrong(name, "a list")
        found = list[Fields]()
        for place, item in enumerate(cast("list[object]", value)):
            if not isinstance(item, dict):
                raise InvalidArgument(f"{self._where}{name}[{place}] is {kind_of(item)}, not an object")
            found.append(Fields(cast("dict[str, object]", item), f"{self._where}{name}[{place}]: "))
        return found


def too_deep(value: object, left: int) -> bool:
    """Whether objects and lists nest deeper than `left`."""
    if not isinstance(value, (dict, list)):
        return False
    if left == 0:
        return True
    inner = cast("dict[str, object] | list[object]", value)
    return any(too_deep(one, left - 1) for one in (inner.values() if isinstance(inner, dict) else inner))
