"""Upkeep: checkpoints when enough was logged, retention of what nobody needs any more, and failures of both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any

import pytest

from penstock.config.settings import LogSection, Retention
from penstock.core.commands.containing import Due, part_of
from penstock.core.state.fold import Fold
from penstock.errors import LogDamaged, Unavailable
from penstock.log.rewrite_plan import Task
from penstock.log.simdisk import SimDisk
from penstock.log.writer import MEMORY
from penstock.records.queue_settings import QueueSettings
from penstock.server.upkeep import compaction
from penstock.server.upkeep.keeper import (
    LAG_US_MOST,
    RETENTION_BEATS,
    REWRITINGS_MOST,
    WAIT_US_MOST,
    Keeper,
    Pace,
    lag_us,
)
from penstock.server.upkeep.retention import Retirement
from penstock.wire.amqp import methods as m
from planting import Planted
from sim.serverkit import Life, Steps, clock, state_of

SECOND = 1_000_000
SMALL = replace(MEMORY, segment=16_000, origin=7)
LIFE, QUEUES = {"log": SMALL}, ("q", "kept")


class Here(Executor):
    """A pool whose work is done before `submit` returns."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = Future[Any]()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  handed on, as every executor does
            future.set_exception(error)
        return future


def section(**keys: Any) -> LogSection:
    return LogSection(**{"segment": "64KiB", **keys})


def keeper(life: Life, **keys: Any) -> Keeper:
    return Keeper(life.engine, Here(), section(**keys), asyncio.get_running_loop())


async def finished(life: Life, keeper: Keeper, rounds: int = 100) -> None:
    """Let the loop and the disk do their parts until the running work is done."""
    for _ in range(rounds):
        await asyncio.sleep(0)
        life.turn()
        life.commit()
        if keeper._running is None or keeper._running.done():
            return
    raise AssertionError("the work does not end")


def fill(life: Life, count: int, queue: str = "q", size: int = 300) -> None:
    """Commits of ten messages each."""
    client = life.client(confirm=True)
    for n in range(count):
        client.publish(queue, *(b"%d-%d " % (n, i) + b"x" * size for i in range(10)))
        life.run()
    client.lose()
    life.run()


def drain(life: Life, queue: str = "q") -> None:
    """Take and settle everything."""
    client = life.client()
    client.consume(queue, no_ack=True)
    life.run()
    client.lose()
    life.advance(SECOND)


# -- checkpoints


async def test_a_checkpoint_follows_bytes_or_records(life: Life) -> None:
    by_bytes = keeper(life, checkpoint_bytes="4KiB")
    by_records = keeper(life, checkpoint_records=20)
    for one in (by_bytes, by_records):
        one.beat()
        await finished(life, one)
        assert one.checkpoints == 0
    fill(life, 3)
    for one in (by_bytes, by_records):
        one.beat()
        await finished(life, one)
        one.beat()
        await finished(life, one)
        assert one.checkpoints == 1
    state = life.core.durable_state()
    life.kill()
    again = Life(life.disk, life.clock, log=SMALL)
    assert again.log.recovery.checkpoint
    assert again.core.durable_state().queues == state.queues


async def test_checkpoints_that_are_always_due_leave_retention_its_turn(life: Life) -> None:
    """A load that writes more than `checkpoint_bytes` a beat would fill the disk otherwise."""
    one = keeper(life, checkpoint_bytes="1B", retention=Retention(bytes="0B"))
    before = life.log.first_lsn
    for _ in range(2 * RETENTION_BEATS):
        fill(life, 2)
        drain(life)
        one.beat()
        await finished(life, one)
    assert life.log.first_lsn > before
    assert one.checkpoints >= RETENTION_BEATS


@pytest.mark.parametrize("by_hand", [False, True])
async def test_a_checkpoint_that_is_due_waits_for_one_rewriting_and_not_for_all(
    life: Life, monkeypatch: pytest.MonkeyPatch, by_hand: bool
) -> None:
    """Sixteen of them took 94 s on a busy machine, and a start would have read all that came meanwhile."""
    one = keeper(life, checkpoint_bytes="4KiB")
    behind = list[int]()

    async def step() -> Task | None:
        behind.append(life.log.bytes_written - one._bytes)
        fill(life, 2)
        return Task("small", (), 0, 0, drops=False) if len(behind) < REWRITINGS_MOST else None

    fill(life, 5)
    monkeypatch.setattr(one.compaction, "step", step)
    if by_hand:
        work = asyncio.ensure_future(one.compact())
        while not work.done():
            await asyncio.sleep(0)
            life.turn()
            life.commit()
    else:
        one._beats = RETENTION_BEATS
        one.beat()
        await finished(life, one, rounds=1000)
    assert len(behind) > 3
    assert max(behind) < 4096, "before each rewriting what is due was written"
    assert one.checkpoints >= len(behind)


async def test_a_checkpoint_that_is_due_waits_for_one_index_and_not_for_all(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = keeper(life, checkpoint_bytes="4KiB")
    made = list[int]()

    def build(_disk: object, first: int, _between: object) -> int:
        made.append(one.checkpoints)
        fill(life, 2)
        return 0

    monkeypatch.setattr(compaction, "build", build)
    monkeypatch.setattr(life.log, "unindexed", lambda: [1, 2, 3])
    fill(life, 5)
    one._beats = RETENTION_BEATS
    one.beat()
    await finished(life, one, rounds=1000)
    assert made == [1, 2, 3]


async def test_beside_a_stopped_queue_all_is_tended_that_asks_nothing_of_memory(
    life: Life, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No checkpoint and no rewriting, which nobody has to be told each second; files, indexes and caches as ever."""
    one = keeper(life, checkpoint_bytes="1B", retention=Retention(bytes="0B"))

    def due() -> None:
        raise Planted

    fill(life, 2, "kept")
    queue = life.core.queue("/", "kept")
    life.core._do(Due(part_of(queue), due, (queue,)))
    life.run()
    assert queue.stopped
    indexed, given = list[int](), list[int]()
    monkeypatch.setattr(life.log, "unindexed", lambda: indexed.append(1) or [])
    monkeypatch.setattr(life.log, "give_back", given.append)
    caplog.clear()
    before = life.log.first_lsn
    for _ in range(2 * RETENTION_BEATS):
        fill(life, 6, size=3000)
        drain(life)
        one.beat()
        await finished(life, one)
    assert len(indexed) == one._succeeded > 2
    assert set(given) == {0}
    assert (one.checkpoints, life.log.first_lsn) == (0, before)
    assert "upkeep of the log" not in caplog.text
    life.kill()
    assert len(Life(life.disk, life.clock, log=SMALL).contents("kept")) == 20


OUTGROWN = {"retention": Retention(bytes="0B"), "checkpoint_bytes": "1GiB"}
TWO_SEGMENTS = 2 * 65_536


async def test_a_log_that_outgrows_its_retention_is_tended_at_the_next_beat(life: Life) -> None:
    """However fast it grows it is never beyond what a beat and two segments bring; within them nothing is done."""
    one = keeper(life, **OUTGROWN)
    sizes = list[int]()
    for _ in range(30):
        fill(life, 6, size=3000)  # 180 kB
        drain(life)
        one.beat()
        await finished(life, one)
        sizes.append(life.log.size)
    assert max(sizes) < TWO_SEGMENTS
    assert life.log.bytes_written > 30 * TWO_SEGMENTS
    assert one._tended >= 30
    before = life.log.first_lsn
    for _ in range(RETENTION_BEATS // 2):
        fill(life, 1)
        drain(life)
        one.beat()
        await finished(life, one)
    assert life.log.first_lsn == before


async def test_a_log_that_nothing_can_leave_is_not_looked_at_all_the_time(life: Life) -> None:
    one = keeper(life, **OUTGROWN)
    fill(life, 50)
    assert life.log.size > TWO_SEGMENTS
    for _ in range(RETENTION_BEATS - 1):
        one.beat()
        await finished(life, one)
    assert one._tended == 1
    fill(life, 50)  # more than two segments, and an eighth of what there is
    one.beat()
    await finished(life, one)
    assert one._tended == 2


class Held(Here):
    """A pool that begins nothing while it is held."""

    def __init__(self) -> None:
        self.held: list[tuple[Future[Any], Callable[[], Any]]] | None = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.held is None:
            return super().submit(fn, *args, **kwargs)
        future = Future[Any]()
        self.held.append((future, lambda: fn(*args, **kwargs)))
        return future

    def let_go(self) -> None:
        """Do what was held, and hold nothing more."""
        held, self.held = self.held or [], None
        for future, work in held:
            future.set_result(work())


async def test_upkeep_that_was_held_catches_up_in_a_few_beats(life: Life) -> None:
    pool = Held()
    one = Keeper(life.engine, pool, section(**OUTGROWN), asyncio.get_running_loop())
    for _ in range(20):
        fill(life, 6, size=3000)
        drain(life)
        one.beat()
        life.engine.slowed = False  # its delays are over
        await asyncio.sleep(0)
    assert life.log.size > 20 * TWO_SEGMENTS
    assert one._tended == 1, "one at a time, however far behind it is"
    pool.let_go()
    await finished(life, one)
    for _ in range(2):
        one.beat()
        await finished(life, one)
    assert life.log.size < TWO_SEGMENTS
    same_after_restart(life)


@pytest.mark.parametrize(
    ("behind", "lag"), [(-5, 0), (0, 0), (1, 5), (500, 2500), (1000, 5000), (4000, 20_000), (10**9, 50_000)]
)
def test_the_delay_grows_with_what_is_behind(behind: int, lag: int) -> None:
    assert lag_us(behind, 1000) == lag


async def test_publishers_are_slowed_while_upkeep_is_behind_and_no_longer(life: Life) -> None:
    pool, timers = Held(), list[tuple[float, Callable[[], None]]]()
    one = Keeper(life.engine, pool, section(**OUTGROWN), asyncio.get_running_loop())
    one.pace = Pace(life.engine, lambda seconds, work: timers.append((seconds, work)))
    publisher = life.client(confirm=True)
    one.beat()
    assert timers == [], "nothing is behind, nothing is shut"
    lags = list[int]()
    for _ in range(12):
        fill(life, 3, size=3000)
        drain(life)
        one.beat()
        life.engine.slowed = False
        lags.append(one.pace.lag_us)
        await asyncio.sleep(0)
    assert lags[0] == 0, "within two segments of the retention"
    assert lags == sorted(lags)
    assert 5_000 < lags[-1] < LAG_US_MOST
    assert len(timers) == 1
    for _ in range(3):  # one batch each time, and never more than the delay between two
        seconds, shut = timers.pop()
        assert seconds <= lags[-1] / 1e6
        shut()
        _, shut = timers.pop()
        shut()
        publisher.publish("q", b"1")
        publisher.publish("q", b"2")
        life.run()
        assert len(publisher.confirms()) == 1
        assert not publisher.reading
    assert one.pace.slowed_us > 3 * lags[-1]
    pool.let_go()
    await finished(life, one)
    assert one.pace.lag_us == 0
    assert publisher.reading
    while timers:
        timers.pop()[1]()
    publisher.publish("q", b"3")
    life.run()
    assert publisher.reading
    assert not life.engine.slowed


@pytest.mark.parametrize(
    ("lag", "count", "size", "batches"),
    [(5000, 5, 100, 1), (5000, 300, 4000, 4.6), (5000, 9000, 1, 2.2), (50_000, 20, 1 << 20, WAIT_US_MOST / 50_000)],
)
async def test_a_large_batch_waits_as_long_as_the_small_ones_that_it_is_made_of(
    lag: int, count: int, size: int, batches: float
) -> None:
    """By bytes, and by records where these are small; and never so long that its publisher gives up."""
    life = Life(SimDisk(), clock(), log=SMALL, budget=256 << 20)
    life.declare("q")
    timers = list[tuple[float, Callable[[], None]]]()
    pace = Pace(life.engine, lambda seconds, work: timers.append((seconds, work)))
    publisher = life.client(confirm=True)
    pace.set(lag)
    seconds, open_ = timers.pop()
    assert seconds == lag / 1e6
    open_()
    publisher.publish("q", *(b"x" * size for _ in range(count)))
    life.run()
    _, shut = timers.pop()
    shut()
    seconds, _ = timers.pop()
    assert seconds == pytest.approx(lag / 1e6 * batches, rel=0.2)
    assert pace.slowed_us == pytest.approx(lag + lag * batches, rel=0.2)


@pytest.mark.parametrize("fails", [False, True])
async def test_what_comes_while_the_log_is_tended_is_behind(
    life: Life, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Unless tending failed: then nothing says that waiting would help."""
    one = Keeper(life.engine, Held(), section(**OUTGROWN), asyncio.get_running_loop())
    one.pace = Pace(life.engine, lambda seconds, work: None)
    floors = life.engine.core.look_for_floor

    def busy(most: int) -> bool:
        if life.log.size < 5 * TWO_SEGMENTS:
            fill(life, 40, size=3000)
            life.engine.slowed = False
        return floors(most)

    async def retire() -> None:
        if fails:
            raise LogDamaged("not readable")

    monkeypatch.setattr(life.engine.core, "look_for_floor", busy)
    monkeypatch.setattr(one, "_retire", retire)
    one._pool.let_go()  # type: ignore[attr-defined]
    one._tended = -1
    one._beats = 100
    one.beat()
    await finished(life, one, rounds=2000)
    assert life.log.size > 5 * TWO_SEGMENTS
    assert (one.pace.lag_us == 0) is fails


async def test_nothing_is_begun_while_the_server_stops(life: Life, caplog: pytest.LogCaptureFixture) -> None:
    """What runs ends, what waits for its turn is told, and an other process that was ended is no news."""
    one = keeper(life, **OUTGROWN)
    fill(life, 30)
    drain(life)
    ended = one._running = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(one.compact())
    await asyncio.sleep(0)
    one.stop()
    ended.set_result(None)
    with pytest.raises(Unavailable, match="the server stops"):
        await waiting
    one.beat()
    assert one._tended == 0

    async def gone() -> None:
        raise Unavailable("the server stops; job 'rewrite' was not finished")

    await one._guarded(gone())
    await one.last_checkpoint()
    assert one.checkpoints == 1
    assert not caplog.records


async def test_the_last_checkpoint_waits_for_what_runs(life: Life) -> None:
    one = keeper(life, checkpoint_bytes="1KiB")
    fill(life, 2)
    one.beat()
    stopping = asyncio.ensure_future(one.last_checkpoint())
    for _ in range(20):
        await asyncio.sleep(0)
        life.turn()
        life.commit()
    await stopping
    assert one.checkpoints == 2


async def test_a_full_disk_costs_the_checkpoint_alone(life: Life) -> None:
    fill(life, 3)
    one = keeper(life, checkpoint_bytes="1B")
    fill(life, 1)
    life.disk.capacity = life.disk.used()
    one.beat()
    await finished(life, one)
    assert one.checkpoints == 0
    assert life.engine.broken is None
    life.disk.capacity = 1 << 40
    fill(life, 1)
    one.beat()
    await finished(life, one)
    assert one.checkpoints == 1


@pytest.mark.parametrize("stop", [False, True])
async def test_a_log_that_breaks_during_a_checkpoint_holds_nobody_up(life: Life, stop: bool) -> None:
    one = keeper(life, checkpoint_bytes="1B")
    fill(life, 1)
    client = life.client()
    client.publish("q", b"not durable")
    hooks = len(life.engine.on_broken)
    life.disk.fail_next("sync")
    work: Awaitable[None]
    if stop:
        work = asyncio.ensure_future(one.last_checkpoint())
    else:
        one.beat()
        assert one._running is not None
        work = one._running
    for _ in range(20):
        await asyncio.sleep(0)
        life.turn()
        life.commit()
    assert life.engine.broken
    await asyncio.wait_for(work, 20)
    assert one.checkpoints == 0
    await asyncio.wait_for(one.last_checkpoint(), 20)
    assert len(life.engine.on_broken) == hooks  # none is left behind


# -- retention


def retire(life: Life, **retention: Any) -> list[str]:
    """One look, step by step; the names of what was deleted."""
    keys = Retention(**{"age": None, "bytes": None, **retention})
    retirement = life.upkeep
    if isinstance(retirement, Retirement):
        retirement._settings = keys
    else:
        retirement = life.upkeep = Retirement(life.engine, keys)
    due = retirement.due(life.engine.floor())
    if due is None:
        return []
    retirement.write_base(due, retirement.state_below(due))
    assert life.log.retire(due) == []  # nothing goes before the base is durable
    life.commit()
    return life.log.retire(due)


def segments(life: Life) -> int:
    return len(life.log.segments())


def same_after_restart(life: Life) -> None:
    """A restart without any checkpoint finds what was there."""
    life.run()
    before = life.core.durable_state()
    life.log.flush()
    life.kill()
    found = state_of(life.disk, life.clock, SMALL)
    assert found == before


def test_without_settings_nothing_goes(life: Life) -> None:
    fill(life, 20)
    drain(life)
    assert segments(life) > 3
    assert retire(life) == []


def test_retention_by_bytes_keeps_so_many(life: Life) -> None:
    fill(life, 30)
    drain(life)
    before = segments(life)
    gone = retire(life, bytes="40KiB")
    assert gone
    assert sum(segment.bytes for segment in life.log.segments()) <= 40 * 1024 + 16_000
    assert segments(life) == before - len(gone)
    same_after_restart(life)


def test_retention_by_age(life: Life) -> None:
    fill(life, 10)
    drain(life)
    life.advance(3600 * SECOND)
    fill(life, 10)
    drain(life)
    old = [segment.name for segment in life.log.segments() if segment.last <= 110]
    gone = retire(life, age="30m")
    assert gone
    assert set(gone) >= set(old[:-1])
    assert retire(life, age="30m") == []
    assert segments(life) >= 2
    same_after_restart(life)


def test_one_stuck_message_keeps_its_segment_and_all_after_it(life: Life) -> None:
    fill(life, 10)
    drain(life)
    fill(life, 1, "kept")
    stuck = life.core.queue("/", "kept").floor()
    fill(life, 20)
    drain(life)
    retire(life, bytes="1B")
    assert life.log.first_lsn <= stuck
    assert len(life.contents("kept")) == 10
    same_after_restart(life)


def test_a_leased_message_keeps_its_segment(life: Life) -> None:
    client = life.client()
    client.consume("kept")
    client.publish("kept", b"held")
    life.run()
    held = life.core.queue("/", "kept").floor()
    fill(life, 20)
    drain(life)
    assert life.core.floor() <= held
    retire(life, bytes="1B")
    assert life.log.first_lsn <= held
    same_after_restart(life)


def test_what_is_on_its_way_keeps_its_segment() -> None:
    """Settled when it was granted, and still to be read for its delivery."""
    life = Life(SimDisk(), clock(), log=SMALL, budget=0)
    life.declare("q", "kept")
    fill(life, 1, "kept")
    first = life.core.queue("/", "kept").floor()
    fill(life, 15)
    drain(life)
    for segment in life.log._catalog.segments:
        life.log._reader.forget(segment)
    client = life.client()
    client.consume("kept", no_ack=True)
    life.turn()
    life.commit()
    assert life.cold
    assert life.core.queue("/", "kept").ready == 0
    assert life.engine.floor() <= first < life.core.floor()
    retire(life, bytes="1B")
    assert life.log.first_lsn <= first
    life.run()
    assert len(client.take_all()) == 11
    assert life.engine.floor() == life.core.floor()
    assert retire(life, bytes="1B")


def test_a_running_read_keeps_what_it_may_still_need(life: Life) -> None:
    fill(life, 20)
    drain(life)
    reads: list[int | None] = [life.log.first_lsn]
    life.engine.readers.append(lambda: reads[0])
    assert retire(life, bytes="1B") == []
    reads[0] = None
    assert retire(life, bytes="1B")


def test_planned_batches_keep_their_segment_until_two_more_are_planned(life: Life) -> None:
    fill(life, 1, "kept")
    fill(life, 12)
    drain(life)
    queue, now = life.core.queue("/", "kept"), life.engine.now
    opened = life.core.streams.open(now(), "s", queue)
    for batch in range(3):
        plan = life.core.streams.plan(now(), "s", opened.epoch, batch, 3)
        life.run()
        first = plan.chunks[0][0]
        oldest = first if batch == 0 else min(oldest, first)  # type: ignore[has-type]  # noqa: F821
        assert life.core.floor() <= oldest or batch == 2
    life.core.streams.settle(now(), "s", opened.epoch, 3)
    life.core.purge_queue(now(), queue)
    life.run()
    planned = min(chunk[0] for batch in (2, 3) for chunk in life.core.streams.batch("s", batch))
    assert life.core.floor() <= planned
    retire(life, bytes="1B")
    assert life.log.first_lsn <= planned
    rows = life.log.read(list(life.core.streams.batch("s", 2)[0]))
    assert len(rows.bodies) == 3
    same_after_restart(life)


def test_two_retirements_and_topology_that_only_the_base_knows(life: Life) -> None:
    client = life.client()
    client.method(m.ExchangeDeclare(exchange="e", type="topic", durable=True))
    client.method(m.QueueBind(queue="kept", exchange="e", routing_key="a.#"))
    life.run()
    for _ in range(2):
        fill(life, 15)
        drain(life)
        assert retire(life, bytes="20KiB")
    client.take_all()
    same_after_restart(life)
    again = Life(life.disk, life.clock, log=SMALL)
    client = again.client(confirm=True)
    client.publish("a.b", b"routed", exchange="e")
    again.run()
    assert client.confirms() == [(True, 1, True)]
    assert again.contents("kept") == [b"routed"]


def upkeep(life: Life) -> None:
    """Work, base, retirement and a checkpoint, as one script."""
    fill(life, 3)
    drain(life)
    retire(life, bytes="20KiB")
    life.run()
    life.log.flush()
    life.log.write_checkpoint(life.core.durable_state().encode(), life.core.last_lsn)
    fill(life, 1, "kept")
    retire(life, bytes="10KiB")


def test_a_power_cut_at_each_step_of_base_and_retirement_loses_nothing() -> None:
    def started(seed: int) -> Life:
        disk = Steps(seed)
        life = Life(disk, clock(), log=SMALL)
        life.declare("q", "kept", "old")
        fill(life, 1, "old", 10)
        fill(life, 8)
        drain(life)
        drain(life, "old")
        fill(life, 1, "kept", 20)
        drain(life)
        disk.step = 0
        return life

    life = started(0)
    deleted = life.log.first_lsn
    upkeep(life)
    assert life.log.first_lsn > deleted
    steps = life.disk.step  # type: ignore[attr-defined]
    assert steps > 20
    for last in range(0, steps, 2):
        life = started(last)
        disk = life.disk
        assert isinstance(disk, Steps)
        kept = life.contents("kept")
        disk.last = last
        try:
            upkeep(life)
        except (OSError, AssertionError, ValueError):
            pass  # the script goes no further
        disk.last = -1
        life.crash()
        again = Life(disk, life.clock, log=SMALL)
        found = again.contents("kept")
        assert found[:10] == kept
        assert len(found) in (10, 20)
        assert again.contents("old") == []
        names = {queue.name for queue in again.core.queues()}
        assert names == {"q", "kept", "old"}
        again.kill()
        for name in disk.list("checkpoints"):
            disk.remove(f"checkpoints/{name}")
        bare = Life(disk, again.clock, log=SMALL)
        assert bare.contents("kept") == found


def test_a_retirement_folds_what_the_base_and_the_segments_say(life: Life) -> None:
    fill(life, 12)
    drain(life)
    retirement = Retirement(life.engine, Retention(age=None, bytes="1B"))  # type: ignore[arg-type]
    due = retirement.due(life.core.floor())
    assert due is not None
    fold = Fold()
    for batch in life.log.batches(0, due):
        fold.feed(batch)
    assert retirement.state_below(due) == fold.finish().encode()


async def test_the_keeper_retires_now_and_then(life: Life) -> None:
    one = keeper(life, retention={"bytes": "20KiB", "age": None})
    fill(life, 15)
    drain(life)
    first = life.log.first_lsn
    for _ in range(RETENTION_BEATS):
        assert life.log.first_lsn == first
        one.beat()
        await finished(life, one)
    assert life.log.first_lsn > first
    same_after_restart(life)


async def test_what_left_its_queue_a_moment_ago_goes_when_the_disk_has_that(life: Life) -> None:
    """A base stands already, for more than could go then: one of a rewriting, or of a look that came too early."""
    one = keeper(life, retention={"bytes": "1B", "age": None})
    fill(life, 1, "kept")
    fill(life, 20)
    drain(life)
    floor, first = life.log.segments()[-1].first, life.log.first_lsn
    one.retirement.write_base(floor, one.retirement.state_below(floor))
    life.commit()
    kept = life.core.queue("/", "kept")
    assert life.log.base_floor == floor > kept.floor()
    life.core.purge_queue(life.engine.now(), kept)
    life.turn()
    one._beats = RETENTION_BEATS
    one.beat()
    for _ in range(20):
        await asyncio.sleep(0)
    assert life.log.first_lsn == first, "a power cut would bring back what is in there"
    await finished(life, one)
    assert life.log.first_lsn > first
    same_after_restart(life)


async def test_damage_found_by_retention_stops_nobody(life: Life, caplog: pytest.LogCaptureFixture) -> None:
    one = keeper(life, retention={"bytes": "20KiB", "age": None})
    fill(life, 15)
    drain(life)
    life.disk.flip(life.log.segments()[0].name, 8 * 6000)
    for _ in range(RETENTION_BEATS):
        one.beat()
        await finished(life, one)
    assert any("upkeep" in message for message in caplog.messages)
    await one.last_checkpoint()
    assert one.checkpoints == 1


@pytest.mark.parametrize("runs", [False, True], ids=["idle", "in the middle of a checkpoint"])
async def test_a_stop_waits_for_no_other_disk_for_long(life: Life, monkeypatch: pytest.MonkeyPatch, runs: bool) -> None:
    """A cluster's leader may be the last of its members to stop: nobody takes what it has, and it ended never."""
    monkeypatch.setattr("penstock.server.upkeep.keeper.PATIENCE_S", 0.0)
    one = keeper(life, checkpoint_bytes="4KiB")
    fill(life, 3)
    life.log.wait_for_copies(lambda *_: None, lambda _: None)
    life.core.declare_queue(life.engine.now(), "/", "more", QueueSettings())
    life.engine.finish_turn()
    if runs:
        one.beat()
        for _ in range(10):
            await asyncio.sleep(0)
    one.stop()
    stopping = asyncio.ensure_future(one.last_checkpoint())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not stopping.done(), "its own disk has not got it yet"
    life.commit()
    async with asyncio.timeout(30):
        await stopping
    assert one.checkpoints == 0
    assert life.engine.broken is None
