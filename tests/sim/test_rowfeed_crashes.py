"""Rows of a view in a queue that shows it: crashes at every cut, a disk that fails or is full, judged by
docs/durability.md.  Each order makes one row, and each row is one message at most."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest

from choices import spread, stride
from penstock.errors import PenstockError
from penstock.log.simdisk import SimDisk
from penstock.log.writer import MEMORY
from penstock.server.opening import declare_views
from penstock.server.views import conflated
from penstock.testing import Broker
from penstock.wire.amqp import methods as m
from sim.serverkit import Life, clock

ORDERS = {"name": "orders"}
VIEW = {"name": "totals", "source": "orders", "select": "/r AS /r, SUM(/n) AS /n, MAX(/t) AS /t", "group_by": ["/r"]}
OVER = {"name": "over", "underlying_topic": "totals"}
CONFIG: dict[str, object] = {"queue": [ORDERS, OVER], "view": [VIEW]}
ROUNDS = 6


class Told:
    """What was promised and what was found, over all lives."""

    def __init__(self) -> None:
        self.next = 0
        self.orders = dict[int, bool]()  # number -> confirmed
        self.rows = dict[int, str]()  # number -> bookmark of its row in `over`

    def publish(self, broker: Broker) -> None:
        """Some orders, in groups of their own."""
        for _ in range(3):
            self.next += 1
            self.orders[self.next] = False
            broker.publish("orders", f'{{"r": {self.next}, "n": 1}}')
            self.orders[self.next] = True

    def look(self, broker: Broker) -> None:
        """Rows: of orders that exist, none twice, in order, none of those seen has gone or has another place."""
        found = [(orjson.loads(record.body), record.bookmark) for record in broker.sow("over")]
        numbers = [row["r"] for row, _ in found]
        assert numbers == sorted(set(numbers)), "a row came twice, or out of order"
        assert all(row["n"] == 1 for row, _ in found)
        present = {orjson.loads(record.body)["r"] for record in broker.sow("orders")}
        assert present >= {number for number, sure in self.orders.items() if sure}
        assert set(numbers) <= present, "a row without its order"
        marks = {row["r"]: mark for row, mark in found}
        assert {number: marks.get(number) for number in self.rows} == self.rows
        self.rows = marks


def history(disk: SimDisk, told: Told) -> Broker:
    """Orders come; the disk may fail on the way, and nothing more is promised then."""
    broker = Broker(CONFIG, disk=disk, clock=clock())
    try:
        for _ in range(ROUNDS):
            told.publish(broker)
            broker.advance(0.2)
            if not broker.stats("over")["ready"]:
                raise AssertionError("no row came")
    except PenstockError:
        pass
    return broker


def calls(kind: str) -> int:
    """Writes or syncs of a good run."""
    disk = SimDisk()
    broker = history(disk, Told())
    count = {"write": disk.writes, "sync": disk.syncs}[kind]
    broker.close()
    return count


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_crash_at_every_cut(kind: str) -> None:
    """The disk fails at each of its calls in turn and the power goes: whatever was synced, the table holds."""
    begun = SimDisk()
    Broker(CONFIG, disk=begun, clock=clock()).close()
    first = {"write": begun.writes, "sync": begun.syncs}[kind]
    missing = 0
    for after in range(first, calls(kind), stride(2)):
        disk, told = SimDisk(seed=after), Told()
        disk.fail_next(kind, after=after)
        broker = history(disk, told)
        broker.crash()
        broker.restart()
        told.look(broker)
        before = set(told.rows)
        missing += len(told.orders) - len(before)
        told.publish(broker)
        broker.advance(0.2)
        told.look(broker)
        assert set(told.rows) == before | set(range(told.next - 2, told.next + 1)), "rows of before came, or none did"
        broker.close()
    assert missing, "no crash came between an order and its row"


@pytest.mark.parametrize("seed", spread(range(8), 4))
def test_crashes_again_and_again(seed: int, effort: int) -> None:
    for extra in range(effort):
        told = Told()
        broker = Broker(CONFIG, seed=seed + 100 * extra, clock=clock())
        for life in range(6):
            told.publish(broker)
            if (life + seed) % 3:
                broker.advance(0.2)
            broker.crash()
            broker.restart()
            told.look(broker)
        broker.close()


# -- a full log


def full_house(**queue: Any) -> Life:
    """A server whose view and queue are as above, on a disk that can be full, and its log not broken by that."""
    log = replace(MEMORY, reserve=65_536, ahead=16_384, low_space=8_192, origin=9)
    config = {"queue": [ORDERS, {**OVER, **queue}], "view": [VIEW]}
    life = Life(SimDisk(), clock(), log=log, config=config)
    declare_views(life.engine.views, life.settings)
    life.run()
    return life


def let_time_pass(life: Life, seconds: int) -> None:
    """The engine does what is due, a second at a time."""
    for _ in range(seconds):
        life.clock.advance(1_100_000)
        life.log.tick()
        life.engine.tick()
        life.run()


def order(life: Life, *numbers: int, text: str = "") -> None:
    client = life.client(confirm=True)
    client.publish("orders", *(orjson.dumps({"r": number, "n": 1, "t": text}) for number in numbers))
    life.run()
    client.lose()
    life.run()


def rows(life: Life) -> list[tuple[int, int]]:
    return [(row["r"], row["n"]) for row in map(orjson.loads, life.contents("over"))]


def fill(life: Life) -> None:
    """Publish until the disk has no room."""
    client = life.client(confirm=True)
    life.disk.capacity = sum(map(len, life.disk.files().values())) + 300_000
    for _ in range(300):
        client.publish("ballast", *(b"-" * 900 for _ in range(10)))
        life.run()
        let_time_pass(life, 1)
        if life.log.room.full:
            break
    assert life.log.room.full
    client.lose()
    life.run()


def lease(life: Life, count: int) -> None:
    """A consumer takes so many orders more: the sums of what is left change, and nothing is published for it."""
    client = life.client(prefetch=count)
    client.consume("orders")
    life.run()
    client.take(m.BasicConsumeOk)
    assert len(client.messages()) == count
    let_time_pass(life, 1)  # nobody waits for a grant to be durable


def test_rows_wait_for_room_and_then_come() -> None:
    life = full_house()
    life.declare("ballast")
    order(life, 1, 1, 1, 1)
    assert rows(life) == [(1, 4)]
    fill(life)
    for _ in range(2):
        lease(life, 1)
    let_time_pass(life, 3)
    assert rows(life) == [(1, 4)]
    assert life.engine.broken is None
    life.disk.capacity = 1 << 40
    let_time_pass(life, 3)
    assert not life.log.room.full
    assert rows(life) == [(1, 4), (1, 3), (1, 2)]
    assert not life.engine.views.alarms.all
    life.kill()
    again = Life(life.disk, life.clock, log=life.log.settings)
    assert rows(again) == [(1, 4), (1, 3), (1, 2)]


def test_of_more_rows_than_may_wait_the_newest_come(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(conflated, "HELD_MOST", 60)
    monkeypatch.setattr(conflated, "ROWS_MOST", 1)
    life = full_house()
    life.declare("ballast")
    order(life, *[1] * 9)
    fill(life)
    for _ in range(6):
        lease(life, 1)
    life.disk.capacity = 1 << 40
    let_time_pass(life, 3)
    found = rows(life)
    assert found[:1] == [(1, 9)]
    assert found[-1] == (1, 3), "the newest is always there"
    assert 2 < len(found) < 7, "some were dropped, in order"
    assert sorted(found, reverse=True) == found
    assert "lost: the log had no room" in caplog.text


class Aside:
    """Somewhere off the loop: work waits until the test lets it be done."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.waiting: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        life.engine.judges.off = self.start

    def start(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.waiting.append((work, done))

    def work(self) -> None:
        work, done = self.waiting.popleft()
        done(work())
        self.life.run()


def test_rows_that_a_filter_judges_off_the_loop_arrive() -> None:
    """What was judged is published as it was judged, whatever came meanwhile."""
    life = full_house(filter="/n > 0")
    aside = Aside(life)
    long = "x" * 300_000
    order(life, 1, text=long)
    assert aside.waiting
    for _ in range(10):
        if aside.waiting:
            aside.work()
    assert not aside.waiting, "the same rows are judged again and again"
    assert rows(life) == [(1, 1)]


def test_a_batch_of_rows_has_bounded_bytes() -> None:
    """Rows of hundreds of kilobytes do not become one piece of the log."""
    life = full_house()
    long = "x" * 400_000
    batches = list[int]()
    publish = life.core.publish

    def seen(now: Any, batch: Any, **rest: Any) -> Any:
        if batch.topics.name == "totals":
            batches.append(batch.size)
        return publish(now, batch, **rest)

    life.core.publish = seen  # type: ignore[method-assign]
    client = life.client(confirm=True)
    client.publish("orders", *(orjson.dumps({"r": number, "n": 1, "t": long}) for number in range(8)))
    life.run()
    assert sorted(rows(life)) == [(number, 1) for number in range(8)]
    assert max(batches) <= conflated.BYTES_MOST + 2**12
    assert len(batches) == 4
