"""What reads of the log have in common: how much one brings, for how many, and the positions of all together."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import numpy as np

from penstock.memory.slab import view_of
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.entries import Rows

READ_ROWS = 8192
"""Rows of one read at most."""

READ_BYTES = 1 << 20
"""Bytes of one read at most, unless one row has more."""

JOIN_MOST = 256
"""Lists, or heads, that one read serves at most."""


class ReadCold(Protocol):
    """Reads rows of the log off the loop and answers on it, never before the call has returned."""

    def __call__(self, lsns: Chunk, answer: Callable[[Rows], None], most: int = 0, /) -> None:
        """most: bytes after which the answer ends; 0 is no limit.  At least the first row is there."""
        ...


def union(chunks: Collection[Chunk]) -> Chunk:
    """All positions of some chunks, ascending."""
    if len(chunks) == 1:
        return next(iter(chunks))
    lsns = np.concatenate([view_of(chunk) for chunk in chunks])
    lsns.sort()
    fresh = np.empty(len(lsns), np.bool_)
    fresh[0] = True
    np.not_equal(lsns[1:], lsns[:-1], out=fresh[1:])
    return as_chunk(array("q", (lsns if fresh.all() else lsns[fresh]).tobytes()))


def merged(a: Rows, b: Rows) -> Rows:
    """The rows of both, ascending."""
    both = Rows(
        a.lsns + b.lsns,
        a.topics + b.topics,
        a.properties + b.properties,
        a.bodies + b.bodies,
        a.times + b.times,
        a.expires_at + b.expires_at,
        a.priority + b.priority,
    )
    return _select(both, sorted(range(len(both)), key=both.lsns.__getitem__))


def first_of(rows: Rows, count: int) -> Rows:
    """The first so many rows."""
    return rows if count >= len(rows) else _select(rows, range(count))


def _select(rows: Rows, places: Sequence[int]) -> Rows:
    """The rows at these places, in this order."""
    return Rows(
        [rows.lsns[i] for i in places],
        [rows.topics[i] for i in places],
        [rows.properties[i] for i in places],
        [rows.bodies[i] for i in places],
        [rows.times[i] for i in places],
        [rows.expires_at[i] for i in places],
        [rows.priority[i] for i in places],
    )
