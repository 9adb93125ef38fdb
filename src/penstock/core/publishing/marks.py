"""A property that some messages have, whatever queue they wait in: LSN spans that grow at the end.

Used for what only a later start or a later death needs to know (transient, written as a dead letter), so that queues do
not carry it.  Spans of which no message waits any more are forgotten when the durable state is taken.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.core.state.lsns import Ints, chunked, ints, to_array
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

    def add_older(self, lsns: Ints) -> None:
        """These have it, ascending, older than what was published last; they may be known or forgotten already."""
        new = lsns[~self.among(lsns)]
        if len(new):
            spans = np.concatenate((ints(self.pairs).reshape(-1, 2), np.stack((new, new + 1), axis=1)))
            self._bridge = self._bridge and len(self.pairs) > 0 and int(new[-1]) < self.pairs[-1]
            self.pairs = to_array(spans[np.argsort(spans[:, 0], kind="stable")].reshape(-1))

    def has(self, lsn: int) -> bool:
        """Whether this message has it."""
        return bisect_right(self.pairs, lsn) % 2 == 1

    def among(self, lsns: Ints) -> npt.NDArray[np.bool_]:
        """Which of the ascending LSNs have it."""
        return (np.searchsorted(ints(self.pairs), lsns, side="right") & 1).astype(bool)

    def retain(self, used: npt.NDArray[np.bool_], upto: int) -> None:
        """Forget those of the first spans that nobody needs, if they end at `upto` or before."""
        held = ints(self.pairs).reshape(-1, 2)
        count = min(len(used), int(np.searchsorted(held[:, 1], upto + 1, side="right")))
        if not used[:count].all():
            keep = np.ones(len(held), dtype=bool)
            keep[:count] = used[:count]
            self._bridge = self._bridge and bool(keep[-1])  # the last span left is not the last published
            self.pairs = to_array(held[keep].reshape(-1))

    def reset(self, lsns: Ints) -> None:
        """Of the messages published so far these alone matter any more; ascending."""
        self.pairs = array("q")
        for chunk in chunked(lsns):
            self.pairs.extend(pairs_of(chunk, False))
        self._bridge = False
