"""What purges, deletions and withdrawals took from a queue, by the log: the messages that lived in it when the record
of that was written, and of these the ones that its pairs name.

So the log is folded up to each such record, from its beginning or from its base.  Rows that compaction or retention
left out belong to what lies before the base: that an archive tells which goes back to the beginning, or a backup that
was made earlier, with which the log goes on where it has every record since.  It knows no server, and no body.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.cli.logfiles import archive_of
from penstock.cli.output import Progress
from penstock.core.state.durable import DurableState
from penstock.core.state.encoding import load
from penstock.core.state.fold import Fold
from penstock.core.state.lsns import Ints, blobs, expand, flat, numbers, pick, spread, texts
from penstock.core.state.queue_state import QueueState
from penstock.errors import InvalidArgument
from penstock.history import open_folder
from penstock.history.view import View, base_of, stand_alone
from penstock.log.catalog import whole_from
from penstock.log.disk import OsDisk
from penstock.records.causes import CANCELLED, LEFT_BEHIND
from penstock.records.dataclass import dataclass
from penstock.records.kinds import HEAD, Kind
from penstock.server.bulk.backup import read as read_backup

FOLD_ROWS, FOLD_BYTES = 400_000, 64 << 20
"""What is folded at once, about."""

DROPS = {CANCELLED: "withdrawn", LEFT_BEHIND: "before a recovery point"}
"""Why messages are dropped that an operator said."""

TWINS = "its twin"
"""Who withdraws a message that another site has published, too, and that was worked there."""

_KINDS = (int(Kind.PURGE), int(Kind.QUEUE_DELETE), int(Kind.DROP))

_NONE: Ints = np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class Removal:
    """One record that took messages from the queue.  The arrays are parallel, as the queue had them in turn."""

    lsn: int
    what: str
    by: str
    time: int  # microseconds
    lsns: Ints = field(default_factory=lambda: _NONE)
    expires_at: Ints = field(default_factory=lambda: _NONE)  # microseconds, by the queue's settings too; 0: never
    not_before: Ints = field(default_factory=lambda: _NONE)  # microseconds; 0: at once
    elsewhere: int = 0  # that belonged to other sites, which have them still


class Stretch(NamedTuple):
    """Records that follow each other without a gap, and the state before them."""

    state: DurableState | None  # None: they begin with the log
    parts: Sequence[tuple[View, int, int]]  # LSNs [a, b)

    @property
    def first(self) -> int:
        return self.parts[0][1]

    @property
    def end(self) -> int:
        return self.parts[-1][2]

    def upto(self, lsn: int) -> Stretch:
        """What of it lies at or below this LSN."""
        return self._replace(parts=[(view, a, min(b, lsn + 1)) for view, a, b in self.parts if a <= lsn])

    def tables(self, progress: Progress) -> Iterator[pa.Table]:
        """All of it, in pieces of a bounded size."""
        held, rows, size = list[pa.RecordBatch](), 0, 0
        for view, a, b in self.parts:
            for batch in view.batches(a, b):
                held.append(batch)
                rows, size = rows + batch.num_rows, size + batch.nbytes
                if rows >= FOLD_ROWS or size >= FOLD_BYTES:
                    table = pa.Table.from_batches(held)
                    progress(int(numbers(table, "lsn")[-1]) - self.first, self.end - self.first)
                    yield table
                    held, rows, size = [], 0, 0
        if held:
            yield pa.Table.from_batches(held)


class Evidence:
    """The log of a data folder, its archive, and a backup of it."""

    def __init__(self, data: str, archive: str | None = None, backup: str | None = None) -> None:
        """InvalidArgument for a folder that is none, or a backup of another log.  LogDamaged."""
        if backup is not None and not Path(backup).is_dir():
            raise InvalidArgument(f"{backup} is no folder")
        before = None if backup is None else OsDisk(backup)
        made = None if before is None else read_backup(before)
        self.disk = open_folder(data)
        self.here = stand_alone(self.disk, archive_of(data, archive))
        self.before: View | None = None
        if before is not None and made is not None:
            if made.origin != self.here.origin:
                self.close()
                raise InvalidArgument(
                    f"{backup} is a backup of another log (origin {made.origin}), and that of {data} has the origin "
                    f"{self.here.origin}"
                )
            self.before = stand_alone(before)

    def close(self) -> None:
        """Close the files."""
        for view in (self.here, self.before):
            if view is not None:
                view.close()

    def stretches(self) -> list[Stretch]:
        """What can be folded, oldest first."""
        here, before = self.here, self.before
        state, first = _begun(here)
        end = here.durable + 1
        if before is None:
            return [Stretch(state, [(here, first, end)])]
        older, earlier = _begun(before)
        if earlier >= first:
            return [Stretch(state, [(here, first, end)])]
        seam = before.durable + 1
        if _whole_since(here) <= seam:
            return [Stretch(older, [(before, earlier, seam), (here, seam, end)])]
        return [Stretch(older, [(before, earlier, seam)]), Stretch(state, [(here, first, end)])]


def _whole_since(view: View) -> int:
    """From this LSN on a view has every record that was written."""
    since = whole_from(view.catalog.segments)
    spans = view.archive.manifest.spans if view.archive is not None else ()
    for a, b in sorted(spans, reverse=True):
        if a < since <= b:
            since = a
    return since


def _begun(view: View) -> tuple[DurableState | None, int]:
    """The state that a view's records go on from, and the first of these."""
    if view.complete:
        return None, 1
    base = base_of(view)
    return (None, 1) if base is None else (DurableState.decode(base.state), base.floor)


@dataclass(slots=True)
class Found:
    """What was looked for."""

    removals: list[Removal]
    known: bool  # whether there ever was a queue of this name
    unknown: list[tuple[int, int]]  # LSNs [a, b) of which nothing tells what was taken


def removals(
    stretches: Sequence[Stretch], vhost: str, queue: str, progress: Progress, only: int | None = None
) -> Found:
    """Those from a queue, oldest first.  only: the one at this LSN, if it is one."""
    ends = [1, *(stretch.end for stretch in stretches)]
    unknown = [(a, stretch.first) for a, stretch in zip(ends, stretches, strict=False) if a < stretch.first]
    found = Found([], False, unknown)
    for stretch in stretches:
        if only is not None and not (stretch := stretch.upto(only)).parts:
            continue
        scan = _Scan(stretch.state, vhost, queue)
        for table in stretch.tables(progress):
            found.removals += scan.read(table, only)
        found.known |= bool(scan.ids)
    return found


class _Scan:
    """One walk over a stretch."""

    def __init__(self, state: DurableState | None, vhost: str, queue: str) -> None:
        self._vhost, self._name = vhost, queue
        self._fold = Fold(state)
        there = () if state is None else state.queues.values()
        self.ids = {one.id for one in there if (one.vhost, one.name) == (vhost, queue)}

    def read(self, table: pa.Table, only: int | None) -> Iterator[Removal]:
        """Those of one table, each with the queue as it was just before."""
        lsns, kinds = numbers(table, "lsn"), numbers(table, "kind")
        self._learn(table, kinds, lsns)
        places = np.flatnonzero(np.isin(kinds, _KINDS) if only is None else np.isin(kinds, _KINDS) & (lsns == only))
        some = pick(table, np.isin(np.arange(len(kinds)), places), ["time", "properties", "body"])
        times, headers, bodies = numbers(some, "time"), blobs(some, "properties"), blobs(some, "body")
        at = 0
        for place, time, header, body in zip(places.tolist(), times.tolist(), headers, bodies, strict=True):
            values = np.frombuffer(body, dtype="<i8")
            if not len(values) or int(values[0]) not in self.ids:
                continue
            said = load(header)
            kind, reason, by = Kind(int(kinds[place])), str(said.get("reason", "")), str(said.get("by", ""))
            what = DROPS.get(reason) if kind is Kind.DROP else "purged" if kind is Kind.PURGE else "deleted"
            if what is None or by == TWINS:
                continue
            self._fold.feed(table.slice(at, place - at))
            at = place
            before = self._fold.queue(int(values[0]))
            if before is not None:
                pairs = None if kind is Kind.QUEUE_DELETE else values[1:].reshape(-1, 2)
                yield _taken(before, pairs, Removal(int(lsns[place]), what, by, time))
        self._fold.feed(table.slice(at))

    def _learn(self, table: pa.Table, kinds: Ints, lsns: Ints) -> None:
        """The queue's ids: there may have been several of the name, one after another."""
        declared = kinds == int(Kind.QUEUE_DECLARE)
        if declared.any():
            some = pick(table, declared, ["name", "properties"])
            for lsn, name, header in zip(
                lsns[declared].tolist(), texts(some, "name"), blobs(some, "properties"), strict=True
            ):
                if name == self._name and str(load(header).get("vhost", "/")) == self._vhost:
                    self.ids.add(lsn)


def _taken(before: QueueState, pairs: Ints | None, removal: Removal) -> Removal:
    """Its messages.  pairs: those that it names; None: all that there are."""
    lsns = flat(before.waiting)
    place, expires_at, not_before, owner = (
        spread(lsns, before.columns.get(name, ())) for name in ("place", "expires_at", "not_before", "owner")
    )
    named = np.arange(len(lsns)) if pairs is None else expand(*np.searchsorted(lsns, pairs.T))
    mine = named[owner[named] == 0]
    removal.elsewhere = len(named) - len(mine)
    turn = np.where(place[mine] == 0, lsns[mine], np.where(place[mine] < HEAD, place[mine], -place[mine]))
    mine = mine[np.argsort(turn, kind="stable")]
    removal.lsns, removal.expires_at, removal.not_before = lsns[mine], expires_at[mine], not_before[mine]
    return removal
