"""Many keys out of an index at once: the same as one after the other, whatever changes between the look and the cut."""

from __future__ import annotations

from array import array
from typing import cast

import numpy as np
import pytest

from penstock.core.arena import Move
from penstock.core.sow import holding
from penstock.core.sow.holding import Cut, drop_many
from penstock.core.sow.index import NEVER, Index

N = 20_000


def filled(rng: np.random.Generator, *, expiring: bool) -> Index:
    numbers = np.unique(rng.integers(0, 2**64, N, dtype=np.uint64))
    due = rng.integers(0, 3, len(numbers), dtype=np.int64) * 1000 if expiring else None
    index = Index()
    index.put_many(numbers, rng.permutation(len(numbers)).astype(np.int64) + 1, due)
    return index


def there(index: Index) -> list[list[int]]:
    return [list(column) for column in index.snapshot().packed()]


def lows_hold(index: Index) -> bool:
    """Each key is found where it lies."""
    numbers, lsns, _ = index.snapshot().packed()
    return all(index.get(number) == lsn for number, lsn in zip(numbers[::97], lsns[::97], strict=True))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("share", [0.001, 0.4, 1.0])
def test_a_cut_is_what_drops_one_by_one_are(seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    index = filled(rng, expiring=bool(seed % 2))
    model = Index.load(*index.snapshot().packed())
    numbers = np.frombuffer(index.snapshot().packed()[0], dtype=np.uint64)
    strange = rng.integers(0, 2**64, 100, dtype=np.uint64)
    mine = np.unique(np.concatenate([numbers[rng.random(len(numbers)) < share], strange]))
    cut = Cut(mine)
    for _ in cut.look(index.snapshot()):
        pass
    assert cut.behind(index) == 0
    for each in (index, model):  # others publish and remove meanwhile
        each.put(int(mine[0]), 10**6, 5)
        each.put(int(mine[-1]) ^ 1, 10**6 + 1)
        each.drop(int(numbers[len(numbers) // 2]))
    assert 0 < cut.behind(index) <= 3
    if seed % 3 == 0:
        for _ in cut.look(index.snapshot()):
            pass
        assert cut.behind(index) == 0
    index.page(cast("Move", Nothing()))  # leaves stay, and count as looked at
    gone = {int(n): int(lsn) for a, b in cut.take(index) for n, lsn in zip(a, b, strict=True)}
    assert gone == {number: lsn for number in mine.tolist() if (lsn := model.drop(number))}
    assert there(index) == there(model)
    assert (index.count, index.oldest()) == (model.count, model.oldest())
    assert lows_hold(index)
    assert sorted(index.overdue(10**9, N)[1]) == sorted(model.overdue(10**9, N)[1])
    index.put(7, 8)
    assert index.get(7) == 8


class Nothing:
    """An arena without room."""

    room = 0

    def takes(self, values: object) -> bool:
        return False


def test_every_key_goes_and_the_index_goes_on() -> None:
    index = filled(np.random.default_rng(1), expiring=False)
    before = there(index)
    cut = Cut()
    assert cut.behind(index) == 0
    pieces = list(cut.take(index))
    assert max(len(numbers) for numbers, _ in pieces) <= holding.PIECE
    assert [one for numbers, _ in pieces for one in numbers.tolist()] == before[0]
    assert [one for _, lsns in pieces for one in lsns.tolist()] == before[1]
    assert (index.count, index.oldest(), there(index)) == (0, NEVER, [[], [], []])
    index.put(5, 6)
    assert (index.get(5), index.count) == (6, 1)
    assert list(Cut().take(Index())) == []


@pytest.mark.parametrize("count", [3, 5000])
def test_few_keys_and_many_are_dropped_alike(count: int) -> None:
    rng = np.random.default_rng(count)
    index = filled(rng, expiring=False)
    model = Index.load(*index.snapshot().packed())
    mine = rng.permutation(np.frombuffer(index.snapshot().packed()[0], dtype=np.uint64))[:count]
    assert sorted(drop_many(index, mine)) == sorted(model.drop(int(number)) for number in mine)
    assert there(index) == there(model)
    assert drop_many(index, mine) == []
    assert drop_many(index, np.frombuffer(array("Q"), dtype=np.uint64)) == []
