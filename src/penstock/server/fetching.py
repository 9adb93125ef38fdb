"""Bodies that the core asks for, dead letters first of all: brought in portions, one read after the other.

A thousand letters may have any size, so an answer ends when it has about as many bytes as a portion; the core asks for
the rest again.  The room of a portion is reserved before it is read, and queues wait for each other: however many die
at once, no more than one portion is in memory that no queue has.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING

from penstock.core.asks import Fetch, Fetched
from penstock.memory.reads import READ_BYTES
from penstock.memory.rows import first_of, merged
from penstock.records.chunks import as_chunk
from penstock.records.entries import Rows

if TYPE_CHECKING:
    from penstock.server.runtime import Runtime


class Fetches:
    """The fetches of an engine.  All methods belong to the loop's thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._waiting = deque[Fetch]()
        self._reading = False

    @property
    def portion(self) -> int:
        """Bytes of one answer, about."""
        return max(1, min(READ_BYTES, self._runtime.bodies.budget.limit // 8))

    def start(self, effect: Fetch) -> None:
        """Answer the core, at once where memory has everything, else in its turn."""
        if self._reading:
            self._waiting.append(effect)
        else:
            self._fetch(effect)

    def _fetch(self, effect: Fetch) -> None:
        bodies = self._runtime.bodies
        present, absent = bodies.rows(effect.chunk, effect.token.queue)
        if not absent:
            self._answer(effect, present, effect.chunk[-1])
            return
        most = self.portion
        bodies.shrink(most - bodies.budget.kept_back)
        bodies.loading.add(most)
        self._reading = True

        def done(rows: Rows) -> None:
            bodies.loading.add(-most)
            self._reading = False
            n = len(rows)
            upto = rows.lsns[-1] if n and rows.lsns[-1] < absent[-1] else effect.chunk[-1]
            both = merged(present, rows) if len(present) else rows
            self._answer(effect, both, upto)
            while self._waiting and not self._reading:
                self._fetch(self._waiting.popleft())

        self._runtime.read_cold(as_chunk(absent), done, most)

    def _answer(self, effect: Fetch, rows: Rows, upto: int) -> None:
        rows = first_of(rows, bisect_right(rows.lsns, upto))
        self._runtime.answer(Fetched(effect.token, rows, upto))
