"""Chunks of LSNs: how queues, leases and acks hold positions without an object per message.

A chunk is a `range` (step 1), an `array('q')`, or a view of one that lies in a file (`core.arena`) and never changes;
all know len, index, slice and iteration.  A *solid* chunk holds every message of its queue between its first and last
element, so one LSN pair describes it in the log.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, NewType, TypeAlias

Lsn = NewType("Lsn", int)  # position of a record in the log; below 2**53

Longs: TypeAlias = "array[int] | memoryview[int]"
Chunk: TypeAlias = "range | Longs"

LSN_LIMIT = 1 << 53
"""LSNs stay below this, so that JSON, JavaScript and doubles carry them exactly."""


class Now(NamedTuple):
    """The instant that a command is decided at.  `wall` for expiry and schedules, `mono` for leases."""

    wall: int
    mono: int


def pack_pairs(queue: int, pairs: Iterable[int]) -> bytes:
    """A control record's body: the queue's id, then a, b, a, b ... as little-endian int64."""
    values = [queue, *pairs]
    return struct.pack(f"<{len(values)}q", *values)


def unpack_pairs(body: bytes) -> tuple[int, array[int]]:
    """The queue's id and the flat a, b, a, b ... array of a control record's body."""
    values = array("q")
    values.frombytes(body)
    return values[0], values[1:]


def pairs_of(chunk: Chunk, solid: bool) -> list[int]:
    """Flat LSN pairs of one chunk: a single pair when solid, else runs of adjacent LSNs."""
    if not len(chunk):
        return []
    if solid or isinstance(chunk, range):
        return [chunk[0], chunk[-1] + 1]
    out: list[int] = []
    start = previous = chunk[0]
    for lsn in chunk[1:]:
        if lsn != previous + 1:
            out += (start, previous + 1)
            start = lsn
        previous = lsn
    out += (start, previous + 1)
    return out


def lsns_in(pairs: Sequence[int]) -> array[int]:
    """The LSNs of flat exact pairs."""
    out = array("q")
    for a, b in zip(pairs[::2], pairs[1::2], strict=True):
        out.extend(range(a, b))
    return out


def merged_spans(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same LSNs, ascending, each once."""
    out = list[tuple[int, int]]()
    for first, stop in sorted(spans):
        if out and first <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], stop))
        else:
            out.append((first, stop))
    return out


def united(chunks: Sequence[Chunk]) -> Chunk:
    """All LSNs of a few small chunks as one, ascending, each once."""
    return chunks[0] if len(chunks) == 1 else as_chunk(sorted({lsn for chunk in chunks for lsn in chunk}))


def ascend(chunks: Sequence[Chunk]) -> bool:
    """Whether each begins behind the end of the one before."""
    return all(one[-1] < other[0] for one, other in pairwise(chunks))


def as_chunk(lsns: Sequence[int]) -> Chunk:
    """The tightest chunk for LSNs in ascending order: a range when they are adjacent."""
    n = len(lsns)
    if n and lsns[-1] - lsns[0] == n - 1:
        return range(lsns[0], lsns[0] + n)
    if isinstance(lsns, array):
        return lsns
    return lsns if isinstance(lsns, memoryview) else array("q", lsns)
