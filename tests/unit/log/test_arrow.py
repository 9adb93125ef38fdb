"""The border to pyarrow: what is said of a column without making a Python value of each row."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.log.record_batches import one_value, span
from penstock.records.schema import COLUMNS


def batch(names: list[str]) -> pa.RecordBatch:
    """Rows that differ in their names, cut out of a longer batch."""
    framed = ["before", *names, "after"]
    columns = [
        pa.array(framed, field.type)
        if field.name == "name"
        else pa.array([0] * len(framed), pa.int64()).cast(field.type)
        if pa.types.is_integer(field.type)
        else pa.nulls(len(framed), field.type)
        for field in COLUMNS
    ]
    return pa.RecordBatch.from_arrays(columns, schema=COLUMNS).slice(1, len(names))


@pytest.mark.parametrize(
    ("names", "alike"),
    [
        (["a"], True),
        (["abc"] * 5, True),
        ([""] * 3, True),
        (["abc", "abd"], False),
        (["abc", "abd", "abc"], False),
        (["aa", "a", "aaa"], False),  # the same bytes in all, cut elsewhere
        (["", "a"], False),
        (["abc", "ab"], False),
        ([], False),
    ],
)
def test_whether_all_values_are_the_same(names: list[str], alike: bool) -> None:
    assert one_value(batch(names), "name") is alike
    assert span(batch(names), "name") == sum(map(len, names))


def test_nulls_are_not_looked_at() -> None:
    assert not one_value(batch(["a", "a"]), "properties")
