"""The audit of transactions: all records of one lie in the group of its last record.

Rows that nobody needs any more may have been left out since; what is there still has to lie in one batch.
"""

from __future__ import annotations

from collections import Counter
from typing import cast

import numpy as np

from penstock.core.audit.queues import Find
from penstock.core.audit.window import Window
from penstock.core.state.arrow import blobs, pick
from penstock.core.state.plain import load
from penstock.records.kinds import Kind


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
