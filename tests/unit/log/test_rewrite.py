"""Rewriting closed segments: the same rows in larger batches, without rows that nobody needs, and back again."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from penstock.errors import LogDamaged, Unavailable
from penstock.log.frame import FrameReader, Window
from penstock.log.log import Log
from penstock.log.rewrite import Old, Order, rewrite
from penstock.log.segment import is_rewrite, read_header
from penstock.log.simdisk import SimDisk
from penstock.log.verify import verify
from sim.logkit import SMALL, FakeClock, commit, content, messages, note, opened

SETTINGS = replace(SMALL, segment=6000)


def filled(disk: SimDisk, commits: int = 24) -> Log:
    """Several segments of two messages and a note a commit."""
    log = opened(disk, SETTINGS)
    for at in range(commits):
        first = log.appended + 1
        commit(log, messages(first, b"a%d" % at, b"b" * at), note(first + 2, b"n"))
    return log


def order_for(log: Log, a: int, b: int, *, keep: list[int] | None = None, compress: bool = False) -> Order:
    """An order for the closed segments number a to b; `keep`: flat pairs."""
    olds = tuple(Old(one.first, one.last, one.generation, one.rows) for one in log.segments()[a:b])
    pairs = None if keep is None else struct.pack(f"<{len(keep)}q", *keep)
    return Order(olds, pairs, 0 if keep is None else log.base_floor, compress)


def swap(log: Log, order: Order) -> None:
    """All steps, as the keeper takes them."""
    exchange = log.swap(rewrite(log.disk, order))
    exchange.prepare()
    exchange.enter()
    exchange.finish()


def base(log: Log, floor: int) -> None:
    """A durable base as of `floor`."""
    commit(log, log.base_group(log.appended + 1, 0, floor, b"state below %d" % floor))


def test_merged_segments_hold_the_same_rows_in_fewer_batches() -> None:
    disk = SimDisk()
    log = filled(disk)
    before, segments = content(log), log.segments()
    assert len(segments) > 4
    swap(log, order_for(log, 0, 3))
    assert content(log) == before
    after = log.segments()
    assert len(after) == len(segments) - 2
    assert after[0].generation == 1
    assert after[0].batches == 1 < segments[0].batches
    assert (after[0].first, after[0].last) == (segments[0].first, segments[2].last)
    assert after[0].bytes < sum(one.bytes for one in segments[:3])
    log.close()
    again = opened(disk, SETTINGS)
    assert content(again) == before
    assert again.segments()[0] == after[0]
    assert verify(disk).good


def test_rows_that_nobody_needs_go_and_the_others_keep_their_lsns() -> None:
    disk = SimDisk()
    log = filled(disk)
    floor = log.segments()[3].first
    base(log, floor)
    before = content(log)
    swap(log, order_for(log, 0, 3, keep=[5, 6, 8, 10]))
    kept = [row for row in before if row[0] in (5, 8, 9) or row[0] >= floor]
    assert content(log) == kept
    assert log.read(range(1, 60)).lsns == [lsn for lsn, _ in kept if lsn % 3 and lsn < 60]
    log.close()
    again = opened(disk, SETTINGS)
    assert content(again) == kept
    assert again.start_state() == ("base", floor, b"state below %d" % floor)
    swap(again, order_for(again, 0, 1, keep=[]))
    assert content(again) == kept[3:]
    assert again.segments()[0].rows == 0
    assert again.segments()[0].generation == 2
    again.close()
    assert content(opened(disk, SETTINGS)) == kept[3:]


def test_where_rows_were_left_out_a_base_must_stand_for_them() -> None:
    disk = SimDisk()
    log = filled(disk)
    base(log, log.segments()[3].first)
    place = log._catalog.segments[-1]
    swap(log, order_for(log, 0, 3, keep=[]))
    log.close(clean=False)
    disk.kill()
    disk.flip(place.name, 8 * (place.offsets[-1] + 1000))  # the base: the last batch, now a torn tail
    with pytest.raises(LogDamaged, match="left out of compacted segments, and no base"):
        opened(disk, SETTINGS)


def test_bases_stay_alone_in_their_batch_and_uncompressed() -> None:
    disk = SimDisk()
    log = filled(disk, 2)
    base(log, 4)
    for at in range(20):
        commit(log, messages(log.appended + 1, b"%d" % at))
    log.close()
    log = opened(disk, SETTINGS)
    before = content(log)
    swap(log, order_for(log, 0, 2, compress=True))
    assert [at.compressed for at in log.segments()[:2]] == [True, False]
    log.close()
    again = opened(disk, SETTINGS)
    assert again.start_state() == ("base", 4, b"state below 4")
    assert content(again) == before


def test_compressed_segments_read_as_others_do() -> None:
    disk = SimDisk()
    log = opened(disk, replace(SETTINGS, segment=60_000))
    for at in range(40):
        commit(log, messages(log.appended + 1, *[b'{"flight": %d, "carrier": "UA"}' % (at * n) for n in range(20)]))
    before = content(log)
    size = log.segments()[0].bytes
    swap(log, order_for(log, 0, 1, compress=True))
    assert log.segments()[0].bytes < size / 2
    assert content(log) == before
    assert log.read(range(3, 6)).bodies == [body for lsn, body in before if 3 <= lsn < 6]
    log.close()
    assert verify(disk).good
    again = Log.open(disk, FakeClock(), SETTINGS)
    replayed = [lsn for table in again.replay() for lsn in table["lsn"].to_pylist()]
    assert replayed == [lsn for lsn, _ in before]


def test_damage_and_a_stop_leave_the_old_files() -> None:
    disk = SimDisk()
    log = filled(disk)
    before = disk.files()
    with pytest.raises(Unavailable, match="was stopped"):
        _stopped(log)
    disk.flip(log.segments()[0].name, 8 * 3000)
    damaged = disk.files()
    with pytest.raises(LogDamaged, match="is not what was written|cannot be read"):
        rewrite(disk, order_for(log, 0, 2))
    assert disk.files() == damaged
    disk.flip(log.segments()[0].name, 8 * 3000)
    assert disk.files() == before
    with pytest.raises(LogDamaged, match="rows, not 99"):
        rewrite(disk, Order((Old(1, log.segments()[0].last, 0, 99),)))


def _stopped(log: Log) -> None:
    from penstock.log import rewrite as module

    order = order_for(log, 0, 2)
    small, module.BATCHES = module.BATCHES, 3
    try:
        rewrite(log.disk, order, lambda done: done > 3000)
    finally:
        module.BATCHES = small


def test_a_full_disk_costs_the_rewriting_alone() -> None:
    disk = SimDisk()
    log = filled(disk)
    before = content(log)
    order = order_for(log, 0, 2)
    disk.capacity = disk.used() + 1000
    with pytest.raises(OSError, match="No space"):
        rewrite(disk, order)
    assert not any(is_rewrite(name) for name in disk.list("log"))
    disk.capacity = 1 << 40
    commit(log, messages(log.appended + 1, b"goes on"))
    swap(log, order)
    assert content(log)[: len(before)] == before


def test_a_reader_that_has_begun_reads_the_old_files_to_their_end() -> None:
    disk = SimDisk()
    log = filled(disk)
    before = content(log)
    base(log, log.segments()[4].first)
    rows = log.batches(0, 1 << 60, ["lsn"])
    seen = next(rows).column(0).to_pylist()
    swap(log, order_for(log, 0, 4, keep=[]))
    for batch in rows:
        seen += batch.column(0).to_pylist()
    assert seen[: len(before)] == [lsn for lsn, _ in before]
    assert content(log)[0][0] >= log.base_floor


def test_what_was_replaced_meanwhile_is_not_replaced_again() -> None:
    log = filled(SimDisk())
    order = order_for(log, 0, 2)
    made = rewrite(log.disk, order)
    swap(log, order)
    with pytest.raises(ValueError, match="rewritten meanwhile|not what the catalog lists"):
        log.swap(made)
    with pytest.raises(LogDamaged, match="not the file that was to be replaced"):
        rewrite(log.disk, order)


def test_every_batch_says_its_range_and_the_header_its_rows() -> None:
    disk = SimDisk()
    log = filled(disk)
    swap(log, order_for(log, 0, 2))
    file = disk.open(log.segments()[0].name, readonly=True)
    header, start = read_header(file)
    frame = FrameReader().at(Window(file, file.size()), start)
    assert frame is not None
    assert (frame.lsn, frame.last) == (1, header.last)
    assert header.rows == frame.rows == log.segments()[0].rows
