"""Arrow between a door and the server: flat columns from the door, Arrow's own messages from the server.

What a client sent was read, decompressed and judged in the door.  The server gets the plain buffers of columns of a
closed table of names and types, and so needs no reader of Arrow's stream: it puts arrays around the buffers, which are
judged once more before anything of them is touched (`wire.flight.received`).

    BATCH   i32   bytes of the words beside it; -1: none
            u32   columns: C
            C x   u8 column of the table, u8 buffers: B, u16 0, u32 nulls, i64 rows of what a map holds
                  B x i64 bytes; -1: there is no such buffer
            words, then each buffer; each begins at a multiple of 8
    SCHEMA  a byte for each column, its place in the table
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import struct
from typing import Any, cast

import pyarrow as pa

from penstock.records.schema import CARRIED
from penstock.server.doors.line import HAS_WORDS, Broken, Frame
from penstock.wire.flight.commands import HEADERS, ORDER, ORDER_KINDS, PUBLISH, SETTLE
from penstock.wire.flight.received import Received, columns_of

TABLE: tuple[pa.Field[Any], ...] = (
    *(pa.field(one.name, one.type) for one in PUBLISH),
    *(pa.field(ORDER, kind) for kind in ORDER_KINDS),
    *(pa.field(one.name, one.type) for one in SETTLE if one.name not in PUBLISH.names),
    *(pa.field(one.name, one.type) for one in CARRIED if one.name not in (*PUBLISH.names, *SETTLE.names)),
)
"""All columns that a door may send.  Both sides are of one version: a door of another is sent away as it begins."""

_PLACES = {(one.name, one.type): place for place, one in enumerate(TABLE)}
_BATCH = struct.Struct("<iI")
_COLUMN = struct.Struct("<BBHIq")
_SIZE = struct.Struct("<q")
_PAD = bytes(8)

COLUMNS_MOST = len(PUBLISH) + 1
BUFFERS_MOST = 9


def schema_up(schema: pa.Schema) -> bytes:
    """A schema that was found right, for the server."""
    return bytes(_place(one.name, one.type) for one in schema)


def schema_there(payload: memoryview) -> pa.Schema:
    """The inverse.  Broken for what is none."""
    return pa.schema([_field(place) for place in payload])


def _place(name: str, kind: pa.DataType) -> int:
    exact = _PLACES.get((name, kind))
    return next(place for place, one in enumerate(TABLE) if one.name == name) if exact is None else exact


def _field(place: int) -> pa.Field[Any]:
    if place >= len(TABLE):
        raise Broken(f"column {place} of {len(TABLE)}")
    return TABLE[place]


def batch_up(received: Received | None, words: bytes | None) -> list[Any]:
    """The pieces of a batch that was judged, each column of its type in the table.

    Errors: InvalidArgument as `columns_of`.
    """
    out = [_BATCH.pack(-1 if words is None else len(words), 0)]
    heads, buffers = list[bytes](), list[Any]()
    if words:
        buffers.append(words)
    if received:
        columns = _columns(received)
        out[0] = _BATCH.pack(-1 if words is None else len(words), len(columns))
        for name, column in columns.items():
            parts = column.buffers()
            kind = column.type
            inner = len(cast("Any", column).keys) if kind == HEADERS else 0
            heads.append(_COLUMN.pack(_place(name, kind), len(parts), 0, column.null_count, inner))
            for part in parts:
                heads.append(_SIZE.pack(-1 if part is None else part.size))
                if part is not None and part.size:
                    buffers.append(part)
    out += heads
    at = sum(map(len, out))
    for buffer in buffers:
        out += [_PAD[: -at % 8], buffer]
        size = len(buffer) if isinstance(buffer, bytes) else buffer.size
        at += -at % 8 + size
    return out


def _columns(received: Received) -> dict[str, pa.Array[Any]]:
    batch, names = received.batch, received.batch.schema.names
    columns = columns_of(received.without(ORDER, received.layout) if ORDER in names else received)
    if ORDER in names:
        columns = {name: batch.column(ORDER) if name == ORDER else columns[name] for name in names}
    return {name: column if column.offset == 0 else _moved(column) for name, column in columns.items()}


def _moved(column: pa.Array[Any]) -> pa.Array[Any]:
    """The same values in buffers of their own, from the first on."""
    return pa.concat_arrays([column, column.slice(0, 0)])


def batch_there(frame: Frame) -> tuple[pa.RecordBatch | None, bytes | None]:
    """Rows and words that a door sent; the rows are not judged.  Broken for what is no batch."""
    payload = frame.payload
    if len(payload) < _BATCH.size:
        raise Broken(f"a batch of {len(payload)} bytes")
    words_size, count = _BATCH.unpack_from(payload)
    if count > COLUMNS_MOST or words_size < -1:
        raise Broken(f"a batch of {count} columns with {words_size} bytes beside it")
    at, told = _BATCH.size, list[tuple[Any, int, int, list[int]]]()
    for _ in range(count):
        _room(payload, at, _COLUMN.size)
        place, parts, _, nulls, inner = _COLUMN.unpack_from(payload, at)
        at += _COLUMN.size
        if parts > BUFFERS_MOST:
            raise Broken(f"a column of {parts} buffers")
        _room(payload, at, parts * _SIZE.size)
        sizes = list(struct.unpack_from(f"<{parts}q", payload, at))
        at += parts * _SIZE.size
        told.append((_field(place), nulls, inner, sizes))
    words: bytes | None = None
    if words_size >= 0:
        data, at = _next(payload, at, words_size)
        words = bytes(data)
    if not count:
        return None, words
    arrays: list[pa.Array[Any]] = []
    for field, nulls, inner, sizes in told:
        buffers = list[pa.Buffer | None]()
        for size in sizes:
            if size < -1:
                raise Broken(f"a buffer of {size} bytes")
            if size == -1:
                buffers.append(None)
                continue
            data, at = _next(payload, at, size)
            buffers.append(pa.py_buffer(data))
        arrays.append(_array(field.type, frame.rows, buffers, nulls, inner))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([field for field, *_ in told])), words


def _array(kind: pa.DataType, rows: int, buffers: list[pa.Buffer | None], nulls: int, inner: int) -> pa.Array[Any]:
    """Buffers as an array; nothing of them is looked at.  Broken where their number is not the type's."""
    try:
        if kind != HEADERS:
            return cast("pa.Array[Any]", pa.Array.from_buffers(kind, rows, buffers, nulls))
        if len(buffers) != BUFFERS_MOST or not 0 <= inner <= 1 << 40:
            raise Broken(f"a map of {len(buffers)} buffers and {inner} rows")
        keys = pa.Array.from_buffers(pa.string(), inner, buffers[3:6], 0)
        items = pa.Array.from_buffers(pa.string(), inner, buffers[6:9])
        entries = pa.Array.from_buffers(HEADERS_ENTRIES, inner, buffers[2:3], 0, 0, cast("Any", [keys, items]))
        return cast("pa.Array[Any]", pa.Array.from_buffers(kind, rows, buffers[:2], nulls, 0, [entries]))
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise Broken(f"buffers that are no {kind}: {error}") from None


HEADERS_ENTRIES = pa.struct([HEADERS.key_field, HEADERS.item_field])


def _room(payload: memoryview, at: int, size: int) -> None:
    if at + size > len(payload):
        raise Broken(f"a batch that ends at {len(payload)} and not at {at + size}")


def _next(payload: memoryview, at: int, size: int) -> tuple[memoryview, int]:
    if not size:
        return payload[:0], at
    at += -at % 8
    _room(payload, at, size)
    return payload[at : at + size], at + size


_WORDS = struct.Struct("<q")


def batch_down(batch: pa.RecordBatch, words: bytes | None) -> tuple[list[Any], int]:
    """The pieces of a batch for a client, and the frame's flags."""
    if words is None:
        return [batch.serialize()], 0
    return [_WORDS.pack(len(words)), words, _PAD[: -len(words) % 8], batch.serialize()], HAS_WORDS


def batch_here(frame: Frame, schema: pa.Schema) -> tuple[pa.RecordBatch, bytes | None]:
    """The inverse.  Broken for what is none."""
    payload, words = frame.payload, None
    if frame.flags & HAS_WORDS:
        [size] = _WORDS.unpack_from(payload)
        words = bytes(payload[_WORDS.size : _WORDS.size + size])
        payload = payload[_WORDS.size + size + -size % 8 :]
    try:
        return pa.ipc.read_record_batch(pa.py_buffer(payload), schema), words
    except (pa.ArrowException, ValueError) as error:
        raise Broken(f"no batch: {error}") from None
