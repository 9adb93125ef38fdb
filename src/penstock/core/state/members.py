"""One queue while it is folded: its waiting messages as columns, and what the present table does to them.

Events are gathered while a table is read and brought to the messages at its end, with numpy, a queue at a time.  It
knows no kind of record; the fold tells it what was removed, counted and delayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt

from penstock.core.queue.dedup import Window, altered
from penstock.core.queue.expiry import deadlines
from penstock.core.state import pending
from penstock.core.state.lsns import Ints, empty, expand, flat, spread
from penstock.core.state.queue_state import QueueState
from penstock.records.chunks import LSN_LIMIT
from penstock.records.queue_settings import QueueSettings

Part: TypeAlias = "dict[str, Ints]"
"""Messages of one table: "lsn" ascending, and the columns of COLUMNS that are not all at rest."""


class FoldedQueue:
    """The messages of each table as one part, and the events of the present table."""

    __slots__ = ("counted", "delayed", "keyed", "mixed", "parts", "removed", "settings", "since", "state", "window")

    def __init__(self, state: QueueState) -> None:
        """state: what was folded before; it is not changed."""
        self.state = replace(state, waiting=[], columns={}, since=0, taken=empty())
        self.since = state.since  # what the log says up to this LSN is in it already
        self.parts: list[Part] = []
        self.mixed = False  # they do not follow each other by LSN
        self.removed: list[Ints] = []  # pairs, shape (n, 2)
        self.counted: list[tuple[str, int, Ints]] = []  # column, value, pairs
        self.delayed: list[tuple[str, int, Ints]] = []  # column, value, pairs; in order, the last wins
        self.keyed: list[tuple[str, Ints]] = []  # column; (LSN, key), shape (n, 2)
        self.window = Window.loaded(state.taken) if state.settings.dedup_window else None
        self.settings: list[tuple[int, QueueSettings]] = [(0, state.settings)]  # from an LSN on
        if state.waiting:
            lsns = flat(state.waiting)
            self.parts.append({"lsn": lsns, **{name: spread(lsns, runs) for name, runs in state.columns.items()}})

    def alter(self, lsn: int, settings: QueueSettings) -> None:
        """Other settings in force, from this LSN on."""
        if settings.rank_text != self.state.settings.rank_text:
            for part in self.parts:
                part.pop("rank", None)
        if settings == self.state.settings:
            return
        if lsn > self.since:
            self.window = altered(self.window, self.state.settings, settings)
        self.state.settings = settings
        self.settings.append((lsn, settings))
        if settings.barrier_expression is None and lsn > self.since:
            self.delayed.append(("barrier", 0, np.array([[0, LSN_LIMIT]])))

    def drop_transient(self) -> None:
        """A start of the server: transient messages end."""
        for part in self.parts:
            if "transient" in part:
                keep(part, part["transient"] == 0)
        self.parts = [part for part in self.parts if len(part["lsn"])]

    @property
    def has_deadline(self) -> bool:
        """Whether its settings give messages a deadline of their own."""
        return any(s.expiration is not None or s.message_ttl is not None for _, s in self.settings)

    def deadlines(self, lsns: Ints, times: Ints, expires: Ints | None) -> Ints:
        """Deadlines by the settings that held when each row was written."""
        own = np.zeros(len(lsns), dtype=np.int64) if expires is None else expires
        if len(self.settings) == 1:
            return deadlines(self.settings[0][1], times, own)
        out = np.zeros(len(lsns), dtype=np.int64)
        for i, (since, settings) in enumerate(self.settings):
            start = int(np.searchsorted(lsns, since))
            until = self.settings[i + 1][0] if i + 1 < len(self.settings) else None
            end = len(lsns) if until is None else int(np.searchsorted(lsns, until))
            if start < end:
                out[start:end] = deadlines(settings, times[start:end], own[start:end])
        return out

    def apply(self) -> None:
        """Bring this table's events to the parts they touch.  Removals first: what is gone needs no counting."""
        if self.removed:
            self._remove(np.concatenate(self.removed))
            self.removed.clear()
        if self.keyed:
            self._keys()
        if self.counted:
            self._count()
        for column, value, pairs in self.delayed:
            for part in self.parts:
                covered = _cover(part["lsn"], pairs)
                if covered is not None:
                    here = part.get(column)
                    part[column] = np.where(covered > 0, value, 0 if here is None else here)
        self.delayed.clear()
        if len(self.settings) > 1:
            self.settings = [(0, self.state.settings)]

    def _remove(self, pairs: Ints) -> None:
        if not len(pairs):
            return
        low, high = int(pairs[:, 0].min()), int(pairs[:, 1].max())
        for part in self.parts:
            lsns = part["lsn"]
            if int(lsns[-1]) >= low and int(lsns[0]) < high:
                covered = _cover(lsns, pairs)
                if covered is not None:
                    keep(part, covered == 0)
        self.parts = [part for part in self.parts if len(part["lsn"])]

    def finished(self, last_lsn: int) -> QueueState:
        """Its durable state after every table so far, which ended at `last_lsn`."""
        taken = empty() if self.window is None else self.window.dump(self.state.settings.dedup_window)
        since = self.since if self.since > last_lsn else 0
        blank = replace(self.state, waiting=[], columns={}, since=since, taken=taken)
        parts = [part for part in self.parts if len(part["lsn"])]
        if not parts:
            return blank
        columns = _together(parts)
        if self.mixed:
            order = np.argsort(columns["lsn"], kind="stable")
            columns = {name: values[order] for name, values in columns.items()}
        return QueueState.fill(blank, columns["lsn"], columns)

    def begin_pass(self, lsn: int, header: dict[str, object]) -> None:
        """A pass over older rows begins."""
        state = self.state
        state.reviewed, state.passing = pending.begin(state.reviewed, state.passing, header, lsn)

    def recovered(self, lsn: int, pairs: Ints, header: dict[str, object]) -> None:
        """What a pass over older rows found."""
        if lsn <= self.since:
            return
        state = self.state
        if "upto" in header:
            state.reviewed, state.passing = pending.go_on(state.reviewed, state.passing, cast(int, header["upto"]))
        if len(pairs):
            lsns = expand(pairs[:, 0], pairs[:, 1])
            columns = cast("dict[str, list[int]]", header.get("columns") or {})
            self.parts.append({"lsn": lsns, **{name: spread(lsns, runs) for name, runs in columns.items()}})
            self.mixed = True

    def took_keys(self, pairs: Ints, time: int) -> None:
        """It took messages with these keys: (LSN, key), shape (n, 2)."""
        settings = self.state.settings
        if self.window is not None:
            self.window.take(pairs[:, 1].tolist(), time, settings.dedup_window)
        if settings.unique:
            self.keyed.append(("dedup", pairs))

    def _keys(self) -> None:
        """Each key to the message of its LSN, if that still waits."""
        for column in ("key", "dedup"):
            told = [pairs for name, pairs in self.keyed if name == column]
            if told:
                self._keys_of(column, np.concatenate(told))
        self.keyed.clear()

    def _keys_of(self, column: str, told: Ints) -> None:
        for part in self.parts:
            lsns = part["lsn"]
            at = np.minimum(np.searchsorted(lsns, told[:, 0]), len(lsns) - 1)
            here = lsns[at] == told[:, 0]
            if here.any():
                keys = part.get(column)
                keys = np.zeros(len(lsns), dtype=np.int64) if keys is None else keys.copy()
                keys[at[here]] = told[here, 1]
                part[column] = keys

    def _count(self) -> None:
        grouped: dict[tuple[str, int], list[Ints]] = {}
        for column, value, pairs in self.counted:
            grouped.setdefault((column, value), []).append(pairs)
        self.counted.clear()
        for (column, value), pieces in sorted(grouped.items(), key=itemgetter(0)):
            pairs = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
            for part in self.parts:
                covered = _cover(part["lsn"], pairs)
                if covered is None:
                    continue
                before = part.get(column)
                if before is None:
                    before = np.zeros(len(covered), dtype=np.int64)
                if column == "deliveries":  # the attempt of a grant; a later one is higher
                    part[column] = np.where(covered > 0, np.maximum(before, value), before)
                else:
                    part[column] = before + covered * value


def _together(parts: Sequence[Part]) -> Part:
    """Parts one behind the other; what one of them has no value of is at rest there."""
    if len(parts) == 1:
        return dict(parts[0])
    return {
        name: np.concatenate([part.get(name, np.zeros(len(part["lsn"]), dtype=np.int64)) for part in parts])
        for name in {name for part in parts for name in part}
    }


def keep(part: Part, kept: npt.NDArray[np.bool_]) -> None:
    """Leave only these rows in a part."""
    if not kept.all():
        for name in part:
            part[name] = part[name][kept]


def _cover(lsns: Ints, pairs: Ints) -> Ints | None:
    """How many of the pairs each LSN lies in; None if none holds any."""
    starts = np.searchsorted(lsns, pairs[:, 0])
    ends = np.searchsorted(lsns, pairs[:, 1])
    hit = ends > starts
    if not hit.any():
        return None
    size = len(lsns) + 1
    marks = np.bincount(starts[hit], minlength=size) - np.bincount(ends[hit], minlength=size)
    return np.cumsum(marks[:-1])
