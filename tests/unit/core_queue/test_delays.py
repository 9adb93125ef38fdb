"""Times of delayed messages, and what a snapshot shares with them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from choices import spread
from penstock.core.queue import timetable
from penstock.core.queue.delays import Delays, Schedule
from penstock.core.queue.order.runs import NEVER
from penstock.core.queue.timetable import Timetable
from penstock.records.chunks import as_chunk


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


@pytest.mark.parametrize("moved", [[1], [2], [1, 2], [1, 2, 3], [3], []])
@pytest.mark.parametrize("removed", [[3], [2, 3], [4], []])
@pytest.mark.parametrize("kind", [Timetable, Schedule])
def test_a_copy_stays_as_it_was_when_times_change_and_more_comes(
    monkeypatch: pytest.MonkeyPatch, kind: type[Timetable], removed: list[int], moved: list[int]
) -> None:
    monkeypatch.setattr(timetable, "PIECE", 2)
    table = kind()
    table.add([1, 2], [10, 20])
    table.add([3], [30])
    copy = table.copy()
    monkeypatch.setattr(timetable, "PIECE", 100)
    if removed:
        table.remove(as_chunk(removed))
    if moved:
        table.move(as_chunk(moved), 50)
    table.add([5], [60])
    assert [(list(lsns), list(times)) for lsns, times in copy.items()] == [([1, 2], [10, 20]), ([3], [30])]
    left = {lsn: 50 if lsn in moved else 10 * lsn for lsn in (1, 2, 3) if lsn not in removed} | {5: 60}
    told = ((lsn, time) for lsns, times in table.items() for lsn, time in zip(lsns, times, strict=True))
    assert dict(told) == left
    assert [table.time_of(lsn) for lsn in range(7)] == [left.get(lsn, -1) for lsn in range(7)]


def test_blocks_that_no_copy_has_are_filled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timetable, "PIECE", 2)
    table = Timetable()
    table.add([1, 2], [50, 60])
    table.add([3], [10])
    table.remove(range(2, 4))
    table.add([4], [70])
    assert times(table) == [([1, 4], [50, 70])]


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("NEAR", 4), ("MANY", 16), ("SIFT", 40)):
        monkeypatch.setattr(f"{Schedule.__module__}.{name}", value)
    monkeypatch.setattr(timetable, "PIECE", 8)


@pytest.mark.parametrize("seed", spread(range(40), 14))
def test_whatever_is_due_and_however_much_it_comes_by_time_and_then_by_number(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch)
    dice = random.Random(seed)
    table, model, left_out, last, wall = Schedule(), dict[int, int](), list[int](), 0, 0
    spread = dice.choice((3, 50, 10_000))
    for _ in range(120):
        choice = dice.random()
        if choice < 0.45:
            new = range(last + 2, last + 2 + dice.choice((1, 5, 60)))
            left_out.append(last + 1)
            last = new[-1]
            reach = dice.choice((spread, spread, 1 + spread // 20))  # some is due before what stood next
            due = [wall + 1 + dice.randrange(reach) for _ in new]
            table.add(new, due)
            model.update(zip(new, due, strict=True))
        elif choice < 0.5 and model:
            gone = range(dice.choice(list(model)), last + 1, 1)[: dice.randrange(1, 20)]
            assert sorted(table.remove(gone)[0].tolist()) == sorted(lsn for lsn in gone if model.pop(lsn, None))
        elif choice < 0.55 and model:
            moved = range(dice.choice(list(model)), last + 1)[: dice.randrange(1, 20)]
            when = wall + 1 + dice.randrange(spread)
            table.move(moved, when)
            model.update({lsn: when for lsn in moved if lsn in model})
        elif choice < 0.6 and left_out:
            older = {lsn: wall + 1 + dice.randrange(spread) for lsn in sorted(left_out[-3:])}
            del left_out[-3:]
            table.add_older(np.array([*older]), np.array([*older.values()]))
            model.update(older)
        else:
            wall += dice.choice((0, 1, spread // 20, spread // 3, spread))
        assert table.count == len(model)
        assert table.next_after(0) == min(model.values(), default=NEVER)
        for _ in range(dice.choice((1, 1, 30))):  # now and then until nothing is due
            found = table.take(wall, 8, 8)
            taken = list(zip(found[1].tolist(), found[0].tolist(), strict=True))
            wanted = sorted((when, lsn) for lsn, when in model.items() if when <= wall)
            assert taken == wanted[: len(taken)]
            for _, lsn in taken:
                del model[lsn]
    steps = 0
    while model:
        found = table.take(1 << 40, 8, 8)
        for lsn in found[0].tolist():
            del model[lsn]
        steps += 1
        assert steps < 2000


def test_after_a_long_stop_no_step_looks_at_more_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    dice = random.Random(1)
    table = Schedule()
    for start in range(0, 2000, 8):
        table.add(range(start + 1, start + 9), [1 + dice.randrange(100_000) for _ in range(8)])
    last, steps = 0, 0
    while table.count:
        before = {id(block): block for block in table.blocks}
        lsns, times_of = table.take(100_000, 8, 8)
        after = {id(block) for block in table.blocks}
        touched = sum(len(block.lsns) for key, block in before.items() if key not in after)
        assert touched <= 40 + 8 + 4 * 16  # SIFT, the block it ended in, and those that stand apart
        assert all(times_of[1:] >= times_of[:-1])
        assert len(lsns) == 0 or times_of[0] >= last
        last = int(times_of[-1]) if len(lsns) else last
        steps += 1
    assert steps < 2000 / 8 * 10


@pytest.mark.parametrize("seed", spread(range(20), 8))
def test_what_is_due_and_not_very_much_comes_in_one_step(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{Schedule.__module__}.NEAR", 1)
    chance = random.Random(seed)
    delays, due, lsn, wall = Delays(), dict[int, int](), 0, 1
    for _ in range(60):
        for _ in range(chance.randrange(5)):
            lsn += 1
            due[lsn] = wall + chance.choice((3, 3, 5, 20))
            delays.schedule([lsn], [due[lsn]])
        if due and chance.random() < 0.3:
            moved = chance.choice(sorted(due))
            due[moved] = max(1, wall + chance.randrange(-2, 9))
            delays.move(range(moved, moved + 1), due[moved])
        wall += chance.choice((0, 1, 4, 30))
        assert delays.pop_retries(wall) == []
        come = [one for chunk in delays.pop_scheduled(wall) for one in chunk]
        assert come == sorted((one for one, when in due.items() if when <= wall), key=lambda one: (due[one], one))
        for one in come:
            del due[one]
        assert delays.due == min(due.values(), default=NEVER)
