"""Columns of a queue as bytes, each in the form that takes the fewest.

    runs      triples a, b, value as int64.  In the JSON: how many integers
    values    an integer of `width` bytes for each message that waits.  In the JSON: ["values", width, base]
    codes     values as int64, then a number of `width` bytes for each.  In the JSON: ["codes", width, how many values]

An integer of `values` is the value less `base`, plus one; one of `codes` is the place of the value, from one; 0 is the
rest value.  All integers are little-endian.  It knows no queue.
"""

from __future__ import annotations

from array import array
from typing import cast

import numpy as np
import numpy.typing as npt

from penstock.core.state.durable import Ints, runs_of, spread

SAMPLE = 4096
"""Messages of which it is looked how many values they have."""

CODES_MOST = 65_535
"""More distinct values are not numbered."""


def pack(runs: array[int], lsns: Ints) -> tuple[object, bytes]:
    """A column in canonical form, of these messages (ascending): what the JSON says of it, and its bytes."""
    plain: tuple[object, bytes] = len(runs), runs.tobytes()
    if len(plain[1]) <= len(lsns):
        return plain
    values = spread(lsns, runs)
    used = values != 0
    base, top = int(values[used].min()), int(values[used].max())
    span = top - base
    best = plain
    if span < (1 << 64) - 2:
        width = (span + 1).bit_length() + 7 >> 3
        if len(lsns) * width < len(best[1]):
            numbers = np.where(used, values.astype(np.uint64) - np.uint64(base % (1 << 64)) + np.uint64(1), 0)
            best = ["values", width, base], narrow(numbers, width)
    if len(best[1]) > 2 * len(lsns) and len(np.unique(values[:SAMPLE])) < SAMPLE // 2:
        distinct, places = np.unique(values[used], return_inverse=True)
        if len(distinct) <= CODES_MOST:
            width = len(distinct).bit_length() + 7 >> 3
            numbers = np.zeros(len(lsns), dtype=np.uint64)
            numbers[used] = places.reshape(-1) + 1
            coded = distinct.astype("<i8").tobytes() + narrow(numbers, width)
            if len(coded) < len(best[1]):
                best = ["codes", width, len(distinct)], coded
    return best


def unpack(form: object, lsns: Ints, data: bytes, place: int) -> tuple[array[int], int]:
    """The inverse, from `place` on: the column as runs, and where it ends.  ValueError when that does not fit."""
    if isinstance(form, int):
        return _runs(form, data, place)
    kind, width, told = cast("tuple[str, int, int]", form)
    if kind not in ("values", "codes") or not 1 <= width <= 8:
        raise ValueError(f"a column has the unknown form {form}")
    distinct = np.zeros(0, dtype=np.int64)
    if kind == "codes":
        piece, place = _piece(data, place, 8 * told)
        distinct = np.frombuffer(piece, dtype="<i8").astype(np.int64)
    piece, place = _piece(data, place, width * len(lsns))
    numbers = wide(piece, width)
    values = np.zeros(len(lsns), dtype=np.int64)
    used = numbers != 0
    if kind == "codes":
        if len(numbers) and int(numbers.max()) > told:
            raise ValueError(f"a column has the number {int(numbers.max())} of {told} values")
        values[used] = distinct[(numbers[used] - np.uint64(1)).astype(np.int64)]
    else:
        values[used] = (numbers[used] - np.uint64(1) + np.uint64(told % (1 << 64))).astype(np.int64)
    return runs_of(lsns, values), place


def _runs(count: int, data: bytes, place: int) -> tuple[array[int], int]:
    piece, place = _piece(data, place, 8 * count)
    values = array("q")
    values.frombytes(piece)
    return values, place


def _piece(data: bytes, place: int, size: int) -> tuple[bytes, int]:
    piece = data[place : place + size]
    if len(piece) != size:
        raise ValueError("it is short")
    return piece, place + size


def narrow(numbers: npt.NDArray[np.uint64], width: int) -> bytes:
    """Integers of `width` bytes, little-endian."""
    return numbers.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width].tobytes()


def wide(piece: bytes, width: int) -> npt.NDArray[np.uint64]:
    """The inverse of `narrow`."""
    table = np.frombuffer(piece, dtype=np.uint8).reshape(-1, width)
    out = np.zeros((len(table), 8), dtype=np.uint8)
    out[:, :width] = table
    return out.view("<u8").reshape(-1).astype(np.uint64)
