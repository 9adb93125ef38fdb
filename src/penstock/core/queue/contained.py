"""What one queue held at one moment, and the columns that a durable state keeps of it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import field

import numpy as np

from penstock.core.queue.dedup import Keys, key_column
from penstock.core.queue.order.runs import Run, packed
from penstock.core.queue.priority.ranks import UNKNOWN, Ranks
from penstock.core.queue.settling.attempts import Tally
from penstock.core.queue.timed.expiry import Expiry
from penstock.core.state.lsns import Ints, chunked, flat, ints, runs_of
from penstock.records.chunks import Chunk, Longs
from penstock.records.dataclass import dataclass


@dataclass(slots=True)
class Contained:
    """What one queue held at one moment: chunks that will not change, in any order."""

    main: list[Chunk] = field(default_factory=list["Chunk"])
    runs: list[Run] = field(default_factory=list[Run])  # copies: chunk, solid, tally and place
    retries: list[Run] = field(default_factory=list[Run])  # those of `runs` that wait for their `deadline`
    scheduled: list[tuple[Longs, Longs]] = field(default_factory=list[tuple["Longs", "Longs"]])
    expiry: Expiry | None = None
    barriers: Chunk = range(0)  # which of all these are barriers
    loose: list[Longs] = field(default_factory=list["Longs"])  # more LSNs, in any order
    inactive: list[Chunk] = field(default_factory=list["Chunk"])  # beyond the target depth
    ranks: Ranks | None = None  # of all these, and some that are gone
    keys: Ranks | None = None  # of all these, and some that are gone
    dedup: Keys | None = None  # LSNs of all these by key, and of some that are gone
    unranked: list[Ints] = field(default_factory=list["Ints"])  # those whose rank there is not known yet, in any order

    def waiting(self) -> list[Chunk]:
        """What waits, in any state."""
        return [*self.active(), *self.inactive]

    def active(self) -> list[Chunk]:
        """The same without what is inactive."""
        if self.loose:
            self.main += chunked(np.sort(np.concatenate([ints(part) for part in self.loose])))
            self.loose = []
        return [*self.main, *(run.chunk for run in self.runs), *(lsns for lsns, _ in self.scheduled)]

    def columns(self) -> dict[str, array[int]]:
        """What is remembered of it; `transient` and `letter` are not known here."""
        counts: dict[str, list[Ints]] = {name: [] for name in (*Tally._fields, "place")}
        for run in self.runs:
            values = (*run.tally, run.place)
            if any(values):
                pairs = np.array(run.pairs(), dtype=np.int64).reshape(-1, 2)
                for column, value in zip(counts.values(), values, strict=True):
                    if value:
                        column.append(_triples(pairs, value))
        columns = {name: _joined(parts) for name, parts in {**counts, "not_before": self._due()}.items() if parts}
        if len(self.barriers):
            columns["barrier"] = _joined([_triples(np.array([[lsn, lsn + 1] for lsn in self.barriers]), 1)])
        if any(known is not None for known in (self.expiry, self.ranks, self.keys, self.dedup)):
            everything = flat(self.waiting())
            if self.expiry is not None:
                columns["expires_at"] = runs_of(everything, self.expiry.deadlines_of(packed(everything)))
            columns.update((name, told) for name, told in self._told_of(everything) if len(told))
        return columns

    def _due(self) -> list[Ints]:
        """When what is delayed goes on."""
        due = [_triples(np.array(run.pairs(), dtype=np.int64).reshape(-1, 2), run.deadline) for run in self.retries]
        for lsns, times in self.scheduled:
            alone = ints(lsns)
            due.append(np.stack((alone, alone + 1, ints(times)), axis=1))
        return due

    def _told_of(self, everything: Ints) -> Iterator[tuple[str, array[int]]]:
        """What expressions gave, by column, of all that waits."""
        if not len(everything):
            return
        if self.ranks is not None:
            yield "rank", self._ranks(self.ranks, everything)
        if self.keys is not None:
            yield "key", runs_of(everything, self.keys.each(packed(everything)))
        if self.dedup is not None:
            yield "dedup", runs_of(everything, key_column(self.dedup, everything))

    def _ranks(self, known: Ranks, everything: Ints) -> array[int]:
        ranks = known.each(packed(everything))
        if self.unranked:
            ranks[np.isin(everything, np.concatenate(self.unranked))] = UNKNOWN
        return runs_of(everything, ranks)


def _triples(pairs: Ints, value: int) -> Ints:
    return np.concatenate((pairs, np.full((len(pairs), 1), value, dtype=np.int64)), axis=1)


def _joined(parts: list[Ints]) -> array[int]:
    out = array("q")
    for part in parts:
        out.frombytes(np.ascontiguousarray(part).tobytes())
    return out
