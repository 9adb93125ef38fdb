"""Rows as JSON objects, a column at a time: Arrow writes the text of each column and joins them, no value is an object.

Times in ISO form with a fraction only where there is one, binary as base64, decimals as text, what is no number in a
floating column as null.  Arrays become arrays, structs and maps become objects, keys of maps text.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import orjson
import pyarrow as pa

from penstock.errors import InvalidArgument
from penstock.records.compute import compute, cut, decimal_texts
from penstock.records.dataclass import dataclass
from penstock.spark.record_batches import Column, batch_of, column

Texts: TypeAlias = "Any"
"""A string array without nulls, or what pyarrow takes for one."""

QUOTE, SLASH = ord('"'), ord("\\")


def rows_as_json(batch: pa.RecordBatch, names: Sequence[str]) -> pa.Array[Any]:
    """Each row as a JSON object of these columns: a binary array."""
    given: Any = batch
    columns = [given.column(name) for name in names]
    return cast("pa.Array[Any]", _objects(names, columns, batch.num_rows).cast(pa.binary()))


def _objects(names: Sequence[str], columns: Sequence[Any], rows: int) -> Texts:
    parts: list[Any] = []
    before = "{"
    for name, values in zip(names, columns, strict=True):
        before += orjson.dumps(name).decode() + ":"
        text, quoted = _texts(values)
        if quoted:
            before += '"'
        parts += [before, text]
        before = ('"' if quoted else "") + ","
    end = before[:-1] + "}" if parts else "{}"
    if not parts:
        return pa.array([end] * rows, pa.string())
    return _joined(*parts, end)


def _joined(*parts: Any) -> Texts:
    return compute.binary_join_element_wise(*parts, "")


def _texts(column: Any) -> tuple[Texts, bool]:
    """The JSON of each value, nulls as null; and whether the texts still want quotation marks around them."""
    kind = column.type
    if pa.types.is_null(kind) or column.null_count == len(column):
        return pa.array(["null"] * len(column), pa.string()), False
    text, quoted = _written(column, kind)
    if not column.null_count:
        return text, quoted
    if quoted:
        text = _joined('"', text, '"')
    return compute.if_else(column.is_valid(), text, "null"), False


def _written(column: Any, kind: pa.DataType) -> tuple[Texts, bool]:
    """As `_texts`; what stands for nulls does not matter."""
    for tests, write in _WRITERS:
        if any(test(kind) for test in tests):
            return write(column)
    raise InvalidArgument(f"a value of type {kind} has no place in JSON: cast it")


def _escaped(column: Any) -> tuple[Texts, bool]:
    """Text with what JSON escapes escaped."""
    data = _bytes_of(column)
    if not ((data == QUOTE) | (data == SLASH) | (data < 0x20)).any():
        return column, True
    if (data < 0x20).any():
        return pa.array([orjson.dumps(value).decode() for value in column.to_pylist()], pa.string()), False
    column = compute.replace_substring(column, pattern="\\", replacement="\\\\")
    return compute.replace_substring(column, pattern='"', replacement='\\"'), True


def _bytes_of(column: Any) -> Any:
    """All text of a string column, as numbers."""
    offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
    data = column.buffers()[2]
    if data is None:
        return np.zeros(0, np.uint8)
    return np.frombuffer(data, np.uint8)[int(offsets[0]) : int(offsets[-1])]


def _floats(column: Any) -> Texts:
    text = column.cast(pa.string())
    whole = compute.and_(compute.is_finite(column), compute.equal(compute.floor(column), column))
    bare = compute.and_(whole, compute.invert(compute.match_substring_regex(text, pattern="[.e]")))
    text = compute.if_else(bare, _joined(text, ".0"), text)
    return compute.if_else(compute.is_finite(column), text, "null")


def _float_names(column: Any) -> Texts:
    """As keys of an object, of which no two are one: what is no number has a name of its own, as `to_json` has it."""
    beyond = compute.if_else(compute.greater(column, 0.0), "Infinity", "-Infinity")
    other = compute.if_else(compute.is_nan(column), "NaN", beyond)
    return compute.if_else(compute.is_finite(column), _floats(column), other)


YEARS = (-62_167_219_200_000_000, 253_402_300_800_000_000)
"""Microseconds of years that have four digits."""


def _times(column: Any, zone: str | None) -> Texts:
    if zone is not None and zone != "UTC":
        column = column.cast(pa.timestamp("us", tz="UTC"))
    column = column.cast(pa.timestamp("us"))  # text with a zone is a hundred times slower
    micros = compute.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    fractions = micros % 1_000_000 != 0
    text = column.cast(pa.timestamp("s"), safe=False).cast(pa.string())
    if fractions.any():
        text = compute.if_else(pa.array(fractions), column.cast(pa.string()), text)
    if bool((micros < YEARS[0]).any()) or bool((micros >= YEARS[1]).any()):
        text = compute.replace_substring(text, pattern=" ", replacement="T", max_replacements=1)
    else:
        text = compute.binary_replace_slice(text, start=10, stop=11, replacement="T")
    return _joined(text, "Z") if zone is not None else text


def _lists(offsets: Any, inner: Texts, before: str, after: str) -> Texts:
    """The texts of the elements joined, list by list."""
    listed = pa.ListArray.from_arrays(offsets.cast(pa.int32()), inner.cast(pa.string()))
    return _joined(before, compute.binary_join(listed, ","), after)


def _maps(column: Any) -> Texts:
    keys = column.keys
    floating = pa.types.is_floating(keys.type)
    name, quoted = (_float_names(keys), True) if floating else _texts(keys)
    if not quoted and not (pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type)):
        name, quoted = _escaped(name)
    if quoted:
        name = _joined('"', name, '"')
    text, quoted = _texts(column.items)
    text = _joined(name, ':"', text, '"') if quoted else _joined(name, ":", text)
    return _lists(column.offsets, text, "{", "}")


def _coded(column: Any) -> Texts:
    coded = [None if value is None else base64.b64encode(value).decode() for value in column.to_pylist()]
    return pa.array(coded, pa.string())


def _struct(column: Any) -> Texts:
    return _objects([field.name for field in column.type], column.flatten(), len(column))


def _list(column: Any) -> Texts:
    inner, quoted = _texts(column.values)
    return _lists(column.offsets, _joined('"', inner, '"') if quoted else inner, "[", "]")


_WRITERS: Sequence[tuple[tuple[Callable[[Any], bool], ...], Callable[[Any], tuple[Texts, bool]]]] = (
    ((pa.types.is_string, pa.types.is_large_string), lambda column: _escaped(column.cast(pa.string()))),
    ((pa.types.is_integer, pa.types.is_boolean), lambda column: (column.cast(pa.string()), False)),
    ((pa.types.is_floating,), lambda column: (_floats(column), False)),
    ((pa.types.is_decimal,), lambda column: (decimal_texts(column), True)),
    ((pa.types.is_date,), lambda column: (column.cast(pa.string()), True)),
    ((pa.types.is_timestamp,), lambda column: (_times(column, column.type.tz), True)),
    ((pa.types.is_binary, pa.types.is_large_binary), lambda column: (_coded(column), True)),
    ((pa.types.is_struct,), lambda column: (_struct(column), False)),
    ((pa.types.is_map,), lambda column: (_maps(column), False)),
    ((pa.types.is_list, pa.types.is_large_list), lambda column: (_list(column), False)),
)
"""By the types of a column: what writes its values, and whether they still want quotation marks."""


HEADERS = pa.map_(pa.string(), pa.string())
UTC_MICROS = pa.timestamp("us", tz="UTC")

BESIDE: dict[str, tuple[tuple[str, ...], pa.DataType]] = {
    "topic": (("string",), pa.string()),
    "priority": (("tinyint", "smallint", "int", "bigint"), pa.int16()),
    "not_before": (("timestamp",), UTC_MICROS),
    "expires_at": (("timestamp",), UTC_MICROS),
    "headers": (("map<string,string>",), HEADERS),
    "content_type": (("string",), pa.string()),
    "message_id": (("string",), pa.string()),
    "correlation_id": (("string",), pa.string()),
    "reply_to": (("string",), pa.string()),
}
"""Columns beside the body: the Spark types they may have, and the type that is sent."""

ORDER = "order"
"""The column of what is sent by which the server orders a batch."""

ORDERED = ("tinyint", "smallint", "int", "bigint", "timestamp", "timestamp_ntz", "date", "string", "binary")
"""Types that rows can be ordered by: those that are one number, and text by its bytes, as Spark orders it."""

NO_JSON = ("interval", "variant", "void", "object", "geometry", "geography", "time(")
"""How the names of types begin that have no place in a JSON body."""

PIECE_ROWS = 100_000
PIECE_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What the columns of a frame are."""

    beside: tuple[str, ...]
    fields: tuple[str, ...]  # of the JSON body; empty when the frame has a body
    order: str | None = None  # rows become visible in the order of this column
    names: tuple[str, ...] | None = (
        None  # of all columns as they are called here, where the frame writes some otherwise
    )

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch of the frame as a batch of messages.  InvalidArgument for a value that no message can have."""
        if self.names is not None:
            batch = batch.rename_columns(list(self.names))
        columns = dict[str, Column]()
        if self.fields:
            columns["body"] = rows_as_json(batch, self.fields)
            if "content_type" not in self.beside:
                text = pa.repeat(pa.scalar("application/json", pa.string()), batch.num_rows)
                columns["content_type"] = cast("Column", text)
        else:
            body = column(batch, "body")
            if body.null_count:
                raise InvalidArgument(f"column 'body' has {body.null_count} nulls; a body may be empty but not null")
            columns["body"] = cast("Column", body.cast(pa.binary()))
        for name in self.beside:
            try:
                columns[name] = cast("Column", batch.column(name).cast(BESIDE[name][1]))
            except pa.ArrowException as error:
                raise InvalidArgument(f"column {name!r} has a value that no message can have: {error}") from None
        if self.order is not None:
            columns[ORDER] = order_of(batch, self.order)
        return batch_of(list(columns.values()), list(columns))


def outgoing(schema: Any, topic: str | None, *, queue: bool = False, order: str | None = None) -> Outgoing:
    """What the columns of a frame (`StructType`) are.  InvalidArgument names the column that is wrong and says why.

    Spark minds no case, so the column of a message may be written in any; a field of a JSON body has the frame's.
    topic: where rows go that name no topic; queue: it is a queue, to which all of them go; order: a column.
    """
    kinds = _kinds(schema)
    order = order and _in_any_case(order, kinds)
    beside = tuple(name for name in kinds if name in BESIDE)
    for name in beside:
        allowed = BESIDE[name][0]
        if kinds[name] not in allowed:
            raise InvalidArgument(
                f"column {name!r} is {kinds[name]}, not {' or '.join(allowed)}: cast it, or give it another name if it "
                "belongs to the body"
            )
    if queue and "topic" in kinds:
        raise InvalidArgument(
            f"option queue sends every row to queue {topic!r}, and column 'topic' says something else: drop the "
            "column, or give option topic, which serves rows whose 'topic' is null"
        )
    if topic is None and "topic" not in kinds:
        raise InvalidArgument("nobody says where to: give option topic or queue, or a column 'topic'")
    check_order(kinds, order)
    renamed = tuple(kinds) if any(field.name not in kinds for field in schema.fields) else None
    fields = _fields(kinds, order)
    _check_types(fields, kinds, schema)
    return Outgoing(beside, fields, order, renamed)


def _kinds(schema: Any) -> dict[str, str]:
    """The type of each column, as messages call it."""
    kinds = dict[str, str]()
    for field in schema.fields:
        name = _name(field.name)
        if name in kinds:
            raise InvalidArgument(f"column {field.name!r} is there twice: give one of them another name, or drop it")
        kinds[name] = field.dataType.simpleString()
    return kinds


def _in_any_case(name: str, kinds: dict[str, str]) -> str:
    """The column that is meant; the name itself where there is none."""
    return name if name in kinds else next((one for one in kinds if one.lower() == name.lower()), name)


def _name(given: str) -> str:
    """As messages call a column that is one of theirs."""
    lower = given.lower()
    return lower if lower in BESIDE or lower == "body" else given


def _fields(kinds: dict[str, str], order: str | None) -> tuple[str, ...]:
    """The columns of a JSON body; none when the frame has a body."""
    others = tuple(name for name in kinds if name not in BESIDE and name != "body")
    if "body" in kinds:
        if kinds["body"] not in ("binary", "string"):
            raise InvalidArgument(f"column 'body' is {kinds['body']}, not binary or string")
        left = [name for name in others if name != order]
        if left:
            one = len(left) == 1
            raise InvalidArgument(
                f"column{'' if one else 's'} {', '.join(map(repr, left))} {'has' if one else 'have'} no place beside "
                "'body': select what to send, or leave 'body' out to send the other columns as JSON"
            )
        return ()
    if not others:
        raise InvalidArgument(f"there is nothing for a body among the columns {', '.join(kinds) or '(none)'}")
    return others


def _check_types(fields: Sequence[str], kinds: Mapping[str, str], schema: Any) -> None:
    """InvalidArgument for a column of the body whose type has no place in it."""
    for name, field in zip(kinds, schema.fields, strict=True):
        if name in fields and (without := _without_json(field.dataType)) is not None:
            raise InvalidArgument(
                f"column {name!r} is {kinds[name]}, and {without} has no place in a JSON body: cast it, or give a "
                "column 'body'"
            )


def _without_json(kind: Any) -> str | None:
    """What has no place in JSON of a type and all within it, in Spark's words."""
    if (said := str(kind.simpleString())).startswith(NO_JSON):
        return said
    inner = [getattr(kind, part) for part in ("keyType", "valueType", "elementType") if hasattr(kind, part)]
    inner += [field.dataType for field in getattr(kind, "fields", ())]
    return next((found for one in inner if (found := _without_json(one)) is not None), None)


def check_order(kinds: dict[str, str], order: str | None) -> None:
    """InvalidArgument unless rows can be ordered by this column."""
    if order is None:
        return
    if order not in kinds:
        raise InvalidArgument(
            f"option ordered names column {order!r}, and there is none among {', '.join(kinds) or '(none)'}"
        )
    if kinds[order] not in ORDERED:
        raise InvalidArgument(
            f"option ordered: column {order!r} is {kinds[order]}, not {', '.join(ORDERED[:-1])} or {ORDERED[-1]}"
        )


_TEXTS = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)


def order_of(batch: pa.RecordBatch, name: str) -> Column:
    """A column as int64, or text as bytes.  InvalidArgument for a row that has no place."""
    given = column(batch, name)
    if given.null_count:
        raise InvalidArgument(f"option ordered: column {name!r} has {given.null_count} nulls, which have no place")
    if any(test(given.type) for test in _TEXTS):
        return cast("Column", given.cast(pa.binary()))
    if pa.types.is_date(given.type):
        given = given.cast(pa.int32())
    return cast("Column", given.cast(pa.int64()))


def in_order(piece: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The rows of a piece by their column `order`; equal ones stay as they came."""
    table: Any = pa.Table.from_batches(piece)
    numbers = table.column(ORDER).to_numpy()
    if bool((numbers[1:] >= numbers[:-1]).all()):
        return piece
    return cast("list[pa.RecordBatch]", table.take(np.argsort(numbers, kind="stable")).combine_chunks().to_batches())


def pieces(batches: Iterable[pa.RecordBatch], out: Outgoing) -> Iterator[list[pa.RecordBatch]]:
    """Batches of messages, in pieces small enough to keep in memory until they are sent."""
    piece: list[pa.RecordBatch] = []
    rows = size = 0
    for part in (part for batch in batches for part in cut(batch, PIECE_BYTES)):
        encoded = out.encode(part)
        piece.append(encoded)
        rows += encoded.num_rows
        size += encoded.nbytes
        if rows >= PIECE_ROWS or size >= PIECE_BYTES:
            yield piece if out.order is None else in_order(piece)
            piece, rows, size = [], 0, 0
    if piece:
        yield piece if out.order is None else in_order(piece)
