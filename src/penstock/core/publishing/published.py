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
