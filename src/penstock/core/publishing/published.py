"""What became of a batch that was published."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.publishing.traits import Refusal
from penstock.records.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Published:
    """What became of a batch.  Row numbers are those of the batch as it was given."""

    first: int  # LSN of the first stored row; 0 when none was stored
    last: int  # the LSN whose durability confirms the batch
    unroutable: Sequence[int] = ()  # no queue and no declared topic wanted them
    refused: Sequence[tuple[int, Refusal]] = ()
    duplicates: int = 0  # leading rows whose sequence this publisher had used before: confirmed, not stored again
    stored: int = 0  # rows written
    kept: Sequence[int] = ()  # of the refused ones those that are stored all the same, for other queues took them
    dropped: Sequence[int] = ()  # nobody took them, for a full queue drops what comes: confirmed, not stored
    lsns: Sequence[int] | None = None  # of the stored rows, where they are not `first` and those that follow it

    @property
    def positions(self) -> Sequence[int]:
        """The LSNs of the stored rows, ascending."""
        return range(self.first, self.first + self.stored) if self.lsns is None else self.lsns

    def lost(self) -> set[int]:
        """The rows that are not stored, but for duplicates."""
        return {*self.unroutable, *self.dropped, *(row for row, _ in self.refused)}.difference(self.kept)
