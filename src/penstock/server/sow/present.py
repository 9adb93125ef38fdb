"""Bodies of present records that deltas need: from memory, else read off the loop before the delta is published.

`Judges` asks `ready` before anything is published.  What was read stays for a moment, and so does
what was merged, since a key that changes once will change again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.core.sow.rows import Answer, Job
from penstock.records.chunks import as_chunk
from penstock.records.entries import Publishes, Rows

if TYPE_CHECKING:
    from penstock.server.runtime import Off, Runtime

SHARE = 32
"""The part of the memory budget that bodies kept for later deltas may have."""

STAYS_US = 2_000_000
"""What was read for a batch is not given up for others so soon: the batch is about to be published."""

ROW_COST = 150


class Present:
    """The bodies of one engine.  All methods belong to the loop's thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._kept = OrderedDict[int, tuple[int, bytes | None]]()  # by LSN: when it came, and it; None: unreadable
        self._bytes = 0
        runtime.core.bodies_from(self)
        runtime.bodies.budget.watch("records", lambda: self._bytes)

    # -- for the core

    def has(self, lsn: int) -> bool:
        """Whether `get` knows the message, be it that it cannot be read."""
        return lsn in self._kept or self._runtime.bodies.peek(lsn) is not None

    def get(self, lsn: int) -> bytes | None:
        """The body of a message; None when it is not at hand."""
        batch = self._runtime.bodies.peek(lsn)
        if batch is not None:
            return batch.bodies[lsn - batch.first]
        found = self._kept.get(lsn)
        return None if found is None else found[1]

    def keep(self, lsn: int, body: bytes | None) -> None:
        """A body that may be asked for again."""
        now = self._runtime.clock.mono()
        if lsn in self._kept:
            self._forget(lsn)
        self._kept[lsn] = now, body
        self._bytes += ROW_COST + len(body or b"")
        most = self._runtime.bodies.budget.limit // SHARE
        while self._bytes > most:
            oldest, (came, _) = next(iter(self._kept.items()))
            if came > now - STAYS_US:
                break
            self._forget(oldest)

    # -- for doors

    def ready(self, batches: Sequence[Publishes], then: Callable[[], None], off: Off | None) -> bool:
        """Whether these may be published now.  If not, `then` is called later, and asks again.  off: for heavy work."""
        core = self._runtime.core
        if not core.sows:
            return True
        if self._work([job for batch in batches for job in core.heavy(batch, merging=False)], then, off):
            return False
        lsns = sorted({lsn for batch in batches for lsn in core.lacking(batch)})
        if not lsns:
            return not self._work([job for batch in batches for job in core.heavy(batch, merging=True)], then, off)
        chunk = as_chunk(lsns)

        def answer(rows: Rows) -> None:
            for lsn, body in zip(rows.lsns, rows.bodies, strict=True):
                self.keep(lsn, body)
            for lsn in set(chunk).difference(rows.lsns):
                self.keep(lsn, None)
            then()

        self._runtime.read_cold(chunk, answer)
        return False

    def _work(self, jobs: list[Job], then: Callable[[], None], off: Off | None) -> bool:
        """Have jobs done off the loop, and `then` called; False when there are none, or nothing runs off the loop."""
        if not jobs or off is None:
            return False

        def done(answers: list[Answer]) -> None:
            for job, answer in zip(jobs, answers, strict=True):
                self._runtime.core.worked_out(job, answer)
            then()

        off(lambda: [job.work() for job in jobs], done)
        return True

    def _forget(self, lsn: int) -> None:
        _, body = self._kept.pop(lsn)
        self._bytes -= ROW_COST + len(body or b"")
