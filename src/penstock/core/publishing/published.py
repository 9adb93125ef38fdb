"""On which terms a batch is published, and what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from penstock.core.publishing.traits import Refusal
from penstock.records.dataclass import dataclass

Banned: TypeAlias = "Mapping[int, frozenset[str]]"
"""By row, names of queues that must not take it."""


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

    def among(self, rows: Sequence[int]) -> Published:
        """The same of some rows of a batch, told in rows of the whole; rows: which these are."""
        return Published(
            self.first, self.last, [rows[row] for row in self.unroutable],
            [(rows[row], why) for row, why in self.refused], self.duplicates, self.stored,
            [rows[row] for row in self.kept], [rows[row] for row in self.dropped], self.lsns,
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

    def all_of(name: str) -> list[Any]:
        return list(chain.from_iterable(map(attrgetter(name), parts)))

    return Published(
        stored[0].first if stored else 0,
        max([last, *map(attrgetter("last"), stored)]),
        all_of("unroutable"),
        all_of("refused"),
        skip + sum(map(attrgetter("duplicates"), parts)),
        sum(map(attrgetter("stored"), parts)),
        all_of("kept"),
        all_of("dropped"),
        lsns,
    )


def banned_in(rows: range, banned: Banned | None, more: Iterable[tuple[int, str]] = ()) -> dict[int, frozenset[str]]:
    """Of a part of a batch who must not take which row, in rows of the part: as was said, and these (row, name)."""
    out = {row - rows.start: names for row, names in (banned or {}).items() if row in rows}
    for row, name in more:
        out[row - rows.start] = out.get(row - rows.start, frozenset()) | {name}
    return out


class Terms(NamedTuple):
    """On which terms the rows of one call of `Publisher.publish` are published, handed on from step to step.

    persistent   overrides the headers' delivery mode
    trusted      the server's own rows, whose headers are not judged and whose times have had their effect
    carbon       CC and BCC count
    banned       by row, names of queues that must not take it
    numbered     what is a duplicate is known: publisher and sequence in headers have had their effect
    admitted     `Publisher.no_room` had nothing to say, so no queue is asked again
    """

    persistent: bool | None = None
    trusted: bool = False
    carbon: bool = True
    banned: Banned | None = None
    numbered: bool = False
    admitted: bool = False
