"""On which terms a batch is published, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.publishing.traits import Refusal
from penstock.records.dataclass import dataclass

if TYPE_CHECKING:
    from penstock.core.publishing.routed import Banned


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
    dropped: Sequence[int] = ()  # confirmed, not stored: a full queue drops what comes, or they are replies
    lsns: Sequence[int] | None = None  # of the stored rows, where they are not `first` and those that follow it

    @property
    def positions(self) -> Sequence[int]:
        """The LSNs of the stored rows, ascending."""
        return range(self.first, self.first + self.stored) if self.lsns is None else self.lsns

    def lost(self) -> set[int]:
        """The rows that are not stored, but for duplicates."""
        return {*self.unroutable, *self.dropped, *(row for row, _ in self.refused)}.difference(self.kept)

    def moved(self, start: int) -> Published:
        """The same of a part of a batch that begins with this row, in rows of the whole."""
        return Published(
            self.first, self.last, [row + start for row in self.unroutable],
            [(row + start, why) for row, why in self.refused], self.duplicates, self.stored,
            [row + start for row in self.kept], [row + start for row in self.dropped], self.lsns,
        )  # fmt: skip


def joined(parts: Sequence[Published], skip: int, last: int) -> Published:
    """What became of the parts of a batch, told in rows of the whole, as one.

    skip: leading rows that are duplicates, and in no part.  last: the last LSN that was given out for any of them.
    """
    stored = [published for published in parts if published.stored]
    lsns: Sequence[int] | None = None
    if len(stored) > 1:
        lsns = list(chain.from_iterable(published.positions for published in stored))
    elif stored:
        lsns = stored[0].lsns
    return Published(
        stored[0].first if stored else 0,
        max([last, *(published.last for published in stored)]),
        [row for published in parts for row in published.unroutable],
        [item for published in parts for item in published.refused],
        skip + sum(published.duplicates for published in parts),
        sum(published.stored for published in parts),
        [row for published in parts for row in published.kept],
        [row for published in parts for row in published.dropped],
        lsns,
    )


class Terms(NamedTuple):
    """One for a call of `Publisher.publish`, handed on from step to step; parameters as there."""

    persistent: bool | None
    trusted: bool
    carbon: bool
    banned: Banned | None
    numbered: bool
    admitted: bool
