"""Arrays of numbers: each once, and by nothing that takes long for many."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.records import compute
from penstock.records.compute import distinct_numbers, gathered

SOURCES = Path(penstock.__file__).parent


@pytest.mark.parametrize("values", [[], [7], [7, 7], [3, 1, 2, 3, 1], list(range(300)), list(range(300, 0, -2))])
def test_numbers_are_ascending_and_each_is_there_once(values: list[int]) -> None:
    found = distinct_numbers(np.array(values, np.int64))
    assert found.tolist() == sorted(set(values))
    assert found.dtype == np.int64


FILLS = ("np.unique", "np.union1d", "np.setdiff1d", "np.setxor1d", "np.intersect1d")
"""Those that fill it, unless they are told more."""


def test_nothing_asks_numpy_for_the_numbers_alone() -> None:
    """NumPy fills a table for that since 2.3: 0.8 s for 300,000 that were in order, and the loop waited for it."""
    found = list[str]()
    for path in sorted(SOURCES.rglob("*.py")):
        text = path.read_text()
        if not any(f"{name}(" in text for name in FILLS):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in FILLS and not node.keywords:
                found.append(f"{path.relative_to(SOURCES)}:{node.lineno}")
    assert found == []


@pytest.mark.parametrize(("size", "most", "each"), [
    (1, 100, [100, 100, 50]),  # by rows
    (50_000, 100, [3, 3, 3, 3, 3]),  # by what they take
    (1, 10_000, [128, 122]),  # of one row each: each is eleven objects
])  # fmt: skip
def test_batches_are_gathered_up_to_rows_or_memory(
    size: int, most: int, each: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute, "GATHERED", 1 << 20 if size == 1 else 150_000)
    batches = [pa.record_batch({"lsn": [n], "body": [b"x" * size]}) for n in range(sum(each))]
    tables = list(gathered(batches, most))
    assert [table.num_rows for table in tables] == each
    assert pa.concat_tables(tables)["lsn"].to_pylist() == list(range(len(batches)))
    assert [table.num_rows for table in gathered([pa.Table.from_batches(batches)] * 2, len(batches) + 1)] in (
        [2 * len(batches)], [len(batches)] * 2,
    )  # fmt: skip
