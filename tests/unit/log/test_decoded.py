"""Decoded batches: what they count for is what they take, and reading many small ones holds few of them at once."""

from __future__ import annotations

import tracemalloc
import weakref
from dataclasses import replace

from penstock.log.log import Log
from penstock.log.record_batches import BATCH_COST, HOLDS_MOST, JOIN_AT_ONCE, Joining, make_batch
from penstock.log.rewrite import Old, Order, rewrite
from penstock.log.simdisk import SimDisk
from penstock.records.entries import Publishes
from penstock.records.schema import COLUMNS
from penstock.server.base.allocator import give_back, resident_bytes
from sim.logkit import ORDERS, SMALL, opened

COUNT = 2000


def one_by_one(log: Log, count: int) -> None:
    """So many messages, each a batch of its own."""
    for _ in range(count):
        lsn = log.appended + 1
        log.append([Publishes(ORDERS, b"\x10\0\x02", [b"%0100d" % lsn], lsn, 1)])
        log.flush()


def test_batches_of_one_message_count_what_they_take() -> None:
    """A tenth of it once was counted: a cache of 8 MiB took 70 MiB."""
    log = opened(SimDisk(), settings=replace(SMALL, cache=1 << 30))
    one_by_one(log, COUNT)
    log.read([1])
    give_back()
    before, counted = resident_bytes(), log.decoded.bytes
    assert len(log.read(range(1, log.durable + 1))) >= COUNT
    taken = resident_bytes() - before
    assert taken <= 1.5 * (log.decoded.bytes - counted)


def test_the_places_of_batches_take_21_bytes_each() -> None:
    log = opened(SimDisk())
    before, batches = log.index_bytes, sum(one.batches for one in log.segments())
    one_by_one(log, 500)
    assert log.index_bytes - before == 21 * (sum(one.batches for one in log.segments()) - batches)


def test_the_cache_keeps_no_more_than_it_may() -> None:
    cache = 64 * BATCH_COST
    log = opened(SimDisk(), settings=replace(SMALL, cache=cache))
    one_by_one(log, 200)
    assert len(log.read(range(1, log.durable + 1))) >= 200
    assert log.decoded.bytes <= cache
    log.read([log.durable - 150], 1 << 20)
    assert log.at_hand([log.durable - 150]), "what is read ahead takes the room of what was asked for"
    assert log.at_hand([log.durable - 130])


def test_what_is_read_of_a_segment_that_was_replaced_is_not_kept() -> None:
    """Kept, it would hold the file, which has no name any more, open for as long."""
    disk = SimDisk()
    log = opened(disk, settings=replace(SMALL, segment=16_000))
    one_by_one(log, 100)
    one = log.segments()[0]
    reading = log.batches(one.first, one.last + 1)
    rows = next(reading).num_rows
    assert log.decoded.bytes
    swap = log.swap(rewrite(disk, Order((Old(one.first, one.last, one.generation, one.rows),))))
    swap.prepare()
    swap.enter()
    swap.finish()
    assert log.decoded.bytes == 0
    assert rows + sum(batch.num_rows for batch in reading) == one.rows
    assert log.decoded.bytes == 0


def test_scattered_messages_of_large_batches_do_not_hold_all_of_them() -> None:
    """Found by resident memory under load: 30 messages of batches that were joined took 30 MiB."""
    log, first = opened(SimDisk(), settings=replace(SMALL, cache=1)), list[int]()
    for _ in range(24):
        first.append(lsn := log.appended + 1)
        log.append([Publishes(ORDERS, b"\x10\0\x02", [b"%020000d" % lsn] * 50, lsn, 1)])
        log.flush()
    bodies = [b"%020000d" % lsn for lsn in first]
    assert log.read(first, 0, 1 << 30).bodies == bodies
    tracemalloc.start()
    try:
        for lsns in (first, [one for lsn in first for one in (lsn, lsn + 1)]):
            tracemalloc.reset_peak()
            assert len(log.read(lsns, 0, 1 << 30)) == len(lsns)
            assert tracemalloc.get_traced_memory()[1] < HOLDS_MOST + (4 << 20)
    finally:
        tracemalloc.stop()


def test_many_small_batches_are_joined_as_they_come() -> None:
    held, alive = Joining(), list[weakref.ref[object]]()
    assert not held
    row: list[object] = [None] * len(COLUMNS)
    for lsn in range(1000):
        row[0] = lsn
        batch = make_batch([row])
        alive.append(weakref.ref(batch))
        held.append(batch)
        del batch
        assert held
        assert sum(one() is not None for one in alive[-2 * JOIN_AT_ONCE :]) <= JOIN_AT_ONCE
    assert sum(one() is not None for one in alive) <= JOIN_AT_ONCE
    assert held.whole().column("lsn").to_pylist() == list(range(1000))
