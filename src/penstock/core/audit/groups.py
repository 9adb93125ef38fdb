"""The audit of how records lie in the log: positions and times, and what has to be in one group.

LSNs rise without holes within a run, and a start leaves what it must.  A dead letter has one cause, removed by the
record of the same group.  All records of a transaction lie in the group of its last one; rows that nobody needs any
more may have been left out since, and what is there still has to lie in one batch.
"""

from __future__ import annotations

from collections import Counter
from typing import cast

import numpy as np
import pyarrow as pa

from penstock.core.audit.histories import NONE, Bools, Find
from penstock.core.state.arrow import blobs, pick
from penstock.core.state.lsns import Ints
from penstock.core.state.plain import load
from penstock.records.dataclass import dataclass
from penstock.records.kinds import Kind

UNCLEAN_GAP = 1 << 32


class PositionAudit:
    """The order of all records."""

    def __init__(self, find: Find, counts: Counter[str]) -> None:
        self._find = find
        self._counts = counts
        self._last = self._last_time = 0
        self._begun = False

    def load(self, last: int) -> None:
        """A base stands for everything up to this LSN."""
        self._last, self._begun = last, True

    def look(self, window: Window) -> Ints:
        """LSNs, starts and times; returns the LSNs of the BOOT records."""
        lsns, times = window.lsns, window.times
        before = np.append(self._last, lsns[:-1])
        if (back := lsns <= before).any():
            self._find("positions", lsns[back], "LSNs do not rise")
        boot = window.kinds == int(Kind.BOOT)
        if not self._begun and not boot[0]:
            self._find("positions", lsns[:1], "the log does not begin with a BOOT record")
        hole = (lsns > before + 1) & ~boot
        hole[0] &= self._begun
        if hole.any():
            self._find("positions", np.append(before[hole], lsns[hole]), "records are missing within a run")
        headers = blobs(pick(window.table, boot, ["properties"]), "properties")
        for row, header in zip(np.flatnonzero(boot).tolist(), headers, strict=True):
            clean = bool(load(header).get("clean"))
            self._counts["starts"] += 1
            self._counts["starts after a crash"] += not clean
            gap = int(lsns[row] - before[row])
            if not self._begun and row == 0:
                continue
            if clean and gap != 1:
                self._find("positions", np.append(before[row], lsns[row]), "a start after a clean stop left LSNs out")
            elif not clean and gap < UNCLEAN_GAP:
                text = "a start after a crash left less than 2^32 LSNs free"
                self._find("positions", np.append(before[row], lsns[row]), text)
        if (backwards := (times < np.append(self._last_time, times[:-1])) & ~boot).any():
            self._find("times", lsns[backwards], "record times go back within a run")
        self._begun = True
        self._last, self._last_time = int(lsns[-1]), int(times[-1])
        return np.asarray(lsns[boot], dtype=np.int64)


@dataclass(slots=True)
class Window:
    """Rows that are looked at in one go, as columns."""

    table: pa.Table
    batch: Ints  # number of the record batch of each row
    lsns: Ints
    kinds: Ints
    times: Ints
    publishes: Bools


class LetterAudit:
    """All dead letters."""

    def __init__(self, find: Find, counts: Counter[str]) -> None:
        self._find = find
        self._counts = counts
        self._named: list[Ints] = []  # those of this window

    def close(self) -> None:
        """At the end of a window: no letter of it has two causes."""
        distinct, times = np.unique(np.concatenate([NONE, *self._named]), return_counts=True)
        self._named.clear()
        if (times > 1).any():
            self._find("dead letters", distinct[times > 1], "a dead letter has two causes")

    def record(self, window: Window, lsn: int, dead: Ints, removed: Ints, *, sent: bool = False) -> None:
        """Dead letters of one EXPIRE record: (cause, letter) each, and the pairs that it removed.

        sent: they are none, the server moved them; the same holds of these.
        """
        self._counts["messages moved" if sent else "dead letters"] += len(dead)
        self._named.append(dead[:, 1])
        cause, letter = dead[:, 0], dead[:, 1]
        removed = removed[np.argsort(removed[:, 0])]
        at = np.searchsorted(removed[:, 0], cause, side="right") - 1
        stayed = (at < 0) | (removed[np.maximum(at, 0), 1] <= cause)
        if stayed.any():
            lsns = np.append(dead[stayed].ravel(), lsn)
            self._find("dead letters", lsns, "a dead letter's cause was not removed with it")
        row = int(np.searchsorted(window.lsns, lsn))
        where = np.minimum(np.searchsorted(window.lsns, letter), row)
        apart = (window.lsns[where] != letter) | ~window.publishes[where] | (window.batch[where] != window.batch[row])
        if apart.any():
            lsns = np.append(dead[apart].ravel(), lsn)
            self._find("dead letters", lsns, "a dead letter is not in the group of its cause")


class TransactionAudit:
    """All transactions of a log."""

    def __init__(self, find: Find, counts: Counter[str]) -> None:
        self._find = find
        self._counts = counts

    def look(self, window: Window) -> None:
        """The transactions whose last record is in this window; a batch is never parted between two."""
        mine = window.kinds == int(Kind.TRANSACTION)
        if not mine.any():
            return
        headers = blobs(pick(window.table, mine, ["properties"]), "properties")
        for row, header in zip(np.flatnonzero(mine).tolist(), headers, strict=True):
            self._counts["transactions"] += 1
            first = cast("int", load(header)["first"])
            start = int(np.searchsorted(window.lsns, first))
            apart = window.lsns[start:row][window.batch[start:row] != window.batch[row]]
            if len(apart):
                lsns = np.append(apart, window.lsns[row])
                self._find("transactions", lsns, "a transaction has records outside of its group")
