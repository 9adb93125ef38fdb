"""What a server's process sets before Arrow is loaded: a bound on Arrow's own pool, and no lines from gRPC."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.log.record_batches import make_batch, message_with, rows_of
from penstock.records.schema import COLUMNS
from penstock.server.base.loading import NO_MORE, POOL, RESERVED, environment
from penstock.spark.sessions import prepare

SOURCE = Path(__file__).resolve().parents[3] / "src"

PROGRAM = """
import json, os, sys
from penstock.server.base.loading import with_bounded_pool
assert "pyarrow" not in sys.modules
before = dict(os.environ)
with_bounded_pool(64 << 20)
assert dict(os.environ) == before, "what is set is not for children"
import pyarrow as pa
from penstock.server.base import allocator
allocator.keep_close(int(sys.argv[1]))
theirs = pa.mimalloc_memory_pool()
held = pa.allocate_buffer(30 << 20, memory_pool=theirs)
ours = pa.allocate_buffer(200 << 20)
print(json.dumps({
    "bounded": allocator.flight_is_bounded(64 << 20), "ours": pa.default_memory_pool().backend_name,
    "theirs": theirs.bytes_allocated(), "size": ours.size,
}))
"""


def launched(memory: int, **environ: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(memory)],
        env={**os.environ, "PYTHONPATH": str(SOURCE), **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    out: dict[str, Any] = json.loads(done.stdout)
    return out


@pytest.mark.parametrize(("memory", "ours"), [(64 << 20, {"system"}), (1 << 30, {"jemalloc", "system"})])
def test_arrows_own_pool_ends_where_it_should_and_ours_does_not(memory: int, ours: set[str]) -> None:
    seen = launched(memory)
    assert seen["bounded"]
    assert seen["ours"] in ours
    assert (seen["theirs"], seen["size"]) == (30 << 20, 200 << 20)


@pytest.mark.parametrize("environ", [{POOL: "jemalloc"}, {RESERVED: "1GiB"}, {NO_MORE: "0"}], ids=str)
def test_what_an_operator_has_set_stays_and_is_told(environ: dict[str, str]) -> None:
    assert not launched(1 << 30, **environ)["bounded"]


def test_compressed_rows_of_the_log_do_not_come_out_of_arrows_own_pool() -> None:
    """Clients can fill it, and a log that cannot be read then would be taken for a damaged one."""
    given: dict[str, object] = {"kind": 1, "name": "q", "time": 0, "body": b"x" * 100}
    batch = make_batch(
        [[given.get(name, lsn if name == "lsn" else None) for name in COLUMNS.names] for lsn in range(1000)]
    )
    message = message_with(batch, {}, "zstd")
    arrows, before = pa.mimalloc_memory_pool(), pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        there = arrows.bytes_allocated()
        read = rows_of(message, compressed=True)
        assert arrows.bytes_allocated() == there
        assert read.equals(batch)
    finally:
        pa.set_memory_pool(before)


def for_spark() -> dict[str, str]:
    prepare(Path(), "spark://node-1")
    return dict(os.environ)


@pytest.mark.parametrize("begun", [environment, for_spark])
def test_processes_of_ours_find_the_package_where_this_one_did(
    begun: Callable[[], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they were of the version that is installed, and took `client` and `errors` of others for the package's."""
    monkeypatch.setattr(os, "environ", {"SPARK_CONF_DIR": "conf", "PYTHONPATH": "theirs"})
    first, last = begun()["PYTHONPATH"].split(os.pathsep)
    assert Path(penstock.__file__).parents[1].samefile(first)
    assert last == "theirs"
