"""Arrow's functions over arrays, without `pyarrow.compute` where that can be; and some answered from their buffers.

That module makes Python functions of all that Arrow knows, with their documentation: 20-30 ms and 2 MiB, which neither
a start nor a replay in the bulk process should pay.  The few functions that take arrays alone are called in Arrow
directly; the first of any other loads it, and so do methods of arrays such as `filter` and `cast`.

Beside them stand arrays of LSNs, batches in slices, and batches gathered to tables that memory can hold.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.units import as_text

if TYPE_CHECKING:
    from penstock.records.chunks import Chunk

Scalar = TypeVar("Scalar", bound=np.generic)

DIRECT = {
    "and_": "and",
    "equal": "equal",
    "filter": "filter",
    "is_null": "is_null",
    "less_equal": "less_equal",
    "sum": "sum",
    "take": "take",
    "unique": "unique",
}
"""Name here -> Arrow's own name."""


class _Compute:
    """The functions by name; each is remembered, so that the next use is that of an attribute."""

    def __getattr__(self, name: str) -> Any:
        found = _direct(DIRECT[name]) if name in DIRECT else _wrapped(name)
        setattr(self, name, found)
        return found


def _direct(name: str) -> Callable[..., Any]:
    from pyarrow import _compute  # what `pyarrow.compute` wraps

    arrow: Any = _compute
    call = arrow.call_function

    def function(*arrays: object) -> Any:
        return call(name, arrays)

    return function


def _wrapped(name: str) -> Any:
    import pyarrow.compute  # here, and nowhere else in what a server loads

    return getattr(pyarrow.compute, name)


compute: Any = _Compute()
"""Untyped: the stubs know fewer kinds of arrays than the functions take."""


def cut(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """The rows of a batch in slices of so many bytes at most, or of one row."""
    rows = batch.num_rows
    if rows > 1 and batch.nbytes > most:
        yield from cut(batch.slice(0, rows // 2), most)
        yield from cut(batch.slice(rows // 2), most)
    elif rows:
        yield batch


GATHERED = 128 << 20
"""Memory that batches which are looked at together take, about: rows may be of any size."""

BATCH_TAKES = 8 << 10
"""Memory of a batch of few rows: eleven columns are objects, however little is in them."""


def taken(batch: pa.RecordBatch | pa.Table) -> int:
    """Bytes of memory that are held with it, about."""
    count = batch.column(0).num_chunks if isinstance(batch, pa.Table) else 1
    return max(batch.get_total_buffer_size(), count * BATCH_TAKES)


def gathered(batches: Iterable[pa.RecordBatch | pa.Table], rows: int) -> Iterator[pa.Table]:
    """Batches as tables, each of at least so many rows, or fewer that take `GATHERED` bytes; the last has the rest."""
    held, have, size = list[pa.Table](), 0, 0
    for batch in batches:
        held.append(batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch]))
        have += batch.num_rows
        size += taken(batch)
        if have >= rows or size >= GATHERED:
            yield pa.concat_tables(held)
            held, have, size = [], 0, 0
    if held:
        yield pa.concat_tables(held)


def lsns_of(chunk: Chunk) -> npt.NDArray[np.int64]:
    """A chunk as numpy sees it: an array's own memory."""
    if isinstance(chunk, range):
        return np.arange(chunk.start, chunk.stop, dtype=np.int64)
    return np.frombuffer(chunk, dtype=np.int64)


def distinct_numbers(values: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """Numbers in any order ascending, each once: what `np.unique` gives, whose table takes 50 times as long."""
    ordered = np.sort(values)
    if len(ordered) < 2:
        return ordered
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))]


def one_value(array: pa.Array[Any]) -> bool:
    """Whether all values of a text or binary array are the same, and none is null; of no values: False."""
    count = len(array)
    if not count or array.null_count:
        return False
    if count == 1:
        return True
    _, offsets, data = array.buffers()
    ends: npt.NDArray[Any] = np.frombuffer(offsets, "<i4")[array.offset : array.offset + count + 1]  # type: ignore[call-overload]
    start, size = int(ends[0]), int(ends[1] - ends[0])
    if int(ends[-1]) - start != size * count or not (ends[1:] - ends[:-1] == size).all():
        return False
    if not size:
        return True
    values: npt.NDArray[Any] = np.frombuffer(data, np.uint8, size * count, start)  # type: ignore[call-overload]
    if values[:size].tobytes() != values[-size:].tobytes():
        return False
    return bool((values[size:] == values[:-size]).all())


def each_once(array: pa.Array[Any]) -> tuple[list[Any], npt.NDArray[Any] | None]:
    """Different values of a text or binary array, and which each row has; None: all have the first."""
    if one_value(array):
        return array.slice(0, 1).to_pylist(), None
    coded = cast("Any", array.dictionary_encode())
    return coded.dictionary.to_pylist(), coded.indices.to_numpy()


def having_byte(array: Any, byte: int) -> npt.NDArray[np.bool_]:
    """Which values of a text or binary array have this byte: one look at all of them."""
    mask = np.zeros(len(array), np.bool_)
    _, offsets, data = array.buffers()
    if data is None or not len(array):
        return mask
    ends: npt.NDArray[Any] = np.frombuffer(offsets, "<i4")[array.offset : array.offset + len(array) + 1]
    places = np.flatnonzero(np.frombuffer(data, np.uint8)[ends[0] : ends[-1]] == byte) + ends[0]
    if len(places):
        mask[np.searchsorted(ends, places, side="right") - 1] = True
    return mask


EXPONENT_FROM = 7
"""Of a scale from here on Arrow writes values with an exponent."""


def decimal_texts(array: Any) -> pa.Array[Any]:
    """Decimals as text, each as `units.as_text` has it."""
    texts = array.cast(pa.string())
    if 0 <= array.type.scale < EXPONENT_FROM:
        return cast("pa.Array[Any]", texts)
    odd = compute.match_substring(texts, "E")
    plain = pa.array([as_text(one) for one in array.filter(odd).to_pylist()], pa.string())
    return cast("pa.Array[Any]", compute.replace_with_mask(texts, odd, plain))
