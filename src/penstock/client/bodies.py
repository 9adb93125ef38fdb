"""What becomes of a message's body: bytes, text, parsed JSON, or any type that pydantic or msgspec makes of JSON.

Message types that need schemas come of what a program has, `penstock.avro(schema)`, `penstock.protobuf(Order)`: a text
that has the schemas in it, for every place that takes a message type.

    client.declare_topic("orders", message_type=penstock.avro(Path("order.avsc")), key=["/id"])
    client.declare("large", underlying_topic="orders", message_type=penstock.protobuf(shop_pb2.Order))
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, cast, get_args

import orjson

from penstock.client.arguments import arguments_checked
from penstock.errors import InvalidArgument, InvalidBody
from penstock.records.message_types import AVRO, PROTOBUF, packed

JSON = "application/json"

SHOWN = 3
"""Mistakes of one body that its refusal names."""

Whose = Callable[[], str]
"""Whose a body is, behind "the body" in a sentence; nothing where the sentence stands beside its message."""


class Reader(Protocol):
    """What becomes of a body with its content type; InvalidBody when nothing does."""

    def __call__(self, body: bytes, content_type: str | None, whose: Whose = str, /) -> object: ...


def reader_of(annotation: object, who: str) -> Reader:
    """How bodies become what `annotation` says.

    bytes and str are the body as it is; `Any` is parsed JSON where the content type says that it is JSON, and bytes
    elsewhere.  Structs of msgspec, lists and unions of them too, go through msgspec, all other types through pydantic:
    dataclasses, models, typed dictionaries, lists, unions.  InvalidArgument, naming `who`, for a type of which neither
    makes anything.
    """
    if annotation is bytes:
        return _same
    if annotation is str:
        return _text
    if annotation is Any:
        return plain
    try:
        return _struct(annotation) if _has_structs(annotation) else _adapted(annotation)
    except (TypeError, NameError) as error:  # a name in it may be of nothing that can be seen from here
        raise InvalidArgument(f"{who}: bodies cannot become {annotation!r}: {str(error).splitlines()[0]}") from None


def _has_structs(annotation: object) -> bool:
    return hasattr(annotation, "__struct_fields__") or any(map(_has_structs, get_args(annotation)))


_UNKNOWN: Final = re.compile(r"schema for (.+?)\. Set ")
_NO_TYPE: Final = (
    "is no type that JSON becomes: give bytes, str or Any, a dataclass, model, struct or typed dictionary, a plain "
    "type of Python, or a list or union of such"
)


def _adapted(annotation: object) -> Reader:
    if isinstance(annotation, Mapping):  # which pydantic takes for a schema of its own
        raise TypeError(f"{annotation!r} {_NO_TYPE}")
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        adapter = TypeAdapter[Any](cast("Any", annotation))
        if not adapter.pydantic_complete:
            adapter.rebuild(raise_errors=True)
    except PydanticUserError as error:
        if error.code != "schema-for-unknown-type":  # of which the advice is for who writes the class
            raise TypeError(str(error)) from None
        found = _UNKNOWN.search(str(error))
        raise TypeError(f"{repr(annotation) if found is None else found[1]} {_NO_TYPE}") from None
    return partial(_validated, adapter, annotation)


def _same(body: bytes, content_type: str | None, whose: Whose = str, /) -> bytes:
    return body


def plain(body: bytes, content_type: str | None, whose: Whose = str, /) -> object:
    """Parsed JSON where the content type says so, else bytes."""
    if (content_type or "").partition(";")[0].strip().lower() != JSON:
        return body
    return parsed(body, whose)


def parsed(body: bytes, whose: Whose = str) -> Any:
    """The body as JSON.  InvalidBody with the place in it."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidBody(f"the body{whose()} is no JSON: {error}") from None


def decoded(body: bytes, whose: Whose = str) -> str:
    """The body as UTF-8.  InvalidBody as of `parsed`."""
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise InvalidBody(f"the body{whose()} is no UTF-8 text: {error.reason} at byte {error.start}") from None


def _text(body: bytes, content_type: str | None, whose: Whose = str, /) -> str:
    return decoded(body, whose)


def _struct(annotation: object) -> Reader:
    msgspec: Any = import_module("msgspec")
    decode = msgspec.json.Decoder(annotation).decode

    def read(body: bytes, content_type: str | None, whose: Whose = str, /) -> object:
        try:
            return decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidBody(f"the body{whose()} is no {_name(annotation)}: {error}") from None

    return read


def _validated(
    adapter: Any, annotation: object, body: bytes, content_type: str | None, whose: Whose = str, /
) -> object:
    from pydantic import ValidationError

    try:
        return adapter.validate_json(body)
    except ValidationError as error:
        mistakes = error.errors(include_url=False, include_input=False)
        told = [f"{'.'.join(map(str, one['loc'])) or 'body'}: {one['msg']}" for one in mistakes[:SHOWN]]
        more = [f"{len(mistakes) - SHOWN} more"] if len(mistakes) > SHOWN else []
        raise InvalidBody(f"the body{whose()} is no {_name(annotation)}: {'; '.join(told + more)}") from None


def _name(annotation: object) -> str:
    return getattr(annotation, "__name__", None) or str(annotation)


AvroSchema: TypeAlias = "str | Path | Mapping[str, Any] | list[Any]"
"""As text, in a file, or read already."""

ProtobufMessage: TypeAlias = "type[Any] | tuple[bytes | Path, str]"
"""A class that protoc made, or what `protoc --include_imports --descriptor_set_out` writes and the message's name."""


@arguments_checked
def avro(schema: AvroSchema | Mapping[int, AvroSchema], *, header: str | None = None) -> str:
    """The message type of Avro bodies: bare ones of one schema, or such as begin with the id of one of several.

    header: the header of each message that has the id, where bodies do not begin with it.
    """
    if isinstance(schema, Mapping) and schema and all(isinstance(one, int) for one in schema):
        some = cast("Mapping[int, AvroSchema]", schema)
        return packed(AVRO, {number: _schema_text(one) for number, one in some.items()}, header)
    return packed(AVRO, _schema_text(cast("AvroSchema", schema)), header)


def _schema_text(schema: AvroSchema) -> str:
    """JSON without blanks, as a schema stands in a message type."""
    given = schema.read_bytes() if isinstance(schema, Path) else schema
    try:
        value: object = orjson.loads(given) if isinstance(given, str | bytes) else given
        return orjson.dumps(value).decode()
    except (orjson.JSONDecodeError, TypeError) as error:
        raise InvalidArgument(f"message_type avro: the schema is no JSON: {error}") from None


@arguments_checked
def protobuf(message: ProtobufMessage | Mapping[int, ProtobufMessage], *, header: str | None = None) -> str:
    """The message type of Protocol Buffers' bodies: one message's, or such as begin with the id of one of several.

    header: as of `avro`; bodies are then the messages that the ids mean, and nothing is in front of them.
    """
    if isinstance(message, Mapping):
        return packed(PROTOBUF, {number: _files(one) for number, one in message.items()}, header)
    return packed(PROTOBUF, _files(message), header)


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
