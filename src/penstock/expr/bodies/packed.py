"""MessagePack, and what all types that are no text tell in text.

What JSON has not is told in text: binary values in base64, points in time as ISO 8601 in UTC.  Names of maps
that are no texts are spelled.  An extension is its data, in base64.
"""

# msgpack has no types
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

import msgpack

from penstock.expr.bodies.body_type import NOT_UTF8, Fields, Words, bounded, refusal, too_deep
from penstock.records.message_bodies import DEPTH

Told = Callable[[Any], object]
"""A value of a type that the language has not, in the language; or an object with such values in it."""


def plain(value: object, told: dict[type, Told], levels: int = DEPTH) -> object:
    """A value as the language has it.  ValueError for one that is nested more than so many levels deep."""
    kind = type(value)
    if kind is dict:
        if levels < 0:
            raise too_deep()
        out: dict[str, object] = {}
        for name, one in cast("dict[object, object]", value).items():
            if type(one) not in SIMPLE:
                one = plain(one, told, levels - 1)
            out[name if type(name) is str else _name(name)] = one
        return out
    if kind is list:
        if levels < 0:
            raise too_deep()
        return [one if type(one) in SIMPLE else plain(one, told, levels - 1) for one in cast("list[object]", value)]
    tell = told.get(kind)
    if tell is None:
        return value
    value = tell(value)
    return plain(value, told, levels) if type(value) is dict else value


SIMPLE = frozenset((str, int, float, bool, type(None)))
"""Kinds that the language has as they are."""


def _name(value: object) -> str:
    if isinstance(value, bytes):
        return _base64(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)


def _base64(value: bytes) -> str:
    return b64encode(value).decode()


def iso(seconds: int, nanoseconds: int) -> str | None:
    """A point in time; None for one beyond the years 1 to 9999."""
    try:
        text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return None
    text = text.rjust(19, "0")
    fraction = f"{nanoseconds:09d}"
    return f"{text}.{fraction if nanoseconds % 1000 else fraction[:6]}Z"


_OF_MSGPACK: dict[type, Told] = {
    bytes: _base64,
    msgpack.Timestamp: lambda one: iso(one.seconds, one.nanoseconds),
    msgpack.ExtType: lambda one: _base64(one.data),
}


_WORDS: Words = {
    re.compile("UnicodeDecodeError"): NOT_UTF8,
    re.compile("RecursionError|StackError"): str(too_deep()),
    re.compile("FormatError"): "it has a byte that begins no value",
    re.compile("ExtraData"): "more follows behind its end",
    re.compile(
        "OutOfData|ValueError: (Unpack failed|[0-9]+ exceeds max_)"
    ): "it ends too soon, or a length in it is too large",
    re.compile("ValueError: code must be"): "an extension in it has a number below 0",
    re.compile("TypeError: unhashable"): "a name in it is a list or an object",
}


def _unpacked(body: bytes) -> object:
    try:
        if b"\xdc" in body or b"\xdd" in body:  # a long list may be in it, for which room is made before its items come
            whole = msgpack.Unpacker(max_buffer_size=len(body), strict_map_key=False)
            whole.feed(body)
            whole.skip()
        return msgpack.unpackb(body, raw=False, strict_map_key=False, timestamp=0)
    except (msgpack.UnpackException, ValueError, TypeError, RecursionError) as error:
        raise refusal(error, _WORDS) from None


def exact_msgpack(body: bytes) -> object:
    """The value of a MessagePack body.  ValueError for what is none, or nested too deeply."""
    return bounded(_unpacked(body))


def read_msgpack(body: bytes) -> object:
    """The same as the language has it."""
    return plain(_unpacked(body), _OF_MSGPACK)


def write_msgpack(fields: Fields) -> bytes:
    """The inverse of `exact_msgpack`."""
    return cast("bytes", msgpack.packb(fields, use_bin_type=True))
