"""The main order of a queue: what is taken from its middle, a few at a time or many at once."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from penstock.core.queue.order.main_order import FEW, HOLES_MOST, Main
from penstock.records.chunks import Chunk, as_chunk

MANY = 20_000


def holding(*chunks: Chunk) -> Main:
    main = Main()
    for chunk in chunks:
        main.append(chunk)
    return main


def everything(main: Main) -> list[int]:
    return [lsn for chunk in main.chunks() for lsn in chunk]


def test_what_is_taken_one_by_one_leaves_holes_and_few_pieces() -> None:
    main = holding(range(1, MANY + 1))
    left = list(range(1, MANY + 1))
    random.Random(7).shuffle(left)
    for _ in range(MANY // 2):
        lsn = left.pop()
        (run,) = main.extract(as_chunk([lsn]))
        assert list(run.chunk) == [lsn]
        assert len(main.holes) <= HOLES_MOST
        assert len(main.segments) < MANY / 64
    assert everything(main) == sorted(left)
    assert main.count == len(left)


@pytest.mark.parametrize("size", [1, FEW, FEW + 1, 200])
def test_few_and_many_take_the_same(size: int) -> None:
    dice = random.Random(size)
    main = holding(range(10, 400), range(500, 900), as_chunk(list(range(901, 1500, 3))))
    expected = everything(main)
    for _ in range(30):
        wanted = sorted(dice.sample(range(1, 1600), size))
        taken = [lsn for run in main.extract(as_chunk(wanted)) for lsn in run.chunk]
        assert taken == [lsn for lsn in expected if lsn in set(wanted)]
        expected = [lsn for lsn in expected if lsn not in set(taken)]
        assert main.count == len(expected)
        if expected:
            assert main.head() == expected[0]
    assert everything(main) == expected
    assert all(a < b for a, b in pairwise(expected))


def test_what_is_not_there_is_not_taken() -> None:
    main = holding(range(10, 20))
    assert main.extract(as_chunk([3])) == []
    assert main.extract(as_chunk([25])) == []
    assert [list(run.chunk) for run in main.extract(as_chunk([10, 12, 30]))] == [[10], [12]]
    assert main.extract(as_chunk([12])) == []
    assert everything(main) == [11, *range(13, 20)]


def test_the_first_after_a_place_is_found_behind_what_was_taken_from_the_middle() -> None:
    main = holding(range(10, 20), range(30, 40))
    main.extract(as_chunk([13, 14, 15]))
    assert list(main.after(12, 1)) == [16], "what is gone does not count"
    assert list(main.after(10, 4)) == [11, 12, 16, 17]
    assert list(main.some(12, 31, 7)) == [12, 16, 17, 18, 19, 30]
    assert list(main.some(13, 16, 2)) == []


def test_some_of_it_are_the_first_of_all_between() -> None:
    dice = random.Random(5)
    main = holding(range(10, 100), range(150, 200), as_chunk(list(range(201, 300, 3))))
    left = [*range(10, 100), *range(150, 200), *range(201, 300, 3)]
    for _ in range(100):
        gone = left.pop(dice.randrange(len(left)))
        main.extract(as_chunk([gone]))
        first, count = dice.randrange(320), dice.randrange(60)
        stop = first + dice.randrange(200)
        there = [lsn for lsn in left if first <= lsn < stop]
        assert list(main.some(first, stop, count)) == there[:count]
        assert list(main.between(first, stop)) == there
    assert main.holes
