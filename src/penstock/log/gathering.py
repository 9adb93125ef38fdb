"""What waits for the next commit, and what its records ask of it.

Some kinds are synced whatever the setting says, a base is remembered until it is durable, and the table of (vhost,
exchange) ids learns from what passes by.  When to commit is the business of `log.committing`, how is the writer's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import cast

import orjson

from penstock.errors import InvalidArgument
from penstock.log.reader import Vias
from penstock.log.writer import Commit, size_of
from penstock.records.bodies import lengths
from penstock.records.entries import Control, Entry, Group, Publishes
from penstock.records.kinds import SYNCED, Kind
from penstock.records.schema import GROUP_BYTES_MAX


def _check(entry: Entry, weight: int) -> None:
    """Messages that came together may be parted; a group and a single message may not."""
    what = "a group of records"
    if isinstance(entry, Publishes):
        what, weight = "a message", int(lengths(entry.bodies).max())
    if weight > GROUP_BYTES_MAX:
        raise InvalidArgument(f"{what} has {weight} bytes; the log holds at most {GROUP_BYTES_MAX} in one piece")


class Gathering:
    """Entries in LSN order, with their sum.  Empty after `take`."""

    def __init__(self, vias: Vias) -> None:
        self.entries: list[Entry] = []
        self.bytes = 0
        self.rows = 0
        self.urgent = False  # somebody waits
        self.must_sync = False
        self.must_roll = False  # the next commit begins a new segment
        self.lazy_since = 0  # mono microseconds when the oldest entry that nobody waits for came; 0: there is none
        self._base = False  # there is a base among the entries
        self._bases: deque[tuple[int, int]] = deque()  # (last LSN, floor) of bases not yet durable
        self._vias = vias

    def add(self, entries: Sequence[Entry]) -> None:
        """More entries, with higher LSNs.

        InvalidArgument for one that no batch can hold; nothing of them is taken then.  Whoever decides keeps its groups
        below that, so this is the last look before it would be too late.
        """
        size = rows = 0
        for entry in entries:
            weight = size_of(entry)
            if weight > GROUP_BYTES_MAX:
                _check(entry, weight)
            size += weight
            rows += len(entry)
            if isinstance(entry, Control):
                self._notice(entry)
            elif isinstance(entry, Group):
                for part in entry.entries:
                    if isinstance(part, Control):
                        self._notice(part)
        self.entries += entries
        self.bytes += size
        self.rows += rows

    def _notice(self, control: Control) -> None:
        kind = control.kind
        if kind in SYNCED:
            self.must_sync = True
            if kind == Kind.BASE:
                self._base = True
                header = cast("dict[str, int]", orjson.loads(control.header))
                if header["part"] == header["parts"] - 1:
                    self._bases.append((control.lsn, header["floor"]))
        elif kind == Kind.VIA:
            self._vias.learn(control.via, control.header)

    def take(self, synced: int, sync: bool) -> Commit:
        """All of it as a commit.  `synced`: the LSN known to be synced."""
        commit = Commit(
            self.entries, synced, sync, size=self.bytes, rows=self.rows, base=self._base, roll=self.must_roll
        )
        self.drop()
        return commit

    def drop(self) -> None:
        """Forget what has gathered."""
        self.entries, self.bytes, self.rows = [], 0, 0
        self.urgent = self.must_sync = self.must_roll = self._base = False
        self.lazy_since = 0

    def base_floor(self, synced: int) -> int:
        """Floor of the newest base that has become durable with this LSN; 0: none has."""
        floor = 0
        while self._bases and self._bases[0][0] <= synced:
            floor = max(floor, self._bases.popleft()[1])
        return floor
