"""One order as a body of every message type, and how its fields are reached: for tests that go over all types.

A reader of bodies is tested with each of these, so that one which reads JSON alone fails by the type's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import bson
import fastavro
import msgpack
import orjson
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from penstock.client.bodies import avro, protobuf
from penstock.expr.bodies import body_type
from penstock.records.message_types import MESSAGE_TYPES, SCHEMA_TYPES
from penstock.records.properties import EMPTY, Properties, encode


def _pairs(order: Mapping[str, Any]) -> bytes:
    return b"".join(f"{name}={value}\x01".encode() for name, value in order.items())


FIX_TAGS = {"id": "11", "total": "44", "region": "207", "note": "58"}


def _xml(order: Mapping[str, Any]) -> bytes:
    inner = "".join(f"<{name}>{value}</{name}>" for name, value in order.items())
    return f"<order>{inner}</order>".encode()


ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": name, "type": ["null", "long", "double", "string", "boolean"], "default": None} for name in FIX_TAGS
    ],
}
"""An order's schema, of Avro."""

AVRO = avro(ORDER)
BY_HEADER = {"schema-id": 7}
AVRO_BY_HEADER = avro({7: ORDER}, header="schema-id")


def _avro(order: Mapping[str, Any]) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, _PARSED, dict(order))
    return out.getvalue()


_PARSED = fastavro.parse_schema(ORDER)


def order_file() -> descriptor_pb2.FileDescriptorProto:
    """The same as a `.proto` file says it; each field is a text, and may be absent."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    for number, name in enumerate(FIX_TAGS):
        order.oneof_decl.add(name=f"_{name}")
        order.field.add(
            name=name,
            number=number + 1,
            type=kinds.TYPE_STRING,
            label=kinds.LABEL_OPTIONAL,
            proto3_optional=True,
            oneof_index=number,
        )
    return file


_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(order_file())
Order: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("shop.Order"))

PROTOBUF = protobuf(Order)
PROTOBUF_BY_HEADER = protobuf({7: Order}, header="schema-id")


def _protobuf(order: Mapping[str, Any]) -> bytes:
    return bytes(Order(**{name: str(value) for name, value in order.items()}).SerializeToString())


@dataclass(frozen=True)
class Sample:
    """One type: how an order is written, and how the path of one of its fields begins."""

    name: str
    body: Callable[[Mapping[str, Any]], bytes]
    paths: Mapping[str, str]
    merges: bool = True  # deltas are merged
    texts: bool = False  # numbers are texts
    headers: Mapping[str, Any] = field(default_factory=dict)  # without which a body cannot be read

    @property
    def label(self) -> str:
        """Its name, without schemas."""
        return self.name.partition(":")[0] + "-by-header" * bool(self.headers)

    @property
    def properties(self) -> bytes:
        """The headers as messages have them."""
        return encode(Properties(headers=dict(self.headers))) if self.headers else EMPTY

    def read(self, body: bytes) -> object:
        """The value that readers see of a body that was published with the headers."""
        kind = body_type(self.name)
        return kind.read(kind.one_whole(body, self.properties))

    def path(self, field: str) -> str:
        """The field as an expression spells it."""
        return self.paths.get(field, f"/{field}")

    def said(self, text: str) -> str:
        """An expression with `{id}`, `{total}` .. as the fields of this type."""
        return text.format(**{name: self.path(name) for name in FIX_TAGS})


SAMPLES = {
    "json": Sample("json", lambda order: orjson.dumps(order), {}),
    "nvfix": Sample("nvfix", _pairs, {}, texts=True),
    "fix": Sample(
        "fix",
        lambda order: _pairs({FIX_TAGS[name]: value for name, value in order.items()}),
        {name: f"/{tag}" for name, tag in FIX_TAGS.items()},
        texts=True,
    ),
    "xml": Sample("xml", _xml, {name: f"/order/{name}" for name in FIX_TAGS}, merges=False, texts=True),
    "msgpack": Sample("msgpack", lambda order: bytes(msgpack.packb(dict(order))), {}),
    "bson": Sample("bson", lambda order: bytes(bson.encode(dict(order))), {}),
    "avro": Sample(AVRO, _avro, {}, merges=False),
    "protobuf": Sample(PROTOBUF, _protobuf, {}, merges=False, texts=True),
    "avro-by-header": Sample(AVRO_BY_HEADER, _avro, {}, merges=False, headers=BY_HEADER),
    "protobuf-by-header": Sample(PROTOBUF_BY_HEADER, _protobuf, {}, merges=False, texts=True, headers=BY_HEADER),
}
"""Every type with fields."""

_QUOTED = re.compile(r"""(?<!\bb)('([^'\\]|\\.)*'|"([^"\\]|\\.)*")""")
_PROGRAM = re.compile(
    r"""\w(Error|Exception|Forbidden)\b|\b(b['"]|codec|object at|NoneType|unhashable|index|ordinal|surrogates|driver)"""
    r"""|\w\(|\ballocate"""
)


def of_a_program(reason: str) -> bool:
    """Whether a sentence about a body says what a program makes of it, beside what of the body it quotes."""
    return _PROGRAM.search(_QUOTED.sub("", reason)) is not None


_SAMPLED = {one.name.partition(":")[0] for one in SAMPLES.values()}
assert _SAMPLED | {"binary"} == {*MESSAGE_TYPES, *SCHEMA_TYPES}, "a message type without a sample"
