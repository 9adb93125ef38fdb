"""BSON: what JSON has not is told in text, as of MessagePack, object ids as 24 hexadecimal digits, decimal numbers by
their digits, and UUIDs as they are usually written.
"""

# the codec's type parameters are left open
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import re
from base64 import b64encode
from typing import Any
from uuid import UUID

import bson
from bson.binary import UUID_SUBTYPE, Binary
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError

from penstock.expr.bodies.body_type import NOT_UTF8, Fields, Words, bounded, refusal, too_deep
from penstock.expr.bodies.packed import Told, iso, plain
from penstock.units import as_text

_OPTIONS: Any = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)


def _binary(value: bytes) -> str:
    if isinstance(value, Binary) and value.subtype == UUID_SUBTYPE and len(value) == 16:
        return str(UUID(bytes=bytes(value)))
    return b64encode(value).decode()


def _moment(milliseconds: int) -> str | None:
    seconds, rest = divmod(milliseconds, 1000)
    return iso(seconds, rest * 1_000_000)


_TOLD: dict[type, Told] = {
    bytes: _binary,
    Binary: _binary,
    bson.Int64: int,
    bson.ObjectId: str,
    bson.Decimal128: lambda one: as_text(one.to_decimal()),
    bson.DatetimeMS: lambda one: _moment(int(one)),
    bson.Timestamp: lambda one: iso(one.time, 0),
    bson.Regex: lambda one: one.pattern if isinstance(one.pattern, str) else _binary(one.pattern),
    bson.Code: str,
    bson.DBRef: lambda one: dict(one.as_doc()),
    bson.MinKey: lambda one: None,
    bson.MaxKey: lambda one: None,
}


_WORDS: Words = {
    re.compile(".*codec can't decode"): NOT_UTF8,
    re.compile("RecursionError"): str(too_deep()),
    re.compile("InvalidBSON: (not enough data|objsize too large|invalid message size|bad eoo)"): (
        "it is not as long as it says, or does not end with a zero byte"
    ),
    re.compile("InvalidBSON: (Detected unknown BSON type|invalid length or type code)"): (
        "a value in it has an unknown type, or is not as long as it says"
    ),
}


def _decoded(body: bytes) -> object:
    try:
        return bson.decode(body, _OPTIONS)
    except (BSONError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise refusal(error, _WORDS) from None


def exact_bson(body: bytes) -> object:
    """The document of a BSON body.  ValueError for what is none, or nested too deeply."""
    value = bounded(_decoded(body))
    if b"$ref" in body:  # what is within references is no level to who does not know them
        plain(value, _TOLD)
    return value


def read_bson(body: bytes) -> object:
    """The same as the language has it."""
    return plain(_decoded(body), _TOLD)


def write_bson(fields: Fields) -> bytes:
    """The inverse of `exact_bson`."""
    try:
        return bson.encode(fields, codec_options=_OPTIONS)
    except (BSONError, OverflowError, TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
