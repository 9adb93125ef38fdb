"""A transaction on its way to the core: bodies are read, large ones judged by content filters, then it is decided.

Dead letters of what is rejected belong to the transaction, so the bodies are read first, in portions, and count against
the budget like its messages; what becomes of them is prepared by turns.  Whoever commits calls `step` until it answers,
each time after it was told to; what happened meanwhile (a lease that ended, a queue that was deleted) is judged when it
is decided, not before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.core.commands.transactions import Transacted, Transaction
from penstock.errors import DiskFull, Draining, LogBroken, PreconditionFailed
from penstock.memory import first_of, merged
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.entries import Rows
from penstock.records.schema import TRANSACTION_BYTES_MAX

if TYPE_CHECKING:
    from penstock.core.queue.queue import Queue
    from penstock.server.engine import Engine
    from penstock.server.transaction_memory import Charge

READ_MOST = 1000
"""Messages whose bodies are read at once."""

LAID_MOST = 64
"""Messages whose dead letters are prepared between two looks at the time."""


class Committing:
    """One commit.  All methods belong to the loop's thread."""

    def __init__(self, engine: Engine, transaction: Transaction, charge: Charge) -> None:
        self._engine = engine
        self._transaction = transaction
        self._charge = charge
        charge.check()
        charge.busy = True
        self._unread = engine.core.mourned(transaction)
        self._long = sum(len(chunk) for _, chunk in self._unread) > LAID_MOST
        self._came: list[tuple[Queue, Rows]] = []  # from the log, since the last step
        self._read: dict[Queue, Rows] = {}
        self._unlaid: deque[tuple[Queue, Rows, slice]] = deque()  # read, and their dead letters are not prepared yet
        self._size = 0  # bytes of what was read
        self._asked = False  # filters have judged the dead letters

    def _refuse(self) -> None:
        """LogBroken, DiskFull or Draining where nothing can be done now."""
        engine, transaction = self._engine, self._transaction
        if engine.broken is not None:
            raise LogBroken(f"{engine.broken}; nothing of the transaction is done")
        if transaction.batch is not None and engine.log.room.full:
            raise DiskFull(f"{engine.log.room.why_full()}; nothing of the transaction is done")
        if engine.core.draining and not transaction.endings:
            raise Draining("the server drains: it takes no new messages; nothing of the transaction is done")

    def step(self, again: Callable[[], None]) -> Transacted | None:
        """What it came to; None: `again` is called when what it waits for has come, and calls this once more.

        Errors, after which nothing is done: LogBroken, DiskFull, MemoryShort, and as `Core.transact`.
        """
        engine, core, transaction = self._engine, self._engine.core, self._transaction
        self._refuse()
        if self._long and not self._charge.first(again):
            return None
        came, self._came = self._came, []
        for queue, rows in came:
            self._take(queue, rows)
        while self._unread:
            if not self._fetch(*self._unread.pop(), again):
                return None
        if not self._laid(again):
            return None
        if transaction.batch is not None and not engine.judges.ready([transaction.batch], again):
            return None
        if not self._asked and (asked := core.unjudged_letters(transaction)) and engine.judges.off is not None:
            self._asked = True
            engine.judges.ask_about(asked, again)
            return None
        return core.transact(engine.now(), transaction)

    def _laid(self, again: Callable[[], None]) -> bool:
        """Prepare dead letters of what was read; whether all are."""
        engine = self._engine
        for queue, rows in self._read.items():
            self._unlaid += [(queue, rows, slice(at, at + LAID_MOST)) for at in range(0, len(rows), LAID_MOST)]
        self._read = {}
        while self._unlaid:
            engine.core.lay_out(engine.now(), self._transaction, *self._unlaid.popleft())
            if self._unlaid and engine.turns.late(again):
                return False
        return True

    def _fetch(self, queue: Queue, chunk: Chunk, again: Callable[[], None]) -> bool:
        """Have the bodies of some messages read; whether they are there."""
        if len(chunk) > READ_MOST:
            self._unread.append((queue, chunk[READ_MOST:]))
            chunk = chunk[:READ_MOST]
        bodies = self._engine.bodies
        present, absent = bodies.rows(chunk, queue.id)
        if not absent:
            self._take(queue, present)
            return True
        most = self._engine.fetches.portion
        bodies.shrink(most - bodies.budget.kept_back)
        bodies.loading.add(most)

        def done(rows: Rows) -> None:
            bodies.loading.add(-most)
            upto = rows.lsns[-1] if len(rows) and rows.lsns[-1] < absent[-1] else chunk[-1]
            both = merged(present, rows) if len(present) else rows
            came = bisect_right(chunk, upto)
            if came < len(chunk):
                self._unread.append((queue, chunk[came:]))
            self._came.append((queue, first_of(both, bisect_right(both.lsns, upto))))
            again()

        self._engine.read_cold(as_chunk(absent), done, most)
        return False

    def _take(self, queue: Queue, rows: Rows) -> None:
        """Bodies are there.  Raises MemoryShort and PreconditionFailed for too many bytes."""
        size = sum(map(len, rows.bodies))
        self._size += size
        batch = self._transaction.batch
        whole = self._size + (batch.size if batch is not None else 0)
        if whole > TRANSACTION_BYTES_MAX:
            raise PreconditionFailed(
                f"nothing of the transaction is done: with its dead letters it has more than {TRANSACTION_BYTES_MAX} "
                "bytes"
            )
        self._charge.add(size)
        before = self._read.get(queue)
        self._read[queue] = rows if before is None else merged(before, rows)
