"""What one queue held at one moment, with the columns that a durable state keeps of it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TypeAlias

import numpy as np

from penstock.core.queue.order.runs import Run
from penstock.core.queue.settling.attempts import Tally
from penstock.core.state.lsns import Ints, chunked, flat, ints, to_array
from penstock.records.chunks import Chunk, Longs
from penstock.records.dataclass import dataclass

Tell: TypeAlias = "Callable[[Ints], Sequence[array[int]]]"
"""What these messages, by ascending LSN, have in each of some columns, as runs."""


@dataclass(slots=True)
class Contained:
    """What one queue held at one moment: chunks that will not change, in any order."""

    main: list[Chunk] = field(default_factory=list["Chunk"])
    runs: list[Run] = field(default_factory=list[Run])  # copies: chunk, solid, tally and place
    retries: list[Run] = field(default_factory=list[Run])  # those of `runs` that wait for their `deadline`
    scheduled: list[tuple[Longs, Longs]] = field(default_factory=list[tuple["Longs", "Longs"]])
    barriers: Chunk = range(0)  # which of all these are barriers
    loose: list[Longs] = field(default_factory=list["Longs"])  # more LSNs, in any order
    known: list[tuple[tuple[str, ...], Tell]] = field(
        default_factory=list[tuple[tuple[str, ...], "Tell"]]
    )  # by columns, of all these, and of some that are gone (`core.queue.columns`)

    def waiting(self) -> list[Chunk]:
        """What waits, in any state."""
        if self.loose:
            self.main += chunked(np.sort(np.concatenate([ints(part) for part in self.loose])))
            self.loose = []
        return [*self.main, *(run.chunk for run in self.runs), *(lsns for lsns, _ in self.scheduled)]

    def _tallies(self) -> dict[str, list[Ints]]:
        """What was counted of the runs' messages, and their places, as triples a column."""
        counts: dict[str, list[Ints]] = {name: [] for name in (*Tally._fields, "place")}
        for run in self.runs:
            values = (*run.tally, run.place)
            if any(values):
                pairs = np.array(run.pairs(), dtype=np.int64).reshape(-1, 2)
                for column, value in zip(counts.values(), values, strict=True):
                    if value:
                        column.append(_triples(pairs, value))
        return counts

    def columns(self) -> dict[str, array[int]]:
        """What is remembered of it; `transient` and `letter` are not known here."""
        counts = {**self._tallies(), "not_before": self._due()}
        columns = {name: to_array(np.concatenate(parts)) for name, parts in counts.items() if parts}
        if len(self.barriers):
            columns["barrier"] = to_array(_triples(np.array([[lsn, lsn + 1] for lsn in self.barriers]), 1))
        if self.known and len(everything := flat(self.waiting())):
            for names, tell in self.known:
                told = zip(names, tell(everything), strict=True)
                columns.update((name, runs) for name, runs in told if runs)
        return columns

    def _due(self) -> list[Ints]:
        """When what is delayed goes on."""
        due = [_triples(np.array(run.pairs(), dtype=np.int64).reshape(-1, 2), run.deadline) for run in self.retries]
        for lsns, times in self.scheduled:
            alone = ints(lsns)
            due.append(np.stack((alone, alone + 1, ints(times)), axis=1))
        return due


def _triples(pairs: Ints, value: int) -> Ints:
    return np.concatenate((pairs, np.full((len(pairs), 1), value, dtype=np.int64)), axis=1)
