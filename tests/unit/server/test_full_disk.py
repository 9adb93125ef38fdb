"""A full disk: what nobody needs any more makes room, without a restart and after one; what somebody needs stays."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from choices import seeds
from penstock.config.settings import LogSection
from penstock.core.state.durable import DurableState
from penstock.log.log import Log
from penstock.log.room import RESERVE
from penstock.log.simdisk import SimDisk
from penstock.log.writer import MEMORY
from penstock.server.opening import fold, make_room
from penstock.server.upkeep.keeper import Keeper
from penstock.server.upkeep.retention import Retirement
from sim.serverkit import Life, clock
from unit.server.test_keeper import SECOND, Here, drain, finished

MIB = 1 << 20
LOG = replace(MEMORY, origin=7, ahead=64 << 10, reserve=512 << 10, low_space=512 << 10, segment=64 * MIB)
BODY = b"x" * 20_000
SEGMENTS = {"one": 64 * MIB, "many": 512 << 10}


def life_on(disk: SimDisk, segment: int = LOG.segment, instant: Any = None) -> Life:
    life = Life(disk, instant or clock(), log=replace(LOG, segment=segment))
    if not list(life.core.queues()):
        life.declare("q", "needed")
    return life


def keeper(life: Life, segment: int = LOG.segment, **keys: Any) -> Keeper:
    return Keeper(life.engine, Here(), LogSection(segment=f"{segment}B", **keys), asyncio.get_running_loop())


async def tended(life: Life, one: Keeper, beats: int = 30) -> None:
    """The beats of so many seconds."""
    for _ in range(beats):
        life.advance(SECOND)
        one.beat()
        await finished(life, one)


def publish_until_full(life: Life, queue: str = "q", most: int = 10_000) -> int:
    """Messages of one publisher, one after the other; how many were confirmed."""
    client, confirmed = life.client(confirm=True), 0
    for _ in range(most):
        client.publish(queue, BODY)
        life.run()
        [(good, _, _)] = client.confirms()
        if not good:
            break
        confirmed += 1
    client.lose()
    life.run()
    return confirmed


def purge(life: Life, queue: str = "q") -> None:
    life.core.purge_queue(life.engine.now(), life.core.queue("/", queue))
    life.engine.finish_turn()
    life.run()


@pytest.mark.parametrize("segments", SEGMENTS)
@pytest.mark.parametrize("restarted", [False, True])
async def test_what_is_settled_frees_a_full_disk(segments: str, restarted: bool) -> None:
    """Whether the log is one segment or many; by a consumer, and by a purge after a restart on the full disk."""
    segment = SEGMENTS[segments]
    life = life_on(SimDisk(capacity=8 * MIB), segment)
    one = keeper(life, segment)
    publish_until_full(life, "needed", 20)
    sent = publish_until_full(life)
    assert sent > 200
    await tended(life, one)
    assert life.log.room.full
    assert publish_until_full(life) == 0
    if restarted:
        life.kill()
        life = life_on(life.disk, segment, life.clock)
        one = keeper(life, segment)
        assert life.log.room.full
    assert len(life.contents("q")) == sent
    if restarted:
        purge(life)
    else:
        drain(life)
    assert life.contents("q") == []
    await tended(life, one)
    assert not life.log.room.full
    assert len(life.disk.files()[RESERVE]) == LOG.reserve
    assert publish_until_full(life, most=100) == 100
    assert life.contents("needed") == [BODY] * 20
    life.kill()
    again = life_on(life.disk, segment, life.clock)
    assert again.contents("needed") == [BODY] * 20
    assert len(again.contents("q")) == 100


@pytest.mark.parametrize("segments", SEGMENTS)
async def test_a_disk_that_others_fill_is_freed_without_a_byte_to_spare(segments: str) -> None:
    """One message in forty is needed, and all over the log: to leave out the rest takes room, which the reserve has."""
    segment = SEGMENTS[segments]
    life = life_on(SimDisk(capacity=20 * MIB), segment)
    one = keeper(life, segment)
    for _ in range(10):
        publish_until_full(life, "q", 39)
        publish_until_full(life, "needed", 1)
    life.disk.capacity = life.disk.used()
    life.log.check_space()
    assert life.log.room.full
    purge(life)
    before = life.log.size
    await tended(life, one)
    assert life.log.size < before * 0.6
    assert not life.log.room.full
    assert life.contents("needed") == [BODY] * 10
    life.kill()
    assert life_on(life.disk, segment, life.clock).contents("needed") == [BODY] * 10


async def test_a_disk_that_others_fill_is_full_within_a_second() -> None:
    """Though nothing comes for which the log would want room; and not any more a second after there is room again."""
    life = life_on(SimDisk(capacity=8 * MIB))
    one = keeper(life)
    publish_until_full(life, most=1)
    life.disk.capacity = life.disk.used() + LOG.low_space // 2
    one.beat()
    assert life.log.room.full
    assert publish_until_full(life) == 0
    life.disk.capacity = 8 * MIB
    one.beat()
    assert not life.log.room.full
    assert publish_until_full(life, most=5) == 5


@pytest.mark.parametrize("retention", ["forever", {"share": 1}, {"age": "1d"}, {"bytes": "1GiB"}])
async def test_what_was_asked_for_is_kept(retention: object) -> None:
    life = life_on(SimDisk(capacity=8 * MIB))
    one = keeper(life, retention=retention)
    publish_until_full(life)
    purge(life)
    first, size = life.log.first_lsn, life.log.size
    await tended(life, one)
    assert life.log.first_lsn == first
    assert life.log.size >= size
    assert life.log.room.full


async def test_a_log_keeps_its_share_of_the_room_and_no_more() -> None:
    """History stays as long as there is room; the older part of what nobody needs goes first."""
    segment = SEGMENTS["many"]
    life = life_on(SimDisk(capacity=20 * MIB), segment)
    one = keeper(life, segment)
    sizes = list[int]()
    for _ in range(20):
        publish_until_full(life, most=100)
        purge(life)
        await tended(life, one, 12)
        sizes.append(life.log.size)
    assert max(sizes) <= 10 * MIB
    assert min(sizes[6:]) > 10 * MIB - 3 * segment


# -- folders of before


def test_a_new_folder_says_so_in_its_first_record_and_old_ones_do_not() -> None:
    life = life_on(SimDisk())
    assert life.core.defaults == 1
    life.kill()
    again = life_on(life.disk, instant=life.clock)
    assert again.core.defaults == 1
    state, _ = fold(again.log)
    assert state.defaults == 1
    assert DurableState.decode(state.encode()).defaults == 1
    assert DurableState.decode(DurableState(9).encode()).defaults == 0


async def test_a_folder_of_before_keeps_everything_and_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.core.commands.life.DEFAULTS", 0)
    old = life_on(SimDisk(capacity=8 * MIB))
    publish_until_full(old)
    purge(old)
    old.kill()
    monkeypatch.undo()
    life = life_on(old.disk, instant=old.clock)
    one = keeper(life)
    assert life.core.defaults == 0
    size = life.log.size
    await tended(life, one)
    assert life.log.size >= size
    assert one.told()["rule"] == "everything is kept, for ever"
    [line] = one.lines()
    assert "kept the whole log by default" in line
    told = keeper(life, retention={"share": 0.5})
    assert told.lines() == []
    await tended(life, told)
    assert life.log.size < size / 4


async def test_what_rules_is_told() -> None:
    life = life_on(SimDisk(capacity=8 * MIB))
    one = keeper(life)
    rule = "what nobody needs any more goes when the log takes more than 50% of the room on its disk"
    assert one.lines() == [f"setting log.retention: {rule} (default)"]
    told = one.told()
    assert told["from"] == "default"
    assert told["share"] == 0.5
    assert told["most_bytes"] == (life.log.size + life.disk.free()) // 2
    told = keeper(life, retention={"age": "7d", "bytes": "1MiB"}).told()
    rule = "what nobody needs any more goes when it is older than 1w or when the log has more than 1 MiB"
    assert told["rule"] == rule
    assert told["from"] == "settings"
    assert keeper(life, retention="forever").told()["most_bytes"] is None


# -- a segment that is closed before it is full


async def test_a_segment_that_was_closed_early_outlives_a_crash_at_any_step(effort: int) -> None:
    """Purges, early closing and removal on a disk that is nearly full, cut off by power cuts; what waits is there."""
    for seed in seeds(2 if effort == 1 else 3 * effort):
        chance = random.Random(seed)
        disk = SimDisk(seed=seed, capacity=6 * MIB)
        life, instant, needed = life_on(disk), None, 0
        for _ in range(4):
            one = keeper(life)
            instant = life.clock
            needed += publish_until_full(life, "needed", chance.randint(0, 3))
            publish_until_full(life, "q", chance.randint(50, 300))
            if chance.random() < 0.8:
                purge(life)
            for _ in range(chance.randint(0, 25)):
                life.advance(SECOND)
                one.beat()
                for _ in range(chance.randint(0, 4)):
                    await asyncio.sleep(0)
                    life.turn()
                    life.commit()
            waits = len(life.contents("q"))
            disk.crash()
            life = life_on(disk, instant=instant)
            assert life.contents("needed") == [BODY] * needed, f"seed {seed}"
            assert len(life.contents("q")) == waits, f"seed {seed}"


def test_a_roll_without_a_batch_leaves_an_empty_segment() -> None:
    life = life_on(SimDisk())
    publish_until_full(life, most=3)
    life.log.roll()
    assert [one.closed for one in life.log.segments()] == [True, False]
    life.log.roll()  # there is nothing to close
    assert len(life.log.segments()) == 2
    life.kill()
    again = life_on(life.disk, instant=life.clock)
    assert len(again.log.segments()) == 2
    assert again.contents("q") == [BODY] * 3
    assert publish_until_full(again, most=1) == 1


# -- starts


def test_a_start_without_any_room_drops_what_can_be_made_again_and_waits() -> None:
    disk = SimDisk(capacity=8 * MIB)
    life = life_on(disk)
    publish_until_full(life, most=20)
    life.log.write_checkpoint(life.core.durable_state().encode(), life.log.durable)
    life.kill()
    disk.remove(RESERVE)
    [name] = [one for one in disk.files() if one.endswith(".arrows")]
    content = disk.files()[name]
    disk.open(name).truncate(len(content.rstrip(b"\0")) + 1)  # no zeros ahead
    disk.capacity = disk.used()
    log = Log.open(disk, life.clock, LOG, mends=False)
    looks = list[str]()

    def pause(seconds: float) -> None:
        assert seconds > 0
        if len(looks) == 3:
            disk.capacity += 4 * MIB

    make_room(log, pause, lambda stage, done, total: looks.append(stage))
    assert looks == ["room"] * 4
    assert not disk.list("checkpoints")
    log.close(clean=False)
    assert life_on(disk, instant=life.clock).contents("q") == [BODY] * 20


def test_a_torn_tail_is_kept_aside_on_a_full_disk() -> None:
    disk = SimDisk(capacity=8 * MIB)
    life = life_on(disk)
    publish_until_full(life, most=5)
    life.kill()
    [name] = [one for one in disk.files() if one.endswith(".arrows")]
    torn = bytes(range(1, 201))
    disk.open(name).pwrite(torn, len(disk.files()[name].rstrip(b"\0")) // 8 * 8 + 64)
    disk.capacity = disk.used()
    again = Log.open(disk, life.clock, LOG, mends=False)
    again.mend()
    [cut] = [content for name, content in disk.files().items() if name.startswith("cut/")]
    assert torn in cut
    again.close(clean=False)
    assert life_on(disk, instant=life.clock).contents("q") == [BODY] * 5


def test_a_start_that_waits_for_room_can_be_called_off() -> None:
    disk = SimDisk(capacity=8 * MIB)
    life_on(disk).kill()
    disk.remove(RESERVE)
    disk.capacity = disk.used()
    log = Log.open(disk, clock(), replace(LOG, ahead=0), mends=False)

    def stopped(stage: str, done: int, total: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        make_room(log, lambda _: None, stopped)


def test_a_start_with_room_changes_nothing() -> None:
    disk = SimDisk(capacity=8 * MIB)
    life = life_on(disk)
    life.log.write_checkpoint(life.core.durable_state().encode(), life.log.durable)
    life.kill()
    before = disk.files()
    log = Log.open(disk, clock(), LOG, mends=False)
    make_room(log, lambda _: None)
    assert [name for name in disk.files() if name.startswith("checkpoints/")]
    assert disk.files().keys() >= before.keys()


async def test_a_base_that_would_take_the_room_of_acks_is_put_off(caplog: pytest.LogCaptureFixture) -> None:
    life = life_on(SimDisk(capacity=8 * MIB))
    publish_until_full(life)
    retirement = Retirement(life.engine, LogSection().retention)
    assert retirement.room_for(b"x" * 1000)
    assert not retirement.room_for(b"x" * 8 * MIB)
    assert "nothing can be removed" in caplog.text
