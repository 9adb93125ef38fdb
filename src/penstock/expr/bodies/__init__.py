"""The message types, one row each.  A new type is a name in `records/message_types.py`, a parser, and a row here.

A row is made when the first body of its type is to be read, so that a library is loaded by those alone who need it.
Types with schemas (`records/message_types.py`) have a row for each set of schemas; strangers may name such in their
expressions, so not all are kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import orjson

from penstock.errors import InvalidArgument, PreconditionFailed
from penstock.expr.bodies.body_type import BodyType, Fields, Made, Whole
from penstock.expr.context import LOOP_BODY, LOOP_BYTES, LOOP_US
from penstock.records.message_bodies import read_exact
from penstock.records.message_types import (
    AVRO,
    JSON,
    MESSAGE_TYPES,
    PROTOBUF,
    SCHEMA_TYPES,
    MessageType,
    Schemas,
    unpacked,
)


class _Json:
    """JSON is read by itself, and is its own text."""

    read = staticmethod(orjson.loads)
    exact = staticmethod(read_exact)

    def json(self, body: Whole) -> bytes:
        return body


def _written(fields: Fields) -> bytes:
    """An object as JSON, without spaces."""
    try:
        return orjson.dumps(fields)
    except TypeError:  # an integer beyond 64 bits
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def _no_fields(body: Whole) -> object:
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


_TRUTHS = {"true": True, "false": False}


def _nvfix() -> BodyType:
    from penstock.expr.bodies.delimited import read_nvfix, write_nvfix

    return BodyType("nvfix", "NVFIX", Made(read_nvfix), write_nvfix, slowness=4, us_a_byte=0.08, truths=_TRUTHS)


def _fix() -> BodyType:
    from penstock.expr.bodies.delimited import read_fix, write_fix

    return BodyType(
        "fix", "FIX", Made(read_fix), write_fix, slowness=8, us_a_byte=0.3, truths={**_TRUTHS, "Y": True, "N": False}
    )


def _xml() -> BodyType:
    from penstock.expr.bodies.markup import read_xml

    return BodyType("xml", "XML", Made(read_xml), slowness=50, us_a_byte=0.3, truths={**_TRUTHS, "1": True, "0": False})


def _msgpack() -> BodyType:
    from penstock.expr.bodies.packed import exact_msgpack, read_msgpack, write_msgpack

    return BodyType(
        "msgpack", "MessagePack", Made(read_msgpack, exact_msgpack), write_msgpack, slowness=3, us_a_byte=0.6,
    )  # fmt: skip


def _bson() -> BodyType:
    from penstock.expr.bodies.bson import exact_bson, read_bson, write_bson

    return BodyType("bson", "BSON", Made(read_bson, exact_bson), write_bson, slowness=5, us_a_byte=0.2)


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


def _avro(schemas: Schemas) -> BodyType:
    from penstock.expr.bodies.avro import avro_reading

    read = Made(avro_reading(schemas))
    return BodyType(AVRO, "Avro", read, slowness=4, us_a_byte=0.4, header=schemas.header)


def _protobuf(schemas: Schemas) -> BodyType:
    from penstock.expr.bodies.protobuf import protobuf_reading

    read = Made(protobuf_reading(schemas))
    return BodyType(PROTOBUF, "protobuf", read, slowness=8, us_a_byte=0.2, header=schemas.header)


_WITH_SCHEMAS: Mapping[str, Callable[[Schemas], BodyType]] = {AVRO: _avro, PROTOBUF: _protobuf}
assert tuple(_WITH_SCHEMAS) == SCHEMA_TYPES

KEPT = 256
"""Rows that are kept."""


@lru_cache(maxsize=KEPT)
def body_type(kind: MessageType) -> BodyType:
    """How bodies of a type are read.

    PreconditionFailed where its library is not installed, InvalidArgument where a schema is none.
    """
    try:
        if kind in _ROWS:
            return _ROWS[kind]()
        base, schemas = unpacked(kind)
        return _WITH_SCHEMAS[base](schemas)
    except ModuleNotFoundError as error:
        extra = kind.partition(":")[0]
        raise PreconditionFailed(
            f"message_type {extra} needs {error.name}, which is not installed: pip install 'penstock[{extra}]'"
        ) from None
    except ValueError as error:
        raise InvalidArgument(f"message_type {kind[:60]!r}: {error}") from None


BODY_US = 2_000
"""Reading one of many bodies takes this long on the loop at most."""


def body_most(kind: MessageType) -> int:
    """Bytes of the largest body of this type that the loop reads itself."""
    us_a_byte = body_type(kind).us_a_byte
    return min(LOOP_BODY, int(BODY_US / us_a_byte)) if us_a_byte else LOOP_BODY


def heavy(kind: MessageType, sizes: Sequence[int]) -> bool:
    """Whether to read bodies of this type, of so many bytes each, would hold the loop up."""
    size = sum(sizes)
    return bool(size) and (max(sizes) > LOOP_BODY or size > LOOP_BYTES or size * body_type(kind).us_a_byte > LOOP_US)
