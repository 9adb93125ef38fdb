"""The records of a SOW topic in the log, as packed 64-bit integers.

    SOW_PUT    id, form, (first), numbers ..., (LSNs ...), (deadlines ...)
    SOW_DROP   id, numbers ...

id: the LSN of the topic's declare.  form: bit 0 the LSNs are listed, else they follow one another from `first` on;
bit 1 there are deadlines.  A put lies in one group with the rows that it names.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from penstock.core.sow.index import Ints, Numbers
from penstock.records.dataclass import dataclass

_LISTED, _EXPIRING = 1, 2


@dataclass(frozen=True, slots=True)
class Put:
    """Records in the order of the log."""

    id: int
    numbers: Numbers
    lsns: Ints
    deadlines: Ints | None


def pack_put(put: Put) -> bytes:
    """The body of a SOW_PUT."""
    n = len(put.lsns)
    first = int(put.lsns[0])
    dense = int(put.lsns[-1]) - first == n - 1
    form = (0 if dense else _LISTED) | (0 if put.deadlines is None else _EXPIRING)
    parts = [np.array([put.id, form, first], dtype="<i8"), put.numbers.view(np.int64)]
    if not dense:
        parts.append(put.lsns)
    if put.deadlines is not None:
        parts.append(put.deadlines)
    return np.concatenate(parts).astype("<i8", copy=False).tobytes()


_ONE = struct.Struct("<qqqQ")
_ONE_EXPIRING = struct.Struct("<qqqQq")


def pack_one(number: int, key: int, lsn: int, deadline: int = 0) -> bytes:
    """The body of a SOW_PUT of one message."""
    if deadline:
        return _ONE_EXPIRING.pack(number, _EXPIRING, lsn, key, deadline)
    return _ONE.pack(number, 0, lsn, key)


def unpack_put(values: Ints) -> Put:
    """The inverse, from the packed integers.  ValueError when they are no whole record."""
    number, form, first = values[:3].tolist()
    columns = 1 + (form & 1) + (form >> 1 & 1)
    rest = values[3:]
    if form not in range(4) or not len(rest) or len(rest) % columns:
        raise ValueError(f"{len(values)} integers of form {form}")
    n = len(rest) // columns
    lsns = rest[n : 2 * n] if form & _LISTED else np.arange(first, first + n, dtype=np.int64)
    return Put(number, rest[:n].view(np.uint64), lsns, rest[-n:] if form & _EXPIRING else None)


def pack_drop(number: int, numbers: Sequence[int] | Numbers) -> bytes:
    """The body of a SOW_DROP."""
    return np.array([number], dtype="<i8").tobytes() + np.array(numbers, dtype="<u8").tobytes()
