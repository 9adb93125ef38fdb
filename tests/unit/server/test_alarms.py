"""Alarms: each that is set, or over, is one line of the server's log and one event, whoever listens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.errors import DiskFull
from penstock.log.simdisk import SimDisk
from penstock.log.writer import MEMORY
from penstock.server.alarms import Alarms
from sim.serverkit import Life, clock

MIB = 1 << 20
LOG = replace(MEMORY, origin=7, ahead=64 << 10, reserve=512 << 10, low_space=512 << 10, segment=MIB)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [one.getMessage() for one in caplog.records if one.name == "penstock.server"]
    caplog.clear()
    return found


def told(life: Life) -> list[tuple[str, object]]:
    return [(one.name, one.fields["alarm"]) for one in life.engine.notices.feed.since(0, 100) if "alarm" in one.fields]


def test_a_full_disk_is_told_when_it_begins_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk(capacity=16 * MIB)
    life = Life(disk, clock(), log=LOG)
    alarms = Alarms(life.engine, lambda: 0)
    alarms.beat()
    assert lines(caplog) == []
    disk.capacity = MIB
    life.log.check_space()
    for _ in range(3):
        alarms.beat()
    [line] = lines(caplog)
    assert line.startswith("alarm disk_full: the log has no room: the disk of server.data has ")
    refused = life.engine.refusal()
    assert isinstance(refused, DiskFull)
    assert str(refused) in line
    free = round(disk.free() / 1024)
    assert str(refused).endswith(
        f" {free} KiB free, and publishes are taken again from 512 KiB on, {512 - free} KiB more"
    )
    disk.capacity = 16 * MIB
    life.clock.advance(62_000_000)
    life.log.check_space()
    alarms.beat()
    assert lines(caplog) == ["alarm disk_full is over, after 62 s"]
    assert told(life) == [("alarm.set", "disk_full"), ("alarm.cleared", "disk_full")]


def test_a_drain_is_told(caplog: pytest.LogCaptureFixture, life: Life) -> None:
    alarms = Alarms(life.engine, lambda: 0)
    for draining in (True, True, False):
        life.core.drain(life.engine.now(), draining)
        alarms.beat()
    assert lines(caplog) == [
        "alarm draining: the server drains: it takes no new messages and no new consumers",
        "alarm draining is over, after 0 s",
    ]


def test_upkeep_that_slows_publishers_is_told_when_it_lasts(caplog: pytest.LogCaptureFixture, life: Life) -> None:
    """It comes and goes with the load: a line for each second of that would hide the others."""
    alarms = Alarms(life.engine, iter((2500, 0, 2500, 2500, 3000, 0)).__next__)
    for _ in range(3):
        alarms.beat()
        life.clock.advance(1_000_000)
    assert lines(caplog) == []
    for _ in range(3):
        life.clock.advance(9_000_000)
        alarms.beat()
    assert lines(caplog) == [
        "alarm upkeep: the log has outgrown log.retention: each batch of publishes waits 2.5 ms",
        "alarm upkeep is over, after 28 s",
    ]
    assert told(life) == [("alarm.set", "upkeep"), ("alarm.cleared", "upkeep")] * 2


def test_no_descriptor_for_a_connection_is_told(caplog: pytest.LogCaptureFixture, life: Life) -> None:
    alarms = Alarms(life.engine, lambda: 0, iter((True, True, False)).__next__)
    for _ in range(3):
        alarms.beat()
    assert lines(caplog) == [
        "alarm descriptors: no descriptor is left for connections: they wait until one is given back",
        "alarm descriptors is over, after 0 s",
    ]
