"""Bodies of many messages in one buffer: what an Arrow column is before anybody asks for `bytes`.

A list of ten thousand bodies is ten thousand objects, made to be joined again a moment later.  So an upload keeps
Arrow's own layout, one buffer of values and int32 offsets, up to the log, which has the same layout; objects are made
for those who want single bodies: deliveries, filters, dead letters.  Owns how long the sender's memory may be held on
to: never more than is counted.  Refuses to judge: the column has no nulls and its offsets are proven.

A body by itself is JSON with every number as it is written (`exact`): whole numbers of any length stay what they are.
What is JSON is judged by one reader, the one that filters have, so that a body has the same fields for everybody: the
last of equal names counts; NaN, half a pair of surrogates, and a number beyond a double are no JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, cast, overload

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from penstock.records.compute import compute
from penstock.records.one_or_each import Where, list_at

Offsets: TypeAlias = "npt.NDArray[np.int32]"

FEW = 64
"""Fewer bodies than this are quicker as a list, unless they are large."""

LARGE = 1 << 16
"""Bytes from which bodies are worth packing whatever their number, and from which a sender's buffer may be kept: a
smaller message can lie in a read buffer that is larger and that Arrow does not know of."""

WIDTH = 4
"""Bytes of memory that a packed body takes beyond its content."""


class PackedBodies(Sequence[bytes]):
    """Bodies side by side.  Reads like a list of bytes; a slice with step 1 of it is a list."""

    __slots__ = ("array", "data", "offsets", "size")

    def __init__(self, array: pa.Array[Any]) -> None:
        """`array`: a valid column of type `binary` without nulls.  Its buffers are kept as they are."""
        _, offsets, values = array.buffers()
        rows, start = len(array), array.offset
        self.array = array
        self.offsets: Offsets = (  # shape (len + 1,): where each begins and ends; the first need not be 0
            np.zeros(1, np.int32)
            if offsets is None or not rows
            else np.frombuffer(cast("Any", offsets), "<i4", rows + 1, 4 * start)
        )
        low, high = int(self.offsets[0]), int(self.offsets[-1])
        self.size = high - low  # bytes of all bodies
        # all bodies one after the other, from the first offset on
        self.data = memoryview(b"") if values is None else memoryview(cast("Any", values)).cast("B")[low:high]

    @classmethod
    def of(cls, bodies: Sequence[bytes]) -> PackedBodies:
        """Copies of these."""
        return cls(pa.array(bodies, pa.binary()))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        if isinstance(at, slice):
            low, high, step = at.indices(len(self))
            if step != 1:
                return self.tolist()[at]
            return cast("list[bytes]", self.array.slice(low, max(high - low, 0)).to_pylist())
        offsets, base = self.offsets, int(self.offsets[0])
        count = len(offsets) - 1
        if not -count <= at < count:
            raise IndexError(f"body {at} of {count}")
        at %= count
        return bytes(self.data[int(offsets[at]) - base : int(offsets[at + 1]) - base])

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.tolist())

    def __repr__(self) -> str:
        return f"PackedBodies({len(self)} bodies, {self.size} bytes)"

    def tolist(self) -> list[bytes]:
        """Each body as an object of its own."""
        return cast("list[bytes]", self.array.to_pylist())

    def part(self, low: int, high: int) -> PackedBodies:
        """Bodies low..high-1 in the same memory; 0 <= low <= high <= len."""
        return PackedBodies(self.array.slice(low, high - low))

    def owned(self) -> PackedBodies:
        """Itself if it keeps hardly more memory alive than it counts for, else a copy that does."""
        counted = self.size + WIDTH * len(self.offsets)
        if counted >= LARGE and held_by(self.array) <= counted + counted // 8:
            return self
        offsets = self.offsets - self.offsets[0]
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(bytes(self.data))]
        return PackedBodies(pa.Array.from_buffers(pa.binary(), len(self), cast("Any", buffers)))


Bodies: TypeAlias = "list[bytes] | PackedBodies"


def picked(bodies: Bodies, rows: Where) -> Bodies:
    """Some bodies: neighbours (a slice with step 1), or those of ascending rows.  They hold on to nothing uncounted.

    Packed ones stay packed unless they are few and small: as a list each would take 50 bytes more.
    """
    if isinstance(bodies, list):
        return list_at(bodies, rows)
    if isinstance(rows, slice):
        low, high, _ = rows.indices(len(bodies))
        part = bodies.part(low, high)
        return part.tolist() if len(part) < FEW and part.size < LARGE else part.owned()
    if len(rows) < FEW:
        return [bodies[row] for row in rows]
    return PackedBodies(compute.take(bodies.array, pa.array(rows, pa.int64())))


def data_bytes(array: pa.Array[Any]) -> int:
    """Bytes of the values of a column of type `binary`, valid and without nulls."""
    offsets, rows = array.buffers()[1], len(array)
    if offsets is None or not rows:
        return 0
    ends = np.frombuffer(cast("Any", offsets), "<i4", rows + 1, 4 * array.offset)
    return int(ends[-1]) - int(ends[0])


def held_by(array: pa.Array[Any]) -> int:
    """Bytes that stay allocated as long as this column does: its buffers, and whole what they were cut from."""
    roots: dict[int, int] = {}
    for buffer in array.buffers():
        root: Any = buffer
        while root is not None and root.parent is not None:
            root = root.parent
        if root is not None:
            roots[root.address] = root.size
    return sum(roots.values())


def from_column(array: pa.Array[Any], size: int) -> Bodies:
    """A sender's column of `size` bytes of values in the form that serves best; it holds on to nothing uncounted."""
    if len(array) < FEW and size < LARGE:
        return cast("list[bytes]", array.to_pylist())
    return PackedBodies(array).owned()


def listed(bodies: Bodies) -> list[bytes]:
    """As a list; the same one if it is one."""
    return bodies if isinstance(bodies, list) else bodies.tolist()


def size_of(bodies: Bodies) -> int:
    return sum(map(len, bodies)) if isinstance(bodies, list) else bodies.size


def lengths(bodies: Bodies) -> npt.NDArray[np.int64]:
    """Shape (len,): bytes of each body."""
    if isinstance(bodies, list):
        return np.fromiter(map(len, bodies), np.int64, len(bodies))
    return np.diff(bodies.offsets).astype(np.int64)


DEPTH = 250
"""Levels of a body that is taken apart and written again: beyond them it is refused and not followed."""

_LONG = re.compile(rb"[0-9]{16}")
"""A number with so many digits may not survive as a double: then Python's own reader is asked, which keeps it."""


def read_exact(body: bytes) -> object:
    """The value of a body.  ValueError for one that is no JSON, or nested too deeply."""
    value: object = orjson.loads(body)
    if body.count(b"[") + body.count(b"{") > DEPTH and deeper(value, DEPTH):
        raise ValueError(f"it is nested more than {DEPTH} levels deep")
    return json.loads(body) if _LONG.search(body) else value


def deeper(value: object, levels: int) -> bool:
    """Whether objects and arrays are nested deeper than that."""
    level: list[object] = [value]
    for _ in range(levels + 1):
        inner = list[object]()
        for one in level:
            if isinstance(one, dict):
                inner += cast("dict[str, object]", one).values()
            elif isinstance(one, list):
                inner += cast("list[object]", one)
        level = [one for one in inner if isinstance(one, dict | list)]
        if not level:
            return False
    return True
