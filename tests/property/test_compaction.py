"""Folding a compacted log gives the state that folding the whole log gave, for any history and choice of segments."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from choices import examples
from penstock.core.state.capture import held_from, needed_pairs
from penstock.core.state.durable import DurableState, canonical
from penstock.core.state.fold import Fold
from penstock.core.state.lsns import count
from penstock.log.log import Log
from penstock.log.rewrite import Old, Order, rewrite
from penstock.log.simdisk import SimDisk
from penstock.log.writer import MEMORY
from penstock.records.entries import Group
from penstock.records.kinds import PUBLISHES
from property.test_fold import History
from sim.logkit import FakeClock, commit
from unit.core.world import World

SETTINGS = replace(MEMORY, segment=6000, origin=7)


def turns(world: World) -> Iterator[Group]:
    """What each turn logged, as a group: what belongs together is in it, and so is not parted."""
    entries = iter(world.entries)
    for table in world.tables:
        group = Group([])
        while len(group) < table.num_rows:
            group.entries.append(next(entries))
        yield group


def folded(log: Log) -> DurableState:
    """The state that a start finds."""
    start = log.start_state()
    fold = Fold(DurableState.decode(start[2])) if start is not None else Fold()
    for table in log.replay():
        fold.feed(table)
    return canonical(fold.finish())


def below(log: Log, floor: int) -> DurableState:
    """The state of all records below `floor`, from the whole log."""
    fold = Fold()
    for batch in log.batches(0, floor):
        fold.feed(batch)
    return fold.finish()


def messages(log: Log) -> dict[int, bytes]:
    """Body of each message by its LSN."""
    out = dict[int, bytes]()
    for batch in log.batches(0, 1 << 60, ["lsn", "kind", "body"]):
        for lsn, kind, body in zip(*(batch.column(at).to_pylist() for at in range(3)), strict=True):
            if kind in PUBLISHES:
                out[lsn] = body
    return out


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(st.integers(0, 255), min_size=60, max_size=400), st.integers(0, 1 << 30))
def test_a_compacted_log_folds_and_reads_as_the_whole_one(numbers: list[int], seed: int) -> None:
    history, chance = History(numbers), random.Random(seed)
    history.run()
    disk = SimDisk()
    log = Log.open(disk, FakeClock(), SETTINGS)
    for group in turns(history.world):
        commit(log, group)
    live = canonical(history.world.core.durable_state())
    closed = log.segments()[:-1]
    if not closed:
        return
    whole = messages(log)
    floor = chance.choice(closed).last + 1
    state = below(log, floor)
    commit(log, log.base_group(log.appended + 1, 0, floor, state.encode()))
    live.last_lsn = log.appended
    while closed:
        a = chance.randrange(len(closed))
        some, closed = closed[a : a + chance.randint(1, 4)], closed[:a]
        olds = tuple(Old(one.first, one.last, one.generation, one.rows) for one in some)
        order = Order(olds, compress=chance.random() < 0.3)
        if olds[-1].last < min(floor, held_from(live)):
            pairs = needed_pairs(live, olds[0].first, olds[-1].last)
            order = replace(order, keep=pairs.tobytes(), floor=floor)
        made = rewrite(disk, order)
        if order.keep is not None:
            assert made.rows <= count(needed_pairs(live, order.first, order.last))
        swap = log.swap(made)
        swap.prepare()
        swap.enter()
        swap.finish()
    assert log.recovery.base_batches == []
    log.close(clean=False)
    disk.kill()
    again = Log.open(disk, FakeClock(), SETTINGS)
    assert folded(again) == live
    needed = sorted(
        {lsn for queue in live.queues.values() for chunk in queue.waiting for lsn in chunk}
        | {lsn for sow in live.sows.values() for lsn in sow.lsns}
    )
    rows = again.read(needed)
    assert dict(zip(rows.lsns, rows.bodies, strict=True)) == {lsn: whole[lsn] for lsn in needed}
