"""An executor's process is not searched for garbage among modules after each task."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, cast

import pyarrow as pa
import pytest

from penstock.spark import executor
from penstock.spark.options import read_options
from penstock.spark.reading import fetching
from penstock.spark.reading.columns import Layout
from penstock.spark.reading.parts import RowsPart


@pytest.fixture(autouse=True)
def thawed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(executor, "_known", 0)
    yield
    gc.unfreeze()


def in_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: object())


def packed() -> RowsPart:
    sink = pa.BufferOutputStream()
    table: Any = pa.table({"n": pa.array([1, 2], pa.int64())})
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return RowsPart(sink.getvalue().to_pybytes())


def read() -> list[int]:
    options = read_options({"url": "penstock://nobody:1", "topic": "t"})
    layout = Layout(pa.schema([("n", pa.int64())]), ("n",), (), error=False, strict=False)
    rows: Any = pa.Table.from_batches(fetching.fetch(options, layout, packed()))
    return cast("list[int]", rows["n"].to_pylist())


def in_sight(thing: object) -> bool:
    """Whether garbage is looked for there."""
    return any(one is thing for one in gc.get_objects())


def test_after_a_task_the_modules_are_out_of_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    in_task(monkeypatch)
    assert read() == [1, 2]
    assert gc.get_freeze_count() > 50_000
    kept = ["a task's"]
    executor.spare_modules()
    assert in_sight(kept), "nothing was imported since: what tasks make stays in sight"
    monkeypatch.setitem(sys.modules, "made_up", ModuleType("made_up"))
    executor.spare_modules()
    assert not in_sight(kept), "an import brings more that stays"


def test_a_driver_s_process_is_left_alone() -> None:
    before = gc.get_freeze_count()
    assert read() == [1, 2]
    assert gc.get_freeze_count() <= before
