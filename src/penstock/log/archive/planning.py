"""What is to be archived next: closed segments that are not, neighbours together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from penstock.log.archive.manifest import Manifest
    from penstock.log.listing import SegmentInfo

RUN_BYTES = 256 << 20
"""Bytes of segments that are archived in one go, about: each run makes a file a topic and day."""


class Run(NamedTuple):
    """Neighbouring segments: LSNs [start, end)."""

    start: int
    end: int
    segments: int
    bytes: int
    cut: int  # where the second of them begins

    def first_alone(self) -> Run:
        """The first of the segments."""
        return Run(self.start, self.cut, 1, self.bytes // self.segments, self.cut)

    def plain(self) -> dict[str, int]:
        """For people."""
        return {"first": self.start, "last": self.end - 1, "segments": self.segments, "bytes": self.bytes}


def runs(segments: Sequence[SegmentInfo], manifest: Manifest, failed: Collection[int] = ()) -> list[Run]:
    """All that is to be done, oldest first.  The last segment is open, and waits until it is not.

    failed: first LSNs of segments to pass over.
    """
    out = list[Run]()
    for one, following in pairwise(segments):
        start = max(one.first, manifest.pruned)
        end = following.first  # what lies between its last LSN and the next one was never given out
        for a, b in manifest.spans:
            if a <= start < b:
                start = min(b, end)  # it was merged with one that is archived
        if start >= end or start in failed or manifest.has(start, max(start, one.last)):
            continue
        last = out[-1] if out else None
        if last is not None and last.end == start and last.bytes + one.bytes <= RUN_BYTES:
            out[-1] = Run(last.start, end, last.segments + 1, last.bytes + one.bytes, last.cut)
        else:
            out.append(Run(start, end, 1, one.bytes, end))
    return out
