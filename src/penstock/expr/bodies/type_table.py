"""The message types, one row each.  A new type is a name in `records/message_types.py`, a parser, and a row here.

A row is made when the first body of its type is to be read, so that a library is loaded by those alone who need it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache

import orjson

from penstock.errors import PreconditionFailed
from penstock.expr.bodies.body_type import BodyType, Fields, Made
from penstock.records.message_bodies import read_exact
from penstock.records.message_types import JSON, MESSAGE_TYPES, MessageType


class _Json:
    """JSON is read by itself, and is its own text."""

    read = staticmethod(orjson.loads)
    exact = staticmethod(read_exact)

    def json(self, body: bytes) -> bytes:
        return body


def _written(fields: Fields) -> bytes:
    """An object as JSON, without spaces."""
    try:
        return orjson.dumps(fields)
    except TypeError:  # an integer beyond 64 bits
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def _no_fields(body: bytes) -> object:
    raise ValueError("it has no fields")


def _json() -> BodyType:
    return BodyType(
        JSON, "JSON", _Json(), _written, inline=_INLINE, is_json=True, searchable=True,
    )  # fmt: skip


_INLINE = (
    "try:",
    "    record = loads(body)",
    "except NotJSON:",
    "    record = NOTHING",
    "if record.__class__ is not dict:",
    "    record = root(record)",
)
"""The reading of a JSON body within a compiled expression, without a call of its own."""


def _binary() -> BodyType:
    return BodyType("binary", "body with fields", Made(_no_fields))


def _nvfix() -> BodyType:
    from penstock.expr.bodies.delimited import read_nvfix, write_nvfix

    return BodyType("nvfix", "NVFIX", Made(read_nvfix), write_nvfix, slowness=4)


def _fix() -> BodyType:
    from penstock.expr.bodies.delimited import read_fix, write_fix

    return BodyType("fix", "FIX", Made(read_fix), write_fix, slowness=8)


def _xml() -> BodyType:
    from penstock.expr.bodies.markup import read_xml

    return BodyType("xml", "XML", Made(read_xml), slowness=50)


def _msgpack() -> BodyType:
    from penstock.expr.bodies.packed import exact_msgpack, read_msgpack, write_msgpack

    return BodyType(
        "msgpack", "MessagePack", Made(read_msgpack, exact_msgpack), write_msgpack, slowness=3,
    )  # fmt: skip


def _bson() -> BodyType:
    from penstock.expr.bodies.documents import exact_bson, read_bson, write_bson

    return BodyType("bson", "BSON", Made(read_bson, exact_bson), write_bson, slowness=5)


_ROWS: Mapping[MessageType, Callable[[], BodyType]] = {
    JSON: _json,
    "binary": _binary,
    "nvfix": _nvfix,
    "fix": _fix,
    "xml": _xml,
    "msgpack": _msgpack,
    "bson": _bson,
}
assert tuple(_ROWS) == MESSAGE_TYPES


@cache
def body_type(kind: MessageType) -> BodyType:
    """How bodies of a type are read.  PreconditionFailed where its library is not installed."""
    try:
        return _ROWS[kind]()
    except ModuleNotFoundError as error:
        raise PreconditionFailed(
            f"message_type {kind} needs {error.name}, which is not installed: pip install 'penstock[{kind}]'"
        ) from None
