"""AMQP field tables: bytes to Python values and back, as RabbitMQ and its clients read the field types.

Owns the types, the limits on nesting and size, and the choice of a field type for a Python value.  Refuses to know
which method or header a table came from.

    table  u32 size | { u8 length, name | u8 type | value }*
    array  u32 size | { u8 type | value }*

    t boolean   b i8   B u8    s i16   u u16   I i32   i u32   l L i64     f float   d double   D u8 scale, i32 unscaled
    S u32 size, text           x u32 size, bytes               T u64 seconds         A array    F table  V nothing

The specification's own letters differ (there `s` is a short string and `L` unsigned); every client follows RabbitMQ.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal, DecimalException
from typing import Any, TypeAlias

import orjson

from penstock.errors import InvalidArgument, ProtocolError
from penstock.units import as_text

FRAME_ERROR = 501
SYNTAX_ERROR = 502

NESTING_LIMIT = 32
"""How deep tables and arrays may nest: the outermost table is level 1."""


class Timestamp(int):
    """Whole seconds since the Unix epoch, 0 to 2**64 - 1.

    Not a datetime, because senders that put milliseconds here are common and lie beyond the year 9999.
    """

    __slots__ = ()


class Long(int):
    """A whole number that is written in 64 bits (`l`) whatever its size, where readers expect that type."""

    __slots__ = ()


FieldValue: TypeAlias = (
    "bool | int | float | Decimal | str | bytes | Timestamp | list[FieldValue] | dict[str, FieldValue] | None"
)
Table: TypeAlias = "dict[str, FieldValue]"

_U32 = struct.Struct(">I")
_read_u32 = _U32.unpack_from
_pack_u32 = _U32.pack
_pack_i32 = struct.Struct(">ci").pack
_pack_i64 = struct.Struct(">cq").pack
_pack_u64 = struct.Struct(">cQ").pack
_pack_double = struct.Struct(">cd").pack
_pack_decimal = struct.Struct(">cBi").pack
_pack_sized = struct.Struct(">cI").pack


def _cut(what: str) -> ProtocolError:
    return ProtocolError(f"{what} runs past the end of its frame or table", reply_code=FRAME_ERROR)


def _sized(data: bytes, pos: int, end: int, what: str) -> tuple[int, int]:
    """Where a value with a u32 size begins and ends, checked against its container before anything is copied."""
    start = pos + 4
    if start > end:
        raise _cut(what)
    stop = start + _read_u32(data, pos)[0]
    if stop > end:
        raise _cut(what)
    return start, stop


def _text_or_bytes(data: bytes, pos: int, end: int, depth: int) -> tuple[FieldValue, int]:
    start, stop = _sized(data, pos, end, "a long string")
    raw = data[start:stop]
    try:
        return raw.decode(), stop
    except UnicodeDecodeError:  # clients put pickles and digests in `S`: they are bytes, not a broken frame
        return raw, stop


def _bytes(data: bytes, pos: int, end: int, depth: int) -> tuple[FieldValue, int]:
    start, stop = _sized(data, pos, end, "a byte array")
    return data[start:stop], stop


def _nothing(data: bytes, pos: int, end: int, depth: int) -> tuple[FieldValue, int]:
    return None, pos


def _boolean(data: bytes, pos: int, end: int, depth: int) -> tuple[FieldValue, int]:
    if pos >= end:
        raise _cut("a boolean")
    return data[pos] != 0, pos + 1


def _decimal(data: bytes, pos: int, end: int, depth: int) -> tuple[FieldValue, int]:
    if pos + 5 > end:
        raise _cut("a decimal")
    unscaled = int.from_bytes(data[pos + 1 : pos + 5], "big", signed=True)
    return Decimal(unscaled).scaleb(-data[pos]), pos + 5


def _timestamp(data: bytes, pos: int, end: int, depth: int) -> tuple[FieldValue, int]:
    if pos + 8 > end:
        raise _cut("a timestamp")
    return Timestamp.from_bytes(data[pos : pos + 8], "big"), pos + 8


def _deeper(depth: int) -> int:
    if depth >= NESTING_LIMIT:
        raise ProtocolError(f"tables and arrays nest deeper than {NESTING_LIMIT}", reply_code=SYNTAX_ERROR)
    return depth + 1


def _array(data: bytes, pos: int, end: int, depth: int) -> tuple[FieldValue, int]:
    pos, stop = _sized(data, pos, end, "an array")
    depth = _deeper(depth)
    items: list[FieldValue] = []
    while pos < stop:
        reader = _READERS.get(data[pos])
        if reader is None:
            raise ProtocolError(f"unknown field type {data[pos]:#04x} in an array", reply_code=SYNTAX_ERROR)
        item, pos = reader(data, pos + 1, stop, depth)
        items.append(item)
    return items, stop


Written: TypeAlias = "dict[str, tuple[FieldValue, bytes]]"
"""Fields of a table: the value of each, and its type and value as they stand in it."""


def _table(data: bytes, pos: int, end: int, depth: int, written: Written | None = None) -> tuple[Table, int]:
    pos, stop = _sized(data, pos, end, "a table")
    depth = _deeper(depth)
    table: Table = {}
    while pos < stop:
        name_end = pos + 1 + data[pos]
        if name_end >= stop:
            raise _cut("a field name")
        try:
            name = data[pos + 1 : name_end].decode()
        except UnicodeDecodeError as error:
            raise ProtocolError("a field name is not UTF-8", reply_code=SYNTAX_ERROR) from error
        reader = _READERS.get(data[name_end])
        if reader is None:
            raise ProtocolError(f"unknown field type {data[name_end]:#04x} of {name!r}", reply_code=SYNTAX_ERROR)
        table[name], pos = reader(data, name_end + 1, stop, depth)
        if written is not None:
            written[name] = table[name], data[name_end:pos]
    return table, stop


_Reader: TypeAlias = "Callable[[bytes, int, int, int], tuple[FieldValue, int]]"


def _number(fmt: str) -> _Reader:
    shape = struct.Struct(fmt)
    size, unpack_from = shape.size, shape.unpack_from

    def read(data: bytes, pos: int, end: int, depth: int) -> tuple[FieldValue, int]:
        after = pos + size
        if after > end:
            raise _cut("a number")
        return unpack_from(data, pos)[0], after

    return read


_READERS: dict[int, _Reader] = {
    ord("t"): _boolean,
    ord("b"): _number(">b"),
    ord("B"): _number(">B"),
    ord("s"): _number(">h"),
    ord("u"): _number(">H"),
    ord("I"): _number(">i"),
    ord("i"): _number(">I"),
    ord("l"): _number(">q"),
    ord("L"): _number(">q"),
    ord("f"): _number(">f"),
    ord("d"): _number(">d"),
    ord("D"): _decimal,
    ord("S"): _text_or_bytes,
    ord("x"): _bytes,
    ord("T"): _timestamp,
    ord("A"): _array,
    ord("F"): _table,
    ord("V"): _nothing,
}


def read_table(data: bytes, pos: int = 0, written: Written | None = None) -> tuple[Table, int]:
    """The table whose size field is at `pos`, and the position after it.  Of equal names the last wins.

    written: gets its fields as they stand there, for who writes it anew.

    Errors: ProtocolError with reply code 501 when a size points past its container, 502 for a field type nobody knows,
    a name that is not UTF-8, or nesting beyond `NESTING_LIMIT`.
    """
    return _table(data, pos, len(data), 0, written)


def decode_table(data: bytes) -> Table:
    """The table that `data`, size field included, holds and nothing else.  Errors as `read_table`."""
    table, end = _table(data, 0, len(data), 0)
    if end != len(data):
        raise ProtocolError(f"{len(data) - end} bytes after the end of a table", reply_code=FRAME_ERROR)
    return table


NO_FIELDS = b"\0\0\0\0"
"""A table without fields."""


def encode_table(table: Mapping[str, object], written: Written | None = None) -> bytes:
    """A table with its size field.

    written: of the table that it was; a value that was read there is written as it stood.  Else a whole number of 64
    bits would come as one of 32, a single float as a double, and who reads it asks for the type that was sent.

    Types: bool `t`, int `I` or `l` (Long always `l`), float `d`, Decimal `D`, str `S`, bytes `x`, Timestamp and
    datetime `T` (without a zone it is UTC, fractions of a second are cut), list and tuple `A`, mapping `F`, None `V`.
    Errors: InvalidArgument names the field whose value has no AMQP form, is out of range, or nests too deep.
    """
    out: list[bytes] = []
    _write_table(table, out, "", 0, written)
    return b"".join(out)


def _utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{what} holds a lone surrogate, which is no UTF-8") from error


def encode_short_string(text: str, what: str = "a short string") -> bytes:
    """One length byte and UTF-8.  InvalidArgument over 255 bytes, naming `what`."""
    raw = _utf8(text, what)
    if len(raw) > 255:
        raise InvalidArgument(f"{what} has {len(raw)} bytes, 255 are allowed")
    return bytes((len(raw),)) + raw


def _write_table(
    table: Mapping[str, object], out: list[bytes], path: str, depth: int, written: Written | None = None
) -> None:
    depth = _writable(depth, path)
    parts: list[bytes] = []
    for name, value in table.items():
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - whoever wrote the table may not know
            raise InvalidArgument(f"field name {name!r}{f' in {path}' if path else ''} is not text")
        where = f"{path}.{name}" if path else name
        parts.append(encode_short_string(name, f"field name {name[:40]!r}"))
        if written and (old := written.get(name)) is not None and old[0] is value:
            parts.append(old[1])
        else:
            _write(value, parts, where, depth)
    raw = b"".join(parts)
    out += (_pack_u32(len(raw)), raw)


def _writable(depth: int, path: str) -> int:
    if depth >= NESTING_LIMIT:
        raise InvalidArgument(f"field {path!r} nests deeper than {NESTING_LIMIT}")
    return depth + 1


def _write(value: object, out: list[bytes], path: str, depth: int) -> None:
    """Append type and value."""
    write = _WRITERS.get(value.__class__)
    if write is None:
        write = next((one for kind, one in _WRITERS.items() if isinstance(value, kind)), None)
        if write is None:
            raise InvalidArgument(f"field {path!r}: a {type(value).__name__} has no AMQP form")
    write(value, out, path, depth)


def _write_text(value: str, out: list[bytes], path: str, depth: int) -> None:
    raw = _utf8(value, f"field {path!r}")
    out += (_pack_sized(b"S", len(raw)), raw)


def _write_bytes(value: bytes | bytearray, out: list[bytes], path: str, depth: int) -> None:
    out += (_pack_sized(b"x", len(value)), bytes(value))


def _write_whole(value: int, out: list[bytes], path: str, depth: int) -> None:
    small = -0x8000_0000 <= value <= 0x7FFF_FFFF
    out.append(_pack_i32(b"I", value) if small else _in_range(_pack_i64, b"l", value, path))


def _write_time(value: datetime, out: list[bytes], path: str, depth: int) -> None:
    zoned = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    out.append(_in_range(_pack_u64, b"T", int(zoned.timestamp()), path))


def _write_mapping(value: Mapping[str, object], out: list[bytes], path: str, depth: int) -> None:
    out.append(b"F")
    _write_table(value, out, path, depth)


def _write_array(value: list[object] | tuple[object, ...], out: list[bytes], path: str, depth: int) -> None:
    depth = _writable(depth, path)
    parts: list[bytes] = []
    for item in value:
        _write(item, parts, path, depth)
    raw = b"".join(parts)
    out += (_pack_sized(b"A", len(raw)), raw)


_WRITERS: dict[type, Callable[[Any, list[bytes], str, int], object]] = {
    str: _write_text,
    type(None): lambda _, out, path, depth: out.append(b"V"),
    bool: lambda value, out, path, depth: out.append(b"t\x01" if value else b"t\x00"),
    Timestamp: lambda value, out, path, depth: out.append(_in_range(_pack_u64, b"T", value, path)),
    Long: lambda value, out, path, depth: out.append(_in_range(_pack_i64, b"l", value, path)),
    int: _write_whole,
    float: lambda value, out, path, depth: out.append(_pack_double(b"d", value)),
    bytes: _write_bytes,
    bytearray: _write_bytes,
    datetime: _write_time,
    Decimal: lambda value, out, path, depth: out.append(_encode_decimal(value, path)),
    dict: _write_mapping,
    list: _write_array,
    tuple: _write_array,
    Mapping: _write_mapping,
}
"""By class; of a class that is not here the first that the value is an instance of: a Timestamp is an int, too."""


def _in_range(pack: Callable[[bytes, int], bytes], kind: bytes, value: int, path: str) -> bytes:
    try:
        return pack(kind, value)
    except struct.error as error:
        least, most = (0, (1 << 64) - 1) if kind == b"T" else (-(1 << 63), (1 << 63) - 1)
        raise InvalidArgument(f"field {path!r}: {value} is not in {least}..{most}") from error


def _encode_decimal(value: Decimal, path: str) -> bytes:
    try:
        exponent = value.as_tuple().exponent
        if not isinstance(exponent, int):
            raise InvalidArgument(f"field {path!r}: {value} is no finite decimal")
        scale = max(-exponent, 0)
        return _pack_decimal(b"D", scale, int(value.scaleb(scale)))
    except (struct.error, DecimalException) as error:
        raise InvalidArgument(f"field {path!r}: {value} needs more than 32 bits or 255 decimals") from error


def as_json(value: object) -> bytes:
    """JSON of what may hold values of tables: bytes become text with what is no UTF-8 replaced."""
    return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS)


def _plain(value: object) -> object:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else as_text(value)
