"""Messages that came back one by one and have little in common, as rows: a run for each would cost nine times as much.

Each stands by a key and then its LSN; 40 bytes a message.  What is asked about some of them looks through a column, a
thousand rows a step; nothing looks at them one by one but whoever takes them.  It knows no consumer, clock or log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from penstock.core.arena import Move
from penstock.core.queue.order.runs import Key, Run, packed
from penstock.core.queue.order.sorted_rows import Ints, Row, SortedRows
from penstock.core.queue.settling.attempts import Tally
from penstock.core.state.lsns import to_array
from penstock.records.chunks import Chunk


class Told(NamedTuple):
    """Messages in no order, as columns that will not change."""

    lsns: Ints
    places: Ints  # 0: its own LSN
    deadlines: Ints  # 0: none
    numbers: Ints  # of its tally
    tallies: Sequence[Tally]


class Scattered:
    """Messages by a key and then LSN, of each its place, its deadline and its tally."""

    __slots__ = ("_numbers", "_rows", "_tallies")

    def __init__(self) -> None:
        self._rows = SortedRows(5, 2)  # key, LSN, place, deadline, number of the tally
        self._tallies: list[Tally] = []
        self._numbers: dict[Tally, int] = {}

    @property
    def count(self) -> int:
        """How many messages stand in the rows."""
        return self._rows.count

    # -- in

    def put(self, runs: Sequence[Run], keys: Sequence[int | None]) -> None:
        """Take up runs, each with the key of all its messages; None: that of each is its LSN."""
        sizes = [len(run.chunk) for run in runs]
        lsns = np.fromiter(chain.from_iterable(run.chunk for run in runs), np.int64, sum(sizes))
        each = [
            (key or 0, run.place, run.deadline, self._number(run.tally)) for run, key in zip(runs, keys, strict=True)
        ]
        key, place, deadline, number = np.repeat(np.array(each, dtype=np.int64), sizes, axis=0).T
        own = np.repeat(np.array([key is None for key in keys]), sizes)
        self._rows.add_many([np.where(own, lsns, key), lsns, place, deadline, number])

    def _number(self, tally: Tally) -> int:
        number = self._numbers.get(tally)
        if number is None:
            number = self._numbers[tally] = len(self._tallies)
            self._tallies.append(tally)
        return number

    # -- asked

    def head(self) -> Key:
        """Key and LSN of the first; only when there is one."""
        key, lsn = self._rows.head()
        return key, lsn

    def first(self, count: int) -> list[Key]:
        """The same of the first so many, in order."""
        keys, lsns, *_ = self._rows.after((-(1 << 63), 0), count)
        return list(zip(keys.tolist(), lsns.tolist(), strict=True))

    def lowest(self) -> int:
        """The oldest LSN; only when there is one."""
        return self._rows.lowest()

    def among(self, wanted: Chunk) -> list[Run]:
        """Those of the wanted that are here; they stay."""
        return self._in_groups(self._rows.among(wanted))

    def keys_of(self, wanted: Chunk) -> list[Key]:
        """Where those of the wanted that are here stand."""
        keys, lsns, *_ = self._rows.among(wanted)
        return list(zip(keys.tolist(), lsns.tolist(), strict=True))

    def pieces(self) -> Sequence[Chunk]:
        """The LSNs of all, as chunks that will not change."""
        return self._rows.pieces()

    def in_order(self) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """LSNs in the order of their keys, and of each the key where it has a place; 0: it stands at its LSN."""
        for keys, lsns, places, *_ in self._rows.blocks():
            yield to_array(lsns), to_array(np.where(places == 0, 0, keys))

    def behind(self, key: Key, count: int) -> list[Run]:
        """The first so many that stand behind a key, in order; they stay."""
        return self._as_runs(self._rows.after(key, count))

    def told(self) -> Told:
        """All of it, with what is known of each message."""
        _, lsns, places, deadlines, numbers = self._rows.columns()
        return Told(lsns, places, deadlines, numbers, tuple(self._tallies))

    def runs(self) -> list[Run]:
        """The same as runs, in no order: one for each of those that have nothing in common."""
        return self._in_groups(self._rows.columns())

    # -- out

    def take(self, count: int, limit: Row) -> list[Run]:
        """Take up to so many of the first that stand before `limit`, in order; fewer where that is easier."""
        block = self._rows.take(count, limit)
        return [] if block is None else self._as_runs([np.frombuffer(column, dtype=np.int64) for column in block])

    def take_at(self, key: Key) -> Run | None:
        """Take the message with this key and LSN, which is found by halves; None: it is not here."""
        row = self._rows.remove(key)
        if row is None:
            return None
        _, lsn, place, deadline, number = row
        return Run(range(lsn, lsn + 1), False, self._tallies[number], place, deadline)

    def extract(self, wanted: Chunk) -> list[Run]:
        """Take those of the wanted that are here, in no order."""
        return self._in_groups(self._rows.extract(wanted))

    def _in_groups(self, columns: Sequence[Ints]) -> list[Run]:
        """Rows as few runs, their order gone."""
        _, lsns, *fate = columns
        order = np.lexsort((lsns, *fate))
        return self._as_runs([column[order] for column in columns])

    def _as_runs(self, columns: Sequence[Ints]) -> list[Run]:
        """Rows as runs of ascending LSNs, in their order."""
        _, lsns, places, deadlines, numbers = columns
        if not len(lsns):
            return []
        cut = np.diff(lsns) < 0
        for column in (places, deadlines, numbers):
            cut |= np.diff(column) != 0
        starts = np.concatenate(([0], np.flatnonzero(cut) + 1))
        ends = np.append(starts[1:], len(lsns))
        table = np.stack((starts, ends, places[starts], deadlines[starts], numbers[starts]), axis=1)
        rows: list[tuple[int, int, int, int, int]] = table.tolist()
        return [
            Run(packed(lsns[start:end]), False, self._tallies[number], place, deadline)
            for start, end, place, deadline, number in rows
        ]

    def page(self, move: Move) -> None:
        """Move what may go to an arena."""
        self._rows.page(move)
