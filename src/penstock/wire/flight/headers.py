"""Message headers between Arrow columns and AMQP property bytes, once for each distinct header, not once a row.

Publishing: content_type, priority, message_id, correlation_id, reply_to and the map of headers become property bytes
with delivery mode 2.  Reading: property bytes become the same columns; header values that are no text become text.
Rows of one batch mostly share their header, so both ways look for the distinct ones with Arrow first.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import orjson
import pyarrow as pa

from penstock.errors import InvalidArgument, PenstockError
from penstock.records.causes import death_reason
from penstock.records.compute import compute
from penstock.records.properties import PERSISTENT, Properties, decode, encode
from penstock.wire.flight.schemas import HEADERS, TEXT_COLUMNS

PLAIN = encode(Properties(delivery_mode=PERSISTENT))
"""The header of a message without any header column."""

HEADER_COLUMNS = ("headers", "priority", *TEXT_COLUMNS)

READ_COLUMNS = (*HEADER_COLUMNS, "death_reason")
"""What a header shows to those who read."""

_SEEN_MAX = 4096
_SEEN_SIZE_MAX = 512
_INT16 = pa.int16()


class Header(NamedTuple):
    """One header as the columns show it; None is null."""

    headers: tuple[tuple[str, str], ...] | None
    priority: int | None
    content_type: str | None
    message_id: str | None
    correlation_id: str | None
    reply_to: str | None
    death_reason: str | None  # of a dead letter


NOTHING = Header(None, None, None, None, None, None, None)

_seen: dict[bytes, Header] = {}


def header_of(properties: bytes) -> Header:
    """What the columns show of one message's properties; remembered for short ones, 4,096 at most."""
    found = _seen.get(properties)
    if found is None:
        found = _read(properties)
        if len(properties) <= _SEEN_SIZE_MAX:
            if len(_seen) >= _SEEN_MAX:
                _seen.clear()
            _seen[properties] = found
    return found


def _read(properties: bytes) -> Header:
    try:
        p = decode(properties)
    except PenstockError:
        return NOTHING  # stored before it was checked; the properties column has the bytes
    headers = tuple((name, header_text(value)) for name, value in p.headers.items()) if p.headers else None
    why = death_reason(p.headers)
    return Header(headers, p.priority, p.content_type, p.message_id, p.correlation_id, p.reply_to, why)


def header_text(value: object) -> str:
    """A header value as text: text as it is, bytes as UTF-8, the rest as JSON writes it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    try:
        return orjson.dumps(value, default=header_text, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError):
        return str(value)


# -- publishing


def properties_of(columns: Mapping[str, pa.Array[Any]], rows: int, what: str) -> bytes | list[bytes]:
    """Property bytes from the header columns of a publish: one value where all rows agree.

    InvalidArgument for a priority outside 0..255 and for texts that AMQP cannot hold.
    """
    present = [name for name in HEADER_COLUMNS if name in columns and columns[name].null_count < rows]
    if not present or not rows:
        return PLAIN
    codes: Any = None
    values: list[list[object]] = []
    spread = 1
    for name in present:
        distinct, code = _distinct(name, columns[name])
        values.append(distinct)
        spread *= len(distinct)
        if spread >= 1 << 62:
            return _row_by_row(present, columns, rows, what)
        codes = code if codes is None else codes * len(distinct) + code
    if spread == 1:
        return _write(present, [some[0] for some in values], what)
    combined, inverse = np.unique(codes, return_inverse=True)
    written: list[bytes] = []
    for code in cast("list[int]", combined.tolist()):
        picked: list[object] = []
        for some in reversed(values):
            code, place = divmod(code, len(some))
            picked.append(some[place])
        written.append(_write(present, picked[::-1], what))
    return [written[place] for place in cast("list[int]", inverse.tolist())]


def _distinct(name: str, column: pa.Array[Any]) -> tuple[list[object], Any]:
    """Distinct values and the place of each row's among them, int64."""
    if name == "headers":
        places = dict[object, int]()
        code = np.fromiter(
            (places.setdefault(None if not item else tuple(item), len(places)) for item in column.to_pylist()),
            np.int64,
            len(column),
        )
        return list(places), code
    encoded: Any = compute.dictionary_encode(column, null_encoding="encode")
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _row_by_row(names: Sequence[str], columns: Mapping[str, pa.Array[Any]], rows: int, what: str) -> list[bytes]:
    lists = [columns[name].to_pylist() for name in names]
    return [_write(names, [some[row] for some in lists], what) for row in range(rows)]


def _write(names: Sequence[str], values: Sequence[object], what: str) -> bytes:
    found = cast("dict[str, Any]", dict(zip(names, values, strict=True)))
    priority = found.get("priority")
    if priority is not None and not 0 <= priority <= 255:
        raise InvalidArgument(f"{what}: priority is {priority}, not in 0..255")
    headers = found.pop("headers", None)
    try:
        return encode(Properties(headers=dict(headers) if headers else None, delivery_mode=PERSISTENT, **found))
    except InvalidArgument as error:
        raise InvalidArgument(f"{what}: {error}") from error


# -- reading


def header_columns(
    properties: bytes | Sequence[bytes] | pa.Array[Any], rows: int, wanted: Iterable[str]
) -> dict[str, pa.Array[Any]]:
    """The wanted header columns of so many messages."""
    names = [name for name in wanted if name in READ_COLUMNS]
    if not names:
        return {}
    if isinstance(properties, bytes):
        distinct, places = [properties], None
    else:
        column = properties if isinstance(properties, pa.Array) else pa.array(properties, pa.binary())
        encoded: Any = compute.dictionary_encode(column, null_encoding="encode")
        distinct = cast("list[bytes]", encoded.dictionary.to_pylist())
        places = encoded.indices if len(distinct) > 1 else None
    found = [header_of(item) if item else NOTHING for item in distinct]
    out: dict[str, pa.Array[Any]] = {}
    for name in names:
        values = [getattr(header, name) for header in found]
        kind = HEADERS if name == "headers" else _INT16 if name == "priority" else pa.string()
        out[name] = _column(values, kind, rows, places)
    return out


def _column(values: list[Any], kind: Any, rows: int, places: Any) -> pa.Array[Any]:
    if all(value is None for value in values):
        return cast("pa.Array[Any]", pa.nulls(rows, kind))
    array = cast("pa.Array[Any]", pa.array(values, kind))
    if places is None:
        places = pa.array(np.zeros(rows, np.int32))
    return array.take(places)
