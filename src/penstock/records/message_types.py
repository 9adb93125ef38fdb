"""Message types: what the bodies of a topic or queue are declared to be, and how an expression says which one it reads.

    /total > 500                fields of a JSON body
    [msgpack] /total > 500      the same field of a MessagePack body
    [avro:eJyr..] /total > 500  of a type that needs schemas, which the text has in it (`records/body_schemas.py`)

A text with such a beginning is a whole expression everywhere, in this process and in others: whoever knows of what type
the bodies are puts it there (`typed`), and nobody has to be told beside the text.  What the types mean is in
`expr/bodies`; whoever has no bodies to read needs their names alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from penstock.errors import InvalidArgument
from penstock.records.body_schemas import SCHEMA_TYPES, TEXT_MOST, named, unpacked

MessageType: TypeAlias = str

MESSAGE_TYPE = "message_type"
"""The setting's name."""

TYPE_IN_SCHEMA = b"penstock.message_type"
"""Under what the Arrow schema of a read says it, where it is not JSON."""

JSON = "json"

MESSAGE_TYPES: tuple[MessageType, ...] = (JSON, "binary", "nvfix", "fix", "xml", "msgpack", "bson")
"""Every type whose bodies are read, but for those that need schemas; `binary` has no fields."""

FIELDLESS = frozenset({"binary"})
"""Those whose bodies have no fields."""

CONTENT_TYPES: Mapping[str, MessageType] = {
    "application/json": JSON,
    "text/json": JSON,
    "application/xml": "xml",
    "text/xml": "xml",
    "application/msgpack": "msgpack",
    "application/x-msgpack": "msgpack",
    "application/vnd.msgpack": "msgpack",
    "application/bson": "bson",
    "application/fix": "fix",
    "application/avro": "avro",
    "application/vnd.apache.avro": "avro",
    "application/x-avro": "avro",
    "avro/binary": "avro",
    "application/protobuf": "protobuf",
    "application/x-protobuf": "protobuf",
    "application/vnd.google.protobuf": "protobuf",
}
"""What publishers say of their bodies, and the type that this is; `+json` and `+xml` are these too."""


def contradicts(content_type: object, kind: MessageType) -> MessageType | None:
    """The type that a content type names, if it is another one."""
    if not isinstance(content_type, str) or kind in FIELDLESS:
        return None
    name = content_type.partition(";")[0].strip().lower()
    said = CONTENT_TYPES.get(name) or CONTENT_TYPES.get(f"application/{name.rpartition('+')[2]}")
    return None if said is None or said == kind.partition(":")[0] else said


_BEGINNING = re.compile(
    rf"\s*\[({'|'.join(MESSAGE_TYPES)}|(?:{'|'.join(SCHEMA_TYPES)}):[A-Za-z0-9_-]{{1,{TEXT_MOST}}})\](?=\s)"
)


def typed(text: str, kind: MessageType) -> str:
    """An expression over bodies of a type.  InvalidArgument for one that says itself that it reads another."""
    found = _BEGINNING.match(text)
    if found is None:
        return text if kind == JSON else f"[{kind}] {text}"
    if found[1] != kind:
        raise InvalidArgument(
            f"the expression {text[:60]!r} reads {named(found[1])}, and the bodies here are {named(kind)}"
        )
    return text if kind != JSON else text[found.end() :].lstrip()


def untyped(text: str) -> tuple[MessageType, str]:
    """The type that an expression reads, and its text with blanks where the type stood, so that places stay."""
    found = _BEGINNING.match(text)
    return (JSON, text) if found is None else (found[1], " " * found.end() + text[found.end() :])


def wrong_type(value: object) -> str | None:
    """Why this is no message type; None: it is one."""
    if value in MESSAGE_TYPES:
        return None
    there = f"there is {', '.join((*MESSAGE_TYPES, *SCHEMA_TYPES))}"
    if isinstance(value, str) and value.partition(":")[0] in SCHEMA_TYPES:
        try:
            unpacked(value)
        except ValueError as error:
            return f"{value[:60]!r}: {error}; {there}"
        return None
    return f"{str(value)[:60]!r} is no message type: {there}"
