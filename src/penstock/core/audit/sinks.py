"""The audit of sinks: a query's batches are committed once, in order, and the chunks of a large one follow it whole.

That the messages of a chunk lie in the group of its record is how the core writes it; here its numbers are proven.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from penstock.core.audit.queues import Find
from penstock.core.state.decided import DecidedState, copies, decided_of
from penstock.core.state.durable import DurableState
from penstock.records.kinds import Kind


class SinkAudit:
    """All queries of a log."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._highest: dict[str, int] = {}
        self._decided: dict[str, DecidedState] = {}
        self.committed = 0

    def load(self, state: DurableState) -> None:
        """Queries as a base knows them."""
        self._highest, self._decided = dict(state.sinks), copies(state.decided)

    def record(self, kind: Kind, lsn: int, query: str, header: dict[str, object]) -> None:
        """SINK_COMMIT, DECIDED, CHUNK or SINK_FORGET."""
        if kind is Kind.SINK_FORGET:
            for forgotten in cast("list[str]", header["queries"]):
                if forgotten in self._decided:
                    self._wrong(lsn, f"query '{forgotten}' is forgotten before all rows of its batch are written")
                self._highest.pop(forgotten, None)
            return
        unfinished = self._decided.get(query)
        if kind is Kind.CHUNK:
            self._chunk(lsn, query, unfinished, header)
            return
        batch, highest = cast(int, header["batch"]), self._highest.get(query, -1)
        self.committed += 1
        if batch <= highest:
            self._wrong(lsn, f"query '{query}' committed batch {batch} after batch {highest}")
        if unfinished is not None:
            self._wrong(lsn, f"query '{query}' committed batch {batch} before all rows of batch {unfinished.batch}")
        self._highest[query] = max(batch, highest)
        if kind is Kind.DECIDED:
            self._decided[query] = decided_of(header, lsn)

    def _chunk(self, lsn: int, query: str, unfinished: DecidedState | None, header: dict[str, object]) -> None:
        if unfinished is None:
            self._wrong(lsn, f"query '{query}' has a chunk of batch {header['batch']}, of which none is due")
            return
        try:
            unfinished.copied(header)
        except ValueError as error:
            self._wrong(lsn, f"query '{query}': {error}")
        if unfinished.complete:
            del self._decided[query]

    def _wrong(self, lsn: int, text: str) -> None:
        self._find("sinks", np.array([lsn]), text)
