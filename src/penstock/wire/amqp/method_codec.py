"""One codec for all methods of AMQP 0-9-1: a method class describes itself, the codec walks the description.

The decorator `method` gives the class and method number, the annotated fields their wire types in order.  Which methods
there are is said in `methods`; importing that fills the table.  Knows no frames, channels or meaning.

    payload  u16 class | u16 method | fields in order; adjacent bits share octets, lowest bit first
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar, TypeAlias, TypeVar, cast, dataclass_transform

from penstock.errors import InvalidArgument, ProtocolError
from penstock.records.dataclass import dataclass
from penstock.records.field_tables import (
    FRAME_ERROR,
    SYNTAX_ERROR,
    FieldValue,
    encode_short_string,
    encode_table,
    read_table,
)
from penstock.wire.amqp.frames import COMMAND_INVALID

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
