"""Which queries a server remembers, and for how long: a bound for each kind, so that old ones do not add up.

A query of a stream may come back after any time, so age alone never ends it: `KEPT` of them are remembered, and beyond
that those that committed longest ago are forgotten.  A batch write has one batch and a name of its own, and asks again
only while its driver waits for the answer: it is forgotten after a day, and when there are more than `WRITES_KEPT`,
the oldest first, as soon as nobody can be waiting any more.  A batch that is not copied to its end keeps its query.
Whoever has more than half of what is remembered is the first to lose some, so that no user makes others forget theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping

from penstock.core.state.decided import SinkMark

SHARE = 2
"""Queries of one user are forgotten first beyond what is kept divided by this."""

KEPT = 10_000
"""Queries of streams that are remembered, about."""

AT_ONCE = 500
"""Queries that one record forgets at most."""

WRITES_KEPT = 10_000
"""Batch writes that are remembered, about; those of the last `WAITED_US` on top."""

ONCE_US = 86_400_000_000
"""How long a batch write is remembered; a start begins the time anew."""

WAITED_US = 3_600_000_000
"""How long the driver of a batch write may wait for the answer, whatever patience it has: by then nobody does."""


class Remembered:
    """The highest committed batch of each query, and what else is known of it."""

    def __init__(self) -> None:
        self.batches: dict[str, int] = {}
        self.marks: dict[str, SinkMark] = {}
        self._lasting: dict[str, None] = {}  # queries of streams, in the order of their last commit
        self._once: dict[str, int] = {}  # batch writes in their order, and when they committed; 0: before this process

    def load(self, batches: Mapping[str, int], marks: Mapping[str, SinkMark]) -> None:
        """Go on from a durable state."""
        self.batches = dict(batches)
        self.marks = dict(marks)
        for query in sorted(batches, key=lambda one: marks[one].lsn if one in marks else 0):
            mark = marks.get(query)
            if mark is not None and mark.once:
                self._once[query] = 0
            else:
                self._lasting[query] = None

    def add(self, wall: int, query: str, batch: int, mark: SinkMark, keep: Container[str]) -> list[str]:
        """Note a commit at `wall` microseconds; the queries that are forgotten for it, but for those in `keep`."""
        self.batches[query] = batch
        self.marks[query] = mark
        if mark.once:
            self._once.pop(query, None)
            self._once[query] = wall
        else:
            self._lasting.pop(query, None)
            self._lasting[query] = None
        return self._forget(wall, keep)

    def _forget(self, wall: int, keep: Container[str]) -> list[str]:
        gone: list[str] = []
        few = AT_ONCE // 5  # they go a few at a time, and not with every commit
        many = len(self._once) - WRITES_KEPT
        over = many if many >= few else 0
        for query, time in self._once.items():
            if not time:
                self._once[query] = wall
            elif time + (WAITED_US if len(gone) < over else ONCE_US) > wall or len(gone) == AT_ONCE:
                break
            elif query not in keep:
                gone.append(query)
        excess = len(self._lasting) - KEPT
        if excess >= few:
            gone += self._oldest(min(excess, AT_ONCE - len(gone)), keep)
        for query in gone:
            self.batches.pop(query)
            self.marks.pop(query)
            self._once.pop(query, None)
            self._lasting.pop(query, None)
        return gone

    def _oldest(self, count: int, keep: Container[str]) -> list[str]:
        """So many queries of streams, those of who has more than his share first."""
        left = Counter(self.owner(query) for query in self._lasting)
        gone = dict[str, None]()
        for query in self._lasting:
            owner = self.owner(query)
            if len(gone) < count and left[owner] > KEPT // SHARE and query not in keep:
                gone[query] = None
                left[owner] -= 1
        for query in self._lasting:
            if len(gone) < count and query not in keep:
                gone[query] = None
        return list(gone)

    def owner(self, query: str) -> str:
        """Whose it is; "" for nobody's, and for one that is not known."""
        mark = self.marks.get(query)
        return "" if mark is None else mark.user
