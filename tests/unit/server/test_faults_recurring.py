"""A fault in work that comes again and again: it alone is put off, longer each time, and told; all else goes on.

One row a task: where the fault is planted, and what the loop does when the task's time has come.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import httpx
import pytest

from penstock.core.queue.queue import Queue
from penstock.records.properties import Properties, encode
from penstock.server import app, scratch_pages
from penstock.server.actions.triggers import Timing
from penstock.server.amqp.door import AmqpDoor
from penstock.server.app import App
from penstock.server.asking.caching import Tending
from penstock.server.base import allocator
from penstock.server.base.clock import Alarm, Timed
from penstock.server.base.faults import REST_LEAST_US, reports
from penstock.server.bulk.process import Bulk
from penstock.server.cluster import leading
from penstock.server.flight.door import FlightDoor
from penstock.server.lifecycle import Starting
from penstock.server.replaying import Replays
from penstock.server.scratch_pages import Pager, Scratch
from penstock.server.upkeep.archive import RETRY_BEATS, Archiving
from penstock.server.upkeep.keeper import RETENTION_BEATS, Keeper
from penstock.server.views.setbacks import Alarms
from penstock.server.watch import Census, Watch
from penstock.testing.instance import FakeClock
from penstock.testing.process import load
from penstock.wire.amqp import methods as m
from planting import Fault
from sim.serverkit import Life

CONFIG = """
[server]
data = "{folder}"
sync = "off"
doors = 0
[listen]
amqp = "off"
flight = "off"
http = "127.0.0.1:0"
[log.archive]
[[queue]]
name = "kept"
"""

SECOND = 1_000_000


class Plant:
    """A function that raises while the fault is there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        self.there, self.raised, self.passed = False, 0, 0
        before: Callable[..., Any] = getattr(owner, name)

        def planted(*what: Any, **named: Any) -> Any:
            if self.there:
                self.raised += 1
                raise Fault("as planted")
            self.passed += 1
            return before(*what, **named)

        async def planted_step(*what: Any, **named: Any) -> Any:
            return await planted(*what, **named)

        monkeypatch.setattr(owner, name, planted_step if iscoroutinefunction(before) else planted)


def told() -> int:
    """Faults that were told of in this process."""
    return reports.counts.total()


class House:
    """A server of this process whose seconds pass when the test says so."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._before = told()
        self.server = App(load(CONFIG.format(folder=folder)), lambda text: None)
        self.clock = self.server.clock = FakeClock(1_700_000_000_000_000)  # type: ignore[assignment]
        self._monkeypatch = monkeypatch

    async def start(self) -> None:
        await self.server.start()
        self.server._end_timers()
        loop, door = self.server.loop, self.server.http
        assert door is not None
        self.looks = door._events
        assert self.looks._timer is not None
        self.looks._timer.cancel()
        self._later = loop.call_later
        self._monkeypatch.setattr(loop, "call_later", lambda *what: self._later(3600, bool))
        transport = httpx.ASGITransport(app=door.app, raise_app_exceptions=False)  # type: ignore[arg-type]
        self.client = httpx.AsyncClient(transport=transport, base_url="http://penstock", auth=("guest", "guest"))

    async def publish(self) -> None:
        body = {"routing_key": "kept", "payload": "x", "payload_encoding": "string", "properties": {"delivery_mode": 2}}
        answer = await self.client.post("/api/exchanges/%2F/amq.default/publish", json=body)
        assert answer.json() == {"routed": True}

    async def told(self) -> int:
        """How many internal errors health has."""
        health = (await self.client.get("/healthz")).json()
        return int(health.get("internal_errors", {"count": 0})["count"]) - self._before

    async def seen(self, plant: Plant, times: int) -> None:
        """A task has failed so often, also one that runs in a thread, and what follows from it is done."""
        await until(lambda: plant.raised >= times and told() - self._before >= times)

    async def stop(self) -> None:
        self._monkeypatch.setattr(self.server.loop, "call_later", self._later)
        await self.client.aclose()
        await self.server.stop()


@pytest.fixture
async def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    made = House(tmp_path, monkeypatch)
    yield made
    await made.stop()


Due = Callable[[House], object]


def beat(house: House) -> None:
    house.server._beat()


def tidy(house: House) -> None:
    house.server._tidy()


def beat_until_tended(house: House) -> None:
    house.server.keeper._beats = RETENTION_BEATS
    house.server._beat()


def beat_after_a_write(house: House) -> None:
    house.server.keeper._untidy, house.server.keeper._seen = True, house.server.log.bytes_written
    house.server._beat()


def beat_the_pager(house: House) -> None:
    house.server.pager._beats = scratch_pages.TIDY_BEATS
    house.server.scratch.used  # noqa: B018
    house.server._beat()


def beat_the_archive(house: House) -> None:
    archive = house.server.engine.archive
    assert archive is not None
    archive._seen = (0, 0, 0)
    house.server._beat()


def grown(house: House) -> None:
    house.server._tidiness._low = -(1 << 40)
    house.server._tidy()


def look(house: House) -> None:
    house.looks._look()


class Task(NamedTuple):
    """Work that comes again."""

    owner: object
    name: str  # of what fails
    due: Due  # its time has come


TASKS = {
    "bodies and pauses": Task(Tending, "beat", beat),
    "the AMQP door": Task(AmqpDoor, "beat", beat),
    "the Flight door": Task(FlightDoor, "beat", beat),
    "the bulk child": Task(Bulk, "beat", beat),
    "upkeep": Task(Keeper, "beat", beat),
    "tending the log": Task(Keeper, "_tend", beat_until_tended),
    "memory given back after writes": Task(allocator, "give_back", beat_after_a_write),
    "paging": Task(Pager, "_step", beat),
    "the look at files of pages": Task(Scratch, "look", beat),
    "the archive's look": Task(Archiving, "beat", beat),
    "garbage": Task(allocator.Cycles, "beat", tidy),
    "whether the process has grown": Task(allocator.Tidy, "due", tidy),
    "memory given back": Task(allocator.Tidy, "run", grown),
    "the look for who looks on": Task(Watch, "look", look),
}


async def until(true: Callable[[], bool]) -> None:
    """The loop, and threads, go on until this is so."""
    for _ in range(1_000_000):
        if true():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came")


@pytest.mark.parametrize("name", TASKS)
async def test_a_task_that_fails_is_put_off_alone_and_told(
    name: str, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = TASKS[name]
    plant = Plant(monkeypatch, task.owner, task.name)
    if task.owner is allocator:
        monkeypatch.setattr(app.allocator, task.name, getattr(allocator, task.name))
    await house.start()
    await house.publish()
    others = [one for one in (Tending, AmqpDoor) if one.__name__ != getattr(task.owner, "__name__", "")]
    beside = [Plant(monkeypatch, one, "beat") for one in others]
    house.server._make_chores()  # which take them as they are now
    house.clock.advance(60 * SECOND)
    plant.there, plant.raised, plant.passed = True, 0, 0
    tries = list[int]()
    for n in range(8):
        before = plant.raised
        task.due(house)
        if n in (0, 1, 3, 7):  # after pauses of one second, of two, of four
            await house.seen(plant, before + 1)
        if plant.raised > before:
            tries.append(n)
        await house.publish()
        house.clock.advance(REST_LEAST_US)
    assert tries == [0, 1, 3, 7]
    assert await house.told() == len(tries)
    assert house.server.engine.faults.fatal is None
    assert house.server.failure is None
    plant.there = False
    house.clock.advance(60 * SECOND)
    before = plant.passed
    task.due(house)
    await until(lambda: plant.passed > before)
    if task.due is beat:
        assert all(one.passed >= 8 for one in beside), "each by itself"
    assert house.server.engine.core.queue("/", "kept").ready == 9


async def test_who_looks_on_is_shown_nothing_for_a_while_when_counting_fails(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant = Plant(monkeypatch, Census, "_looks")
    await house.start()
    house.looks.places.add(object())  # type: ignore[arg-type]  # somebody looks on
    plant.there = True
    look(house)
    await house.seen(plant, 1)
    look(house)
    assert plant.raised == 1, "it is put off"
    assert await house.told() == 1
    assert house.server.failure is None
    plant.there = False
    house.clock.advance(REST_LEAST_US)
    look(house)
    await until(lambda: plant.passed > 0)
    house.looks.places.clear()


async def test_the_archive_tells_what_failed_and_tries_again(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    plant = Plant(monkeypatch, Archiving, "planned")
    await house.start()
    archive = house.server.engine.archive
    assert archive is not None
    await archive.rest()
    plant.there = True
    beat_the_archive(house)
    await archive.rest()
    assert (archive.why, archive.failures) == ("as planted", 1)
    assert await house.told() == 1
    plant.there = False
    for _ in range(RETRY_BEATS + 1):
        beat(house)
    await archive.rest()
    assert archive.why is None
    assert house.server.failure is None


async def test_no_checkpoint_is_taken_while_a_fault_has_stopped_a_queue(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant = Plant(monkeypatch, Queue, "tick")
    await house.start()
    await house.publish()
    keeper, engine = house.server.keeper, house.server.engine
    await keeper._guarded(keeper.checkpoint())
    assert keeper.checkpoints == 1
    plant.there = True
    engine.core._tick(engine.core._at(engine.now()), engine.core.queue("/", "kept"))
    plant.there = False
    await keeper._guarded(keeper.checkpoint())
    assert keeper.checkpoints == 1
    await house.publish()
    health = (await house.client.get("/healthz")).json()
    assert (health["status"], health["internal_errors"]["count"] > 0) == ("degraded", True)
    assert "'kept' in vhost '/'" in health["reason"]
    house.server.alarms.beat()
    assert (await house.client.get("/healthz")).json()["alarms"] == ["queue_stopped"]
    assert 'penstock_alarms{alarm="queue_stopped"} 1.0' in (await house.client.get("/metrics")).text
    await house.server.stop()
    assert keeper.checkpoints == 1
    again = App(load(CONFIG.format(folder=house.server.settings.server.data)), lambda text: None)
    await again.start()
    assert again.engine.core.queue("/", "kept").ready == 2
    await again.stop()


# -- while it starts


class Leader:
    """Stands where a cluster does: it follows, and fails at what it hears."""

    known: ClassVar[dict[str, object]] = {}
    switched = ""
    closed = False

    def __init__(self, *_: object) -> None: ...

    async def lead(self) -> None:
        asyncio.get_running_loop().call_soon(self._hear)
        await asyncio.Event().wait()

    def _hear(self) -> None:
        raise Fault("as planted")

    def close(self) -> None:
        Leader.closed = True


async def wait_for(starting: object, *what: Any) -> None:
    """Stands where a start waits."""
    await Leader().lead()


@pytest.mark.parametrize("name", ["while it follows", "while the log is read"])
async def test_a_fault_beside_a_start_ends_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house, Leader.closed = House(tmp_path, monkeypatch), False
    if name == "while it follows":
        monkeypatch.setattr(leading, "Cluster", Leader)
        monkeypatch.setattr(Starting, "wait", lambda _, cluster: cluster.lead())
        house.server.settings = house.server.settings.model_copy(update={"cluster": object()})
    else:
        monkeypatch.setattr(Starting, "recover", wait_for)
    with pytest.raises(Fault):
        await house.server.start()
    assert isinstance(house.server.failure, Fault)
    assert Leader.closed is (name == "while it follows")
    assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]


# -- what has its times


class Timers:
    """A loop of timers, by the clock of a life."""

    def __init__(self, life: Life) -> None:
        self.life, self.all = life, list[tuple[int, Callable[[], None]]]()

    def __call__(self, seconds: float, work: Callable[[], None]) -> Timers:
        self.all = [(self.life.clock.mono() + round(seconds * 1e6), work)]  # the alarm has one at most
        return self

    def cancel(self) -> None:
        self.all.clear()

    def run(self, until: int) -> int:
        """Let time pass; how often somebody was woken."""
        woken = 0
        while self.all and self.all[0][0] <= until:
            at, work = self.all.pop()
            self.life.clock.advance(max(at - self.life.clock.mono(), 0))
            work()
            self.life.turn()
            self.life.commit()
            woken += 1
        self.life.clock.advance(until - self.life.clock.mono())
        return woken


class Always:
    """An alarm that is due."""

    def next_due(self) -> int | None:
        return 0

    def tick(self, now: int) -> None: ...


TIMED: dict[str, tuple[object, str]] = {
    "actions' times": (Timing, "tick"),
    "readers' rates": (Replays, "tick"),
    "alarms of views": (Alarms, "tick"),
    "when readers may go on": (Replays, "next_deadline"),
    "when views are due": (Alarms, "next_deadline"),
    "one alarm of a view": (Always, "tick"),
    "when one of them is due": (Always, "next_due"),
}


@pytest.mark.parametrize("name", TIMED)
def test_a_delayed_message_is_in_time_whatever_else_fails_at_its_time(
    name: str, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant = Plant(monkeypatch, *TIMED[name])
    core, engine, timers = life.core, life.engine, Timers(life)
    start = life.clock.mono()
    owner, _ = TIMED[name]
    if owner is Timing:  # it has something to do all the time
        core.rules.schedule = [object()]  # type: ignore[list-item]
        monkeypatch.setattr(Timing, "next", lambda timing: life.clock.wall())
    elif owner is Replays:
        engine.replays.active = True
        engine.replays.wake_at(start)
    else:
        engine.views.alarms.add(Always())
    parts = [Timed(*one, engine.faults, life.clock) for one in engine.timed]
    engine.on_turn = Alarm(parts, timers).look_soon
    plant.there = True
    publisher, consumer = life.client(confirm=True), life.client(prefetch=1)
    consumer.consume("q", "c")
    publisher.publish("q", b"late", properties=encode(Properties(delivery_mode=2, headers={"x-delay": 500})))
    life.turn()
    life.commit()
    consumer.take(m.BasicConsumeOk)
    assert publisher.confirms() == [(True, 1, True)]
    timers.run(start + SECOND // 4)
    tried = plant.raised
    assert consumer.bodies() == []
    timers.run(start + SECOND)
    assert consumer.bodies() == [b"late"], "whatever failed beside it"
    woken = timers.run(start + 60 * SECOND)
    assert tried == 1 < plant.raised < 8, "it is tried again, less and less often"
    assert woken < 200, "and meanwhile nobody is woken for it"
    assert engine.faults.fatal is None
    assert engine.faults.ended == plant.raised
