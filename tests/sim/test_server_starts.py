"""Starts: numbers that are never given out twice, state that does not depend on checkpoints, filters or luck."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from penstock.core.state.durable import canonical
from penstock.core.state.fold import Fold
from penstock.errors import DataFolderInUse
from penstock.log.log import Log
from penstock.log.simdisk import SimDisk
from penstock.log.writer import MEMORY
from penstock.wire.amqp import methods as m
from sim.ledger import settle_stale
from sim.serverkit import Client, Life, Steps, clock, state_of

LOG = replace(MEMORY, origin=9)
FAR = 1 << 40


def lsns(life: Life, queue: str) -> list[int]:
    return sorted(lsn for chunk in life.core.queue("/", queue).snapshot()[0] for lsn in chunk)


def restarted(life: Life, end: str) -> Life:
    if end == "stop":
        life.stop()
        life.clock.reboot()
    elif end == "kill":
        life.kill()
    else:
        life.crash()
    return Life(life.disk, life.clock, log=LOG)


@pytest.mark.parametrize("first", [1, FAR])
@pytest.mark.parametrize("end", ["stop", "kill", "crash"])
def test_two_starts_without_a_write_between(end: str, first: int) -> None:
    life = Life(SimDisk(), clock(), log=replace(LOG, first_lsn=first))
    assert life.core.last_lsn == first  # the boot record
    life.declare("q")
    client = life.client(confirm=True)
    client.publish("q", b"1", b"2")
    life.run()
    life.log.flush()
    positions = lsns(life, "q")
    last, life = life.core.last_lsn, restarted(life, end)
    for _ in range(3):
        assert life.log.durable == life.core.last_lsn  # no door opens before
        assert life.core.last_lsn > last
        if end != "stop":
            assert life.core.last_lsn > last + 2**31
        assert lsns(life, "q") == positions
        last, life = life.core.last_lsn, restarted(life, end)
    assert life.contents("q") == [b"1", b"2"]


def test_lsns_held_over_a_power_cut_settle_nothing_of_the_new_messages() -> None:
    """A consumer got messages early, the power cut took them back, and now it acks what it holds."""
    life = Life(SimDisk(), clock(), log=LOG)
    life.declare("q")
    client = life.client()
    client.consume("q")
    life.run()
    client.publish("q", *(b"early %d" % n for n in range(5)))
    life.turn()
    held = lsns(life, "q")
    assert len(client.take_all()) == 6
    life.crash()
    again = Life(life.disk, life.clock, log=LOG)
    fresh = again.client(confirm=True)
    fresh.publish("q", *(b"new %d" % n for n in range(8)))
    again.run()
    assert not set(lsns(again, "q")) & set(held)
    assert settle_stale(again, "q", range(held[0], held[-1] + 1)) == 0
    again.run()
    assert len(again.contents("q")) == 8


@pytest.mark.parametrize("end", ["stop", "kill", "crash"])
def test_what_waited_says_redelivered_after_a_kill_alone(end: str) -> None:
    """A delivery may have gone out whose record was lost; a clean stop loses none."""
    life = Life(SimDisk(), clock(), log=LOG)
    life.declare("q")
    client = life.client(prefetch=1)
    client.consume("q")
    client.publish("q", b"delivered", b"waited")
    life.run()
    life.log.flush()
    assert client.got[-1].body == b"delivered"  # type: ignore[union-attr]
    again = restarted(life, end)
    taker = again.client()
    taker.consume("q", **{"x-info": True})
    again.run()
    taker.take(m.BasicConsumeOk)
    told = [(one.body, one.redelivered, one.properties.headers) for one in taker.messages()]
    counts = [(headers or {}).get("x-delivery-count") for _, _, headers in told]
    assert [one[:2] for one in told] == [(b"delivered", True), (b"waited", end != "stop")]
    assert counts == [1, None]


def test_a_second_server_on_the_folder_is_refused() -> None:
    life = Life(SimDisk(), clock(), log=LOG)
    with pytest.raises(DataFolderInUse):
        Life(life.disk, life.clock, log=LOG)
    life.declare("q")
    assert life.ready("q") == 0


def work(life: Life) -> Client:
    """Topology, messages in several states, a stream."""
    client = life.client(confirm=True, prefetch=2)
    for method in (
        m.QueueDeclare(queue="q", durable=True), m.QueueDeclare(queue="gone", durable=True),
        m.QueueDeclare(queue="read", durable=True), m.QueueDeclare(queue="passing"),
        m.ExchangeDeclare(exchange="e", type="topic", durable=True),
        m.QueueBind(queue="q", exchange="e", routing_key="a.*"), m.QueueDelete(queue="gone"),
    ):  # fmt: skip
        client.method(method)
        life.run()
    client.publish("a.b", b"1", b"2", b"3", exchange="e")
    client.publish("passing", b"x")
    client.publish("read", b"4", b"5")
    life.run()
    client.consume("q")
    life.run()
    client.take_all()
    client.ack(1)
    opened = life.core.streams.open(life.engine.now(), "s", life.core.queue("/", "read"))
    life.core.streams.plan(life.engine.now(), "s", opened.epoch, 0, 1)
    life.run()
    return client


def test_the_same_state_comes_back_with_and_without_checkpoints() -> None:
    life = Life(SimDisk(), clock(), log=replace(LOG, first_lsn=FAR))
    for _ in range(3):
        work(life)
        life.log.flush()
        life.log.write_checkpoint(life.core.durable_state().encode(), life.core.last_lsn)
    client = life.client()
    client.publish("read", b"6")
    life.run()
    life.log.flush()
    alive = canonical(life.core.durable_state())
    life.kill()
    assert len(life.disk.list("checkpoints")) == 2
    assert state_of(life.disk, life.clock, LOG) == alive
    life.disk.kill()
    for name in life.disk.list("checkpoints"):
        life.disk.remove(f"checkpoints/{name}")
        assert state_of(life.disk, life.clock, LOG) == alive
        life.disk.kill()


def test_a_power_cut_at_each_step_of_a_start() -> None:
    def prepared() -> tuple[Steps, Life]:
        disk = Steps()
        life = Life(disk, clock(), log=LOG)
        work(life)
        life.log.flush()
        tail = life.client()
        tail.publish("read", b"torn" * 50)
        life.turn()
        life.crash()
        disk.step = 0
        return disk, life

    disk, life = prepared()
    expected = state_of(SimDisk(disk.files()), life.clock, LOG)
    disk.step = 0
    Life(disk, life.clock, log=LOG)
    steps = disk.step
    assert steps > 4
    for last in range(steps):
        disk, life = prepared()
        disk.last = last
        given = 0
        try:
            given = Life(disk, life.clock, log=LOG).core.last_lsn
        except OSError:
            pass
        disk.last = -1
        disk.crash()
        found = state_of(SimDisk(disk.files()), life.clock, LOG)
        for queue, state in expected.queues.items():
            assert queue not in found.queues or found.queues[queue].waiting == state.waiting or not state.durable
        again = Life(disk, life.clock, log=LOG)
        assert again.contents("q") == [b"2", b"3"]
        assert again.contents("read")[:2] == [b"4", b"5"]
        assert again.core.last_lsn > given


def replayed(life: Life, change: Callable[[dict[str, object]], None]) -> Fold:
    """The fold of a log whose rows went through `change`."""
    life.log.flush()
    life.kill()
    log = Log.open(life.disk, life.clock, LOG)
    fold = Fold()
    for table in log.replay():
        rows = table.to_pylist()
        for row in rows:
            change(row)
        fold.feed(pa.Table.from_pylist(rows, schema=table.schema))
    log.close(clean=False)
    return fold


def test_history_says_the_same_under_another_filter() -> None:
    """The log holds decisions: who took a message does not depend on what the filter engine says today."""
    config = {
        "queue": [
            {"name": "big", "underlying_topic": "orders", "filter": "/n > 5"},
            {"name": "all", "underlying_topic": "orders"},
        ]
    }
    life = Life(SimDisk(), clock(), log=LOG, config=config)
    client = life.client(confirm=True)
    client.publish("orders", *(b'{"n": %d}' % n for n in range(10)))
    life.run()
    assert client.confirms() == [(True, 10, True)]
    assert (life.ready("big"), life.ready("all")) == (4, 10)
    lived = canonical(life.core.durable_state())
    changed = 0

    def turn_round(row: dict[str, object]) -> None:
        nonlocal changed
        text = row["properties"]
        if isinstance(text, bytes) and b"/n > 5" in text:
            row["properties"] = text.replace(b"/n > 5", b"/n < 2")
            changed += 1

    found = replayed(life, turn_round).finish()
    assert changed == 1
    assert {q.name: q.waiting for q in found.queues.values()} == {q.name: q.waiting for q in lived.queues.values()}
    altered = next(queue for queue in found.queues.values() if queue.name == "big")
    assert altered.settings.filter == "/n < 2"
