"""Times of delayed messages, and what a snapshot shares with them."""

from __future__ import annotations

import pytest

from penstock.core.queue.timed import timetable
from penstock.core.queue.timed.timetable import Timetable


def times(table: Timetable) -> list[tuple[list[int], list[int]]]:
    return [(list(lsns), list(times)) for lsns, times in table.items()]


def test_a_copy_stays_as_it_was_when_the_last_block_goes_and_more_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timetable, "PIECE", 2)
    table = Timetable()
    table.add([1, 2], [50, 60])
    table.add([3], [10])
    table.remove(range(2, 3))
    copy = table.copy()
    read = [block.columns() for block in copy.blocks]  # as another thread does, which writes the copy down
    assert table.take(10, 100, 100)[0].tolist() == [3]
    table.add([4], [70])
    assert times(copy) == [([1], [50]), ([3], [10])]
    assert times(table) == [([1], [50]), ([4], [70])]
    assert [lsns.tolist() for lsns, _ in read] == [[1], [3]]


def test_blocks_that_no_copy_has_are_filled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timetable, "PIECE", 2)
    table = Timetable()
    table.add([1, 2], [50, 60])
    table.add([3], [10])
    table.remove(range(2, 4))
    table.add([4], [70])
    assert times(table) == [([1, 4], [50, 70])]
