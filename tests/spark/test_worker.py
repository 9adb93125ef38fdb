"""What Spark's Python processes load, and that they are not searched for garbage among modules after each task."""

from __future__ import annotations

import gc
import os
import platform
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pyarrow as pa
import pytest

from penstock.spark import executor
from penstock.spark.executor import end_quietly
from penstock.spark.options import read_options
from penstock.spark.reading import fetching
from penstock.spark.reading.columns import Layout
from penstock.spark.reading.parts import RowsPart
from penstock.spark.sessions import local_sockets
from penstock.spark.source import PenstockSource
from spark_java import light_java


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


def test_after_a_plan_the_modules_are_out_of_sight_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec("pyspark.daemon", None))
    PenstockSource({"topic": "t"})
    assert gc.get_freeze_count() > 50_000


def test_a_process_whose_session_has_ended_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    left = [False, True]

    def worker(connection: object, authenticated: bool) -> int:
        if left.pop(0):
            raise BrokenPipeError(32, "Broken pipe")
        return 7

    main: Any = ModuleType("__main__")
    main.__spec__, main.worker = ModuleSpec("pyspark.daemon", None), worker
    monkeypatch.setitem(sys.modules, "__main__", main)
    end_quietly()
    quiet = main.worker
    end_quietly()
    assert main.worker is quiet, "it is told once"
    assert [quiet(None, True), quiet(None, True)] == [7, 1]


def test_a_process_of_another_program_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    main: Any = ModuleType("__main__")
    main.worker = worker = object()
    monkeypatch.setitem(sys.modules, "__main__", main)
    end_quietly()
    assert main.worker is worker


def test_java_and_python_of_one_machine_talk_over_sockets_that_are_the_user_s_alone(tmp_path: Path) -> None:
    """Who may connect may have code run.  The path of a socket is short: where the folder's is not, there is none."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        told = local_sockets(Path(made))
        folder = Path(told["spark.python.unix.domain.socket.dir"])
        assert told["spark.python.unix.domain.socket.enabled"] == "true"
        assert (folder.parent, stat.S_IMODE(folder.stat().st_mode)) == (Path(made), 0o700)
        assert local_sockets(Path(made)) == told, "the folder of the session before is taken"
    assert local_sockets(tmp_path / ("far" * 20)) == {}


def test_a_session_of_this_process_is_one_of_these(spark: Any) -> None:
    def found(_: int) -> tuple[str, bool, bool, bool]:
        import gc
        import sys

        from penstock.spark import executor

        loaded = {"penstock.spark.pipelines.outputs", "pyarrow.flight", "pandas"} <= sys.modules.keys()
        return sys.modules["__main__"].__spec__.name, loaded, executor._known > 500, gc.get_freeze_count() > 50_000

    assert spark.conf.get("spark.python.unix.domain.socket.enabled") == "true"
    task = spark.sparkContext.range(1).map(found).collect()
    assert task == [("penstock.spark.executor", True, True, True)], f"loaded before it was forked: {task}"


SOCKETS = """
import sys, tempfile
import penstock.spark

with tempfile.TemporaryDirectory(dir="/tmp") as made:
    spark = penstock.spark.session("local[1]", memory="512m", folder=made)

    assert spark.conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert spark.sparkContext.range(10).map(lambda n: n + 1).sum() == 55
    def found(n):
        import gc
        from penstock.spark import executor
        loaded = {"penstock.spark.pipelines.outputs", "pyarrow.flight", "pandas"} <= sys.modules.keys()
        return sys.modules["__main__"].__spec__.name, loaded, executor._known > 500, gc.get_freeze_count() > 50_000

    task = spark.sparkContext.range(1).map(found).collect()
    assert task == [("penstock.spark.executor", True, True, True)], f"loaded before it was forked: {task}"
    spark.stop()
"""


@pytest.mark.bulk("test_a_session_of_this_process_is_one_of_these")
def test_a_session_on_this_machine_is_one_of_these() -> None:
    environ = {**os.environ, **light_java()}
    done = subprocess.run([sys.executable, "-c", SOCKETS], capture_output=True, text=True, check=False, env=environ)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


PLAN = """
import sys
from pyspark.sql.streaming import python_streaming_source_runner

before = {*sys.modules}
import pyspark_penstock
from penstock.spark.reading import batch, columns, queue_stream, stream

print(*(sys.modules.keys() - before))
"""


def test_who_plans_loads_nothing_of_what_tasks_read_with() -> None:
    """Each query of a stream has a process of its own for its plans, and waits for it."""
    told = subprocess.run([sys.executable, "-c", PLAN], capture_output=True, text=True, check=True)
    loaded = told.stdout.split()
    assert "penstock.spark.reading.queue_stream" in loaded
    heavy = ("pandas", "pyarrow.compute", "lark", "penstock.history", "penstock.log", "penstock.expr", "penstock.core",
             "penstock.client.client", "penstock.client.consumer")  # fmt: skip
    assert [name for name in loaded if name.startswith(heavy)] == []


FAULTS = """
import resource, sys
import numpy as np
from pyspark import TaskContext
from penstock.spark import executor
from penstock.spark.executor import end_quietly

TaskContext.get = lambda: object()
assert executor.keep_freed()

def batch():
    made = [np.ones(50_000) for _ in range(40)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

first = batch()
print(max(batch() for _ in range(20)) - first)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library cannot be told")
def test_a_task_uses_the_memory_of_its_last_batch_again() -> None:
    """Sixteen megabytes a batch, which are 4,000 pages: none of them is new after the first one."""
    told = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    assert int(told.stdout) < 1_000


def test_the_memory_of_a_driver_s_process_is_left_alone() -> None:
    assert not executor.keep_freed()
