"""A power cut at each call that a rewriting makes: the log then holds what it held before, or what is kept, whole."""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import pytest

from choices import seeds
from penstock.log.log import Log
from penstock.log.rewrite import Old, Order, rewrite
from penstock.log.segment import is_rewrite
from penstock.log.simdisk import SimDisk
from penstock.log.verify import verify
from sim.logkit import SMALL, FakeClock, Steps, commit, content, messages, note, opened

SETTINGS = replace(SMALL, segment=5000)
FIRST = 1 << 40


def filled(disk: SimDisk, first: int = 1) -> Log:
    log = opened(disk, replace(SETTINGS, first_lsn=first))
    lsn = first
    for at in range(20):
        commit(log, messages(lsn, b"a%d" % at, b"b" * at), note(lsn + 2, b"n"))
        lsn += 3
    commit(log, log.base_group(lsn, 0, log.segments()[4].first, b"state"))
    return log


def order(log: Log, count: int, kept: list[int] | None) -> Order:
    olds = tuple(Old(one.first, one.last, one.generation, one.rows) for one in log.segments()[:count])
    if kept is None:
        return Order(olds)
    flat = [end for lsn in kept for end in (lsn, lsn + 1)]
    return Order(olds, struct.pack(f"<{len(flat)}q", *flat), log.base_floor)


def swap(log: Log, wanted: Order) -> None:
    exchange = log.swap(rewrite(log.disk, wanted))
    exchange.prepare()
    exchange.enter()
    exchange.finish()


@pytest.mark.parametrize("first", [1, FIRST])
@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("count", [1, 4])
def test_a_power_cut_at_each_step_of_a_rewriting(count: int, drops: bool, first: int, effort: int) -> None:
    kept = [first + 1, first + 9] if drops else None
    disk = Steps(0)
    log = filled(disk, first)
    before = content(log)
    disk.step = 0
    swap(log, order(log, count, kept))
    steps = disk.step
    after = content(log)
    assert (after != before) is drops
    assert steps > 6
    found = set[bool]()
    for last in range(steps):
        for seed in range(2 if effort == 1 else 4):
            disk = Steps(seed)
            log = filled(disk, first)
            disk.step, disk.last = 0, last
            try:
                swap(log, order(log, count, kept))
            except OSError:
                pass  # the machine died
            disk.last = -1
            disk.crash()
            assert verify(disk).good
            log = opened(disk, SETTINGS, FakeClock())
            now = content(log)
            assert now in (before, after)
            found.add(log.segments()[0].generation > 0)
            assert not any(is_rewrite(name) for name in disk.list("log"))
            assert len(disk.list("log")) == len(log.segments())
            if log.segments()[0].generation == 0:  # it can be done again
                swap(log, order(log, count, kept))
            assert content(log) == after
            assert opened_again(log, disk) == after
    assert found == {False, True}


@pytest.mark.parametrize("fails", ["folder", "remove"])
@pytest.mark.parametrize("again", [False, True])
def test_what_a_rewriting_left_goes_before_the_file_that_stands_for_it(fails: str, again: bool) -> None:
    """Its end met a fault of the disk, and retention comes before the next start; the power goes at each call."""
    for last in range(14):
        disk = Steps(1)
        log = filled(disk)
        if fails == "folder":
            disk.fail_next("folder")
            swap(log, order(log, 2, None))
        else:
            exchange = log.swap(rewrite(disk, order(log, 2, None)))
            exchange.prepare()
            exchange.enter()
            disk.step, disk.last = 0, 2  # the rename, the folder, and the old file
            with pytest.raises(OSError, match="died"):
                exchange.finish()
            disk.last = -1
        if again:
            swap(log, order(log, 2, None))
        kept = [row for row in content(log) if row[0] >= log.base_floor]
        disk.step, disk.last = 0, last
        try:
            log.retire(log.base_floor)
        except OSError:
            pass  # the machine died
        disk.last = -1
        disk.crash()
        assert verify(disk).good
        log = opened(disk, SETTINGS, FakeClock())
        assert content(log)[-len(kept) :] == kept
        assert len(disk.list("log")) == len(log.segments())


def test_a_power_cut_at_each_step_of_the_start_that_ends_a_rewriting() -> None:
    """The new file is in place, the replaced ones are still there, and beside them one that was never finished."""
    for last in range(12):
        for seed in range(3):
            disk = Steps(seed)
            log = filled(disk)
            before = content(log)
            exchange = log.swap(rewrite(disk, order(log, 4, None)))
            exchange.prepare()
            rewrite(disk, Order((Old(*_facts(log, 4)),)))
            disk.sync_folder("log")
            disk.kill()
            disk.step, disk.last = 0, last
            try:
                Log.open(disk, FakeClock(), SETTINGS)
            except OSError:
                pass  # the machine died
            disk.last = -1
            disk.crash()
            log = opened(disk, SETTINGS, FakeClock())
            assert content(log) == before
            assert len(disk.list("log")) == len(log.segments())


def _facts(log: Log, at: int) -> tuple[int, int, int, int]:
    one = log.segments()[at]
    return one.first, one.last, one.generation, one.rows


def opened_again(log: Log, disk: SimDisk) -> list[tuple[int, bytes]]:
    """The content after a kill."""
    log.close(clean=False)
    disk.kill()
    return content(opened(disk, SETTINGS, FakeClock()))


def test_a_failed_sync_of_the_folder_keeps_the_replaced_files_until_the_next_start() -> None:
    disk = SimDisk(seed=3)
    log = filled(disk)
    before = content(log)
    made = rewrite(disk, order(log, 4, None))
    names = disk.list("log")
    exchange = log.swap(made)
    disk.fail_next("folder")
    exchange.prepare()
    exchange.enter()
    exchange.finish()
    assert content(log) == before
    assert len(names) - 1 == len(disk.list("log")) > len(log.segments())
    assert opened_again(log, disk) == before
    assert len(disk.list("log")) == len(log.segments())


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_failing_disk_leaves_the_log_as_it_was(kind: str) -> None:
    disk = SimDisk(seed=3)
    log = filled(disk)
    before, wanted = content(log), order(log, 4, None)
    disk.fail_next(kind)
    with pytest.raises(OSError, match="error"):
        rewrite(disk, wanted)
    assert content(log) == before
    assert not log.broken
    swap(log, wanted)
    assert content(log) == before


def test_rewritings_in_any_order_keep_what_they_must(effort: int) -> None:
    """Random merges, compactions and lives; a failure names its seed."""
    for seed in seeds(12 if effort == 1 else 18 * effort):
        chance = random.Random(seed)
        disk = SimDisk(seed=seed)
        log = filled(disk)
        must = {lsn for lsn, _ in content(log) if chance.random() < 0.2}
        truth = dict(content(log))
        try:
            for _ in range(6):
                _one(log, chance, must)
                if chance.random() < 0.4:
                    log.close(clean=False)
                    (disk.crash if chance.random() < 0.5 else disk.kill)()
                    assert verify(disk).good
                    log = opened(disk, SETTINGS)
                lsns = [lsn for lsn, _ in content(log)]
                assert lsns == sorted(set(lsns))
                assert must <= set(lsns)
                assert all(truth[lsn] == body for lsn, body in content(log))
                chosen = sorted(chance.sample(sorted(must), min(9, len(must))))
                wanted = [lsn for lsn in chosen if (lsn - 1) % 3 != 2 and lsn <= 60]
                assert log.read(wanted).lsns == wanted
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


def _one(log: Log, chance: random.Random, must: set[int]) -> None:
    closed = log.segments()[:-1]
    a = chance.randrange(len(closed))
    some = closed[a : a + chance.randint(1, 4)]
    olds = tuple(Old(one.first, one.last, one.generation, one.rows) for one in some)
    wanted = Order(olds, compress=chance.random() < 0.3)
    if olds[-1].last < log.base_floor and chance.random() < 0.6:
        flat = [end for lsn in sorted(must) if olds[0].first <= lsn <= olds[-1].last for end in (lsn, lsn + 1)]
        wanted = replace(wanted, keep=struct.pack(f"<{len(flat)}q", *flat), floor=log.base_floor)
    swap(log, wanted)
