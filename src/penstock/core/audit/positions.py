"""The audit of positions and times: LSNs rise without holes within a run, and a start leaves what it must."""

from __future__ import annotations

from collections import Counter

import numpy as np

from penstock.core.audit.queues import Find
from penstock.core.audit.window import Window
from penstock.core.state.arrow import blobs, pick
from penstock.core.state.lsns import Ints
from penstock.core.state.plain import load
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
