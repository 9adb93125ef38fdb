"""What a pass over the log has found for a queue, and what waits for the end of the pass."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.arena import Move
from penstock.core.queue.order.runs import Run, sift
from penstock.records.chunks import Chunk


class Older:
    """What was found and waits for the end of the pass."""

    __slots__ = ("barriers", "chunks", "count")

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []  # in order, disjoint
        self.barriers: set[int] = set()  # those of them that are barriers
        self.count = 0

    def add(self, chunk: Chunk, barriers: Sequence[int]) -> None:
        """A step of the pass found more of them."""
        self.chunks.append(chunk)
        self.barriers.update(barriers)
        self.count += len(chunk)

    def extract(self, wanted: Chunk) -> list[Run]:
        """Take those of the wanted that are here."""
        out: list[Run] = []
        kept: list[Chunk] = []
        for chunk in self.chunks:
            inside, outside, _ = sift(chunk, wanted)
            if inside is not None:
                out.append(Run(inside, False))
                self.count -= len(inside)
                self.barriers.difference_update(inside)
            kept += outside
        if out:
            self.chunks = kept
        return out

    def page(self, move: Move) -> None:
        """Move what may go to an arena."""
        self.chunks = [move.chunk(chunk) for chunk in self.chunks]

    def clear(self) -> None:
        """All that was found is gone."""
        self.chunks, self.count = [], 0
        self.barriers.clear()
