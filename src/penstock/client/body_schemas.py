"""Message types that need schemas, of what a program has: `penstock.avro(schema)`, `penstock.protobuf(Order)`.

    client.declare_topic("orders", message_type=penstock.avro(Path("order.avsc")), key=["/id"])
    client.declare("large", underlying_topic="orders", message_type=penstock.protobuf(shop_pb2.Order))

What comes of it is a text that has the schemas in it, for every place that takes a message type.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

import orjson

from penstock.errors import InvalidArgument
from penstock.records.body_schemas import AVRO, BARE, PROTOBUF, packed

AvroSchema: TypeAlias = "str | Path | Mapping[str, Any] | list[Any]"
"""As text, in a file, or read already."""

ProtobufMessage: TypeAlias = "type[Any] | tuple[bytes | Path, str]"
"""A class that protoc made, or what `protoc --include_imports --descriptor_set_out` writes and the message's name."""


def avro(schema: AvroSchema | Mapping[int, AvroSchema]) -> str:
    """The message type of Avro bodies: bare ones of one schema, or such as begin with the id of one of several."""
    if isinstance(schema, Mapping) and schema and all(isinstance(one, int) for one in schema):
        some = cast("Mapping[int, AvroSchema]", schema)
        return packed(AVRO, {number: _text(one) for number, one in some.items()})
    return packed(AVRO, {BARE: _text(cast("AvroSchema", schema))})


def _text(schema: AvroSchema) -> str:
    """JSON without blanks, as a schema stands in a message type."""
    given = schema.read_bytes() if isinstance(schema, Path) else schema
    try:
        value: object = orjson.loads(given) if isinstance(given, str | bytes) else given
        return orjson.dumps(value).decode()
    except (orjson.JSONDecodeError, TypeError) as error:
        raise InvalidArgument(f"message_type avro: the schema is no JSON: {error}") from None


def protobuf(message: ProtobufMessage | Mapping[int, ProtobufMessage]) -> str:
    """The message type of Protocol Buffers' bodies: one message's, or such as begin with the id of one of several."""
    if isinstance(message, Mapping):
        return packed(PROTOBUF, {number: _files(one) for number, one in message.items()})
    return packed(PROTOBUF, {BARE: _files(message)})


def _files(message: ProtobufMessage) -> tuple[str, str]:
    """The files of a message as base64, and its name."""
    if isinstance(message, tuple):
        given, name = message
        return b64encode(given.read_bytes() if isinstance(given, Path) else given).decode(), name
    about = getattr(message, "DESCRIPTOR", None)
    if about is None or not hasattr(about, "file"):
        raise InvalidArgument(f"message_type protobuf: {message!r} is no class of a message")
    found = dict[str, bytes]()
    todo = [about.file]
    while todo:
        file = todo.pop()
        if file.name not in found:
            found[file.name] = file.serialized_pb
            todo += file.dependencies
    whole = b"".join(b"\x0a" + _length(len(one)) + one for one in found.values())  # a FileDescriptorSet
    return b64encode(whole).decode(), about.full_name


def _length(size: int) -> bytes:
    out = bytearray()
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)
