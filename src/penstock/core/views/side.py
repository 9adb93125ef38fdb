"""One source of a joined view: it hears what a view hears, and its rows go into the join."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.views.joins import Join
from penstock.core.views.view import Changed, Elements, Given, View
from penstock.expr.fields import Table
from penstock.records.chunks import LSN_LIMIT


class Side:
    """Stands where a view of one source stands."""

    def __init__(self, join: Join, place: int) -> None:
        self._join = join
        self._place = place

    def read(self, elements: Elements) -> Given:
        """As `View.read`.  Any thread."""
        return Given(elements.lsns, [elements.records], elements.states)

    def enter(self, given: Given) -> None:
        """As `View.enter`."""
        records: list[Table] = list(given.values[0])  # type: ignore[arg-type]  # what `read` put there
        self._join.enter(self._place, given.lsns, records, given.states)

    def leave(self, pairs: Iterable[int]) -> None:
        """As `View.leave`."""
        self._join.leave(self._place, pairs)

    def back(self, pairs: Iterable[int]) -> None:
        """As `View.back`."""
        self._join.back(self._place, pairs)

    def activate(self, pairs: Iterable[int]) -> None:
        """As `View.activate`: what was inactive was there and not available."""
        self._join.back(self._place, pairs)

    def gone(self, pairs: Iterable[int]) -> None:
        """As `View.gone`."""
        self._join.gone(self._place, pairs)

    def measure(self, low: int, high: int, most: int) -> tuple[int, int]:
        """As `View.measure`."""
        return self._join.measure(self._place, low, high, most)

    def clear(self) -> None:
        """As `View.clear`."""
        self._join.gone(self._place, (0, LSN_LIMIT))

    def flush(self) -> list[Changed]:
        """It has no rows of its own."""
        return []


def bring(join: Join, view: View) -> None:
    """Bring what changed in the join to the view over it."""
    gone, ids, records, ranks = join.changes()
    view.gone([end for one in sorted(gone) for end in (one, one + 1)])
    if ids:
        view.enter(view.read(Elements(ids, records, ranks=ranks)))
