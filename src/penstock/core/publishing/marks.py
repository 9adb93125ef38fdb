"""A property that some messages have, whatever queue they wait in: LSN spans that grow at the end.

Used for what only a later start or a later death needs to know (transient, written as a dead letter), so that queues do
not carry it.  Spans of messages that are gone are forgotten when the durable state is taken.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence

from penstock.core.state.durable import Ints, chunked, spread
from penstock.records.chunks import pairs_of


class Marks:
    """Messages with the property: those published in [a, b) for each pair a, b."""

    __slots__ = ("_bridge", "pairs")

    def __init__(self) -> None:
        self.pairs = array("q")
        self._bridge = False  # nothing without the property was published since the last span

    def __bool__(self) -> bool:
        return bool(self.pairs)

    def add(self, a: int, b: int) -> None:
        """The messages in [a, b) have it; the span joins the one before if only control records lie between."""
        if self.pairs and (self._bridge or self.pairs[-1] == a):
            self.pairs[-1] = b
        else:
            self.pairs.extend((a, b))
        self._bridge = True

    def part(self) -> None:
        """A message without the property was published."""
        self._bridge = False

    def add_rows(self, first: int, flags: Sequence[bool]) -> None:
        """New messages from `first` on; `flags`: which have it."""
        for lsn, flag in enumerate(flags, first):
            if flag:
                self.add(lsn, lsn + 1)
            else:
                self._bridge = False

    def has(self, lsn: int) -> bool:
        """Whether this message has it."""
        return bisect_right(self.pairs, lsn) % 2 == 1

    def column(self, lsns: Ints) -> Ints:
        """1 for each of the ascending LSNs that has it, else 0."""
        pairs = self.pairs
        return spread(
            lsns, array("q", [value for i in range(0, len(pairs), 2) for value in (pairs[i], pairs[i + 1], 1)])
        )

    def reset(self, lsns: Ints) -> None:
        """Of the messages published so far these alone matter any more; ascending."""
        self.pairs = array("q")
        for chunk in chunked(lsns):
            self.pairs.extend(pairs_of(chunk, False))
        self._bridge = False
