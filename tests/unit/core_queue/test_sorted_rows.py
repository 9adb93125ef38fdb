"""Sorted rows in blocks: put in one by one, in parts or many at once, they stand where their keys say."""

from __future__ import annotations

import random

import numpy as np
import pytest

from penstock.core.queue.order import sorted_rows
from penstock.core.queue.order.sorted_rows import SortedRows


@pytest.mark.parametrize(("block", "merge", "spread"), [(4, 3, 1000), (4, 3, 5), (8, 2, 1000), (4, 100, 1000)])
def test_rows_are_in_order_however_they_come(
    block: int, merge: int, spread: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("BLOCK", block), ("MERGE_LEAST", merge), ("SPREAD_MOST", spread)):
        monkeypatch.setattr(sorted_rows, name, value)
    for seed in range(30):
        chance = random.Random(seed)
        rows, wanted, n = SortedRows(3, 2), dict[tuple[int, ...], tuple[int, ...]](), 0
        for _ in range(20):
            some = [
                (chance.randrange(20), n + at, chance.randrange(9)) for at in range(chance.choice((1, 2, 5, 30)))
            ]  # fmt: skip
            n += len(some)
            rows.add_many([np.array(column, dtype=np.int64) for column in zip(*some, strict=True)])
            wanted.update({row[:2]: row for row in some})
            for key in chance.sample(sorted(wanted), min(len(wanted), chance.randrange(6))):
                assert rows.remove(key) == wanted.pop(key)
            first, stop = sorted((chance.randrange(20), chance.randrange(n + 1)) for _ in range(2))
            order, most = sorted(wanted), chance.choice((1, 3, sorted_rows.ALL))
            gone = [key for key in order if first <= key < stop][:most]
            columns = rows.take_between(first, stop, most)
            assert list(zip(*(column.tolist() for column in columns), strict=True)) == [*map(wanted.pop, gone)]
            found = [row for part in rows.blocks() for row in zip(*(column.tolist() for column in part), strict=True)]
            assert found == [wanted[key] for key in sorted(wanted)], seed
            assert rows.count == len(wanted)
            assert not wanted or rows.head() == min(wanted)
            for count in (1, 3, len(wanted)) if wanted else ():
                last = sorted(wanted)[-count:]
                assert rows.ends(count) == (last[0][0], last[-1][0])
