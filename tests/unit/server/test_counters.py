"""How many bodies of which size came."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.records.message_bodies import Bodies, PackedBodies
from penstock.server.counters import SIZES, BodySizes

sizes = st.lists(st.sampled_from([0, 1, 99, 100, 101, 999, 1000, 1001, 10_000, 10_001]), max_size=12)


@pytest.mark.parametrize("form", [list, PackedBodies.of])
@given(runs=st.lists(sizes, max_size=4))
def test_each_body_is_counted_once_by_its_size(form: type[Bodies], runs: list[list[int]]) -> None:
    counted = BodySizes()
    for run in runs:
        counted.add(form([b"x" * size for size in run]))  # type: ignore[arg-type]
    each = [size for run in runs for size in run]
    total, upto = counted.told()
    assert total == sum(each)
    assert upto == [(end, sum(size <= end for size in each)) for end in (*SIZES, inf)]
