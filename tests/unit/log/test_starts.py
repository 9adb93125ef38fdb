"""What a start believes and what it refuses, at the borders: rewritten files, marks, saved states, claims."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from crc32c import crc32c

from penstock.errors import LogDamaged
from penstock.log import checkpoints
from penstock.log.log import Log
from penstock.log.rewrite import Old, Order, rewrite
from penstock.log.segment import SegmentHeader, segment_name
from penstock.log.simdisk import SimDisk
from sim.logkit import SMALL, commit, content, messages, opened, small_log

SETTINGS = replace(SMALL, segment=6000)
FIRST = segment_name(1)


def base(log: Log, floor: int, state: bytes = b"") -> None:
    commit(log, log.base_group(log.appended + 1, 0, floor, state or b"below %d" % floor))


def rewritten() -> tuple[SimDisk, Log]:
    """A closed log whose first three files are one, of three batches: bases stay alone."""
    disk = SimDisk()
    log = opened(disk, SETTINGS)
    while len(log.segments()) < 6:
        commit(log, messages(log.appended + 1, b"x" * 200, b"y"))
        if len(log.segments()) == 2:
            base(log, 2)
    olds = tuple(Old(one.first, one.last, one.generation, one.rows) for one in log.segments()[:3])
    exchange = log.swap(rewrite(disk, Order(olds, None, 0, False)))
    exchange.prepare()
    exchange.enter()
    exchange.finish()
    assert log.segments()[0].batches > 1
    log.close()
    return disk, log


def refused(files: dict[str, bytes], words: str) -> None:
    disk = SimDisk(files)
    with pytest.raises(LogDamaged, match=words):
        opened(disk, SETTINGS)
    assert disk.files() == files


def test_a_rewritten_file_that_lacks_its_last_batches_is_refused() -> None:
    """Each batch that is there is sound, and the next file follows what the header says."""
    disk, log = rewritten()
    one = log._catalog.segments[0]
    for lacks in range(1, len(one.offsets)):
        end = one.offsets[-lacks]
        refused({**disk.files(), FIRST: disk.files()[FIRST][:end]}, "rows are there")


def test_a_rewritten_file_is_never_the_last() -> None:
    disk, _ = rewritten()
    refused({FIRST: disk.files()[FIRST]}, "closed segment, but the next one is missing")


@pytest.mark.parametrize("other", [{"origin": 8}, {"first": 4}, {"generation": 1}, {"generation": 2}])
def test_of_two_files_with_the_same_lsns_one_must_have_replaced_the_other(other: dict[str, int]) -> None:
    disk, log = rewritten()
    older = replace(SegmentHeader(log.origin, 5, 4), **other).encode()
    refused({**disk.files(), segment_name(5): older + bytes(64)}, "neither replaced the other")


def test_what_is_no_segment_within_a_rewritten_file_is_left_alone() -> None:
    disk, log = rewritten()
    before = content(log)
    full = SimDisk({**disk.files(), segment_name(5): b"what is this?"})
    again = opened(full, SETTINGS)
    assert content(again)[: len(before)] == before
    assert full.files()[segment_name(5)] == b"what is this?"
    assert "left alone" in again.recovery.warnings[0]


def test_a_file_under_another_name_is_refused() -> None:
    disk = SimDisk()
    small_log(disk)
    refused({segment_name(9): disk.files()[FIRST]}, "copy under another name")


def test_bytes_behind_the_mark_of_a_clean_stop_leave_a_gap() -> None:
    """A start had begun to write: what it may have given out is not given again."""
    disk = SimDisk()
    log = opened(disk)
    commit(log, messages(1, b"a", b"b"))
    log.close()
    data = disk.files()[FIRST]
    end = opened(SimDisk(disk.files()))._catalog.segments[-1].end
    again = opened(SimDisk({FIRST: data[:end] + b"\xff\xff\xff\xff\x10" + bytes(99)}))
    assert (again.recovery.clean, again.recovery.next_lsn) == (False, 2 + (1 << 32))


@pytest.mark.parametrize("seed", range(6))
def test_what_is_read_after_a_failed_sync_is_on_the_disk(seed: int) -> None:
    """The kernel calls its pages clean and will never write them: a sync alone would mean nothing."""
    disk = SimDisk(seed=seed)
    log = opened(disk)
    commit(log, messages(1, b"a"))
    disk.fail_next("sync")
    commit(log, messages(2, b"b" * 500))
    assert log.durable == 1
    disk.kill()
    found = content(opened(disk))
    assert found[1:] == [(2, b"b" * 500)]
    disk.crash()
    assert content(opened(disk)) == found


def test_of_several_bases_the_highest_floor_counts_and_of_equal_ones_the_newest() -> None:
    disk = SimDisk()
    log = opened(disk)
    commit(log, *(messages(1 + at, b"x") for at in range(12)))
    for floor, state in ((4, b"low"), (9, b"first"), (9, b"newest"), (6, b"late")):
        base(log, floor, state)
    log.close()
    assert opened(disk).start_state() == ("base", 9, b"newest")


@pytest.mark.parametrize(("lsn", "kind"), [(7, "base"), (8, "checkpoint"), (9, "checkpoint")])
def test_a_checkpoint_is_the_start_if_it_knows_all_that_the_base_stands_for(lsn: int, kind: str) -> None:
    """A base of floor 9 stands for records up to 8, whose segments may be gone."""
    disk = SimDisk()
    log = opened(disk)
    commit(log, *(messages(1 + at, b"x") for at in range(12)))
    base(log, 9)
    log.close()
    checkpoints.write(disk, log.origin, lsn, b"state", {})
    start = opened(disk).start_state()
    assert start is not None
    assert start[0] == kind


@pytest.mark.parametrize(("magic", "version"), [(b"PENSTCKP", 2), (b"PENSTCKQ", 1), (b"PENSTCKP", 0)])
def test_a_checkpoint_of_another_format_is_not_used_though_its_sum_is_right(magic: bytes, version: int) -> None:
    disk = SimDisk()
    checkpoints.write(disk, 7, 5, b"state", {})
    name = checkpoints.name_of(5)
    data = magic + struct.pack("<II", version, 0) + disk.files()[name][16:]
    data = data[:12] + struct.pack("<I", crc32c(data)) + data[16:]
    warnings: list[str] = []
    assert checkpoints.newest(SimDisk({name: data}), 7, warnings) is None
    assert "another format" in warnings[0]


@pytest.mark.parametrize("seed", range(6))
def test_checkpoints_above_an_lsn_are_removed_for_good(seed: int) -> None:
    disk = SimDisk(seed=seed)
    for lsn in (5, 8):
        checkpoints.write(disk, 7, lsn, b"state", {})
    checkpoints.remove_above(disk, 8)
    assert checkpoints.lsns(disk) == [5, 8]
    checkpoints.remove_above(disk, 5)
    disk.crash()
    assert checkpoints.lsns(disk) == [5]


def test_a_shorter_checkpoint_has_nothing_of_a_longer_one_that_was_begun() -> None:
    disk = SimDisk({"checkpoints/new": b"x" * 1000})
    checkpoints.write(disk, 7, 5, b"state", {})
    found = checkpoints.newest(disk, 7, [])
    assert found is not None
    assert found.state == b"state"
