"""Compaction of a folder that nobody holds: the same rules, and a log that a server, and the audit, take as before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.cli.logfiles import audit
from penstock.core.state.durable import canonical
from penstock.errors import DataFolderInUse
from penstock.log.log import Log
from penstock.log.rewrite_plan import Aims
from penstock.log.simdisk import SimDisk
from penstock.log.verify import verify
from penstock.log.writer import MEMORY
from penstock.server.upkeep.offline import Limits, compact, look
from sim.serverkit import Life, clock, state_of
from unit.server.test_keeper import drain, fill

SMALL = replace(MEMORY, segment=16_000, origin=7)
AIMS = Aims(segment=16_000, rows=20, batches=2)


def left(*, clean: bool) -> Life:
    """A server that is gone; a message is stuck in the middle of its log."""
    life = Life(SimDisk(), clock(), log=SMALL)
    life.declare("q", "kept")
    fill(life, 8)
    fill(life, 1, "kept")
    fill(life, 12)
    drain(life)
    if clean:
        life.stop()
    else:
        life.log.flush()
        life.kill()
    return life


def audited(disk: SimDisk, folder: Path) -> list[str]:
    """What the audit finds wrong."""
    for name, content in disk.files().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return [finding.text for finding in audit(folder).findings]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_folder_is_compacted_and_started_again(clean: bool, checkpoint: bool, tmp_path: Path) -> None:
    life = left(clean=clean)
    disk = life.disk
    if checkpoint:
        log = Log.open(disk, life.clock, SMALL)
        log.close(clean=clean)
        disk.kill()
    assert audited(disk, tmp_path / "before") == []
    before = canonical(state_of(SimDisk(disk.files()), life.clock, SMALL))
    size = disk.used()
    files = disk.files()
    planned = look(disk, life.clock, Limits(bytes=1), AIMS)
    assert disk.files() == files
    assert any(task.drops for task in planned)
    told = list[str]()
    gone = compact(disk, life.clock, Limits(bytes=1), AIMS, lambda task, made: told.append(task.why))
    assert gone
    assert "sparse" in told
    assert disk.used() < size / 2
    disk.kill()
    assert verify(disk).good
    assert audited(disk, tmp_path / "after") == []
    after = canonical(state_of(SimDisk(disk.files()), life.clock, SMALL))
    assert after.queues == before.queues
    assert bool(after.unclean) is not clean
    again = Life(disk, life.clock, log=SMALL)
    assert again.log.recovery.clean
    assert len(again.contents("kept")) == 10
    client = again.client(confirm=True)
    client.publish("kept", b"new")
    again.run()
    assert len(again.contents("kept")) == 11
    again.stop()
    assert look(disk, life.clock, Limits(), AIMS) == []


def test_without_limits_nothing_is_left_out_or_appended() -> None:
    life = left(clean=False)
    before = verify(life.disk)
    compact(life.disk, life.clock, Limits(), AIMS, lambda task, made: None)
    life.disk.kill()
    after = verify(life.disk)
    assert (after.rows, after.last_lsn, after.clean) == (before.rows, before.last_lsn, before.clean)
    assert after.batches < before.batches


def test_a_folder_in_use_is_refused() -> None:
    life = Life(SimDisk(), clock(), log=SMALL)
    with pytest.raises(DataFolderInUse):
        compact(life.disk, life.clock, Limits(), AIMS, lambda task, made: None)


def test_retention_by_age() -> None:
    life = left(clean=True)
    hour = 3_600_000_000
    assert not any(task.drops for task in look(life.disk, life.clock, Limits(age=hour), AIMS))
    life.clock.advance(2 * hour)
    assert any(task.drops for task in look(life.disk, life.clock, Limits(age=hour), AIMS))
