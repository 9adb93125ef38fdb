"""Where a range of the log is cut into parts with like numbers of rows, by what indexes and manifests know of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

LEAST_BYTES = 32
"""Bytes of a segment that a row has at least: a batch with fewer for its LSNs has gaps between them."""

PIECE_ROWS = 100_000
"""Rows of one span at most."""


class Span(NamedTuple):
    """Rows with LSNs in [first, end), about so many, evenly."""

    first: int
    end: int
    rows: int


def span(first: int, end: int, low: int, high: int, size: int) -> Span:
    """The part in [low, high) of a batch of a segment: `size` bytes in [first, end), behind which may be a gap."""
    end = min(end, first + max(1, size // LEAST_BYTES))
    low, high = max(first, low), min(end, high)
    return Span(low, max(low, high), max(0, high - low))


def pieces_of(first: int, end: int, rows: int) -> list[Span]:
    """Many rows as spans of few."""
    n = max(1, -(-rows // PIECE_ROWS))
    edges = [first + (end - first) * i // n for i in range(n + 1)]
    return [Span(a, b, rows * (i + 1) // n - rows * i // n) for i, (a, b) in enumerate(pairwise(edges))]


def cuts(spans: Sequence[Span], parts: int) -> list[int]:
    """LSNs at which parts of about the same number of rows begin, but for the first; ascending, each once.

    spans: by their first LSN; they may overlap.
    """
    total = sum(one.rows for one in spans)
    out = list[int]()
    before, turn = 0, 1
    for one in spans:
        while turn < parts and total * turn < (before + one.rows) * parts:
            inside = (total * turn - before * parts) // parts
            out.append(one.first + (one.end - one.first) * inside // one.rows)
            turn += 1
        before += one.rows
    low = spans[0].first if spans else 0
    return sorted({one for one in out if one > low})
