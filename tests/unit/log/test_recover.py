"""Opening: every cut and every flipped bit of a small log, and the menu of damage for each file of the folder."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from choices import EFFORT
from damage import wiped
from penstock.errors import LogDamaged
from penstock.log import checkpoints
from penstock.log.catalog import Catalog
from penstock.log.log import Log
from penstock.log.recover import open_segments
from penstock.log.segment import HEADER_BYTES
from penstock.log.simdisk import SimDisk
from penstock.log.verify import verify
from sim.logkit import SMALL, FakeClock, commit, content, messages, note, opened, small_log

FIRST = "log/00000000000000000001.arrows"
TWO = replace(SMALL, segment=6000)  # a few commits a segment
EACH = 7 if EFFORT == 1 else 1
"""One place of so many is tried: a bit of a byte, another one of the next; all in `make soak-random`."""


def names(disk: SimDisk) -> list[str]:
    return [f"log/{name}" for name in disk.list("log")]


@pytest.mark.parametrize("zeros", [0, 4096])
def test_a_cut_at_any_byte_recovers_to_a_prefix(zeros: int) -> None:
    disk = SimDisk()
    stages = small_log(disk)
    whole = disk.files()[FIRST]
    seen = set[int]()
    for at in range(len(whole), HEADER_BYTES - 1, -EACH):
        cut = SimDisk({FIRST: whole[:at] + bytes(zeros)})
        log = opened(cut)
        found = content(log)
        assert found in stages
        seen.add(len(found))
        assert log.durable == (found[-1][0] if found else 0)
        kept = b"".join(data for name, data in cut.files().items() if name.startswith("cut/"))
        tail = whole[:at][log.segments()[0].bytes :].rstrip(b"\0")
        assert kept == tail
        lsn = log.recovery.next_lsn
        assert lsn >= 1 << 32
        if at % 97 == 0:  # it goes on from there
            commit(log, messages(lsn, b"after"))
            cut.kill()
            assert content(opened(cut)) == [*found, (lsn, b"after")]
    assert seen == {len(stage) for stage in stages}


@pytest.mark.parametrize("zeros", [0, 4096])
def test_a_roll_that_was_cut_short_is_ended(zeros: int) -> None:
    """The next file is there, and the mark that closes the one before is not: who copies it would get zeros."""
    disk = SimDisk()
    log = opened(disk, TWO)
    for number in range(1, 30):
        commit(log, messages(log.appended + 1, b"%d" % number * 300))
    before = content(log)
    log.close(clean=False)
    files = disk.files()
    *closed, last = sorted(name for name in files if name.endswith(".arrows"))
    assert closed
    catalog = Catalog()
    open_segments(disk, catalog, origin=0, new_first=1, repair=False)
    segment = catalog.segments[-2]
    end = segment.offsets[-1] + segment.lengths[-1]
    cut_short = SimDisk({**files, closed[-1]: files[closed[-1]][:end] + bytes(zeros)})
    again = opened(cut_short, TWO)
    assert content(again) == before
    assert cut_short.files()[closed[-1]] == files[closed[-1]]
    assert again.recovery.cut_files == []
    assert last in cut_short.files()


def test_a_cut_in_the_header_starts_anew() -> None:
    disk = SimDisk()
    small_log(disk, commits=0)
    whole = disk.files()[FIRST]
    for at in range(len(whole)):
        cut = SimDisk({FIRST: whole[:at]})
        log = opened(cut)
        assert log.recovery.created
        assert cut.files()[log.recovery.cut_files[0]] == whole[:at]


def test_every_flipped_bit_is_refused_or_cut() -> None:
    disk = SimDisk()
    stages = small_log(disk, commits=2)
    whole = disk.files()[FIRST]
    outcomes, refusals, unchanged = {"prefix": 0, "harmless": 0}, list[str](), list[bool]()
    for bit in range(0, 8 * len(whole), EACH):
        bent = SimDisk({FIRST: whole})
        bent.flip(FIRST, bit)
        before = bent.files()
        try:
            log = opened(bent)
        except LogDamaged as error:
            refusals.append(str(error))
            unchanged.append(bent.files() == before)
            continue
        assert log.origin == 7
        found = content(log)
        assert found in stages
        outcomes["harmless" if found == stages[-1] else "prefix"] += 1
    assert refusals
    assert all(FIRST in said for said in refusals)
    assert all(unchanged)
    assert outcomes["prefix"] > 0


def test_after_a_mark_no_flipped_bit_passes_as_a_tail() -> None:
    disk, clock = SimDisk(), FakeClock()
    log = opened(disk, clock=clock)
    commit(log, messages(1, b"one"))
    clock.pass_by(200_000)
    assert log.next_deadline() is not None
    log.tick()
    assert log.next_deadline() is None
    end = log.segments()[0].bytes
    disk.kill()
    whole = disk.files()[FIRST]
    assert len(whole) > end
    refused = 0
    for bit in range(8 * HEADER_BYTES, 8 * end, 7):
        bent = SimDisk({FIRST: whole})
        bent.flip(FIRST, bit)
        try:
            log = opened(bent)
        except LogDamaged as error:
            refused += "batch 0 at byte" in str(error) and bool(verify(bent).damage)
        else:  # a digit of the CRC in capitals says the same
            assert content(log) == [(1, b"one")]
    assert refused > 1000


def test_a_hole_of_zeros_before_what_claims_it_is_damage() -> None:
    disk = SimDisk()
    log = opened(disk)
    places = [log.segments()[0].bytes]
    for at in range(3):
        commit(log, messages(log.appended + 1, b"m%d" % at))
        places.append(log.segments()[0].bytes)
    disk.kill()
    whole = bytearray(disk.files()[FIRST])
    whole[places[1] : places[2]] = bytes(places[2] - places[1])
    with pytest.raises(LogDamaged, match=r"batch 1 at byte \d+, from LSN 2 on, is zeros"):
        opened(SimDisk({FIRST: bytes(whole)}))


def test_a_hole_that_nothing_after_it_claims_is_a_tail() -> None:
    disk = SimDisk()
    log = opened(disk, replace(SMALL, sync="off"))
    places = [log.segments()[0].bytes]
    for at in range(3):
        commit(log, messages(log.appended + 1, b"m%d" % at))
        places.append(log.segments()[0].bytes)
    disk.kill()
    whole = bytearray(disk.files()[FIRST])
    whole[places[1] : places[2]] = bytes(places[2] - places[1])
    torn = SimDisk({FIRST: bytes(whole)})
    log = opened(torn)
    assert content(log) == [(1, b"m0")]
    assert log.recovery.cut_bytes == len(whole.rstrip(b"\0")) - places[1]
    commit(log, messages(log.recovery.next_lsn, b"next"))
    torn.kill()
    assert [body for _, body in content(opened(torn))] == [b"m0", b"next"]


def two_segments() -> tuple[SimDisk, list[list[tuple[int, bytes]]]]:
    disk = SimDisk()
    stages = small_log(disk, TWO, commits=9)
    assert len(names(disk)) >= 3
    return disk, stages


def test_a_clean_stop_gives_the_next_lsn_and_a_kill_leaves_a_gap() -> None:
    disk = SimDisk()
    log = opened(disk)
    commit(log, messages(1, b"a", b"b"))
    log.close()
    log = opened(disk)
    assert (log.recovery.clean, log.recovery.next_lsn, log.recovery.cut_bytes) == (True, 3, 0)
    log.close()
    log = opened(disk)
    assert (log.recovery.clean, log.recovery.next_lsn) == (True, 3)
    commit(log, messages(3, b"c"))
    disk.kill()
    log = opened(disk)
    assert (log.recovery.clean, log.recovery.next_lsn) == (False, 3 + (1 << 32))
    assert log.recovery.last_lsn == 3


def test_an_origin_is_minted_once() -> None:
    disk = SimDisk()
    log = Log.open(disk, FakeClock(), replace(SMALL, origin=0))
    origin = log.origin
    assert origin > 0
    log.close()
    assert opened(disk, replace(SMALL, origin=99)).origin == origin


@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize(
    "damage",
    ["missing", "empty", "zeros", "half header", "older", "foreign", "duplicate", "other origin", "read-only", "text"],
)
def test_the_menu_of_damage_for_segments(damage: str, which: int) -> None:
    whole, stages = two_segments()
    files = whole.files()
    name = names(whole)[which]
    data = files[name]
    readonly = False
    match damage:
        case _ if wiped(files, name, damage, header=HEADER_BYTES // 2):
            pass
        case "older":
            files[name] = data[: HEADER_BYTES + 1200]
        case "foreign":
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, pa.schema([("x", pa.int64())])) as writer:
                writer.write_batch(pa.RecordBatch.from_pydict({"x": [1] * 300}))
            files[name] = sink.getvalue().to_pybytes()
        case "duplicate":
            files["log/00000000000000000777.arrows"] = data
        case "other origin":
            other = SimDisk()
            small_log(other, replace(TWO, origin=8), commits=9)
            files[name] = other.files()[name]
        case "read-only":
            readonly = True
        case _:
            files[name] = b"what is this?" * 200
    disk = SimDisk(files)
    if readonly:
        disk.readonly.add(name)
    before = disk.files()
    try:
        log = opened(disk, TWO)
    except LogDamaged as error:
        said = str(error)
    else:
        last = which == -1
        assert (damage, last) in {("older", True), ("read-only", False)}  # nothing shows that there was more
        assert content(log) in stages
        assert sum(map(len, disk.files().values())) >= sum(map(len, before.values()))
        return
    assert "log/" in said
    assert "\n" not in said
    assert disk.files() == before
    assert verify(SimDisk(files)).damage or readonly


def test_strange_files_are_left_alone() -> None:
    disk, stages = two_segments()
    strange = {"log/README": b"x", "log/1.arrows": b"", "checkpoints/old.bak": b"?", "notes.txt": b"", "cut/x": b"y"}
    full = SimDisk({**disk.files(), **strange})
    log = opened(full, TWO)
    assert content(log) == stages[-1]
    assert len([line for line in log.recovery.warnings if "left alone" in line]) == 3
    assert strange.items() <= full.files().items()


def test_a_roll_that_a_power_cut_undid_is_put_aside() -> None:
    disk = SimDisk()
    stages = small_log(disk)
    fresh = "log/00000000000000000099.arrows"
    torn = SimDisk({**disk.files(), fresh: b"\xff\xff\xff\xff" + bytes(40)})
    log = opened(torn)
    assert content(log) == stages[-1]
    assert not log.recovery.clean
    assert fresh not in torn.files()
    assert torn.files()[log.recovery.cut_files[0]].startswith(b"\xff\xff")


def test_a_start_that_a_checkpoint_refuses_changes_nothing() -> None:
    disk = SimDisk()
    last, origin = small_log(disk)[-1][-1][0], verify(disk).origin
    whole = disk.files()[FIRST].rstrip(b"\0")
    for more in ({}, {"log/00000000000000000099.arrows": b"\xff\xff"}, {"log/00000000000000000001.rewrite": b"half"}):
        torn = SimDisk({**disk.files(), FIRST: whole[:-300], **more})
        checkpoints.write(torn, origin, last, b"state", {})
        before = torn.files()
        with pytest.raises(LogDamaged, match="shows that it went on"):
            opened(torn)
        assert torn.files() == before


def test_a_look_without_the_lock_makes_no_segment() -> None:
    disk = SimDisk({FIRST: b"\xff\xff\xff\xff"})
    assert "has no header yet" in verify(disk).warnings[0]
    with pytest.raises(LogDamaged, match="holds no segment"):
        open_segments(disk, Catalog(), origin=0, new_first=1, repair=False)
    assert disk.files() == {FIRST: b"\xff\xff\xff\xff"}


def test_checkpoints_without_a_log_are_not_a_new_folder() -> None:
    disk = SimDisk({"checkpoints/00000000000000000005.state": b"x"})
    with pytest.raises(LogDamaged, match="holds no segment"):
        opened(disk)
    assert list(disk.files()) == ["checkpoints/00000000000000000005.state"]


def test_a_newer_format_is_refused_by_name() -> None:
    from penstock.log.segment import SegmentHeader

    newer = SegmentHeader(7, 1, 0, version=3).encode()
    with pytest.raises(LogDamaged, match="newer Penstock"):
        opened(SimDisk({FIRST: newer + bytes(4096)}))


def test_a_failed_open_lets_the_folder_go() -> None:
    disk = SimDisk({FIRST: b"text" * 1000})
    for _ in range(2):
        with pytest.raises(LogDamaged):
            opened(disk)


def test_verify_and_segments_say_what_is_there() -> None:
    disk, stages = two_segments()
    report = verify(disk)
    assert report.good
    assert report.rows == len(stages[-1])
    assert report.last_lsn == stages[-1][-1][0]
    assert [line.closed for line in report.segments] == [True] * (len(report.segments) - 1) + [False]
    name = names(disk)[0]
    disk.flip(name, 8 * (HEADER_BYTES + 1000))
    assert any(name in line for line in verify(disk).damage)
    assert not verify(SimDisk()).good


def test_damage_in_an_old_segment_stops_the_replay() -> None:
    disk, _ = two_segments()
    disk.flip(names(disk)[0], 8 * (HEADER_BYTES + 1000))
    log = Log.open(disk, FakeClock(), TWO)
    with pytest.raises(LogDamaged, match="batch 0 at byte"):
        list(log.replay())
    with pytest.raises(LogDamaged, match="from LSN 1 on"):
        log.read([1])


def test_transient_controls_survive_too() -> None:
    disk = SimDisk()
    log = opened(disk)
    commit(log, note(1, b"x"))
    assert content(log) == [(1, b"x")]
