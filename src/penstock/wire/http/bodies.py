"""Bodies of requests: read whole within bounds on each and on all together, JSON of a bounded number of values, and a
message that one holds.

Whoever reads what strangers send does this, the door's process or the server itself (`server.http.reception`).

Fields of JSON are read as tools of RabbitMQ send them: as `wire.fields` does, with less asked of who writes.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeAlias, cast

import orjson

from penstock.errors import InvalidArgument, Unavailable, shown, told_as
from penstock.records.properties import Properties, encode
from penstock.units import format_size
from penstock.wire.fields import (
    DEPTH_MOST,
    LSN_MAX,
    NAME_LIMIT,
    Field,
    Fields,
    bounded,
    kind_of,
    short,
    too_deep,
    too_long_a_number,
)

BODY_MOST = 1 << 20
"""Bytes of a request's body where a path says nothing else."""

LARGE_MOST = 20_000_000
"""Bytes of a body that holds a message or definitions: what RabbitMQ allows by default."""

AT_ONCE = 256 * 1024
"""A longer body is read beside the loop: 20 MB take seconds."""

VALUES_MOST = 4_000_000
"""Values and keys of a document: each is some 80 bytes as an object, and one or two as text.  Definitions of that size
have three quarters as many."""

_BESIDE = (b",", b":", b"[", b"{")

_PARTS = re.compile(rb'"(?>[^"\\]++|\\.)*+"|([^"]++)', re.DOTALL)
"""A text of a document, or what stands between two.  It gives nothing back, and so remembers nothing: one text of 20 MB
took half a gigabyte."""

Receive: TypeAlias = "Callable[[], Awaitable[Mapping[str, Any]]]"
"""ASGI's."""


class Reading(NamedTuple):
    """What is wanted of a body."""

    most: int = BODY_MOST  # bytes
    once: bool = False  # a key that is there twice is refused
    message: bool = False  # it holds one


class Brought(NamedTuple):
    """A message that a request brought, apart from its JSON."""

    key: str
    header: bytes  # its encoded properties
    body: bytes


def too_long(size: int, most: int) -> InvalidArgument:
    return InvalidArgument(f"the request's body has {size} bytes or more, {format_size(most)} are allowed")


def too_slow(size: int, seconds: float) -> InvalidArgument:
    return InvalidArgument(
        f"{size} bytes of the request's body came in {seconds:.0f} s: it has {BODY_S:.0f} s, and one more for each "
        f"{format_size(SLOWEST)}"
    )


def read_object(body: bytes, what: str = "the request's body", *, once: bool = False) -> Mapping[str, object]:
    """A JSON object; an empty body and `null` are an empty one; a byte order mark is tolerated.

    once: a key that is there twice is no mistake to pass over: the second would silently win.
    """
    text = body.removeprefix(b"\xef\xbb\xbf").strip()
    if text in {b"", b"null", b"undefined"}:
        return {}
    if len(text) > VALUES_MOST and (values := values_of(text, VALUES_MOST)) > VALUES_MOST:
        raise InvalidArgument(f"{what} has {values} values or more, {VALUES_MOST} are allowed")
    unread = _refuse_twice(text) if once else None  # before the values are there: both would take twice the memory
    with told_as(InvalidArgument, f"{what} is not JSON: ", instead=(orjson.JSONDecodeError, RecursionError)):
        value: object = orjson.loads(text)
    if not isinstance(value, dict):
        raise InvalidArgument(f"{what} is {kind_of(value)}, not a JSON object")
    if why := too_long_a_number(text):
        raise InvalidArgument(f"{what}: {why}")
    if unread is not None:
        raise InvalidArgument(f"{what} is not JSON that can be read: {unread}")
    return cast("dict[str, object]", value)


def _refuse_twice(text: bytes) -> Exception | None:
    """InvalidArgument for a key that is there twice; why keys cannot be looked at, where they cannot."""
    try:
        json.loads(text, object_pairs_hook=_once)
    except (RecursionError, ValueError) as error:  # it goes less deep than the other reader, and takes fewer digits
        return error
    return None


def values_of(text: bytes, most: int) -> int:
    """How many a document has, about: commas, colons and brackets outside of its texts.  Beyond `most`: or more."""
    found = sum(map(text.count, _BESIDE))
    if found <= most:
        return found
    found = 0
    for part in _PARTS.finditer(text):
        if part[1]:
            found += sum(map(part[1].count, _BESIDE))
            if found > most:
                break
    return found


def _once(pairs: Sequence[tuple[str, object]]) -> None:
    seen = set[str]()
    for name, _ in pairs:
        if name in seen:
            raise InvalidArgument(f"the key {shown(name)} is there twice")
        seen.add(name)


def read_as(wanted: Reading, body: bytes) -> Any:
    """The values of an object, or the message that it holds.  Raises InvalidArgument."""
    values = read_object(body, once=wanted.once)
    return message_of(Lenient(values)) if wanted.message else values


TEXTS = (
    "content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id", "type", "user_id",
    "app_id", "cluster_id",
)  # fmt: skip
"""Properties of a message that are texts."""


def message_of(fields: Lenient) -> Brought:
    """What RabbitMQ's publish has in its body.  Raises InvalidArgument."""
    key = short(fields.text("routing_key"), "routing_key")
    body = payload(fields)
    return Brought(key, bounded(encode(properties(fields))), body)


def payload(fields: Lenient) -> bytes:
    """The body of a message.  Raises InvalidArgument."""
    encoding = fields.choice("payload_encoding", ("string", "base64"))
    text = fields.text("payload")
    if encoding == "string":
        return text.encode()
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgument(f"payload is {shown(text)}, not base64") from None


def properties(fields: Lenient) -> Properties:
    """Basic properties by their names; what has no such name is refused, since nobody would see it."""
    given = fields.table("properties")
    unknown = given.keys() - {*TEXTS, "headers", "delivery_mode", "priority", "timestamp"}
    if unknown:
        raise InvalidArgument(f"properties: {shown(min(unknown))} is no property of a message")
    some = Lenient(given, "properties: ")
    texts = {name: some.text(name) for name in TEXTS if given.get(name) is not None}
    headers = some.table("headers")

    def number(name: str, high: int) -> int | None:
        return None if given.get(name) is None else some.number(name, 0, high)

    return Properties(
        **texts,  # pyright: ignore[reportArgumentType]  # all of them are texts
        headers=cast("Mapping[str, Any]", headers) or None,
        delivery_mode=number("delivery_mode", 255),
        priority=number("priority", 255),
        timestamp=number("timestamp", 2**64 - 1),
    )


BODY_S, SLOWEST = 20.0, 4 << 10
"""Seconds in which a body has to come, and one more for each so many bytes that did: until then its request is one of
those that its user may have under way.
"""

HELD_MOST, HELD_OF_USER = 128 << 20, 64 << 20
"""Bytes of bodies beyond `AT_ONCE` that are being sent, in all and by one user."""


class Room:
    """Where bodies lie until they are whole and read.  The large ones are read one at a time, beside the loop.

    Whose they are was found right before.
    """

    def __init__(self, made: Callable[[Reading, Any], Any] | None = None) -> None:
        """made: what becomes of what was read, in the same turn."""
        self._made = made
        self._held = Counter[str]()  # by user
        self._all = 0
        self._one = asyncio.Lock()

    async def read(self, user: str, announced: str, receive: Receive, wanted: Reading) -> Any:
        """What is wanted of a body.  Raises InvalidArgument, and Unavailable where there is no room.

        announced: its Content-Length.  No more than the bound is ever held.
        """
        most, clock = wanted.most, asyncio.get_running_loop().time
        began = clock()
        if announced.isascii() and announced.isdigit() and int(announced) > most:
            raise too_long(int(announced), most)
        parts, size, mine, more = list[bytes](), 0, 0, True
        try:
            while more:
                try:
                    async with asyncio.timeout_at(began + BODY_S + size / SLOWEST):
                        message = await receive()
                except TimeoutError:
                    raise too_slow(size, clock() - began) from None
                if message["type"] == "http.disconnect":
                    raise InvalidArgument("the body ended before its announced length")
                part: bytes = message.get("body", b"")
                size += len(part)
                if size > most:
                    raise too_long(size, most)
                if size > AT_ONCE:
                    further, mine = size - mine, size
                    self._take(user, further)
                parts.append(part)
                more = bool(message.get("more_body", False))
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            if size <= AT_ONCE:
                return self._read(wanted, body)
            async with self._one:
                return await asyncio.to_thread(self._read, wanted, body)
        finally:
            if mine:
                self._take(user, -mine)

    def _read(self, wanted: Reading, body: bytes) -> Any:
        found = read_as(wanted, body)
        return found if self._made is None else self._made(wanted, found)

    def _take(self, user: str, more: int) -> None:
        self._all += more
        self._held[user] += more
        if not self._held[user]:
            del self._held[user]
        if more > 0 and (self._all > HELD_MOST or self._held[user] > HELD_OF_USER):
            raise Unavailable(
                f"bodies of more than {format_size(AT_ONCE)} that are being sent have {format_size(self._all)}, "
                f"{format_size(self._held[user])} of them user '{user}': try again later"
            )


class Lenient(Fields):
    """The same as tools of RabbitMQ send it: numbers and truths may be text, what a path does not know is passed over.

    Fields may be read again and again; null is as absent.
    """

    def __init__(self, values: Mapping[str, object], where: str = "") -> None:
        """where: what a sentence about a field begins with."""
        super().__init__(where, values)
        self.values = values

    def holding(self, values: Mapping[str, object]) -> Self:
        """Other values, at the same place."""
        return type(self)(values, self.where)

    def told(self, reason: str) -> str:
        """A reason with the place of these fields before it."""
        return reason if not self.where or reason.startswith(self.where) else f"{self.where}{reason}"

    @property
    def place(self) -> str:
        """As it was given."""
        return self.where

    def take(self, name: str) -> object:
        return self.values.get(name)

    def only(self, *known: str) -> Self:
        """These fields, and none besides: a path of our own, where a misspelled one would do something else."""
        for name in self.values:
            if name not in known:
                allowed = f"not one of {', '.join(known)}" if known else "and none is known here"
                raise InvalidArgument(f"unknown field {name!r}, {allowed}")
        return self

    def finish(self) -> None:
        pass

    def optional_text(self, name: str, limit: int = NAME_LIMIT) -> str | None:
        """A text however long, or None when absent."""
        return self._typed(name, str, "a text")

    def text(self, name: str, default: str | None = None, limit: int = NAME_LIMIT) -> str:
        """A text; without a default it must be there."""
        value = self.optional_text(name)
        if value is None and default is None:
            raise self.missing(name)
        return value if value is not None else default or ""

    def choice(self, name: str, allowed: Sequence[str], default: str | None = None) -> str:
        """One of some texts."""
        value = self.text(name, default)
        if value not in allowed:
            raise self.bad(name, value, f"one of {', '.join(allowed)}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false, or the same as text."""
        value = self.take(name)
        return value == "true" if value in ("true", "false") else super().flag(name, default)

    def optional_count(self, name: str, low: int = 0, high: int = LSN_MAX) -> int | None:
        """A whole number in a range, or the same as text; None when absent."""
        value = number = self.take(name)
        if isinstance(value, str) and len(value) < 20 and value.removeprefix("-").isdecimal() and value.isascii():
            number = int(value)
        if number is None:
            return None
        if not isinstance(number, int) or isinstance(number, bool) or not low <= number <= high:
            raise self.bad(name, value, f"a whole number from {low} to {high}")
        return number

    def table(self, name: str) -> dict[str, object]:
        """An object; an absent one, and the empty list that some tools send, are empty."""
        value = self.take(name)
        if value is None or value == []:
            return {}
        if not isinstance(value, dict):
            raise self.bad(name, value, "an object")
        return cast("dict[str, object]", self.shallow(name, cast("object", value)))

    def loosely(self, declared: Iterable[Field]) -> dict[str, object]:
        """Declared fields that are there, with numbers and truths for texts that say them; `Fields` judges the rest."""
        found = dict[str, object]()
        for field in declared:
            value = self.take(field.name)
            if value is None and field.needed:
                raise self.missing(field.name)
            if value is not None and field.kind == "count":
                value = self.optional_count(field.name, field.low, field.high)
            elif value is not None and field.kind == "flag":
                value = self.flag(field.name)
            if value is not None:
                found[field.name] = value
        return found

    def shallow(self, name: str, value: object) -> object:
        """A value that nests no deeper than an AMQP table may."""
        if too_deep(value, DEPTH_MOST):
            raise InvalidArgument(f"{self.where}{name} nests deeper than {DEPTH_MOST}")
        return value

    def items(self, name: str) -> list[Self]:
        """The objects of a list; an absent one is empty."""
        found = list[Self]()
        for place, item in enumerate(self._list(name, "a list") or []):
            if not isinstance(item, dict):
                raise InvalidArgument(f"{self.where}{name}[{place}] is {kind_of(item)}, not an object")
            found.append(type(self)(cast("dict[str, object]", item), f"{self.where}{name}[{place}]: "))
        return found
