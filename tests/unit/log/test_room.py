"""Full disks: publishes are to be refused, what was accepted and the acks still get on the disk."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from penstock.log.room import RESERVE
from penstock.log.simdisk import SimDisk
from penstock.log.writer import LogSettings
from penstock.server.base.allowed import FILE_LEAST
from sim.logkit import SMALL, FakeClock, commit, content, messages, note, opened

ROOMY = replace(SMALL, ahead=8_000, reserve=6_000)


def test_zeros_are_kept_ahead_and_end_a_stream() -> None:
    disk = SimDisk()
    log = opened(disk, ROOMY)
    size = len(disk.files()["log/00000000000000000001.arrows"])
    assert size >= log.segments()[0].bytes + 8_000
    for _ in range(10):
        commit(log, messages(log.appended + 1, b"x" * 500))
    grown = len(disk.files()["log/00000000000000000001.arrows"])
    assert grown >= log.segments()[0].bytes + 4_000
    assert len(disk.files()[RESERVE]) == 6_000


def test_a_full_disk_refuses_publishes_and_takes_acks() -> None:
    disk, clock = SimDisk(), FakeClock()
    log = opened(disk, ROOMY, clock)
    disk.capacity = disk.used() + 1_000
    while not log.room.full:
        commit(log, messages(log.appended + 1, b"x" * 500))
    assert not log.broken
    for _ in range(5):  # beyond the zeros, into the reserve
        commit(log, note(log.appended + 1, b"ack"))
    assert not log.broken
    assert RESERVE not in disk.files()
    last = log.durable
    disk.capacity += 1 << 20
    clock.pass_by(2_000_000)
    log.tick()
    assert not log.room.full
    assert len(disk.files()[RESERVE]) == 6_000
    commit(log, messages(last + 1, b"again"))
    disk.crash()
    assert content(opened(disk, ROOMY))[-1] == (last + 1, b"again")


def test_when_nothing_is_left_the_log_breaks() -> None:
    disk = SimDisk()
    log = opened(disk, ROOMY)
    disk.capacity = disk.used()
    for _ in range(60):
        commit(log, note(log.appended + 1, b"ack" * 50))
    assert "No space" in log.broken
    safe = log.durable
    disk.crash()
    disk.capacity *= 10
    assert content(opened(disk, ROOMY))[-1][0] >= safe


@pytest.mark.parametrize("left", [0, 10, 300])
@pytest.mark.parametrize("reserve", [0, 100])
def test_a_mark_waits_for_room(left: int, reserve: int) -> None:
    """It says what is durable already: no log breaks for it."""
    disk, clock = SimDisk(), FakeClock()
    log = opened(disk, replace(SMALL, ahead=0, reserve=reserve), clock)
    commit(log, messages(1, b"x"))
    name = log.segments()[-1].name
    size, disk.capacity = len(disk.files()[name]), disk.used() + left
    for _ in range(3):
        clock.pass_by(1_000_000)
        log.tick()
    assert not log.broken
    assert len(disk.files()[name]) == size
    disk.capacity += 1 << 20
    clock.pass_by(2_000_000)
    log.tick()  # it looks
    log.tick()
    assert len(disk.files()[name]) > size
    commit(log, messages(2, b"y"))
    disk.crash()
    assert content(opened(disk, SMALL)) == [(1, b"x"), (2, b"y")]


def test_a_stop_without_room_for_its_mark_is_as_good_as_a_kill() -> None:
    disk = SimDisk()
    log = opened(disk, replace(SMALL, ahead=0, reserve=0))
    commit(log, messages(1, b"x"))
    disk.capacity = disk.used()
    log.close()
    assert not log.broken
    disk.capacity += 1 << 20
    assert content(opened(disk, SMALL)) == [(1, b"x")]


def test_little_space_is_seen_before_it_is_none() -> None:
    disk = SimDisk(capacity=1 << 20)
    log = opened(disk, replace(ROOMY, low_space=1 << 19))
    assert not log.room.full
    disk.capacity = disk.used() + (1 << 18)
    log.check_space()
    assert log.room.full
    disk.capacity = 1 << 20
    log.check_space()
    assert not log.room.full


def test_publishes_leave_the_archive_of_the_same_disk_its_next_file_which_may_be_the_one_that_is_written_to() -> None:
    apart, low = 1 << 16, 1 << 15
    disk = SimDisk()
    log = opened(disk, replace(ROOMY, low_space=low, segment=30_000, reserve=0))
    log.room.spare(0, apart)
    assert log.room.least == low + apart + log.segments()[-1].bytes
    log.room.spare(2 * apart, apart)
    assert log.room.least == low + 3 * apart
    assert log.room.lacking() == 0
    log.room.spare(0, apart)
    while len(log.segments()) == 1:
        commit(log, messages(log.appended + 1, b"x" * 2_000))
    first = log.segments()[0].bytes
    assert log.room.least == low + apart + first, "before anybody has looked again"

    disk.capacity = disk.used() + log.room.least
    log.check_space()
    assert not log.room.full
    commit(log, messages(log.appended + 1, b"x" * 4_000))
    log.check_space()
    assert log.room.full
    assert "of that the archive on it needs" in log.room.why_full()
    assert low < log.room.lacking() <= low + ROOMY.ahead
    log.room.spare(0, apart)  # it has taken the first file
    log.check_space()
    assert not log.room.full


def test_a_roll_on_a_full_disk_goes_on_in_the_old_file() -> None:
    disk = SimDisk()
    log = opened(disk, replace(ROOMY, segment=5_000))
    commit(log, messages(1, b"x" * 2_000))
    disk.capacity = disk.used()
    for _ in range(3):
        commit(log, messages(log.appended + 1, b"y" * 1_000))
    assert log.room.full
    assert not log.broken
    assert len(log.segments()) == 1
    disk.capacity *= 10
    log.check_space()
    commit(log, messages(log.appended + 1, b"z"))
    assert len(log.segments()) == 2
    disk.crash()
    assert [body[:1] for _, body in content(opened(disk, ROOMY))] == [b"x", b"y", b"y", b"y", b"z"]


def test_an_error_ahead_of_the_log_breaks_it() -> None:
    disk = SimDisk()
    log = opened(disk, ROOMY)
    commit(log, messages(1, b"x"))
    disk.fail_next("write", after=1, error=errno.EIO)
    commit(log, messages(2, b"x" * 5_000))  # the batch is written; the zeros after it are not
    commit(log, messages(3, b"y"))
    assert log.broken


def test_a_file_that_may_grow_no_more_is_a_full_disk_until_it_may() -> None:
    """The limit of the size of files: the log broke, and took neither publishes nor acks until a restart."""
    disk, clock = SimDisk(), FakeClock()
    log = opened(disk, ROOMY, clock)
    commit(log, messages(1, b"x"))
    disk.fail_next("write", after=1, error=errno.EFBIG)
    commit(log, messages(2, b"x" * 5_000))  # the batch is written; the zeros after it are not
    assert log.room.full
    assert "the limit of the size of files (ulimit -f, LimitFSIZE=) lets its file grow no more" in log.room.why_full()
    assert log.room.lend() == 0, "for work that frees what is no use to it"
    commit(log, note(3, b"ack"))
    disk.fail_next("write", error=errno.EFBIG)
    for full in (True, False):
        clock.pass_by(2_000_000)
        log.tick()
        assert log.room.full is full
    assert RESERVE in disk.files(), "which is of no use there"
    assert not log.broken
    commit(log, messages(4, b"again"))
    disk.crash()
    assert content(opened(disk, ROOMY))[-1] == (4, b"again")


def test_the_defaults_hold_room_for_acks() -> None:
    assert LogSettings().reserve > 0
    assert LogSettings().ahead > 0
    assert max(LogSettings().reserve, LogSettings().ahead * 2) <= FILE_LEAST, "of a file that a server needs"
