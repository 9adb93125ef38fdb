"""Frames and what a method frame holds: the envelope of all bytes after the protocol header, and one codec for methods.

u8 type (1 method, 2 header, 3 body, 8 heartbeat) | u16 channel | u32 size | payload | 0xCE
method payload   u16 class | u16 method | fields in order; adjacent bits share octets, lowest bit first
header payload   u16 class | u16 weight (0) | u64 body size | property flags and list

The limits that hold before anything is allocated, reply codes, their names, and the text that a close carries stand
here too.  A method class describes itself, the codec walks the description: the decorator `method` gives the class and
method number, the annotated fields their wire types in order.  Which methods there are is said in `methods`; importing
that fills the table.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar, TypeAlias, TypeVar, cast, dataclass_transform

from penstock.errors import InvalidArgument, ProtocolError
from penstock.records.dataclass import dataclass
from penstock.records.field_tables import FieldValue, encode_short_string, encode_table, read_table

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = 0xCE
END = b"\xce"

OVERHEAD = 8
"""Bytes of a frame around its payload; `frame_max` counts them."""

FRAME_MAX_LEAST = 4096
"""No peer may ask for less (AMQP 0-9-1, frame-min-size)."""

BASIC = 60
CONTENT_LEAST = 14
"""Payload bytes of a content header without properties."""

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
OLD_PROTOCOL_HEADER = b"AMQP\x01\x01\x00\x09"
"""How the first 0-9 clients wrote the same version."""

HEARTBEAT_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"

read_border = struct.Struct(">BHI").unpack_from
pack_border = struct.Struct(">BHI").pack


@dataclass(frozen=True, slots=True)
class Limits:
    """What a connection may ask of the server.  Sizes in bytes."""

    frame_max: int = 131_072  # a frame with its overhead
    channel_max: int = 2047  # how many may be open, whatever their numbers: clients count on it, since RabbitMQ does so
    heartbeat: int = 60  # seconds, offered in tune
    max_message_size: int = 16 * 1024 * 1024  # one body
    max_partial_size: int = 64 * 1024 * 1024  # bodies that a connection has begun; one may have more
    handshake_frame: int = 8192  # a frame before connection.open
    handshake_bytes: int = 65_536  # all bytes before connection.open is answered
    target_cache: int = 1024  # distinct publish targets remembered


Bytes: TypeAlias = "bytes | memoryview"
"""A piece of what is sent: of a large body a part that lies in it."""


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """One whole frame, with its end mark."""
    return pack_border(kind, channel, len(payload)) + payload + END


REPLY_SUCCESS = 200
CONTENT_TOO_LARGE = 311
NO_ROUTE = 312
NO_CONSUMERS = 313
CONNECTION_FORCED = 320
INVALID_PATH = 402
ACCESS_REFUSED = 403
NOT_FOUND = 404
RESOURCE_LOCKED = 405
PRECONDITION_FAILED = 406
FRAME_ERROR = 501
SYNTAX_ERROR = 502
COMMAND_INVALID = 503
CHANNEL_ERROR = 504
UNEXPECTED_FRAME = 505
RESOURCE_ERROR = 506
NOT_ALLOWED = 530
NOT_IMPLEMENTED = 540
INTERNAL_ERROR = 541

REPLY_NAMES = {
    REPLY_SUCCESS: "REPLY_SUCCESS",
    CONTENT_TOO_LARGE: "CONTENT_TOO_LARGE",
    NO_ROUTE: "NO_ROUTE",
    NO_CONSUMERS: "NO_CONSUMERS",
    CONNECTION_FORCED: "CONNECTION_FORCED",
    INVALID_PATH: "INVALID_PATH",
    ACCESS_REFUSED: "ACCESS_REFUSED",
    NOT_FOUND: "NOT_FOUND",
    RESOURCE_LOCKED: "RESOURCE_LOCKED",
    PRECONDITION_FAILED: "PRECONDITION_FAILED",
    FRAME_ERROR: "FRAME_ERROR",
    SYNTAX_ERROR: "SYNTAX_ERROR",
    COMMAND_INVALID: "COMMAND_INVALID",
    CHANNEL_ERROR: "CHANNEL_ERROR",
    UNEXPECTED_FRAME: "UNEXPECTED_FRAME",
    RESOURCE_ERROR: "RESOURCE_ERROR",
    NOT_ALLOWED: "NOT_ALLOWED",
    NOT_IMPLEMENTED: "NOT_IMPLEMENTED",
    INTERNAL_ERROR: "INTERNAL_ERROR",
}

TEXT_MOST = 255
"""Bytes of a short string."""

END_KEPT = 110
"""Bytes at the end of a text that is too long."""


def reply_text(code: int, text: str) -> str:
    """`NAME - text`, as clients compare it, in the 255 bytes of a short string.

    What is longer loses its middle, which is the name of something, and keeps its end, which says what is allowed.  No
    character is broken.
    """
    name = REPLY_NAMES.get(code)
    whole = (f"{name} - {text}" if name and text else name or text).encode("utf-8", "replace")
    if len(whole) > TEXT_MOST:
        whole = whole[: TEXT_MOST - END_KEPT - 3] + b"..." + whole[-END_KEPT:]
    return whole.decode("utf-8", "ignore")


Octet: TypeAlias = int
Short: TypeAlias = int
Long: TypeAlias = int
LongLong: TypeAlias = int
Bit: TypeAlias = bool
ShortText: TypeAlias = str
LongBytes: TypeAlias = bytes
FieldTable: TypeAlias = "dict[str, FieldValue]"

_KINDS = {
    "Octet": "B",
    "Short": "H",
    "Long": "I",
    "LongLong": "Q",
    "Bit": "bit",
    "ShortText": "short",
    "LongBytes": "long",
    "FieldTable": "table",
}
"""The wire kind of a field by the name of its type, which annotations carry as text."""

_NUMBERS = {kind: struct.Struct(">" + kind) for kind in "BHIQ"}


def no_fields() -> dict[str, FieldValue]:
    """An empty table."""
    return {}


class Method:
    """What all methods share.  `ID` is class << 16 | method, as it stands in the payload."""

    __slots__ = ()
    ID: ClassVar[int] = 0
    NAME: ClassVar[str] = ""
    FROM_CLIENT: ClassVar[bool] = False
    FIELDS: ClassVar[tuple[tuple[str, str], ...]] = ()

    def encode(self) -> bytes:
        """The payload of the method frame.  InvalidArgument when a value does not fit its field."""
        out = [self.ID.to_bytes(4, "big")]
        bits = 0
        weight = 1
        for name, kind in self.FIELDS:
            value: object = getattr(self, name)
            if kind == "bit":
                if weight == 256:
                    out.append(bytes((bits,)))
                    bits, weight = 0, 1
                if value:
                    bits |= weight
                weight <<= 1
                continue
            if weight > 1:
                out.append(bytes((bits,)))
                bits, weight = 0, 1
            out.append(_encode_field(kind, value, f"{name} of {self.NAME}"))
        if weight > 1:
            out.append(bytes((bits,)))
        return b"".join(out)


def _encode_field(kind: str, value: Any, what: str) -> bytes:
    if kind == "short":
        return encode_short_string(value, what)
    if kind == "long":
        return len(value).to_bytes(4, "big") + cast("bytes", value)
    if kind == "table":
        return encode_table(value)
    try:
        return _NUMBERS[kind].pack(value)
    except struct.error as error:
        raise InvalidArgument(f"{what} cannot be {value!r}") from error


METHODS: dict[int, type[Method]] = {}
"""Every method by its `ID`."""

_M = TypeVar("_M", bound=Method)


@dataclass_transform(field_specifiers=(field,))
def method(class_id: int, method_id: int, *, client: bool = False) -> Callable[[type[_M]], type[_M]]:
    """Make a slots dataclass of a class, read its wire types and enter it in `METHODS`."""

    def enter(plain: type[_M]) -> type[_M]:
        plain.__doc__ = plain.__doc__ or plain.__name__  # else `dataclass` works a signature out: 0.1 ms each
        made = dataclass(slots=True)(plain)
        first, *rest = re.findall(r"[A-Z][a-z]*", plain.__name__)
        made.ID = class_id << 16 | method_id
        made.NAME = f"{first}.{'-'.join(rest)}".lower()
        made.FROM_CLIENT = client
        made.FIELDS = tuple((name, _KINDS[kind]) for name, kind in plain.__annotations__.items())
        METHODS[made.ID] = made
        return made

    return enter


def decode_method(payload: bytes) -> Method:
    """The method in the payload of a method frame.

    Errors: ProtocolError with reply code 501 when the fields do not fill the payload exactly, 502 for a malformed
    field, 503 for a method that does not exist.
    """
    if len(payload) < 4:
        raise ProtocolError("a method frame without a method", reply_code=FRAME_ERROR)
    made = METHODS.get(int.from_bytes(payload[:4], "big"))
    if made is None:
        numbers = f"{payload[0] << 8 | payload[1]}, {payload[2] << 8 | payload[3]}"
        raise ProtocolError(f"unknown method ({numbers})", reply_code=COMMAND_INVALID)
    values: list[Any] = []
    pos, bits, weight = 4, 0, 256
    try:
        for _, kind in made.FIELDS:
            if kind == "bit":
                if weight == 256:
                    bits, weight = payload[pos], 1
                    pos += 1
                values.append(bits & weight != 0)
                weight <<= 1
                continue
            weight = 256
            if kind == "short":
                end = pos + 1 + payload[pos]
                values.append(payload[pos + 1 : end].decode())
                pos = end
            elif kind == "table":
                table, pos = read_table(payload, pos)
                values.append(table)
            elif kind == "long":
                end = pos + 4 + int.from_bytes(payload[pos : pos + 4], "big")
                values.append(payload[pos + 4 : end])
                pos = end
            else:
                shape = _NUMBERS[kind]
                values.append(shape.unpack_from(payload, pos)[0])
                pos += shape.size
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a text of {made.NAME} is not UTF-8", reply_code=SYNTAX_ERROR) from error
    except (IndexError, struct.error) as error:
        raise ProtocolError(f"the arguments of {made.NAME} are cut short", reply_code=FRAME_ERROR) from error
    if pos != len(payload):
        raise ProtocolError(f"the arguments of {made.NAME} do not fill their frame", reply_code=FRAME_ERROR)
    return made(*values)
