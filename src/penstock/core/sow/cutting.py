"""Many keys at once out of an index: what is left of each leaf is worked out on a snapshot, in any thread.

The loop then puts the leaves in their places, which is a look at each.  A leaf that was changed since the snapshot is
worked out there; `Cut.behind` says how many these are, so that a thread can look once more before.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

import numpy as np

from penstock.core.sow.index import BATCHED, Index, Ints, Leaf, Numbers, Snapshot, packed_array
from penstock.records.dataclass import dataclass

PIECE = 8192
"""Keys that one record names at most, as far as leaves go into it whole: who watches has work with each."""


@dataclass(frozen=True, slots=True)
class Shorter:
    """A leaf without some of its keys."""

    leaf: Leaf  # as it was
    rest: Leaf | None  # None: nothing is left
    numbers: Numbers  # that go
    lsns: Ints  # of their records


class Cut:
    """Keys that go, all at once.  One thread at a time."""

    def __init__(self, numbers: Numbers | None = None) -> None:
        """numbers: ascending, each once; None: every key."""
        self.numbers = numbers
        self._known: dict[int, Shorter] = {}  # by the identity of the leaf

    def look(self, snapshot: Snapshot) -> Iterator[None]:
        """Work out what is not known yet; a step is one leaf."""
        before, self._known = self._known, {}
        for leaf, mine in self._some(snapshot.leaves):
            known = before.get(id(leaf))
            self._known[id(leaf)] = _without(leaf, mine) if known is None or known.leaf is not leaf else known
            yield

    def behind(self, index: Index) -> int:
        """Leaves that `take` would have to work out, a twentieth of a millisecond each."""
        return sum(self._of(leaf) is None for leaf, _ in self._some(index.leaves))

    def take(self, index: Index) -> Iterator[tuple[Numbers, Ints]]:
        """Take the keys out; those that were there, ascending, and the LSNs of their records, in pieces."""
        if self.numbers is None:
            gone = [Shorter(leaf, None, _numbers(leaf), _lsns(leaf)) for leaf in index.leaves if leaf.numbers]
        else:
            known = ((self._of(leaf), leaf, mine) for leaf, mine in self._some(index.leaves))
            gone = [_without(leaf, mine) if one is None else one for one, leaf, mine in known]
        index.replace({id(one.leaf): one.rest for one in gone}, sum(len(one.numbers) for one in gone))
        return _pieces(gone)

    def _of(self, leaf: Leaf) -> Shorter | None:
        known = self._known.get(id(leaf))
        return known if known is not None and known.leaf is leaf else None

    def _some(self, leaves: Sequence[Leaf]) -> Iterator[tuple[Leaf, Numbers]]:
        """The leaves among whose keys some might be, with those keys; none when every key goes."""
        some = [leaf for leaf in leaves if leaf.numbers]
        if self.numbers is None or not some:
            return
        first = np.array([leaf.numbers[0] for leaf in some], dtype=np.uint64)
        last = np.array([leaf.numbers[-1] for leaf in some], dtype=np.uint64)
        low = np.searchsorted(self.numbers, first).tolist()
        high = np.searchsorted(self.numbers, last, "right").tolist()
        for leaf, a, b in zip(some, low, high, strict=True):
            if a < b:
                yield leaf, self.numbers[a:b]


def drop_many(index: Index, numbers: Numbers) -> list[int]:
    """Take out keys, each once and in any order; the LSNs that they had."""
    if len(numbers) < BATCHED or len(numbers) < BATCHED * len(index.leaves) // 8:
        return [lsn for number in numbers.tolist() if (lsn := index.drop(number))]
    return [lsn for _, lsns in Cut(np.sort(numbers)).take(index) for lsn in lsns.tolist()]


def _without(leaf: Leaf, mine: Numbers) -> Shorter:
    """`mine`: ascending, between the first and the last key of the leaf."""
    numbers = np.frombuffer(leaf.numbers, dtype=np.uint64)
    lsns = np.frombuffer(leaf.lsns, dtype=np.int64)
    at = np.searchsorted(numbers, mine)
    at = at[numbers[at] == mine]
    if not len(at):
        return Shorter(leaf, leaf, numbers[:0].copy(), lsns[:0].copy())
    keep = np.ones(len(numbers), dtype=bool)
    keep[at] = False
    rest: Leaf | None = None
    if len(at) < len(numbers):
        times: array[int] = array("q")
        if leaf.deadlines:
            times = packed_array("q", np.frombuffer(leaf.deadlines, dtype=np.int64)[keep])
        left = lsns[keep]
        rest = Leaf(packed_array("Q", numbers[keep]), packed_array("q", left), times, leaf.due)
        rest.low = int(left.min())
    return Shorter(leaf, rest, numbers[at], lsns[at])


def _numbers(leaf: Leaf) -> Numbers:
    return np.frombuffer(leaf.numbers, dtype=np.uint64)


def _lsns(leaf: Leaf) -> Ints:
    return np.frombuffer(leaf.lsns, dtype=np.int64)


def _pieces(gone: Sequence[Shorter]) -> Iterator[tuple[Numbers, Ints]]:
    gathered: list[Shorter] = []
    size = 0
    for one in gone:
        if gathered and size + len(one.numbers) > PIECE:
            yield _joined(gathered)
            gathered, size = [], 0
        if len(one.numbers):
            gathered.append(one)
            size += len(one.numbers)
    if gathered:
        yield _joined(gathered)


def _joined(gone: Sequence[Shorter]) -> tuple[Numbers, Ints]:
    return np.concatenate([one.numbers for one in gone]), np.concatenate([one.lsns for one in gone])
