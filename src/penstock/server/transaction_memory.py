"""What open transactions have in memory: together, of each user, and who gives way when others find no room.

Knows no door, and not what is in a transaction.  All of it belongs to the loop's thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from penstock.errors import MemoryShort
from penstock.memory import PATIENCE_US, Held

if TYPE_CHECKING:
    from penstock.server.base.runtime import Runtime

SHARE = 4
"""Open transactions together may have the budget's share of one in so many."""


LACKING_US = 3 * PATIENCE_US
"""So long after a transaction found no room others that stand still may have to make some."""


class Charge:
    """What one open transaction has in memory, as the budget knows it."""

    __slots__ = ("_charges", "_over", "_why", "busy", "bytes", "cut", "ended", "name", "user")

    def __init__(self, charges: Charges, user: str, name: str, cut: Callable[[MemoryShort], object]) -> None:
        """name: of the transaction, for who is told.  cut: called when it has to give way."""
        self._charges = charges
        self._over = False  # whoever had it is gone: what is still read for it counts no more
        self._why: MemoryShort | None = None  # why it had to give way
        self.user, self.name, self.cut = user, name, cut
        self.bytes = 0
        self.ended = 0  # how often it was over, for another to begin
        self.busy = False  # it is being committed, and waits for us

    def add(self, size: int) -> None:
        """Charge more bytes.  Raises MemoryShort when it had to give way, or open transactions have too many."""
        if self._why is not None:
            raise self._why
        if not self._over:
            self._charges.add(self, size)

    def first(self, go_on: Callable[[], None]) -> bool:
        """Whether no other has it wait; else `go_on` is called when it is its time.  It goes before others to its end.

        What a long commit needs is read for one at a time: of many that go on by turns each had all of it in memory.
        """
        return self._charges.first(self, go_on)

    def end(self) -> None:
        """The transaction is over; its connection may begin another."""
        self._charges.give(self)
        self.ended += 1
        self.busy = False

    def close(self) -> None:
        """The transaction is over, and its connection begins no more."""
        self.end()
        self._over = True

    def check(self) -> None:
        """Raises MemoryShort when it had to give way."""
        if self._why is not None:
            raise self._why

    def give_way(self, error: MemoryShort) -> None:
        """Drop the transaction for want of memory; its next command is refused with this reason."""
        self._why = error
        self.close()
        self.cut(error)


class Charges:
    """Those of all open transactions.

    Together they may have a quarter of the budget, those of one user half of that, but for his only one.  Where one was
    refused, who stands still makes room for the next (`penstock.memory`): of the user who has most, his largest.
    """

    def __init__(self, runtime: Runtime) -> None:
        budget = runtime.bodies.budget
        self._most = budget.limit // SHARE
        self._account = budget.account("transactions")
        self._mono = runtime.clock.mono
        self._open: dict[Charge, None] = {}
        self._of_user = Counter[str]()
        self._first: Charge | None = None  # of a long commit, which the others in the line wait for
        self._line: dict[Charge, Callable[[], None]] = {}
        self._turns = runtime.turns
        self._refused = self._refused_at = 0  # bytes that there was no room for lately, and when
        runtime.relief.register("transactions", self._held, self._lacking, self._most)

    def add(self, charge: Charge, size: int) -> None:
        """Raises MemoryShort where that is too much: of the user himself first, for then nobody has to make room."""
        of_user, all_, most = self._of_user[charge.user] + size, self._account.bytes + size, self._most
        if of_user > most // 2 and of_user > charge.bytes + size:
            raise MemoryShort(
                f"open transactions of user '{charge.user}' may have {most // 2} bytes of memory together, and have "
                f"{of_user - size}: there is no room for {size} more, and this one is rolled back"
            )
        if all_ > most:
            if size + charge.bytes <= most:
                self._refused, self._refused_at = size + charge.bytes, self._mono()
            raise MemoryShort(
                f"open transactions may have {most} bytes of memory together, and have {all_ - size}: "
                f"there is no room for {size} more, and this one is rolled back"
            )
        self._open[charge] = None
        self._account.add(size)
        self._of_user[charge.user] += size
        charge.bytes += size

    def first(self, charge: Charge, go_on: Callable[[], None]) -> bool:
        """See `Charge.first`."""
        self._first = self._first or charge
        if self._first is not charge:
            self._line[charge] = go_on
        return self._first is charge

    def give(self, charge: Charge) -> None:
        """The transaction is over: it has nothing more."""
        self._line.pop(charge, None)
        if self._first is charge:
            self._first = next(iter(self._line), None)
            if self._first is not None:
                self._turns.wait(self._line.pop(self._first))
        if self._open.pop(charge, charge) is not charge:
            self._account.add(-charge.bytes)
            self._of_user[charge.user] -= charge.bytes
            if not self._of_user[charge.user]:
                del self._of_user[charge.user]
            charge.bytes = 0

    def _held(self) -> Iterator[Held]:
        for one in list(self._open):
            if not one.busy:
                yield Held(one, one.user, one.name, one.bytes, one.ended, one.give_way)

    def _lacking(self) -> int:
        """Bytes that are missing for what was refused lately."""
        if not self._refused or self._mono() - self._refused_at > LACKING_US:
            return 0
        return max(0, self._account.bytes + self._refused - self._most)
