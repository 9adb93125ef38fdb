"""What one queue held at one moment, as the columns that a durable state keeps of it; and how they are taken up again.

Where a message stands, and how often it was out, its place tells (`Contained`).  What a queue knows of messages
wherever they stand outlives their moves: a row of `KNOWN` says how it is taken, told and taken up again, by LSN.
A further column is a row there and its name in `core.state.queue_state.COLUMNS`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple, TypeAlias

import numpy as np

from penstock.core.queue.contents import Contents
from penstock.core.queue.dedup import key_column
from penstock.core.queue.order.ranking import load_ranks
from penstock.core.queue.order.ranks import UNKNOWN
from penstock.core.queue.order.runs import Run, packed
from penstock.core.queue.order.scattered import Told
from penstock.core.queue.settling.attempts import Tally
from penstock.core.queue.whole import DISPATCH
from penstock.core.state.lsns import Ints, chunked, flat, ints, runs_among, runs_of, spread, to_array
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
    scattered: list[Told] = field(default_factory=list["Told"])  # more of them, one by one
    scheduled: list[tuple[Longs, Longs]] = field(default_factory=list[tuple["Longs", "Longs"]])
    barriers: Chunk = range(0)  # which of all these are barriers
    loose: list[Longs] = field(default_factory=list["Longs"])  # more LSNs, in any order
    known: list[tuple[tuple[str, ...], Tell]] = field(
        default_factory=list[tuple[tuple[str, ...], "Tell"]]
    )  # by columns, of all these, and of some that are gone (`KNOWN`)

    def waiting(self) -> list[Chunk]:
        """What waits, in any state."""
        if self.loose:
            self.main += chunked(np.sort(np.concatenate([ints(part) for part in self.loose])))
            self.loose = []
        back = (*(run.chunk for run in self.runs), *(packed(np.sort(told.lsns)) for told in self.scattered))
        return [*self.main, *back, *(lsns for lsns, _ in self.scheduled)]

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
        for told in self.scattered:
            tallies = np.array(told.tallies, dtype=np.int64)
            for column, values in zip(counts.values(), (*tallies[told.numbers].T, told.places), strict=True):
                column.append(_each(told.lsns, values))
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
        due += [_each(told.lsns, told.deadlines) for told in self.scattered]
        due += [_each(ints(lsns), ints(times)) for lsns, times in self.scheduled]
        return due


def _triples(pairs: Ints, value: int) -> Ints:
    return np.concatenate((pairs, np.full((len(pairs), 1), value, dtype=np.int64)), axis=1)


def _each(lsns: Ints, values: Ints) -> Ints:
    """The triples of messages one by one, where there is a value."""
    some = values != 0
    return np.stack((lsns[some], lsns[some] + 1, values[some]), axis=1)


# the parameters of functions in rows are known by the rows' type
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false


Values: TypeAlias = Sequence[Ints]
"""Of each column of a row, of messages by ascending LSN; 0: nothing."""


class Known(NamedTuple):
    """Columns that belong together.

    take      refers to what is known now and will not change; None: nothing.  Any thread may ask what it gives
    wanted    whether the queue keeps it by its settings, and must hear at a start that nothing is known, too
    load      takes it up
    """

    columns: tuple[str, ...]
    take: Callable[[Contents], Tell | None]
    wanted: Callable[[Contents], bool]
    load: Callable[[Contents, Ints, Values], None]


def _take_deadlines(queue: Contents) -> Tell | None:
    if queue.expiry.empty:
        return None
    expiry = queue.expiry.copy()
    return lambda lsns: [runs_of(lsns, expiry.deadlines_of(packed(lsns)))]


def _load_deadlines(queue: Contents, lsns: Ints, values: Values) -> None:
    queue.ensure_expiry().load(lsns, values[0])


def _take_ranks(queue: Contents) -> Tell | None:
    if queue.ranks is None or queue.settings.rank_text is None:
        return None
    ranks = queue.ranks.copy()
    unranked = queue.ranking.pieces(queue.main) if queue.ranking is not None else []

    def tell(lsns: Ints) -> list[array[int]]:
        out = ranks.each(packed(lsns))
        if unranked:
            out[np.isin(lsns, np.concatenate(unranked))] = UNKNOWN
        return [runs_of(lsns, out)]

    return tell


def _load_ranks(queue: Contents, lsns: Ints, values: Values) -> None:
    if len(lsns):
        load_ranks(queue, lsns, values[0])


def _take_keys(queue: Contents) -> Tell | None:
    if queue.last_values is None:
        return None
    known = queue.last_values.known.copy()
    return lambda lsns: [runs_of(lsns, known.each(packed(lsns)))]


def _load_keys(queue: Contents, lsns: Ints, values: Values) -> None:
    assert queue.last_values is not None
    queue.last_values.known.load(lsns, values[0])
    queue.last_values.loaded = True  # what was out for delivery may have been replaced
    queue.agenda |= DISPATCH


def _take_unique(queue: Contents) -> Tell | None:
    if queue.dedup is None or queue.dedup.living is None:
        return None
    living = queue.dedup.living.copy()
    return lambda lsns: [runs_of(lsns, key_column(living, lsns))]


def _load_unique(queue: Contents, lsns: Ints, values: Values) -> None:
    if queue.dedup is not None:
        queue.dedup.load(lsns, values[0])


def _take_owners(queue: Contents) -> Tell | None:
    spans = [] if queue.foreign is None else queue.foreign.spans()  # LSNs [a, b), whose, and how it came to be theirs
    if not spans:
        return None
    table = np.array(spans, dtype=np.int64)
    return lambda lsns: [runs_among(lsns, table[:, [0, 1, column]]) for column in (2, 3)]


def _load_owners(queue: Contents, lsns: Ints, values: Values) -> None:
    if queue.foreign is not None:
        queue.foreign.load(lsns, *values)


KNOWN: tuple[Known, ...] = (
    Known(("rank",), _take_ranks, lambda queue: queue.ranks is not None, _load_ranks),
    Known(("expires_at",), _take_deadlines, lambda queue: False, _load_deadlines),
    Known(("owner", "claim"), _take_owners, lambda queue: False, _load_owners),
    Known(("key",), _take_keys, lambda queue: queue.last_values is not None, _load_keys),
    Known(("dedup",), _take_unique, lambda queue: False, _load_unique),
)
"""Ranks first: what comes then stands by them."""


def take_known(queue: Contents) -> list[tuple[tuple[str, ...], Tell]]:
    """What there is of each row."""
    return [(one.columns, tell) for one in KNOWN if (tell := one.take(queue)) is not None]


def load_known(queue: Contents, waiting: Sequence[Chunk], columns: Mapping[str, array[int]]) -> None:
    """Take up what a state says of these messages, before they stand anywhere."""
    rows = [one for one in KNOWN if one.wanted(queue) or not columns.keys().isdisjoint(one.columns)]
    lsns = flat(waiting) if rows else np.zeros(0, dtype=np.int64)
    for one in rows:
        one.load(queue, lsns, [spread(lsns, columns.get(name, array("q"))) for name in one.columns])
