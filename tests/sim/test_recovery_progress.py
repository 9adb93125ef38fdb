"""Recovery tells how far it is, and can be called off between two steps without a trace."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.core.state.durable import canonical
from penstock.log.log import Log
from penstock.log.simdisk import SimDisk
from penstock.server.base.progress import Progress, Stopped
from penstock.server.opening import fold
from sim.logkit import SMALL, FakeClock, commit, messages, opened

SETTINGS = replace(SMALL, segment=4000)


def long_log() -> tuple[SimDisk, int, int]:
    """A disk with a log of several segments that nobody closed; its segments and rows."""
    disk = SimDisk()
    log = opened(disk, SETTINGS)
    lsn = 1
    for _ in range(30):
        commit(log, messages(lsn, *(b"%d" % row for row in range(20))))
        lsn += 20
    segments = len(log.segments())
    assert segments > 3
    log.close(clean=False)
    return disk, segments, 600


def recovered(disk: SimDisk, progress: Progress) -> list[tuple[str, int, int, float]]:
    """The steps of a recovery, with the share after each."""
    steps = list[tuple[str, int, int, float]]()

    def watch(stage: str, done: int, total: int) -> None:
        progress.watch(stage, done, total)
        steps.append((stage, done, total, progress.share))

    log = Log.open(disk, FakeClock(), SETTINGS, watch)
    try:
        fold(log, watch)
    finally:
        log.close(clean=False)
    return steps


def test_every_segment_and_every_record_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.log.recover._ROWS", 100)
    monkeypatch.setattr("penstock.log.recover._BLOCK", 1000)
    disk, segments, rows = long_log()
    progress = Progress(FakeClock().mono)
    steps = recovered(disk, progress)
    assert [step[:3] for step in steps[: segments + 2]] == [
        *(("checking", at, segments) for at in range(segments + 1)),
        ("checkpoint", 0, 1),
    ]
    folded = [step for step in steps if step[0] == "folding"]
    assert folded[0][:3] == ("folding", 0, rows)
    assert folded[-1][:3] == ("folding", rows, rows)
    assert len(folded) > 3
    shares = [step[3] for step in steps]
    assert shares == sorted(shares)


def test_after_a_checkpoint_only_the_rest_is_counted() -> None:
    disk, _, rows = long_log()
    log = Log.open(disk, FakeClock(), SETTINGS)
    state, _ = fold(log)
    log.write_checkpoint(state.encode(), log.recovery.last_lsn)
    commit(log, messages(log.recovery.next_lsn, b"a", b"b", b"c"))
    log.close(clean=False)
    folded = [step[:3] for step in recovered(disk, Progress(FakeClock().mono)) if step[0] == "folding"]
    assert folded[-1][1] == 3
    assert 3 <= folded[0][2] < rows


@pytest.mark.parametrize("last", range(14))
def test_a_recovery_that_is_called_off_leaves_the_folder_as_a_kill_does(last: int) -> None:
    disk, _, _ = long_log()
    log = Log.open(disk, FakeClock(), SETTINGS)
    whole = canonical(fold(log)[0])
    log.close(clean=False)
    progress = Progress(FakeClock().mono)
    count = 0

    def watch(stage: str, done: int, total: int) -> None:
        nonlocal count
        count += 1
        if count > last:
            progress.stop()
        progress.watch(stage, done, total)

    def recover() -> None:
        log = Log.open(disk, FakeClock(), SETTINGS, watch)
        try:
            fold(log, watch)
            progress.stop()
            watch("queues", 0, 1)
        finally:
            log.close(clean=False)

    with pytest.raises(Stopped):
        recover()
    log = Log.open(disk, FakeClock(), SETTINGS)
    assert canonical(fold(log)[0]) == whole
    log.close(clean=False)
