"""Checkpoints and bases: they save time, authorise nothing alone, and survive the menu of damage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from damage import wiped
from penstock.errors import LogDamaged
from penstock.log import checkpoints
from penstock.log.checkpoints import PART_BYTES
from penstock.log.log import Log
from penstock.log.simdisk import SimDisk
from penstock.records.entries import Control, Topic
from penstock.records.kinds import Kind
from penstock.server.opening import fold
from sim.logkit import SMALL, T0, FakeClock, commit, content, messages, note, opened

TWO = replace(SMALL, segment=4000)


def grown(disk: SimDisk, commits: int = 6) -> Log:
    log = opened(disk, TWO)
    commit(log, Control(Kind.VIA, "", b'{"vhost":"v","exchange":"x"}', b"", log.appended + 1, T0, 3))
    for _ in range(commits):
        commit(log, messages(log.appended + 1, b"m" * 400, b"n"))
    return log


def replayed(log: Log) -> list[int]:
    return [lsn for table in log.replay() for lsn in table["lsn"].to_pylist()]


def test_replay_starts_at_the_newest_checkpoint() -> None:
    disk = SimDisk()
    log = grown(disk)
    log.write_checkpoint(b"old", 3)
    log.write_checkpoint(b"mid", 5)
    log.write_checkpoint(b"new", 8)
    assert disk.list("checkpoints") == [f"{lsn:020d}.state" for lsn in (5, 8)]
    disk.crash()
    log = Log.open(disk, FakeClock(), TWO)
    assert log.start_state() == ("checkpoint", 8, b"new")
    assert log.recovery.checkpoint == 8
    assert replayed(log) == list(range(9, 14))
    assert log.read([2]).bodies == [b"m" * 400]
    assert log.vias.known[3] == ("v", "x")


def test_a_checkpoint_ahead_of_the_disk_is_not_written() -> None:
    log = opened(SimDisk(), replace(SMALL, sync="off"))
    commit(log, messages(1, b"x"))
    with pytest.raises(ValueError, match="ahead of the log"):
        log.write_checkpoint(b"", 2)


def test_a_checkpoint_syncs_what_it_stands_for() -> None:
    disk = SimDisk()
    log = opened(disk, replace(SMALL, sync="off"))
    commit(log, messages(1, b"x"))
    log.write_checkpoint(b"state", 1)
    disk.crash()
    log = Log.open(disk, FakeClock(), SMALL)
    assert content(log) == [(1, b"x")]
    assert log.start_state() == ("checkpoint", 1, b"state")
    commit(log, messages(log.recovery.next_lsn, b"y"))
    log.close()
    log = opened(disk, replace(SMALL, sync="off"))
    commit(log, messages(log.recovery.next_lsn, b"z"))
    disk.fail_next("sync")
    with pytest.raises(OSError, match="error"):
        log.write_checkpoint(b"later", log.durable)
    assert log.broken


@pytest.mark.parametrize(
    "damage",
    [
        "missing",
        "empty",
        "zeros",
        "half header",
        "cut",
        "flipped",
        "foreign",
        "duplicate",
        "other origin",
        "unreadable",
    ],
)
def test_the_menu_of_damage_for_checkpoints(damage: str) -> None:
    disk = SimDisk()
    log = grown(disk)
    log.write_checkpoint(b"first", 4)
    log.write_checkpoint(b"second" * 10, 8)
    log.close()
    files, name = disk.files(), "checkpoints/00000000000000000008.state"
    data = files[name]
    match damage:
        case _ if wiped(files, name, damage, header=20):
            pass
        case "cut":
            files[name] = data[:-1]
        case "flipped":
            files[name] = data[:-9] + bytes([data[-9] ^ 4]) + data[-8:]
        case "foreign":
            files[name] = b"what is this?" * 20
        case "duplicate":
            files["checkpoints/00000000000000000009.state"] = data
        case "other origin":
            other = SimDisk()
            log = opened(other, replace(TWO, origin=8))
            for _ in range(8):
                commit(log, messages(log.appended + 1, b"x"))
            log.write_checkpoint(b"theirs", 8)
            files[name] = other.files()[name]
        case _:
            files["checkpoints/new"] = b"half"
    bent = SimDisk(files)
    log = Log.open(bent, FakeClock(), TWO)
    start = log.start_state()
    assert start is not None
    assert start[2] == (b"second" * 10 if damage in {"duplicate", "unreadable"} else b"first")
    assert replayed(log) == list(range(start[1] + 1, 14))
    assert files.items() <= bent.files().items()
    assert (log.recovery.warnings == []) == (damage in {"missing", "unreadable"})


@pytest.mark.parametrize("vias", [5, [], {"a": "b"}, {"a": [1]}, None])
def test_a_checkpoint_with_a_right_sum_that_says_what_none_says_is_not_used(vias: object) -> None:
    disk = SimDisk()
    log = grown(disk)
    checkpoints.write(disk, log.origin, 8, b"state", vias)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    log.close()
    again = Log.open(disk, FakeClock(), TWO)
    assert again.start_state() is None
    assert "is not used: vias" in "".join(again.recovery.warnings)


@pytest.mark.parametrize("state", [b"", b"PENSTATE junk", b"PENSTATE" + b"\x09\0\0\0\0\0\0\0"])
def test_a_state_with_a_right_sum_that_is_none_is_told_by_the_name_of_what_holds_it(state: bytes) -> None:
    disk = SimDisk()
    log = grown(disk)
    name = log.write_checkpoint(state, 8)
    log.close()
    with pytest.raises(LogDamaged, match=f"{name} cannot be used: .*; move it away"):
        fold(Log.open(SimDisk(disk.files()), FakeClock(), TWO))
    disk.remove(name)
    log = opened(disk, TWO)
    log.append([log.base_group(log.recovery.next_lsn, T0, 8, state)])
    log.flush()
    log.close()
    with pytest.raises(LogDamaged, match="the base of the state below LSN 8 in the log cannot be used"):
        fold(Log.open(SimDisk(disk.files()), FakeClock(), TWO))


def test_every_flipped_bit_of_a_checkpoint_is_seen() -> None:
    disk = SimDisk()
    log = grown(disk)
    name = log.write_checkpoint(b"state", 8)
    log.close()
    for bit in range(8 * len(disk.files()[name])):
        bent = SimDisk(disk.files())
        bent.flip(name, bit)
        assert Log.open(bent, FakeClock(), TWO).start_state() is None


def test_a_checkpoint_that_knows_more_than_the_log_refuses_the_start() -> None:
    disk = SimDisk()
    log = grown(disk)
    log.write_checkpoint(b"state", 13)
    log.close()
    files = disk.files()
    last = max(name for name in files if name.startswith("log/"))
    files[last] = files[last][:1048]
    with pytest.raises(LogDamaged, match="shows that it went on"):
        Log.open(SimDisk(files), FakeClock(), TWO)
    without = {name: data for name, data in files.items() if not name.startswith("checkpoints/")}
    assert Log.open(SimDisk(without), FakeClock(), TWO).durable < 13


def test_segments_go_only_behind_a_durable_base() -> None:
    disk = SimDisk()
    log = grown(disk)
    before = content(log)
    assert log.retire(99) == []
    log.append([log.base_group(14, T0, 8, b"state as of 8")])
    assert log.retire(99) == []
    log.flush()
    assert log.base_floor == 8
    gone = log.retire(99)
    assert gone
    assert log.first_lsn <= 8
    assert log.retire(99) == []
    kept = content(log)
    assert [row for row in kept if row[0] < 14] == before[-len(kept) + 1 :]
    assert log.read([1]).lsns == []
    disk.crash()
    log = Log.open(disk, FakeClock(), TWO)
    assert log.start_state() == ("base", 8, b"state as of 8")
    assert log.base_state() == (8, b"state as of 8")
    assert replayed(log) == list(range(8, 15))
    assert log.vias.known[3] == ("v", "x")
    commit(log, messages(log.recovery.next_lsn, b"x", topic=Topic("v", "x", "k", 3)))
    assert log.read([log.durable]).topics[0].vhost == "v"


def test_a_checkpoint_older_than_the_base_is_not_the_start() -> None:
    disk = SimDisk()
    log = grown(disk)
    log.write_checkpoint(b"old", 2)
    commit(log, log.base_group(14, T0, 8, b"state as of 8"))
    assert log.retire(99)
    disk.crash()
    log = Log.open(disk, FakeClock(), TWO)
    assert log.start_state() == ("base", 8, b"state as of 8")
    assert replayed(log) == list(range(8, 15))


def test_missing_front_segments_without_a_base_are_damage() -> None:
    disk = SimDisk()
    log = grown(disk)
    log.write_checkpoint(b"state", 13)
    log.close()
    files = disk.files()
    del files["log/00000000000000000001.arrows"]
    with pytest.raises(LogDamaged, match="no base covers that"):
        Log.open(SimDisk(files), FakeClock(), TWO)


def test_a_large_base_has_parts_and_stays_whole() -> None:
    disk = SimDisk()
    log = opened(disk)
    state = b"0123456789" * (PART_BYTES // 8)
    assert log.base_parts(state) == 2
    commit(log, messages(1, b"x"), log.base_group(2, T0, 1, state), note(4))
    assert [len(batch) for batch in log.batches(0, 9)] == [1, 2, 1]
    disk.crash()
    assert Log.open(disk, FakeClock(), SMALL).start_state() == ("base", 1, state)


def test_with_every_checkpoint_deleted_the_same_records_come() -> None:
    disk = SimDisk()
    log = grown(disk)
    log.write_checkpoint(b"state", 6)
    log.close()
    with_it = opened(disk, TWO)
    content_with = content(with_it)
    with_it.close()
    without = SimDisk({name: data for name, data in disk.files().items() if not name.startswith("checkpoints/")})
    log = Log.open(without, FakeClock(), TWO)
    assert log.start_state() is None
    assert replayed(log) == [lsn for lsn, _ in content_with]
    assert content(log) == content_with
