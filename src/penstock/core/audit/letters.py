"""The audit of dead letters: one cause each, removed by the record of the same group."""

from __future__ import annotations

from collections import Counter

import numpy as np

from penstock.core.audit.queues import NONE, Find
from penstock.core.audit.window import Window
from penstock.core.state.lsns import Ints


class LetterAudit:
    """All dead letters."""

    def __init__(self, find: Find, counts: Counter[str]) -> None:
        self._find = find
        self._counts = counts
        self._named: list[Ints] = []  # those of this window

    def close(self) -> None:
        """The window is over."""
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
