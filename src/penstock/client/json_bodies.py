"""Bodies that a caller publishes, as bytes: JSON of what is neither bytes nor text, and what of a body is no JSON.

What it may hold is what `client.bodies` reads again: dataclasses, pydantic models and msgspec structs, and what numpy
has.  Refuses with the place of what is none; NaN too, which would be read back as None.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from enum import Enum
from math import isfinite
from numbers import Number, Real
from types import NoneType
from typing import Any, Self, cast
from uuid import UUID

import orjson

from penstock.client.arguments import encoded, is_written
from penstock.errors import InvalidArgument
from penstock.units import as_text

JSON = "application/json"


def body_of(body: object) -> tuple[bytes, str | None]:
    """Bytes and content type: bytes and text as they are, anything else as JSON."""
    if isinstance(body, bytes):
        return body, None
    if isinstance(body, bytearray | memoryview):
        return bytes(cast("bytes", body)), None
    if isinstance(body, str):
        return encoded(body, "body"), None
    made = to_json(body)
    refuse_not_finite(body, made)
    return made, JSON


_NOT_FINITE = (b"null", b"NaN", b"Infinity", b"1677-09-21T00:12:43", b"1970-01-01T00:00:00")
"""What encoders write for such a number, and for numpy's NaT in nanoseconds and in hours, days and others."""


def refuse_not_finite(body: object, made: bytes) -> None:
    """InvalidArgument for a number that JSON does not have, or a time that is none: neither would be read back.

    made: what some encoder made of the body.
    """
    if any(word in made for word in _NOT_FINITE):
        for place, value in _everything(body):
            if isinstance(value, float) and not isfinite(value):
                told = f"{value} at {place} is none of its numbers; None becomes null"
                raise InvalidArgument(f"a body does not become JSON: {told}")
            if isinstance(value, _NoTime):
                raise InvalidArgument(f"a body does not become JSON: {value} at {place} is no time; None becomes null")


def _everything(body: object) -> Iterator[tuple[str, object]]:
    """Every value of a body, with where it is; what contains others comes before them."""
    waiting = [("", body)]
    while waiting:
        place, given = waiting.pop()
        value = _built(given)
        yield place or "the whole body", value
        inner: Iterable[tuple[object, object]] = ()
        if isinstance(value, Mapping):
            inner = cast("Mapping[object, object]", value).items()
        elif isinstance(value, list | tuple | set | frozenset | deque):
            inner = enumerate(cast("Iterable[object]", value))
        elif is_dataclass(value) and not isinstance(value, type):
            inner = ((one.name, getattr(value, one.name)) for one in fields(value))
        waiting += reversed([(f"{place}/{name}", one) for name, one in inner])


NESTED_MOST = 254
"""So deep orjson goes."""

_KEYS = (str, int, float, NoneType, date, time, Enum, UUID)
"""What a key may be, which becomes text."""

_TIMES = (datetime, date, time)
"""Kinds of others are written as these, and are no keys."""


def _no_json(body: object, why: BaseException) -> str:
    """What of a body is none, where it is, and what would be; the words of who wrote it where that is not found."""
    if "ecursion limit" in str(why):
        return f"it is nested deeper than {NESTED_MOST}, or holds itself"
    for place, value in _everything(body):
        if isinstance(value, Mapping):
            for key in cast("Mapping[object, object]", value):
                if not isinstance(key, _KEYS) or (isinstance(key, _TIMES) and type(key) not in _TIMES):
                    return f"the key {key!r} at {place} is a {type(key).__name__}, not a text"
                if wrong := _unwritable(key):
                    return f"the key {wrong[0]} at {place} is {wrong[1]}"
        elif wrong := _unwritable(value):
            return f"{wrong[0]} at {place} is {wrong[1]}"
        elif not isinstance(value, (*_KEYS, list, tuple)) and not is_dataclass(value):
            try:
                _plain(value)
            except TypeError as error:
                return f"{error}" if value is body else f"at {place}: {error}"
    return str(why)


def _unwritable(value: object) -> tuple[str, str] | None:
    """A number or a text that JSON has no room for, and what it is."""
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return str(value) if value.bit_length() < 1000 else "a huge number", "no whole number of 64 bits: make it text"
    if isinstance(value, str) and not is_written(value):
        return ascii(value)[:100], "no text in UTF-8"
    if isinstance(value, date) and value != value:  # NaT of pandas, as NaN
        return str(value), "no time; None becomes null"
    return None


def to_json(value: object) -> bytes:
    """JSON text, with null for NaN, and numbers, truths and lists for those of numpy.

    InvalidArgument for what JSON cannot hold.
    """
    try:
        return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        why = _no_json(value, error.__cause__ or error)
        raise InvalidArgument(f"a body of type {type(value).__name__} does not become JSON: {why}") from None


class _NoTime(date):
    """What numpy has among times and is none: NaT, and a duration without a length.  As pandas' it equals nothing."""

    text: str

    def __new__(cls, text: str) -> Self:
        made = super().__new__(cls, 1, 1, 1)
        made.text = text
        return made

    def __str__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return True

    __hash__ = date.__hash__


def _times_of(value: Any) -> object:
    """Times or durations of numpy in Python's types, whose unit is the microsecond."""
    kind, unit = value.dtype.kind, value.dtype.str[4:-1]
    lengths = kind == "M" or unit not in ("", "M", "Y")

    def told(one: object) -> object:
        if isinstance(one, list):
            return [told(inner) for inner in cast("list[object]", one)]
        if one is None:
            return _NoTime("NaT")
        return one if lengths else _NoTime(f"{one} {_UNITS[unit]}")

    return told((value.astype(f"{kind}8[us]") if lengths else value).tolist())


_UNITS = {"": "of no unit", "M": "months", "Y": "years"}


def _built(value: object) -> object:
    """What a value of numpy, a pydantic model or a msgspec struct is in Python's own types; any other as it is.

    Known without importing any of the three.
    """
    kind = type(value)
    if hasattr(kind, "dtype") and (tolist := getattr(value, "tolist", None)) is not None:
        plain: object = _times_of(value) if cast("Any", value).dtype.kind in "mM" else tolist()
        if isinstance(plain, Real) and hasattr(plain, "dtype"):  # a long double, which Python has no number for
            return float(plain)
        return plain
    if hasattr(kind, "__pydantic_serializer__") and not is_dataclass(kind):
        return cast("Any", value).model_dump(mode="json", by_alias=True)
    if hasattr(kind, "__struct_config__"):
        return cast("Any", sys.modules["msgspec"]).to_builtins(value, enc_hook=_plain)
    return value


def _plain(value: object) -> object:
    """What orjson takes instead of a value that it does not know, also of numpy: arrays of texts, or with gaps."""
    known = _built(value)
    if type(known) is not type(value):
        return known
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            return bytes(cast("bytes", value)).decode()
        except UnicodeDecodeError as error:
            raise TypeError(f"bytes that are no UTF-8 text ({error.reason} at byte {error.start})") from None
    if isinstance(value, Mapping):
        return dict(cast("Mapping[object, object]", value))
    if isinstance(value, set | frozenset | tuple | deque):
        return list(cast("Iterable[object]", value))
    if isinstance(value, float):
        return float(value)
    if isinstance(value, _TIMES):
        return _time_text(value)
    if isinstance(value, timedelta):
        return _iso_duration(value)
    if is_textless(value):
        named = type(value).__name__
        article = "an" if named[:1].lower() in "aeiou" else "a"
        raise TypeError(f"{article} {named} has no text of its own: give a dict, a dataclass or a model")
    return as_text(value)


def _time_text(value: date | time) -> str:
    """As orjson writes those of Python, whatever their own kind makes of them.  TypeError for what is none."""
    if value != value:
        raise TypeError(f"{value} is no time")
    kind = datetime if isinstance(value, datetime) else date if isinstance(value, date) else time
    return cast("str", cast("Any", kind).isoformat(value))


def _iso_duration(value: timedelta) -> str:
    """As ISO 8601 has it, and pydantic and msgspec read it."""
    whole = abs(value)
    part = f".{whole.microseconds:06}".rstrip("0") if whole.microseconds else ""
    return f"{'-' if value < whole else ''}P{whole.days}DT{whole.seconds}{part}S"


def is_textless(value: object) -> bool:
    """Whether what a value says of itself is no text for others: where it lies in memory, or how Python writes it."""
    return type(value).__str__ is object.__str__ and value is not None and not isinstance(value, Number)
