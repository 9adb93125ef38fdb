"""Message types: what the bodies of a topic or queue are declared to be, and how an expression says which one it reads.

    /total > 500                fields of a JSON body
    [msgpack] /total > 500      the same field of a MessagePack body
    [avro:eJyr..] /total > 500  of a type that needs schemas, which the text has in it

A text with such a beginning is a whole expression everywhere, in this process and in others: whoever knows of what type
the bodies are puts it there (`typed`), and nobody has to be told beside the text.  What the types mean is in
`expr/bodies`; whoever has no bodies to read needs their names alone.

Types with schemas are one text that carries them, packed, with what readers need:

    message_type  what a user says               what is kept, and travels with each expression
    avro          a schema, or some with ids     {"0": "{...}"} or {"7": "{...}", "9": "{...}"}
    protobuf      a message, or some with ids    {"0": ["base64 of a FileDescriptorSet", "shop.Order"]}
    either        ids that a header has          {"7": .., "header": "schema-id"}

Id 0 alone: bodies are bare.  Other ids are those of a registry, and bodies begin as Confluent's serializers have them:
a zero byte, the id in four bytes; or bodies are bare, and a header of each message has the id.  A parser is given them
alike (`behind`).  Whoever has the text can read the bodies: no process asks another one for a schema.
"""

from __future__ import annotations

import re
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias, cast

import orjson

from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass

AVRO, PROTOBUF = "avro", "protobuf"

SCHEMA_TYPES = (AVRO, PROTOBUF)
"""The types that need schemas."""

TEXT_MOST = 65_536
"""Characters of such a text."""

UNPACKED_MOST = 1 << 20
"""Bytes of what is packed in it."""

VERSIONS_MOST = 256

ID_MOST = (1 << 31) - 1

BARE = 0
"""The id of a schema whose bodies have none in front."""

HEADER = "header"
"""Beside the ids, what names the header that has them."""

HEADER_MOST = 255
"""Bytes of its name, as AMQP has them."""


@dataclass(frozen=True, slots=True)
class Schemas:
    """What one message type has in it."""

    by_id: Mapping[int, object]
    """Of Avro a schema as JSON text; of protobuf a pair, files as base64 and the name of the message."""
    header: str | None = None  # the header that has the id of a body's schema; None: none has

    def id_of(self, body: bytes) -> int:
        """The id that a body begins with, as parsers have it.  ValueError where there is none."""
        if len(body) < PREFIX or body[0]:
            if self.header is not None:
                raise ValueError(f"its header {self.header!r} has not the id of a schema")
            raise ValueError("it does not begin with a zero byte and the id of a schema")
        return int.from_bytes(body[1:PREFIX], "big")


PREFIX = 5
"""Bytes before a body whose schema has an id."""

NO_ID = b"\xff" * PREFIX
"""What stands there where a header has no id."""


def behind(value: object) -> bytes:
    """What a parser is given before a body of which a header has this value."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 10:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and BARE < value <= ID_MOST:
        return b"\0" + value.to_bytes(PREFIX - 1, "big")
    return NO_ID


def packed(base: str, given: object, header: str | None = None) -> str:
    """The message type of one schema whose bodies are bare, or of a mapping of ids to schemas.

    InvalidArgument for what is too large, no id, or no schema by its form.
    """
    by_id = cast("Mapping[int, object]", given) if isinstance(given, Mapping) else {BARE: given}
    if by_id is given and BARE in by_id:  # bodies behind an id would be read as bare ones
        raise InvalidArgument(f"message_type {base}: {_no_id(BARE)}")
    if why := _wrong(base, Schemas(by_id, header)):
        raise InvalidArgument(f"message_type {base}: {why}")
    named = {} if header is None else {HEADER: header}
    data = orjson.dumps({str(number): by_id[number] for number in sorted(by_id)} | named)
    if len(data) > UNPACKED_MOST:
        raise InvalidArgument(f"message_type {base}: its schemas have {len(data)} bytes, at most {UNPACKED_MOST}")
    text = f"{base}:{urlsafe_b64encode(zlib.compress(data, 9)).rstrip(b'=').decode()}"
    if len(text) > TEXT_MOST:
        raise InvalidArgument(f"message_type {base}: its schemas have {len(text)} characters packed, most {TEXT_MOST}")
    return text


def unpacked(kind: str) -> tuple[str, Schemas]:
    """The type's name, and its schemas.  ValueError, with a sentence, for what `packed` did not give."""
    base, colon, text = kind.partition(":")
    if base not in SCHEMA_TYPES or len(kind) > TEXT_MOST:
        raise ValueError("there is no such type")
    if not colon:
        raise ValueError(f"{base} needs a schema: penstock.{base}(...), or `penstock topic message-type {base} FILE`")
    try:
        reader = zlib.decompressobj()
        data = reader.decompress(urlsafe_b64decode(text + "=" * (-len(text) % 4)), UNPACKED_MOST)
        found: object = orjson.loads(data) if reader.eof else None
        plain = dict(cast("dict[str, object]", found))
        header = cast("str | None", plain.pop(HEADER, None))
        schemas = Schemas({int(name): one for name, one in plain.items()}, header)
    except (ValueError, zlib.error, TypeError):
        raise ValueError(f"what follows {base}: is no schema that `penstock topic message-type` has packed") from None
    if why := _wrong(base, schemas):
        raise ValueError(why)
    return base, schemas


def _no_id(number: int) -> str:
    """Why a number is the id of no schema."""
    return f"{number} is no id of a schema: 1 to {ID_MOST}"


def _wrong(base: str, schemas: Schemas) -> str | None:
    some, header = schemas.by_id, cast("object", schemas.header)
    if not some or len(some) > VERSIONS_MOST:
        return f"it has {len(some)} schemas, and 1 to {VERSIONS_MOST} are possible"
    if BARE in some and len(some) > 1:
        return "schemas with ids and one without do not go together"
    if header is not None:
        if not isinstance(header, str) or not 0 < len(header.encode(errors="replace")) <= HEADER_MOST:
            return f"{str(header)[:60]!r} is no name of a header: it has 1 to {HEADER_MOST} bytes"
        if BARE in some:
            return f"header {header!r} has the id of each body's schema, and the one that is given has no id"
    for number, schema in some.items():
        if not 0 <= number <= ID_MOST:
            return _no_id(number)
        fits = isinstance(schema, str) if base == AVRO else _is_pair(schema)
        if not fits:
            return f"schema {number} is not what {base} has"
    return None


def _is_pair(schema: object) -> bool:
    if not isinstance(schema, list | tuple):
        return False
    parts = cast("list[object]", schema)
    return len(parts) == 2 and all(isinstance(one, str) for one in parts)


def named(kind: str) -> str:
    """A message type for a sentence: without what is packed in it, but for so much that two can be told apart."""
    base, colon, text = kind.partition(":")
    return f"{base} ({zlib.crc32(text.encode()):08x})" if colon else base


@lru_cache(maxsize=256)
def needed_of(kind: str) -> frozenset[str]:
    """The columns of a message that its body is read from, of any message type; no library is loaded to know."""
    if kind.partition(":")[0] in SCHEMA_TYPES:
        return BODY if unpacked(kind)[1].header is None else BODY_AND_HEADERS
    return BODY


BODY, BODY_AND_HEADERS = frozenset(("body",)), frozenset(("body", "properties"))


def goes_on(new: str, old: str) -> bool:
    """Whether a type with schemas has all that the older one has: what that could read, it reads the same."""
    try:
        (base, later), (other, former) = unpacked(new), unpacked(old)
    except ValueError:
        return False
    if base != other or later.header != former.header:
        return False
    return all(later.by_id.get(number) == one for number, one in former.by_id.items())


def alike(kind: str, other: str) -> bool:
    """Whether bodies of one topic may be of both: they are the same, or one has the schemas of the other and more."""
    return kind == other or goes_on(kind, other) or goes_on(other, kind)


def unregistered(number: int) -> ValueError:
    """Why a body with such an id is not read."""
    return ValueError(f"it has schema {number}, which its message_type has not")


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
    """An expression over bodies of a type.  InvalidArgument for one that says itself that it reads another.

    One that says an older type, from which this one goes on, reads this one.

    Of the expression that tells the type alone: a right may be a part of it, which who asks does not know.
    """
    found = _BEGINNING.match(text)
    if found is None:
        return text if kind == JSON else f"[{kind}] {text}"
    if found[1] != kind:
        if goes_on(kind, found[1]):
            return f"[{kind}] {text[found.end() :].lstrip()}"
        raise InvalidArgument(
            f"the expression with {found[0].strip()[:60]!r} reads {named(found[1])}, "
            f"and the bodies here are {named(kind)}"
        )
    return text if kind != JSON else text[found.end() :].lstrip()


def untyped(text: str) -> tuple[MessageType, str]:
    """The type that an expression reads, and its text with blanks where the type stood, so that places stay."""
    found = _BEGINNING.match(text)
    return (JSON, text) if found is None else (found[1], " " * found.end() + text[found.end() :])


_IN_A_FILE: Mapping[object, str] = {
    AVRO: '{ avro = "order.avsc" }',
    PROTOBUF: '{ protobuf = "shop.pb", message = "shop.Order" }',
}
"""How the settings file has a type with its schema."""


def wrong_type(value: object, *, in_file: bool = False) -> str | None:
    """Why this is no message type; None: it is one.  in_file: where the settings file says it."""
    if value in MESSAGE_TYPES:
        return None
    if in_file and value in SCHEMA_TYPES:
        return f"{value!r} needs a schema: message_type = {_IN_A_FILE[value]}"
    there = f"there is {', '.join((*MESSAGE_TYPES, *SCHEMA_TYPES))}"
    if isinstance(value, str) and value.partition(":")[0] in SCHEMA_TYPES:
        try:
            unpacked(value)
        except ValueError as error:
            return f"{value[:60]!r}: {error}; {there}"
        return None
    return f"{str(value)[:60]!r} is no message type: {there}"
