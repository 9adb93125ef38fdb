"""Sink batches too large for one group: a crash at any step, and every row is there once, in order."""

from __future__ import annotations

from functools import cache

import pyarrow as pa
import pytest

from choices import spread
from penstock.core.state.durable import DurableState
from penstock.core.streams.sinks import Batch
from penstock.errors import LogDamaged, PenstockError
from penstock.log.simdisk import SimDisk
from penstock.records.queue_settings import QueueSettings
from penstock.server.flight.decided import GroupLimits, chunk_publishes, chunks_of, finishing
from penstock.server.flight.sink_stages import Stages, parts_of
from penstock.server.flight.stage_files import StageInfo
from penstock.testing.instance import FakeClock, Instance
from penstock.testing.process import load
from penstock.wire.flight.commands import PUBLISH
from penstock.wire.flight.received import Bounds
from sim.serverkit import Life, Steps, clock, state_of

LIMITS = GroupLimits(group_bytes=0, chunk_bytes=900, chunk_rows=7, alike_bytes=900, alike_rows=7)
SIZES = (11, 1, 16)
ROWS = [b"%d-%d %s" % (part, row, b"x" * (40 * row)) for part, size in enumerate(SIZES) for row in range(size)]


def finished(life: Life, disk: SimDisk) -> int:
    """What a start does; how many batches it had to finish."""
    batches = len(life.core.decided)
    for _ in finishing(life.engine, disk, LIMITS):
        pass
    return batches


class Driver:
    """What a query's driver does to a server, and asks again after each crash until it is answered."""

    def __init__(self, disk: SimDisk, clock: FakeClock, under_way: int = 1) -> None:
        """under_way: chunks that are taken before the disk has one of them, as the copier does it."""
        self.disk, self.clock, self.under_way = disk, clock, under_way
        self.answered = False
        self.finished_by_start = 0
        life = Life(disk, clock)
        life.declare("in", "out")
        client = life.client(confirm=True)
        client.publish("in", b"1", b"2")
        life.stop()

    def start(self) -> Life:
        life = Life(self.disk, self.clock)
        self.finished_by_start += finished(life, self.disk)
        return life

    def work(self, life: Life) -> None:
        """Everything up to the answer, whatever of it was done before."""
        core, now = life.core, life.engine.now
        stages = Stages(self.disk, self.clock, Bounds())
        if core.sink_state("query") is None:
            opened = core.streams.open(now(), "s", core.queue("/", "in"))
            core.streams.plan(now(), "s", opened.epoch, 0, 10)
            self.durable(life)
            stages.drop_batch("query", 0)
            names = [self.stage(stages, part) for part in range(len(SIZES))]
            parts = parts_of(stages.find("query", 0, names[::-1]))
            assert not core.sink_decide(now(), Batch("query", 0, [("s", opened.epoch, 1)]), parts).already
            self.durable(life)
            for number, chunk in enumerate(chunks_of(self.disk, "query", core.decided["query"], LIMITS), 1):
                core.sink_copy(now(), "query", chunk.rows, chunk_publishes(life.engine, "query", chunk))
                if number % self.under_way == 0:
                    self.durable(life)
            self.durable(life)
            assert not core.decided
            stages.drop(names)
        else:
            assert core.sink_commit(now(), Batch("query", 0), []).already
        self.answered = True

    def stage(self, stages: Stages, part: int) -> str:
        rows = [row for row in ROWS if row.startswith(b"%d-" % part)]
        info = StageInfo("query", 0, part, 0, "out", "", "/", self.clock.wall())
        batches = [pa.record_batch({"body": rows[at : at + 6]}) for at in range(0, len(rows), 6)]
        return stages.keep(info, pa.schema([PUBLISH.field("body")]), batches)

    def durable(self, life: Life) -> None:
        life.run()
        life.log.flush()
        if life.engine.broken is not None:
            raise OSError(life.engine.broken)

    def judge(self, life: Life) -> None:
        assert life.contents("out") == (ROWS if self.answered else [])
        assert life.ready("in") == 0
        assert [file for file in self.disk.list("stage") if file.endswith(".part")] == []


def until_it_dies(driver: Driver, last: int) -> None:
    """One process; the power goes after so many steps, unless it has been answered by then."""
    disk = driver.disk
    assert isinstance(disk, Steps)
    disk.step, disk.last = 0, last
    try:
        driver.work(driver.start())
    except (OSError, PenstockError):
        assert not driver.answered
    disk.last = -1
    driver.clock.reboot()
    disk.crash()


@pytest.mark.parametrize(("seed", "under_way"), spread([(0, 1), (1, 1), (2, 1), (3, 2)], 2))
def test_a_crash_at_every_step_of_a_decided_commit(seed: int, under_way: int, effort: int) -> None:
    """Then another crash, somewhere in the start that finishes it.  In a usual run
    the first takes a third of the steps, and the last one every other one."""
    steps, finished, partly = 0, 0, 0
    for last in range(10_000) if effort > 1 else range(1, 10_000, 2) if seed == 3 else range(seed, 10_000, 3):
        driver = Driver(Steps(seed=seed * 10_000 + last), clock(), under_way)
        until_it_dies(driver, last)
        if driver.answered:
            steps = last
            break
        partly += any(one.rows > 0 for one in state_of(driver.disk, driver.clock).decided.values())
        until_it_dies(driver, last % 13)
        life = driver.start()
        driver.work(life)
        finished += driver.finished_by_start
        driver.judge(life)
        life.crash()
        again = driver.start()
        driver.judge(again)
        assert again.core.sink_state("query") == 0
    assert steps > 40
    assert finished > 5
    assert partly > 2


def dead_after(seed: int, last: int) -> Driver:
    """The machine dies after so many steps of its first process."""
    driver = Driver(Steps(seed=seed), clock())
    until_it_dies(driver, last)
    return driver


@cache
def between_chunks(seed: int) -> int:
    """A step after which some chunks are in the log and some are not: there are several, one after the other."""
    for last in range(0, 10_000, 3):
        driver = dead_after(seed, last)
        state = state_of(driver.disk, driver.clock).decided.get("query")
        if state is not None and state.rows:
            return last
    raise AssertionError("it never stood between two chunks")


def half_copied(seed: int) -> Driver:
    """The machine dies when some chunks are in the log and some are not."""
    return dead_after(seed, between_chunks(seed))


def spoil(disk: SimDisk, name: str, how: str) -> None:
    if how == "missing":
        disk.remove(f"stage/{name}")
        disk.sync_folder("stage")
    elif how == "cut":
        file = disk.open(f"stage/{name}")
        file.truncate(file.size() - 1)
        file.sync()
    else:
        disk.flip(f"stage/{name}", 8 * 300)


@pytest.mark.parametrize(
    ("how", "said"), [("missing", "is missing"), ("cut", "bytes of"), ("changed", "its sum differs")]
)
def test_a_stage_that_is_gone_or_damaged_keeps_the_doors_closed(how: str, said: str) -> None:
    driver = half_copied(seed=1)
    state = state_of(driver.disk, driver.clock).decided["query"]
    last = state.parts[-1].stage + ".arrows"
    whole = driver.disk.files()[f"stage/{last}"]
    spoil(driver.disk, last, how)
    before = driver.disk.list("stage")
    for _ in range(2):
        with pytest.raises(LogDamaged, match=rf"stage/{last} .*{said}.*query 'query' has committed batch 0"):
            driver.start()
        driver.disk.kill()
        driver.clock.reboot()
        assert driver.disk.list("stage") == before
    assert state_of(driver.disk, driver.clock).decided["query"].rows == state.rows
    if how == "missing":
        file = driver.disk.open(f"stage/{last}", create=True)
        file.pwrite(whole, 0)
    elif how == "cut":
        driver.disk.open(f"stage/{last}").pwrite(whole, 0)
    else:
        spoil(driver.disk, last, how)  # the bit turns back
    life = driver.start()
    driver.work(life)
    driver.judge(life)


def test_what_is_decided_stays_so_without_checkpoints_and_in_a_base() -> None:
    """The state of a half copied batch goes through a checkpoint and a base, and is finished from there."""
    driver = half_copied(seed=2)
    state = state_of(driver.disk, driver.clock)
    life = Life(driver.disk, driver.clock)
    encoded = life.core.durable_state().encode()
    assert DurableState.decode(encoded).decided == state.decided
    base = life.core.write_base(
        life.engine.now(),
        life.log.base_parts(encoded),
        lambda first, time: life.log.base_group(first, time, life.core.last_lsn, encoded),
    )
    life.run()
    life.log.flush()
    assert life.log.durable >= base
    life.crash()
    life = driver.start()
    driver.work(life)
    driver.judge(life)


def test_rows_whose_exchange_is_gone_by_then_go_nowhere() -> None:
    """What is decided is finished, whatever became of its targets."""
    disk, ticks = SimDisk(), clock()
    life = Life(disk, ticks)
    now = life.engine.now
    life.declare("out")
    life.core.declare_exchange(now(), "/", "e", "fanout")
    stages = Stages(disk, ticks, Bounds())
    schema = pa.schema([PUBLISH.field("body")])
    rows = [pa.record_batch({"body": [b"1", b"2"]})]
    names = [
        stages.keep(StageInfo("query", 0, place, 0, "out", exchange, "/"), schema, rows)
        for place, exchange in enumerate(("", "e", ""))
    ]
    life.core.sink_decide(now(), Batch("query", 0), parts_of(stages.find("query", 0, names)))
    life.core.delete_exchange(now(), "/", "e")
    life.run()
    life.log.flush()
    life.kill()
    life = Life(disk, ticks)
    assert finished(life, disk) == 1
    assert life.contents("out") == [b"1", b"2", b"1", b"2"]
    assert life.core.decided == {}
    assert disk.list("stage") == []


def test_a_broker_in_a_process_finishes_at_its_start_too() -> None:
    disk, ticks = SimDisk(), clock()
    first = Instance(disk, ticks, load(None))
    first.core.declare_queue(first.engine.now(), "/", "out", QueueSettings())
    stages = Stages(disk, ticks, Bounds())
    schema = pa.schema([PUBLISH.field("body")])
    name = stages.keep(StageInfo("query", 0, 0, 0, "out", "", "/"), schema, [pa.record_batch({"body": [b"1", b"2"]})])
    first.core.sink_decide(first.engine.now(), Batch("query", 0), parts_of(stages.find("query", 0, [name])))
    first.make_durable()
    first.crash()
    disk.crash()
    second = Instance(disk, ticks, load(None))
    assert second.core.queue("/", "out").ready == 2
    assert second.core.decided == {}
    assert disk.list("stage") == []
    second.stop()
