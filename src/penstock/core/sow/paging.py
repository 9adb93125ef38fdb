"""The page of a paginated subscription: of all records that match, in an order, those between `skip` and `skip + top`.

It keeps a place for each record that matches, not its body.  A change says which records left the page and which came.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from functools import total_ordering

from penstock.core.sow.ordering import Rank, Term, rank
from penstock.expr.tree import Scalar


@total_ordering
class _Down:
    """A rank that sorts from the highest to the lowest."""

    __slots__ = ("rank",)

    def __init__(self, value: Rank) -> None:
        self.rank = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Down) and self.rank == other.rank

    def __hash__(self) -> int:
        return hash(self.rank)

    def __lt__(self, other: _Down) -> bool:
        return bool(other.rank < self.rank)


Place = tuple[tuple[object, ...], int]


class Window:
    """The page of one subscriber."""

    def __init__(self, terms: Sequence[Term], top: int, skip: int) -> None:
        self._down = [term.descending for term in terms]
        self._low, self._high = skip, skip + top
        self._order: list[Place] = []
        self._places: dict[int, Place] = {}  # by key's number
        self._lsns: dict[int, int] = {}

    def fill(self, rows: Sequence[tuple[int, int, Sequence[Scalar]]]) -> list[int]:
        """All records that match: key's number, LSN, the value of each term.  The LSNs of the page, in order."""
        for number, lsn, values in rows:
            self._places[number] = self._place(number, values)
            self._lsns[number] = lsn
        self._order = sorted(self._places.values())
        return [self._lsns[number] for number in self.page()]

    def page(self) -> list[int]:
        """The keys' numbers on the page, in order."""
        return [number for _, number in self._order[self._low : self._high]]

    def has(self, number: int) -> bool:
        """Whether a record is on the page."""
        place = self._places.get(number)
        return place is not None and self._low <= bisect_left(self._order, place) < self._high

    def change(self, number: int, lsn: int, values: Sequence[Scalar] | None) -> tuple[list[int], list[int]]:
        """A record matches with these values, or (None) no longer.

        Returns the keys that left the page, and the LSNs of records that came to it, without `number` itself.
        """
        before = set(self.page())
        place = self._places.pop(number, None)
        if place is not None:
            del self._order[bisect_left(self._order, place)]
            del self._lsns[number]
        if values is not None:
            place = self._places[number] = self._place(number, values)
            self._lsns[number] = lsn
            insort(self._order, place)
        after = self.page()
        came = [self._lsns[one] for one in after if one not in before and one != number]
        return sorted(before.difference(after) - {number}), came

    def lsn(self, number: int) -> int:
        """Where a record that matches is."""
        return self._lsns[number]

    def _place(self, number: int, values: Sequence[Scalar]) -> Place:
        ranks = [rank(value) for value in values]
        return tuple(_Down(one) if down else one for one, down in zip(ranks, self._down, strict=True)), number
