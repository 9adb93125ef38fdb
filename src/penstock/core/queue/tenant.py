"""One tenant of a queue: what of one key may be delivered, in the queue's order, and how much is out.

Whose turn it is, and how much each gets, is `tenants`' to say.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.queue.limits import Pace
from penstock.core.queue.order.main_order import Main
from penstock.core.queue.order.priority import PriorityOrder
from penstock.core.queue.order.ranks import Ranks
from penstock.core.queue.order.returned import PriorityReturned, Returned, take_oldest
from penstock.core.queue.order.runs import END, NEVER, Key, Run
from penstock.core.queue.settling.attempts import FRESH
from penstock.records.chunks import Chunk


class Tenant:
    """One key: what of it may be delivered, and what is out."""

    __slots__ = ("_newest", "deficit", "leased", "main", "number", "pace", "ranks", "returned", "standing", "weight")

    def __init__(self, number: int, weight: float, pace: Pace | None, ranks: Ranks | None) -> None:
        self.number = number
        self.weight = weight
        self.pace = pace
        self.deficit = 0.0
        self.leased = 0
        self.standing = False  # in the ring
        self.ranks = ranks  # priorities, those of the queue
        self._newest = 0  # of those that were added
        self.main = Main() if ranks is None else PriorityOrder(ranks)
        self.returned: Returned | None = None

    @property
    def count(self) -> int:
        """Messages that could be delivered."""
        return self.main.count + (self.returned.count if self.returned is not None else 0)

    def head(self) -> Key:
        """Where its first message stands."""
        first = self.main.key() if self.main.count else END
        return first if self.returned is None or not self.returned.count else min(first, self.returned.head())

    def add(self, chunk: Chunk) -> bool:
        """New messages, behind all that are here; False: some here are newer."""
        main = self.main
        if self.ranks is None:
            if chunk[0] <= main.last():
                return False
        elif main.count and chunk[0] <= self._newest:
            return False
        self._newest = chunk[-1]
        main.append(chunk, solid=False)
        return True

    def put(self, run: Run) -> None:
        """A run at its place."""
        if run.tally == FRESH and not run.place and self.add(run.chunk):
            return
        if self.returned is None:
            self.returned = Returned() if self.ranks is None else PriorityReturned(self.ranks)
        run.solid = False
        self.returned.push(run)

    def take(self, count: int) -> list[Run]:
        """The first so many, which there are."""
        returned = self.returned
        if returned is None or not returned.count:
            return self.main.take(count)
        return take_oldest(self.main, returned, count)

    def runs(self) -> Iterable[Run]:
        """What came back, or became due."""
        return () if self.returned is None else self.returned.runs()

    def floor(self) -> int:
        """No message of it is older."""
        main = self.main.lowest() if self.main.count else NEVER
        return main if self.returned is None or not self.returned.count else min(main, self.returned.lowest())

    def extract(self, wanted: Chunk) -> list[Run]:
        """Take those of the wanted that are here."""
        out = self.main.extract(wanted)
        if self.returned is not None:
            out += self.returned.extract(wanted)
        return out
