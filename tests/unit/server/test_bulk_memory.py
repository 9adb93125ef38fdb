"""The bulk child counts as memory of its server: beside a small one it takes little."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from bulk_lab import PERSISTENT, Still, Writer
from forked import PLAIN
from penstock.config.settings import Retention
from penstock.core import audit_log
from penstock.core.audit_log import Audit
from penstock.core.state.durable import DurableState
from penstock.core.state.fold import Fold
from penstock.history.view import listing, stand_alone
from penstock.log import recover
from penstock.log.disk import OsDisk
from penstock.log.log import Log
from penstock.log.rewrite import Old, Order, plain_order
from penstock.log.writer import LogSettings
from penstock.records import compute
from penstock.records.entries import Publishes, Topic
from penstock.records.kinds import NO_ROUTE
from penstock.server import opening
from penstock.server.bulk import reads
from penstock.server.bulk.checks import audit_view
from penstock.server.bulk.process import Bulk
from penstock.server.bulk.requests import GivenUp
from penstock.server.flight import record_rows
from penstock.server.upkeep.retention import Retirement
from waiting import eventually

SEGMENT = 32 << 20
GROWTH = 14 << 20
"""8 to 10 MiB were measured, most of it pages of libraries that a rewriting touches first."""

HELD = 512 << 20
"""Bytes that it may take hold of, used or not: the bound of the process is one of these."""


def resident(pid: int, what: str) -> int:
    """Bytes: VmRSS, or VmHWM for the highest so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(what))


with_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="what a process holds is read from /proc")


@with_proc
def test_rewriting_a_segment_of_small_batches_takes_little_beside_a_small_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by resident memory under load: 31 MiB, most of it blocks that Arrow had freed."""
    monkeypatch.setattr(subprocess, "Popen", PLAIN)  # one whose memory is its own
    settings = LogSettings(sync="off", ahead=0, reserve=0, segment=SEGMENT, origin=77)
    log = Log.open(OsDisk(tmp_path), Still(), settings)
    for _ in log.replay():
        pass
    lsn = log.recovery.next_lsn
    while len(log.segments()) < 2:
        bodies = [b"x" * (60_000 if lsn % 7 == 0 else 2_000)]
        log.append([Publishes(Topic("/", "", "q"), PERSISTENT, bodies, lsn, 6, NO_ROUTE)])
        log.flush()
        lsn += 1
    [one] = log.segments()[:1]
    log.close()
    bulk = Bulk(tmp_path, budget=64 << 20)
    try:
        bulk.call("ping", {})
        pid = bulk.pid
        assert pid is not None
        before = resident(pid, "VmRSS")
        made = bulk.call("rewrite", plain_order(Order((Old(one.first, one.last, one.generation, one.rows),))))
        assert made["rows"] == one.rows
        assert resident(pid, "VmHWM") - before < GROWTH
    finally:
        bulk.close()


@with_proc
def test_a_bulk_process_takes_hold_of_little_before_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found under load: half of what it may have was gone as it began, and 50 reads at once ended it."""
    monkeypatch.setattr(subprocess, "Popen", PLAIN)
    (tmp_path / "log").mkdir()
    bulk = Bulk(tmp_path, budget=1 << 30)
    try:
        bulk.call("ping", {})
        assert bulk.pid is not None
        assert resident(bulk.pid, "VmData") < HELD
    finally:
        bulk.close()


FOLDS: dict[str, Callable[[Log], object]] = {
    "a start": opening.fold,
    "a base": lambda log: Retirement(cast("Any", SimpleNamespace(log=log)), Retention()).state_below(log.durable + 1),
    "an audit": lambda log: audit_view(stand_alone(cast("OsDisk", log.disk)), lambda done, total: None),
}


@pytest.mark.parametrize("size", [0, 30_000])
@pytest.mark.parametrize("fold", FOLDS)
def test_who_reads_a_whole_log_holds_a_part_of_it(
    fold: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By rows alone 1.5 GB of jobs of 100 kB took 1.4 GB of a server that made a base, and 1.6 GB at a start.

    An audit of 2 GB, or of 80,000 messages that came alone, took more than the bulk process may have.
    """
    log = Log.open(OsDisk(tmp_path), Still(), LogSettings(sync="off", ahead=0, reserve=0, origin=77))
    for lsn in range(log.recovery.next_lsn, log.recovery.next_lsn + 40):
        log.append([Publishes(Topic("/", "", "q"), PERSISTENT, [b"x" * size], lsn, 6, NO_ROUTE)])
        log.flush()
    most = 5 * max(size, compute.BATCH_TAKES)
    monkeypatch.setattr(compute, "GATHERED", most)
    monkeypatch.setattr(audit_log, "GATHERED", most)
    at_once = list[int]()
    feed, look = Fold.feed, Audit._look_at

    def fed(self: Fold, rows: pa.Table) -> None:
        at_once.append(rows.num_rows)
        feed(self, rows)

    def looked_at(self: Audit, table: pa.Table, *others: Any) -> None:
        at_once.append(table.num_rows)
        look(self, table, *others)

    monkeypatch.setattr(Fold, "feed", fed)
    monkeypatch.setattr(Audit, "_look_at", looked_at)
    monkeypatch.setattr(recover, "_BLOCK", 4096)  # a block is read at once
    FOLDS[fold](log)
    log.close()
    assert sum(at_once) == 40 * (1 + (fold == "an audit"))
    assert max(at_once) <= 10


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="what a process has open is read from /proc")
def test_a_full_disk_has_the_room_of_what_has_gone_back_when_the_child_is_idle(tmp_path: Path) -> None:
    """82 MiB of five segments that retention had deleted were missing while publishes were refused for want of 44."""
    writer, bulk = Writer(tmp_path), Bulk(tmp_path)
    writer.write(40, rows=100)
    try:
        bulk.call("verify", {"log": listing(writer.log, 0, 1 << 62).plain()})
        pid = bulk.pid
        log = writer.log
        floor = log.segments()[1].first
        log.append([log.base_group(writer.lsn, 7, floor, DurableState().encode())])
        log.flush()
        assert log.retire(floor)
        bulk.beat()
        assert bulk.pid == pid
        assert any(path.endswith("(deleted)") for path in map(os.readlink, Path(f"/proc/{pid}/fd").iterdir()))
        bulk.beat(full=True)
        eventually(lambda: bulk.pid is None, "what it had open is closed")
        bulk.beat(full=True)
        assert bulk.deaths == 0
    finally:
        bulk.close()
        writer.log.close()


def test_rows_are_put_in_order_by_few_reads_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 of one user, of 4,000 records, took the 2 GiB that all reads have, and each of them failed."""
    begun, on, lock = list[int](), threading.Event(), threading.Lock()

    def rows() -> Iterator[str]:
        with lock:
            begun.append(1)
        on.wait(20)
        yield "row"

    monkeypatch.setattr(reads, "LOOK_S", 0.01)
    monkeypatch.setattr(reads, "History", lambda *_: None)
    monkeypatch.setattr(record_rows, "records", lambda *_: (None, rows()))

    def read(order: list[str], gone: bool = False) -> list[object]:
        request = SimpleNamespace(view=None, most=1, notes={}, gone=lambda: gone)
        command = {"topic": "records", "order_by": order}
        return list(reads.sow(request, command, True, True, b"", b"")[1])  # type: ignore[arg-type]

    with ThreadPoolExecutor(8) as pool:
        some = [pool.submit(read, ["/id"]) for _ in range(6)]
        eventually(lambda: len(begun) == reads.ORDERED_AT_ONCE)
        with pytest.raises(GivenUp):
            read(["/id"], gone=True)
        assert len(begun) == reads.ORDERED_AT_ONCE
        others = pool.submit(read, [])
        eventually(lambda: len(begun) == reads.ORDERED_AT_ONCE + 1, "those without an order do not wait")
        on.set()
        assert [one.result(20) for one in (*some, others)] == 7 * [["row"]]
    assert len(begun) == 7
