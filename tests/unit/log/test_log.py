"""Appending and reading: commits, groups, rolls, what waits and what does not, failures, topics, plain readers."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pyarrow as pa
import pytest

from penstock.errors import InvalidArgument, LogBroken
from penstock.log.frame import STOPPED, FrameReader, Window
from penstock.log.log import Log
from penstock.log.simdisk import SimDisk
from penstock.log.verify import segments
from penstock.records.entries import Control, Entry, Group, Publishes, Topic
from penstock.records.kinds import Kind
from sim.logkit import ORDERS, SMALL, T0, FakeClock, commit, content, messages, note, opened, pending, rows_of

FIRST = "log/00000000000000000001.arrows"


def test_what_was_appended_is_read() -> None:
    log = opened(SimDisk())
    heard = list[int]()
    log.on_durable = heard.append
    entries: list[Entry] = [messages(1, b"a", b"b"), note(3, b"n"), Group([note(4), messages(5, b"c")])]
    log.append(entries)
    assert (log.durable, heard, log.appended) == (0, [], 5)
    assert log.pending.bytes > 0
    assert log.read([1]).lsns == []
    log.flush()
    assert (log.durable, heard, log.pending.bytes) == (5, [5], 0)
    assert content(log) == rows_of(entries)
    rows = log.read(range(1, 6))
    assert (rows.lsns, rows.bodies) == ([1, 2, 5], [b"a", b"b", b"c"])
    assert (rows.properties[0], rows.times[0], rows.expires_at[0], rows.priority[0]) == (b"\x10\0\x02", T0, 0, 0)
    assert rows.topics[0] is rows.topics[2]
    assert (rows.topics[0].vhost, rows.topics[0].exchange, rows.topics[0].name) == ("/", "", "orders")


def test_scattered_rows_over_batches_segments_and_gaps() -> None:
    disk = SimDisk()
    log = opened(disk, replace(SMALL, segment=4000, cache=1))
    lsn = 1
    expected = dict[int, bytes]()
    for at in range(12):
        batch = messages(lsn, *(b"%d.%d" % (at, row) for row in range(5)))
        commit(log, batch)
        expected |= rows_of([batch])
        lsn += 5 + (1000 if at % 4 == 3 else 0)
    assert len(log.segments()) > 2
    wanted = [lsn for lsn in sorted(expected) if lsn % 3]
    for lsns in (wanted, array("q", wanted)):
        rows = log.read(lsns)
        assert rows.lsns == wanted
        assert rows.bodies == [expected[lsn] for lsn in wanted]
    assert log.read(range(20_000)).lsns == sorted(expected)
    assert log.read([0, 500, 99_999]).lsns == []
    assert [row for batch in log.batches(8, 1018, ["lsn"]) for row in batch["lsn"].to_pylist()] == [
        lsn for lsn in sorted(expected) if 8 <= lsn < 1018
    ]


def test_records_are_counted_without_what_a_crash_leaves_free() -> None:
    """Who was level was four thousand million records behind after each."""
    log = opened(SimDisk(), SMALL)
    first = lsn = log.appended + 1
    for _run in range(3):
        for _commit in range(5):
            commit(log, messages(lsn, b"x"))
            lsn += 1
        lsn += (1 << 32) - 1
    end = log.durable + 1
    assert [log.records_between(first + n, first + 5) for n in range(7)] == [5, 4, 3, 2, 1, 0, 0]
    assert log.records_between(end, end) == 0
    assert log.records_between(end - 5 - (1 << 32) + 1, end) == 5, "who was level before the last crash"
    assert log.records_between(first + 2, end) == 3 + 5 + 5 - 2, "a batch before a leap ends nobody looks where"


def test_columns_of_every_kind_come_back() -> None:
    log = opened(SimDisk())
    other = Topic("v", "x", "key", 3)
    commit(
        log,
        Control(Kind.VIA, "", b'{"vhost":"v","exchange":"x"}', b"", 1, T0, 3),
        Publishes(
            [ORDERS, other, ORDERS], [b"", b"p", b"q"], [b"1", b"2", b"3"], 2, T0, 1, [0, 5, 0], None, [0, 9, 255]
        ),
    )
    rows = log.read([2, 4])
    assert (rows.expires_at, rows.priority) == ([0, 0], [0, 255])
    rows = log.read(range(2, 5))
    assert [(t.vhost, t.exchange, t.name, t.via) for t in rows.topics][1] == ("v", "x", "key", 3)
    assert (rows.expires_at, rows.priority) == ([0, 5, 0], [0, 9, 255])


def test_a_via_that_is_told_again_stands_for_what_was_said_last() -> None:
    """Of rows from before, too, and of those that were read."""
    disk = SimDisk()
    log = opened(disk)
    for vhost in ("v", "later"):
        told = b'{"vhost":"%s","exchange":"x"}' % vhost.encode()
        commit(log, Control(Kind.VIA, "x", told, b"", log.appended + 1, T0, 3))
        assert log.vias.topics([3], ["k"])[0].vhost == vhost
    disk.kill()
    again = opened(disk)
    assert (again.vias.known[3], again.vias.topics([3], ["k"])[0].vhost) == (("later", "x"), "later")


def test_vias_are_known_after_a_restart() -> None:
    disk = SimDisk()
    log = opened(disk)
    commit(log, Control(Kind.VIA, "", b'{"vhost":"v","exchange":"x"}', b"", 1, T0, 3))
    commit(log, messages(2, b"m", topic=Topic("v", "x", "key", 3)))
    disk.kill()
    assert opened(disk).read([2]).topics[0].exchange == "x"


def test_plain_pyarrow_reads_open_and_closed_segments() -> None:
    disk = SimDisk()
    log = opened(disk, replace(SMALL, segment=4000, ahead=4096))
    for _ in range(8):
        commit(log, messages(log.appended + 1, b"x", b"yy"))
    log.close()
    lsns = list[int]()
    for name in disk.list("log"):
        with pa.ipc.open_stream(disk.files()[f"log/{name}"]) as reader:
            assert reader.schema.metadata[b"penstock.origin"] == b"%020d" % 7
            lsns += reader.read_all()["lsn"].to_pylist()
    assert lsns == list(range(1, 17))


def test_a_log_may_start_at_a_high_lsn() -> None:
    disk = SimDisk()
    high = 1 << 40
    log = opened(disk, replace(SMALL, first_lsn=high))
    assert (log.recovery.next_lsn, log.durable) == (high, high - 1)
    commit(log, messages(high, b"a", b"b"))
    log.close()
    log = opened(disk)
    assert log.recovery.next_lsn == high + 2
    assert log.read(range(high, high + 2)).bodies == [b"a", b"b"]


def test_a_commit_is_cut_between_entries_and_groups_stay_whole() -> None:
    disk = SimDisk()
    log = opened(disk, replace(SMALL, batch_rows=4, batch_bytes=2000))
    entries: list[Entry] = [
        messages(1, b"a", b"b", b"c"),
        messages(4, b"d", b"e"),
        Group([messages(6, *[b"g"] * 9), note(15)]),
        messages(16, *[b"h"] * 10),
        messages(26, b"i" * 1500, b"j" * 1500, b"k"),
    ]
    commit(log, *entries)
    assert content(log) == rows_of(entries)
    sizes = [len(batch) for batch in log.batches(0, 99)]
    assert sizes == [3, 2, 10, 4, 4, 2, 1, 2]
    assert log.commits == 1


def test_lazy_entries_wait_for_company_or_for_their_time() -> None:
    clock, disk = FakeClock(), SimDisk()
    log = opened(disk, clock=clock)
    log.append([note(1)], urgent=False)
    assert log.next_deadline() == clock.now + SMALL.ack_sync
    log.tick()
    assert log.durable == 0
    clock.pass_by(SMALL.ack_sync)
    log.tick()
    assert log.durable == 1
    log.append([note(2)], urgent=False)
    log.append([messages(3, b"x")])
    log.tick()
    assert log.durable == 3


def test_the_first_failed_write_is_the_last() -> None:
    for kind in ("write", "sync"):
        disk = SimDisk()
        log = opened(disk)
        commit(log, messages(1, b"safe"))
        broken, heard = list[BaseException](), list[int]()
        log.on_broken, log.on_durable = broken.append, heard.append
        disk.fail_next(kind)
        commit(log, messages(2, b"lost"))
        assert isinstance(broken[0], LogBroken)
        assert "cannot be written" in log.broken
        commit(log, messages(3, b"never"))
        log.tick()
        assert (log.durable, heard, len(broken), log.pending.bytes) == (1, [], 1, 0)
        assert content(log) == [(1, b"safe")]
        assert log.read([1, 2]).bodies == [b"safe"]
        log.close()
        disk.crash()
        again = opened(disk)
        assert content(again)[:1] == [(1, b"safe")]
        assert not again.recovery.clean


def test_sync_off_confirms_at_once_and_syncs_what_must_be() -> None:
    disk = SimDisk()
    log = opened(disk, replace(SMALL, sync="off"))
    before = disk.syncs
    commit(log, messages(1, b"a"))
    assert (log.durable, log.synced, disk.syncs) == (1, 0, before)
    commit(log, note(2, kind=Kind.QUEUE_DECLARE))
    assert (log.durable, log.synced, disk.syncs) == (2, 2, before + 1)
    log.append([messages(3, b"b")], sync=True)
    log.flush()
    assert log.synced == 3


def test_a_sync_can_be_asked_for() -> None:
    disk = SimDisk()
    log = opened(disk, replace(SMALL, sync="off"))
    commit(log, messages(1, b"a"))
    log.request_sync()
    log.flush()
    assert (log.synced, log.durable) == (1, 1)
    before = disk.syncs
    log.request_sync()
    log.flush()
    assert disk.syncs == before
    log.append([note(2)], urgent=False)
    log.request_sync()
    log.tick()
    assert log.synced == 2


def test_what_is_gathered_when_the_log_breaks_is_pending_no_more() -> None:
    disk, clock = SimDisk(), FakeClock()
    log = opened(disk, replace(SMALL, sync="interval", ack_sync=10 * SMALL.sync_interval), clock)
    commit(log, messages(1, b"written"))
    log.append([note(2)], urgent=False)
    assert log.pending.bytes == pending(log) > 0
    clock.pass_by(SMALL.sync_interval)
    disk.fail_next("sync")
    log.tick()
    assert log.broken
    assert log.pending.bytes == pending(log) == 0


def test_sync_interval_syncs_in_time() -> None:
    disk, clock = SimDisk(), FakeClock()
    log = opened(disk, replace(SMALL, sync="interval"), clock)
    commit(log, messages(1, b"a"))
    assert (log.durable, log.synced) == (1, 0)
    clock.pass_by(SMALL.sync_interval)
    log.tick()
    assert log.synced == 1


def test_a_closed_log_refuses() -> None:
    log = opened(SimDisk())
    log.close()
    log.close()
    with pytest.raises(LogBroken, match="closed"):
        log.append([note(1)])


def test_replay_gives_tables_of_all_records() -> None:
    disk = SimDisk()
    log = opened(disk, replace(SMALL, segment=4000))
    for _ in range(9):
        commit(log, messages(log.appended + 1, b"x", b"y"))
    disk.kill()
    log = Log.open(disk, FakeClock(), SMALL)
    tables = list(log.replay())
    assert [row for table in tables for row in table["lsn"].to_pylist()] == list(range(1, 19))
    assert log.recovery.records == 18


def test_a_segment_that_was_cut_under_the_reader_is_damage() -> None:
    from penstock.errors import LogDamaged

    disk = SimDisk()
    log = opened(disk)
    commit(log, messages(1, b"x"))
    disk.open(FIRST).truncate(1000)
    with pytest.raises(LogDamaged, match="cut off"):
        log.read([1])


def test_what_no_batch_can_hold_is_refused_before_it_is_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.log.group_commit.GROUP_BYTES_MAX", 1000)
    log = opened(SimDisk())
    commit(log, messages(1, b"a"))
    with pytest.raises(InvalidArgument, match=r"a group of records has \d+ bytes; the log holds at most 1000"):
        log.append([messages(2, b"b"), Group([note(3), messages(4, *[b"x" * 100] * 9)])])
    with pytest.raises(InvalidArgument, match="a message has 1001 bytes; the log holds at most 1000 in one piece"):
        log.append([messages(2, b"b", b"x" * 1001)])
    assert log.pending.bytes == 0
    assert not log.broken
    many = messages(2, *[b"x" * 900] * 9)  # these may be parted
    commit(log, many)
    assert log.durable == 10
    assert log.read(range(1, 11)).bodies == [b"a", *[b"x" * 900] * 9]


def test_a_base_that_no_batch_can_hold_is_refused_before_it_has_a_position(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.log.log.GROUP_BYTES_MAX", 1000)
    log = opened(SimDisk())
    assert log.base_parts(bytes(1000)) == 1
    with pytest.raises(InvalidArgument, match="a base of 1001 bytes is more than the 1000 of a group"):
        log.base_parts(bytes(1001))


def test_in_a_cluster_nothing_is_durable_before_every_copy_has_it() -> None:
    """What is written may be copied before this disk has it, and no batch claims what a copy may lack."""
    disk = SimDisk()
    log = opened(disk)
    heard, told, synced = list[int](), list[tuple[int, int, int]](), list[int]()
    log.on_durable = heard.append
    log.wait_for_copies(lambda *place: told.append(place), synced.append)
    log.append([messages(1, b"a", b"b")])
    log.flush()
    size = log.segments()[-1].bytes
    assert (told[-1], synced, log.synced, log.durable, heard) == ((1, size, 2), [0, 2], 2, 0, [])
    log.append([messages(3, b"c")])
    log.flush()
    log.tick()
    log.committed(2)
    log.committed(1)
    assert (log.durable, heard, content(log)[-1]) == (2, [2], (2, b"b"))
    log.append([messages(4, b"d")])
    log.flush()
    assert claims(disk, log) == [0, 0, 2]
    log.committed(4)
    assert heard == [2, 4]


def test_what_a_leader_found_is_claimed_when_every_copy_has_it() -> None:
    """It may be the only one that has what another leader wrote last: all copies get its batches, and its marks."""
    disk, clock = SimDisk(), FakeClock()
    log = opened(disk)
    for lsn in (1, 2, 3):
        commit(log, messages(lsn, b"a"))
    disk.kill()
    log = opened(disk, clock=clock)
    log.wait_for_copies(lambda *place: None, lambda lsn: None)
    clock.pass_by(1_000_000)
    log.tick()
    commit(log, messages(11, b"boot"))
    log.committed(1)
    commit(log, messages(12, b"b"))
    log.committed(3)
    assert log.durable == 3
    commit(log, messages(13, b"c"))
    log.committed(13)
    commit(log, messages(14, b"d"))
    assert claims(disk, log) == [0, 1, 2, 0, 1, 3, 13]
    disk.kill()
    log = opened(disk)
    log.wait_for_copies(lambda *place: None, lambda lsn: None)
    log.close()  # before its first record is anywhere else
    [segment] = log.segments()
    file = disk.open(segment.name, readonly=True)
    mark = FrameReader().at(Window(file, file.size()), segment.bytes)
    assert mark is not None
    assert (mark.lsn, mark.rows, mark.durable) == (STOPPED, 0, 0)


def test_a_log_says_of_its_files_what_their_reader_says_whoever_has_them_open() -> None:
    disk, clock = SimDisk(), FakeClock()
    log = opened(disk, replace(SMALL, segment=4000), clock=clock)
    for lsn in range(1, 40):
        commit(log, messages(lsn, b"x" * 100))
        clock.pass_by(1_000_000)
        log.tick()  # writes a mark
        assert log.segments() == segments(disk)
    assert len(log.segments()) > 2
    log.close()
    assert log.segments() == segments(disk)
    assert opened(disk).segments()[:-1] == segments(disk)[:-1]


def test_a_mark_waits_for_the_copies() -> None:
    clock = FakeClock()
    log = opened(SimDisk(), clock=clock)
    log.wait_for_copies(lambda *place: None, lambda lsn: None)
    log.append([messages(1, b"a")])
    log.flush()
    clock.pass_by(1_000_000)
    assert log.next_deadline() is None
    log.committed(1)
    due = log.next_deadline()
    assert due is not None
    assert due <= clock.mono()
    before = log.segments()[-1].bytes
    log.tick()
    assert log.next_deadline() is None
    assert log.segments()[-1].bytes == before  # a mark is no batch, and goes behind


def claims(disk: SimDisk, log: Log) -> list[int]:
    """What the batches of the last segment say that every disk has."""
    [segment] = log._catalog.segments
    frames = (FrameReader().at(Window(segment.file, segment.file.size()), at) for at in segment.offsets)
    return [frame.durable for frame in frames if frame is not None]
