"""A data folder written by the first Penstock: it opens, folds and reads the same for ever.

`tests/data/log_v1` was left by a killed server of log version 1: nine small segments, a base as of the second, a
checkpoint.  Its history has filters, bindings, a queue that was deleted and declared again, leases, rejections and a
dead letter, planned batches of a stream, a sink's commit and changed settings.  `expected.json` says what it held.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from golden import folded
from penstock.core.state.capture import needed_pairs
from penstock.core.state.durable import DurableState
from penstock.core.state.fold import Fold
from penstock.log.log import Log
from penstock.log.rewrite import Old, Order, rewrite
from penstock.log.simdisk import SimDisk
from penstock.log.verify import verify
from sim.logkit import SMALL, FakeClock

FOLDER = Path(__file__).resolve().parents[2] / "data" / "log_v1"
EXPECTED: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text())


def golden(*, checkpoint: bool = True) -> SimDisk:
    """The folder on a simulated disk."""
    folders = ("log", "checkpoints") if checkpoint else ("log",)
    return SimDisk({f"{name}/{path.name}": path.read_bytes() for name in folders for path in (FOLDER / name).iterdir()})


def facts(state: DurableState) -> dict[str, Any]:
    """The state in plain values, as the expectation was written."""
    return {
        "last_lsn": state.last_lsn,
        "unclean": state.unclean,
        "exchanges": sorted(f"{vhost}|{name}|{one.type}" for (vhost, name), one in state.exchanges.items()),
        "bindings": sorted([one.source, one.destination, one.destination_type, one.key] for one in state.bindings),
        "queues": {
            one.name: {
                "id": one.id,
                "waiting": [lsn for chunk in one.waiting for lsn in chunk],
                "columns": {name: list(runs) for name, runs in sorted(one.columns.items())},
            }
            for one in state.queues.values()
        },
        "routes": {str(number): list(queues) for number, queues in state.routes.items()},
        "next_route": state.next_route,
        "vias": {str(number): list(names) for number, names in state.vias.items()},
        "publishers": state.publishers,
        "streams": {
            name: {
                "queue": one.queue, "epoch": one.epoch, "mode": one.mode, "floor": one.floor, "planned": one.planned,
                "plans": {str(batch): list(pairs) for batch, pairs in one.plans.items()},
            }
            for name, one in state.streams.items()
        },
        "sinks": state.sinks,
    }  # fmt: skip


def digest(log: Log) -> tuple[int, str]:
    """How many rows there are, and a sum over all their columns."""
    rows = list[dict[str, Any]]()
    for batch in log.batches(0, 1 << 60):
        for row in batch.to_pylist():
            rows.append({name: _plain(value) for name, value in row.items() if value not in (None, b"", "")})
    text = json.dumps(rows, ensure_ascii=True, separators=(",", ":"), sort_keys=True)
    return len(rows), hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return int(value.timestamp() * 1_000_000 + 0.5) if hasattr(value, "timestamp") else value


@pytest.mark.parametrize("checkpoint", [True, False])
def test_it_opens_folds_and_reads_the_same(checkpoint: bool) -> None:
    disk = golden(checkpoint=checkpoint)
    assert verify(disk).good
    log = Log.open(disk, FakeClock(), SMALL)
    assert bool(log.recovery.checkpoint) is checkpoint
    assert facts(folded(log)) == EXPECTED["state"]
    assert digest(log) == (EXPECTED["rows"], EXPECTED["rows_sha256"])


def test_it_folds_from_its_first_record_too_and_without_any_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    import penstock.expr.filter as filters

    def broken(*_: object) -> Any:
        raise AssertionError("the fold asked a filter")

    monkeypatch.setattr(filters.Filter, "matches", broken, raising=False)
    log = Log.open(golden(checkpoint=False), FakeClock(), SMALL)
    fold = Fold()
    for batch in log.batches(0, 1 << 60):
        fold.feed(batch)
    assert facts(fold.finish()) == EXPECTED["state"]


@pytest.mark.parametrize("compress", [False, True])
def test_its_old_segments_can_be_merged_and_compacted(compress: bool) -> None:
    disk = golden()
    log = Log.open(disk, FakeClock(), SMALL)
    state = folded(log)
    segments = log.segments()
    assert log.base_floor == segments[1].first
    olds = [Old(one.first, one.last, one.generation, one.rows) for one in segments[:-1]]
    keep = needed_pairs(state, olds[0].first, olds[0].last).tobytes()
    for order in (
        Order((olds[0],), keep=keep, floor=log.base_floor, compress=compress),
        Order(tuple(olds[1:]), compress=compress),
    ):
        swap = log.swap(rewrite(disk, order))
        swap.prepare()
        swap.enter()
        swap.finish()
    log.close(clean=False)
    disk.kill()
    for name in disk.list("checkpoints"):
        disk.remove(f"checkpoints/{name}")
    again = Log.open(disk, FakeClock(), SMALL)
    assert len(again.segments()) == 3
    assert facts(folded(again)) == EXPECTED["state"]
    waiting = sorted({lsn for one in EXPECTED["state"]["queues"].values() for lsn in one["waiting"]})
    assert again.read(waiting).lsns == waiting
