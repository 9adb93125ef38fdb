"""Compaction of a server's log: what it leaves out, what it must keep, and what stands in its way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from choices import spread
from penstock.core.state.durable import canonical
from penstock.errors import LogDamaged, PenstockError
from penstock.log.log import Log
from penstock.log.rewrite import Made, Order, Swap, rewrite
from penstock.log.rewrite_plan import Aims, Task
from penstock.log.simdisk import SimDisk
from penstock.log.writer import MEMORY
from penstock.server.opening import fold
from penstock.server.upkeep.keeper import RETENTION_BEATS, Keeper
from penstock.wire.amqp import methods as m
from penstock.wire.flight.bookmarks import format_bookmark
from sim.serverkit import Life, Steps, clock, state_of
from unit.server.test_keeper import SECOND, Here, drain, fill, same_after_restart, section

SMALL = replace(MEMORY, segment=16_000, origin=7)
AIMS = Aims(segment=16_000, rows=20, batches=2)
LIFE, QUEUES = {"log": SMALL}, ("q", "kept")


def keeper(life: Life, **keys: Any) -> Keeper:
    """One that compacts small segments; `retention` of a byte unless told otherwise."""
    keys.setdefault("retention", {"bytes": "1B", "age": None})
    one = Keeper(life.engine, Here(), section(**keys), asyncio.get_running_loop())
    one.compaction._aims = replace(AIMS, compress=one.compaction._aims.compress)
    return one


async def ended(life: Life, work: asyncio.Future[Any]) -> Any:
    """Let the loop and the disk do their parts until the work is done; its result."""
    for _ in range(2000):
        await asyncio.sleep(0)
        life.turn()
        life.commit()
        if work.done():
            return work.result()
    raise AssertionError("the work does not end")


async def looked(life: Life, one: Keeper) -> None:
    """One look of the keeper at retention and compaction."""
    for _ in range(RETENTION_BEATS):
        one.beat()
        if one._running is not None:
            await ended(life, one._running)
        life.run()


async def tried(life: Life, one: Keeper) -> Task | None:
    """One step of compaction alone."""
    task: Task | None = await ended(life, asyncio.ensure_future(one.compaction.step()))
    return task


def stuck(life: Life) -> int:
    """A message that nobody takes, and much work around it; its LSN."""
    fill(life, 6)
    fill(life, 1, "kept")
    fill(life, 12)
    drain(life)
    return life.core.queue("/", "kept").floor()


async def test_one_stuck_message_does_not_pin_the_log(life: Life) -> None:
    lsn = stuck(life)
    before, bodies = sum(one.bytes for one in life.log.segments()), life.contents("kept")
    one = keeper(life)
    for _ in range(4):
        await looked(life, one)
    segments = life.log.segments()
    assert sum(at.bytes for at in segments[:-1]) < before / 4
    holder = next(at for at in segments if at.first <= lsn <= at.last)
    assert holder.generation > 0
    assert holder.rows == 10
    assert life.contents("kept") == bodies
    assert life.log.read(range(lsn, lsn + 10)).lsns == list(range(lsn, lsn + 10))
    assert one.compaction.totals.dropped > 100
    same_after_restart(life)


async def test_a_subscription_behind_a_bookmark_is_refused_where_rows_were_left_out(life: Life) -> None:
    lsn = stuck(life)
    one = keeper(life)

    def told(bookmark: str, missing: str = "fail") -> list[str]:
        client = life.client()
        client.consume("q", **{"x-bookmark": bookmark, "x-bookmark-not-found": missing})
        life.run()
        closed = [said.reply_text for said in client.take_all() if isinstance(said, m.ChannelClose)]
        client.lose()
        return closed

    mark = format_bookmark(7, lsn - 1)
    assert not told(mark)
    life.advance(SECOND)
    for _ in range(4):
        await looked(life, one)
    assert life.log.first_lsn < lsn < life.log.whole_from
    [refused] = told(mark)
    assert "left out by compaction" in refused
    assert not told(mark, "epoch")
    assert not told("EPOCH")


async def test_a_first_segment_that_is_missing_is_noticed_though_a_base_covers_it(life: Life) -> None:
    lsn = stuck(life)
    one = keeper(life)
    for _ in range(4):
        await looked(life, one)
    first = life.log.segments()[0]
    assert first.generation
    assert first.last >= lsn
    life.kill()
    life.disk.remove(first.name)
    before = life.disk.files()
    with pytest.raises(LogDamaged, match=f"LSN {lsn} waits in queue 'kept'"):
        fold(Log.open(life.disk, life.clock, SMALL, mends=False))
    assert {name: data for name, data in life.disk.files().items() if name != "log/reserve"} == before


async def test_without_retention_rows_stay_and_batches_are_joined(life: Life) -> None:
    stuck(life)
    rows = sum(one.rows for one in life.log.segments())
    one = keeper(life, retention={"bytes": None, "age": None})
    while (task := await tried(life, one)) is not None:
        assert task.why == "small"
        assert not task.drops
    segments = life.log.segments()
    assert sum(at.rows for at in segments) == rows
    assert all(at.batches == 1 for at in segments[:-1])
    assert len(life.contents("kept")) == 10
    same_after_restart(life)


async def test_a_base_that_costs_more_than_is_gained_is_put_off_for_an_hour(life: Life) -> None:
    stuck(life)
    one = keeper(life)
    one.compaction._aims = replace(AIMS, batches=1000)
    last, floor = life.core.last_lsn, life.log.base_floor
    original, folds = one.retirement.state_below, list[int]()

    def deep(floor: int) -> bytes:
        """As if very much waited, scattered."""
        folds.append(floor)
        return original(floor) + bytes(1 << 20)

    one.retirement.state_below = deep  # type: ignore[method-assign]
    for _ in range(3):
        assert await tried(life, one) is None
        life.clock.advance(1000 * SECOND)
    assert life.log.base_floor == floor
    assert life.core.last_lsn == last
    assert len(folds) == 1, "it was folded again and again to be thrown away"
    life.clock.advance(600 * SECOND)
    assert (await tried(life, one)) is not None
    assert life.log.base_floor > floor
    assert one.compaction.totals.dropped > 100


async def test_one_base_is_paid_for_by_all_that_it_lets_go(life: Life) -> None:
    stuck(life)
    one = keeper(life)
    one.compaction._aims = replace(AIMS, batches=1000, segment=4_000)
    tasks = (await ended(life, asyncio.ensure_future(one.compaction.look()))).tasks
    gains = [task.gain for task in tasks if task.drops]
    assert len(gains) > 2
    size = (max(gains) + sum(gains)) // 4
    original = one.retirement.state_below
    one.retirement.state_below = lambda floor: original(floor).ljust(size, b"\0")  # type: ignore[method-assign]
    assert (await tried(life, one)) is not None


async def test_what_age_alone_puts_past_retention_is_looked_at_soon(life: Life) -> None:
    stuck(life)
    one = keeper(life, retention={"bytes": None, "age": "1h"})
    one.compaction._aims = replace(AIMS, batches=1000)
    await looked(life, one)
    assert not one.compaction.totals.dropped
    life.clock.advance(3600 * SECOND)
    await looked(life, one)
    assert one.compaction.totals.dropped > 100, "a look came late, for no segment was new"


async def test_a_rename_that_fails_leaves_the_log_as_it_was(life: Life, caplog: pytest.LogCaptureFixture) -> None:
    stuck(life)
    one = keeper(life)
    one.compaction._aims = replace(AIMS, batches=1000)
    rename = life.disk.rename

    def failing(old: str, new: str) -> None:
        if old.endswith(".rewrite"):
            raise OSError(5, "Input/output error")
        rename(old, new)

    life.disk.rename = failing  # type: ignore[method-assign]
    before = life.log.segments()
    with pytest.raises(OSError, match="Input/output"):
        await tried(life, one)
    assert [at for at in life.log.segments() if at in before] == before[:-1]  # the open one has the base now
    assert len(life.contents("kept")) == 10
    assert not [name for name in life.disk.list("log") if name.endswith(".rewrite")]
    life.disk.rename = rename  # type: ignore[method-assign]
    assert (await tried(life, one)) is not None
    same_after_restart(life)


async def test_a_read_that_begins_while_the_exchange_is_prepared_keeps_the_old_file(life: Life) -> None:
    stuck(life)
    one = keeper(life)
    one.compaction._aims = replace(AIMS, batches=1000)
    first, swap = life.log.first_lsn, life.log.swap

    def swapped(made: Made) -> Swap:
        exchange = swap(made)
        prepare = exchange.prepare

        def slow() -> None:
            prepare()
            life.engine.readers.append(lambda: first)

        exchange.prepare = slow  # type: ignore[method-assign]
        return exchange

    life.log.swap = swapped  # type: ignore[method-assign]
    before = life.log.segments()
    assert await tried(life, one) is None
    assert [at for at in life.log.segments() if at in before] == before[:-1]
    assert not [name for name in life.disk.list("log") if name.endswith(".rewrite")]
    same_after_restart(life)


async def test_leased_delayed_and_planned_messages_keep_their_rows(life: Life) -> None:
    fill(life, 2)
    client = life.client(prefetch=2)
    fill(life, 1, "kept")
    client.consume("kept")
    life.run()
    queue, now = life.core.queue("/", "kept"), life.engine.now
    opened = life.core.streams.open(now(), "s", queue)
    planned = life.core.streams.plan(now(), "s", opened.epoch, 0, 3)
    life.run()
    life.core.streams.settle(now(), "s", opened.epoch, 1)
    fill(life, 14)
    drain(life)
    one = keeper(life)
    assert (await tried(life, one)) is not None
    asked = [lsn for chunk in planned.chunks for lsn in chunk]
    assert life.log.read(asked).lsns == asked
    assert len(life.contents("kept")) == 7
    assert len(client.take_all()) == 3  # with the answer to its subscription
    before = canonical(life.core.durable_state())
    life.log.flush()
    life.kill()
    assert state_of(life.disk, life.clock, SMALL) == before


async def test_a_running_read_keeps_what_it_may_still_need(life: Life) -> None:
    lsn = stuck(life)
    reads: list[int | None] = [life.log.first_lsn]
    life.engine.readers.append(lambda: reads[0])
    one = keeper(life)
    one.compaction._aims = replace(AIMS, batches=1000)
    assert await tried(life, one) is None
    reads[0] = lsn + 200
    task = await tried(life, one)
    assert task is not None
    assert task.segments[-1].last < lsn + 200
    reads[0] = None
    same_after_restart(life)


async def test_scans_for_filters_keep_nothing_but_what_they_look_through(life: Life) -> None:
    """Found by resident memory under load: with scans one after another the log's index grew by 21 bytes a batch."""
    lsn = stuck(life)
    later: list[Callable[[], None]] = []
    life.engine.scans.off = lambda work, done: later.append(lambda: done(work()))
    client = life.client()
    client.consume("kept", **{"x-filter": "/x = 1"})
    life.run()
    assert later, "a scan runs"
    assert life.engine.floor() <= lsn
    sparse, small = keeper(life), keeper(life, retention={"bytes": None, "age": None})
    sparse.compaction._aims = replace(AIMS, batches=1000)
    before = [one for one in life.log.segments()[:-1] if one.last >= lsn]
    expected = [*life.log.batches(lsn, before[-1].last + 1)]
    begun = life.log.batches(lsn, before[-1].last + 1)  # as a scan that is in the middle of its stretch
    seen = [next(begun)]
    while (task := await tried(life, small)) is not None:
        assert task.why == "small"
    seen += begun
    assert seen == expected
    after = [one for one in life.log.segments()[:-1] if one.last >= lsn]
    assert sum(one.batches for one in after) == len(after) < sum(one.batches for one in before)
    assert sum(one.rows for one in after) == sum(one.rows for one in before)
    looks, scanned = [*life.engine.underway()], [lsn + n for n in range(10)]
    life.core.purge_queue(life.engine.now(), life.core.queue("/", "kept"))  # so nothing else needs them
    life.run()
    while (task := await tried(life, sparse)) is not None:
        assert task.why == "sparse"
    assert [[*chunk] for chunk in looks] == [scanned]
    assert life.log.read(range(life.log.segments()[-1].first)).lsns == scanned, "all the others went, and no more"
    while later:
        later.pop(0)()
        life.run()
    assert not life.engine.underway()
    assert (await tried(life, sparse)) is not None
    assert not life.log.read(range(life.log.segments()[-1].first)).lsns, "nobody needs them any more"
    same_after_restart(life)


@pytest.mark.parametrize("no_ack", [True, False])
@pytest.mark.parametrize("meanwhile", [False, True])
async def test_what_is_on_its_way_keeps_its_rows_and_nothing_else(no_ack: bool, meanwhile: bool) -> None:
    """Found by a soak under load: one slow consumer had the log grow as long as something old was on its way to him.

    no_ack: it is settled when it is granted.  meanwhile: which is while a file is rewritten.
    """
    life = Life(SimDisk(), clock(), log=SMALL, budget=0)
    life.declare("q", "kept")
    fill(life, 1, "kept")
    lsn = life.core.queue("/", "kept").floor()
    fill(life, 15)
    drain(life)
    for segment in life.log._catalog.segments:
        life.log._reader.forget(segment)
    client = life.client()

    def grant() -> None:
        client.consume("kept", no_ack=no_ack)
        life.turn()
        life.commit()
        assert life.cold, "it has to be read"
        assert life.engine.floor() <= lsn

    one = keeper(life)
    one.compaction._aims = replace(AIMS, batches=1000)
    rewriting = one.compaction._rewrite

    async def rewritten(order: Order, size: int) -> Made:
        made = await rewriting(order, size)
        if meanwhile:
            grant()
        return made

    one.compaction._rewrite = rewritten  # type: ignore[method-assign]
    if not meanwhile:
        grant()
    assert (await tried(life, one)) is not None
    assert life.cold
    assert one.compaction.totals.dropped > 100
    life.run()
    assert len(client.take_all()) == 11, "with the answer to its subscription"
    assert (life.core.queue("/", "kept").leased == 0) == no_ack


async def test_a_read_that_begins_during_the_rewriting_keeps_the_old_file(life: Life) -> None:
    stuck(life)
    first = life.log.first_lsn

    class Slow:
        async def rewrite(self, order: Order) -> Made:
            made = rewrite(life.disk, order)
            life.engine.readers.append(lambda: first)
            return made

        async def index(self, first: int) -> int:
            raise AssertionError("not asked")

    one = keeper(life)
    one.compaction._elsewhere = Slow()
    import penstock.server.upkeep.compaction as module

    large, module.LARGE = module.LARGE, 0
    try:
        before = life.log.segments()
        one.compaction._aims = replace(AIMS, batches=1000)
        assert await tried(life, one) is None
    finally:
        module.LARGE = large
    assert [at for at in life.log.segments() if at in before] == before[:-1]  # the open one has the base now
    assert not [name for name in life.disk.list("log") if name.endswith(".rewrite")]


async def test_no_rewriting_on_a_full_disk(life: Life) -> None:
    stuck(life)
    one = keeper(life)
    life.disk.capacity = life.disk.used() + 500
    assert await tried(life, one) is None
    assert life.engine.broken is None
    life.disk.capacity = 1 << 40
    assert await tried(life, one) is not None


async def test_a_damaged_segment_is_told_once_and_left(life: Life, caplog: pytest.LogCaptureFixture) -> None:
    stuck(life)
    one = keeper(life, retention={"bytes": None, "age": None})
    name = life.log.segments()[1].name
    life.disk.flip(name, 8 * 6000)
    content = life.disk.files()[name]
    for _ in range(30):
        await looked(life, one)
    assert life.disk.files()[name] == content
    assert sum("upkeep" in message for message in caplog.messages) in (1, 2)  # its rewriting, its index
    assert sum(at.generation for at in life.log.segments()) >= len(life.log.segments()) - 2


async def test_cold_segments_are_compressed_where_wanted_and_read_as_before(life: Life) -> None:
    fill(life, 30)
    drain(life)
    fill(life, 1, "kept")
    read = life.log.read(range(20, 60)).bodies
    one = keeper(life, retention={"bytes": None, "age": None}, compress_cold=True)
    for _ in range(30):
        if await tried(life, one) is None:
            break
    segments = life.log.segments()
    assert [at.compressed for at in segments] == [True] * (len(segments) - 5) + [False] * 5
    assert life.log.read(range(20, 60)).bodies == read
    same_after_restart(life)


async def test_a_stop_ends_a_rewriting(life: Life) -> None:
    stuck(life)
    one = keeper(life)
    one.compaction.stopping = True
    before = life.log.segments()
    assert await tried(life, one) is None
    await one.compaction.index(one._give_way)
    assert [at for at in life.log.segments() if at in before] == before
    assert life.disk.list("index") == []


async def test_indexes_are_made_and_old_ones_go(life: Life) -> None:
    stuck(life)
    one = keeper(life)
    for _ in range(3):
        await looked(life, one)
    files = {f"{at.first:020d}-{at.generation:05d}.names" for at in life.log.segments()[:-1]}
    assert set(life.disk.list("index")) == files


def test_a_power_cut_at_each_step_of_a_compaction_loses_nothing() -> None:
    def started(seed: int) -> tuple[Life, list[bytes]]:
        life = Life(Steps(seed), clock(), log=SMALL)
        life.declare("q", "kept", "old")
        fill(life, 1, "old", 10)
        stuck(life)
        drain(life, "old")
        life.disk.step = 0  # type: ignore[attr-defined]
        return life, life.contents("kept")

    def work(life: Life) -> None:
        async def run() -> None:
            one = keeper(life)
            while await tried(life, one) is not None:
                pass

        asyncio.run(run())

    life, kept = started(0)
    work(life)
    assert life.log.segments()[0].generation == 1
    steps = life.disk.step  # type: ignore[attr-defined]
    assert steps > 10
    for last in spread(range(steps), 10):
        life, _ = started(last)
        disk = life.disk
        assert isinstance(disk, Steps)
        disk.last = last
        with suppress(OSError, PenstockError, AssertionError):  # the machine died: work that waits for it never ends
            work(life)
        disk.last = -1
        life.crash()
        again = Life(disk, life.clock, log=SMALL)
        assert again.contents("kept") == kept
        assert again.contents("old") == []
        again.kill()
        for name in disk.list("checkpoints"):
            disk.remove(f"checkpoints/{name}")
        bare = Life(disk, again.clock, log=SMALL)
        assert bare.contents("kept") == kept
        assert {queue.name for queue in bare.core.queues()} == {"q", "kept", "old"}
        work(bare)
        assert bare.contents("kept") == kept
        bare.advance(SECOND)
        same_after_restart(bare)
