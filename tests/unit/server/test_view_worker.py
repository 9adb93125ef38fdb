"""Steps of views in portions."""

from __future__ import annotations

from bisect import bisect_left
from types import SimpleNamespace
from typing import cast

from penstock.core.view_feed import Moved
from penstock.server.views.builder import PORTION, portion
from penstock.server.views.shown import Live


class Held:
    """A view of which only the LSNs matter."""

    def __init__(self, lsns: list[int]) -> None:
        self.lsns = lsns

    def measure(self, low: int, high: int, most: int) -> tuple[int, int]:
        """As `Contributions.measure`."""
        start, stop = bisect_left(self.lsns, low), bisect_left(self.lsns, high)
        return (self.lsns[start + most], most) if stop - start > most else (high, stop - start)


def test_each_portion_goes_on_when_several_views_have_used_up_the_room() -> None:
    pairs = [end for lsn in range(0, 2 * (PORTION // 3 + 1), 2) for end in (lsn, lsn + 1)]
    lives = [cast("Live", SimpleNamespace(into=Held(list(range(len(pairs)))))) for _ in range(3)]
    rest: Moved | None = Moved(1, "gone", pairs, 9)
    done = list[int]()
    for _ in range(10):
        if rest is None:
            break
        step, rest = portion(lives, rest)
        done += step.pairs
    assert rest is None
    assert done == pairs
