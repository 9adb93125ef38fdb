"""A segment in one line, for people: `penstock log ls`, metrics, verify."""

from __future__ import annotations

from typing import NamedTuple

from penstock.log.index import Segment


class SegmentInfo(NamedTuple):
    """One line of `penstock log ls`."""

    name: str
    first: int
    last: int
    rows: int
    batches: int
    bytes: int
    closed: bool
    generation: int = 0  # how often it was rewritten
    compressed: bool = False
    span: int = 0  # LSNs that the file answers for: so many rows could lie in it


def describe(segment: Segment, closed: bool) -> SegmentInfo:
    """The line of one segment."""
    return SegmentInfo(
        segment.name, segment.header.first, segment.last, segment.rows, len(segment.lsns), segment.end, closed,
        segment.header.generation, bool(segment.header.codec), segment.last - segment.header.first + 1,
    )  # fmt: skip
