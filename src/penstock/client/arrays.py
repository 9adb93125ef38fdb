"""Columns of what the client sends, made of lists.

`pa.array` of a list imports pandas where that is installed, to see whether the list is one of its own: 0.4 s and 50 MiB
for a process that wants none of it, and an error where Python ends, since nothing can be imported then.  So what is
plain is put together of its bytes here, and what is not is `pa.array`'s, whose errors those are.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.records.schema import TIMESTAMP
from penstock.wire.flight.commands import HEADERS

FEW = 1000
"""Of more values the time is `pa.array`'s, which takes a seventh of it for each."""

BYTES_MOST = (1 << 31) - 1
"""Of the values of a column: places among them are numbers of 32 bits."""


def array_of(values: Sequence[object], kind: pa.DataType) -> pa.Array[Any]:
    """A column of these values, null where they are None.  Errors as those of `pa.array`."""
    if values.count(None) == len(values):
        nulls: pa.Array[Any] = pa.nulls(len(values), cast("Any", kind))
        return nulls
    make = _MAKERS.get(kind) if len(values) <= FEW else None
    made = None if make is None else make(values, kind)
    return pa.array(cast("Any", values), kind) if made is None else made


def repeated(value: object, kind: pa.DataType, count: int) -> pa.Array[Any]:
    """A column of `count` times the same."""
    one: Any = array_of([value], kind)[0]
    made: pa.Array[Any] = pa.repeat(one, count)
    return made


def _buffer(data: npt.NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(cast("Any", data))


def _all_of(kind: type, values: Sequence[object]) -> bool:
    """Whether each is exactly of this type, or None."""
    return {*map(type, values)} <= {kind, type(None)}


def _present(values: Sequence[object]) -> pa.Buffer | None:
    """A bit for each value that is there; None where all are."""
    if None not in values:
        return None
    return _buffer(np.packbits([value is not None for value in values], bitorder="little"))


def _numbers(values: Sequence[object], kind: pa.DataType) -> pa.Array[Any] | None:
    """Whole numbers; None for anything else, and where one is out of range."""
    if not _all_of(int, values):
        return None
    try:
        wide = np.array([value or 0 for value in cast("Sequence[int | None]", values)], "i8")
    except OverflowError:
        return None
    data = wide.astype(f"i{kind.bit_width // 8}", copy=False)  # NumPy before 2 cuts numbers that are too large for it
    if data is not wide and data.astype(wide.dtype).tobytes() != wide.tobytes():  # what compares arrays imports
        return None
    return pa.Array.from_buffers(kind, len(values), [_present(values), _buffer(data)])


def _placed(parts: Sequence[bytes], present: pa.Buffer | None, kind: pa.DataType) -> pa.Array[Any] | None:
    """Values one behind the other; None where they are too large for a column."""
    ends = list(accumulate(map(len, parts), initial=0))
    if ends[-1] > BYTES_MOST:
        return None
    places = _buffer(np.array(ends, "i4"))
    return pa.Array.from_buffers(kind, len(parts), [present, places, pa.py_buffer(b"".join(parts))])


def _bytes(values: Sequence[object], kind: pa.DataType) -> pa.Array[Any] | None:
    if not _all_of(bytes, values):
        return None
    return _placed([value or b"" for value in cast("Sequence[bytes | None]", values)], _present(values), kind)


def _texts(values: Sequence[object], kind: pa.DataType) -> pa.Array[Any] | None:
    if not _all_of(str, values):
        return None
    try:
        parts = [value.encode() if value else b"" for value in cast("Sequence[str | None]", values)]
    except UnicodeEncodeError:
        return None
    return _placed(parts, _present(values), kind)


def _headers(values: Sequence[object], kind: pa.DataType) -> pa.Array[Any] | None:
    """A row is a list of pairs: a name and its text."""
    if not _all_of(list, values):
        return None
    rows = [value or [] for value in cast("Sequence[list[tuple[object, object]] | None]", values)]
    pairs = list(chain.from_iterable(rows))
    if not {*map(type, pairs)} <= {tuple} or not {*map(len, pairs)} <= {2}:
        return None
    names, texts = map(list, zip(*pairs, strict=True)) if pairs else ([], [])
    if None in names or (keys := _texts(names, pa.string())) is None or (told := _texts(texts, pa.string())) is None:
        return None
    ends = np.array(list(accumulate(map(len, rows), initial=0)), "i4")
    fields = [cast("pa.MapType[Any, Any, Any]", kind).key_field, cast("pa.MapType[Any, Any, Any]", kind).item_field]
    entered = pa.StructArray.from_arrays([keys, told], fields=fields)
    return pa.Array.from_buffers(kind, len(rows), [_present(values), _buffer(ends)], children=[entered])


_MAKERS: Mapping[pa.DataType, Callable[[Sequence[object], pa.DataType], pa.Array[Any] | None]] = {
    **dict.fromkeys((pa.int16(), pa.int32(), pa.int64(), TIMESTAMP), _numbers),
    pa.binary(): _bytes,
    pa.string(): _texts,
    HEADERS: _headers,
}
"""Those types that columns of `PUBLISH` and `SETTLE` have."""
