"""Bookmarks of messages that are to be settled: by origin, as chunks of LSNs."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from penstock.errors import InvalidArgument
from penstock.records.chunks import Chunk, as_chunk
from penstock.wire.flight.bookmarks import parse_point

MARKS_MOST = 100_000
"""Bookmarks in one command."""


def read_marks(texts: Sequence[str]) -> dict[int, Chunk]:
    """Bookmarks `<origin>|<lsn>|` as ascending LSNs by origin.  Raises InvalidArgument for what names no message."""
    if len(texts) > MARKS_MOST:
        raise InvalidArgument(f"{len(texts)} bookmarks at once; {MARKS_MOST} are allowed")
    by_origin: dict[int, set[int]] = {}
    for text in texts:
        point = parse_point(text)
        if point.kind != "lsn" or not point.lsn:
            raise InvalidArgument(f"{text[:60]!r} names no message: write <origin>|<lsn>|")
        by_origin.setdefault(point.origin, set()).add(point.lsn)
    return {origin: as_chunk(array("q", sorted(lsns))) for origin, lsns in by_origin.items()}


__all__ = ["read_marks"]
