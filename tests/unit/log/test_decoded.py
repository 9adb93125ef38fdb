"""Decoded batches: what they count for is what they take, and reading many small ones holds few of them at once."""

from __future__ import annotations

import weakref
from dataclasses import replace

from penstock.log import Log, SimDisk
from penstock.log.arrow import BATCH_COST, JOIN_AT_ONCE, Joining, make_batch
from penstock.records.entries import Publishes
from penstock.records.schema import COLUMNS
from penstock.server.allocator import give_back, resident_bytes
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
    before, counted = resident_bytes(), log.decoded_bytes
    assert len(log.read(range(1, log.durable + 1))) >= COUNT
    taken = resident_bytes() - before
    assert taken <= 1.5 * (log.decoded_bytes - counted)


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
    assert log.decoded_bytes <= cache
    log.read([log.durable - 150], 1 << 20)
    assert log.at_hand([log.durable - 150]), "what is read ahead takes the room of what was asked for"
    assert log.at_hand([log.durable - 130])


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
