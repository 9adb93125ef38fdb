"""A fault that a client brings about again and again, in commands about queues, and who waits for what it stopped.

Beside `test_faults_commands`, which meets every place of every command once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from penstock.core.effects import Verb
from penstock.core.publishing.arrivals import Arrivals
from penstock.core.publishing.published import Published
from penstock.core.queue.queue import Queue
from penstock.expr import compile_filter
from penstock.log.simdisk import SimDisk
from penstock.records.entries import Publishes, singly
from penstock.server.base.faults import Told
from penstock.wire.amqp import methods as m
from planting import Planted
from sim.auditing import audit
from sim.serverkit import PERSISTENT, Life, clock

CONFIG = {"queue": [{"name": "plain"}]}


BAD = b"bad"


def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch with a bad message fails once it is in the outbox."""
    store: Callable[..., int] = Arrivals.store

    def planted(arrivals: Arrivals, batch: Publishes, *more: object) -> int:
        first = store(arrivals, batch, *more)
        if BAD in list(batch.bodies):
            raise Planted
        return first

    monkeypatch.setattr(Arrivals, "store", planted)


@pytest.mark.parametrize("apart", [False, True], ids=["here", "at a door"])
def test_a_message_that_fails_whenever_it_comes_ends_its_sender_alone(
    apart: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that were decided together with it are tried alone, and nothing of it is in the log."""
    poison(monkeypatch)
    life = Life(SimDisk(), clock(), config=CONFIG, apart=apart)
    good = life.client(confirm=True)
    for round_ in range(1, 4):
        bad = life.client(confirm=True)
        good.publish("plain", f"{round_}".encode())
        bad.publish("plain", b"before", BAD)
        life.run()
        assert [one[:2] for one in good.confirms()] == [(True, round_)]
        assert bad.closed or any(isinstance(one, m.ConnectionClose) and one.reply_code == 541 for one in bad.got)
    assert life.engine.faults.fatal is None
    assert [one.name for one in life.core.stopped] == ["plain"]
    assert caplog.text.count("has stopped queue 'plain'") == 1, "it is told once"
    life.kill()
    assert audit(life.disk, life.clock) == []
    again = Life(life.disk, life.clock, config=CONFIG)
    found = again.contents("plain")
    assert [body for body in found if body != b"before"] == [b"1", b"2", b"3"]


def test_a_number_that_is_missing_stays_so_when_what_came_with_it_failed(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused for now, sent again, failed: a third time it is no duplicate."""
    core = life.core
    life.declare("small", **{"x-max-length": 1, "x-overflow": "reject-publish"})

    def sent(body: bytes, sequence: int) -> Published:
        batch = Publishes(core.topic("/", "", "small"), PERSISTENT, [body])
        return core.publish(life.engine.now(), batch, publisher="p", sequence=sequence)

    assert sent(b"1", 1).stored == 1
    assert len(sent(b"2", 2).refused) == 1
    core.purge_queue(life.engine.now(), core.queue("/", "small"))
    with monkeypatch.context() as patch:
        patch.setattr(type(core._publisher), "publish", lambda *_: 1 // 0)
        told = list[int]()
        life.engine.faults.run(lambda: sent(b"2", 2), Told("test", lambda: told.append(1)))
        assert told == [1]
    assert sent(b"2", 2).stored == 1
    assert sent(b"2", 2).stored == 0
    life.run()
    assert life.contents("small") == [b"2"]


def test_who_waits_for_room_or_an_answer_of_a_queue_that_is_stopped_gets_one(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    life.declare("narrow", **{"x-max-length": 1, "x-overflow": "block"})
    first, waits = life.client(confirm=True), life.client(confirm=True)
    first.publish("narrow", b"1")
    life.run()
    waits.publish("narrow", b"2")
    life.run()
    assert first.confirms()
    assert waits.confirms() == []
    queue, answers = life.core.queue("/", "narrow"), list[int]()
    life.core.settle_matching(life.engine.now(), queue, compile_filter("/a = 1"), answers.append)

    def purge() -> None:
        life.core.purge_queue(life.engine.now(), queue)

    monkeypatch.setattr(Queue, "purge", lambda *_: 1 // 0)
    life.engine.faults.run(purge, Told("test"))
    assert [one.name for one in life.core.stopped] == ["narrow"]
    life.run()
    assert len(waits.confirms()) == 1
    assert answers == [0]
    assert life.engine.rooms.waiting == 0


def test_a_group_that_a_fault_has_left_is_not_closed(life: Life) -> None:
    """Half of it would be in the log."""
    core = life.core

    def fails() -> None:
        with core.group():
            core.publish(life.engine.now(), Publishes(core.topic("/", "", "q"), PERSISTENT, [b"x"]))
            raise Planted

    with pytest.raises(Planted):
        fails()
    assert not any(isinstance(one, Publishes) for one in singly(core.journal))
    assert not core.whole_after(Planted())
    life.kill()


@pytest.mark.parametrize("late", ["publish", "settle"])
def test_what_was_done_before_at_the_same_instant_stays(late: str, life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message whose publisher may have been told is in the log, whatever fails next."""
    core, now = life.core, life.engine.now()
    life.declare("more")

    def sent(queue: str) -> Published:
        return core.publish(now, Publishes(core.topic("/", "", queue), PERSISTENT, [b"x"]))

    first = sent("q")
    with monkeypatch.context() as patch:
        patch.setattr(type(core), "_make_levels" if late == "publish" else "_touch", lambda *_: 1 // 0)
        patch.setattr(core._publisher, "raised", {core.queue("/", "more")})
        work = (
            partial(sent, "more")
            if late == "publish"
            else partial(core.settle, now, core.queue("/", "q"), [], Verb.ACK)
        )
        with contextlib.suppress(ZeroDivisionError):
            life.engine.faults.run(work, Told("test"))
    messages = [one for one in singly(core.journal) if isinstance(one, Publishes)]
    assert [one.first for one in messages] == [first.first]
    life.kill()


@pytest.mark.parametrize("late", [False, True])
def test_who_shares_its_credit_over_queues_of_a_failed_publish_goes_on_with_the_others(
    late: bool, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was granted by the command is undone with it, and counts no more; alone it is taken by what was stopped."""
    life.declare("one", "two", "three")
    client, publisher = life.client(), life.client(confirm=True)
    client.method(m.BasicQos(prefetch_count=2, global_qos=True))
    publisher.method(m.ExchangeDeclare(exchange="fan", type="fanout"))
    for name in ("one", "two"):
        publisher.method(m.QueueBind(queue=name, exchange="fan", routing_key=""))
    for name in ("one", "two", "three"):
        client.consume(name, name)
    life.run()
    client.take_all()
    before: Callable[..., Any] = Arrivals.arrive_in

    def planted(arrivals: Arrivals, queue: Queue, *more: Any, **named: Any) -> None:
        if queue.name != "two":
            return before(arrivals, queue, *more, **named)
        if late:
            before(arrivals, queue, *more, **named)
        raise Planted

    with monkeypatch.context() as patch:
        patch.setattr(Arrivals, "arrive_in", planted)
        publisher.publish("", b"x", exchange="fan")
        life.run()
    assert {one.name for one in life.core.stopped} == {"one", "two"}
    came = client.take_all()
    assert sorted(one.consumer_tag for one in came if isinstance(one, m.BasicCancel)) == ["one", "two"]
    assert len(came) == 2, "nothing of it was sent"
    other = life.client(confirm=True)
    other.publish("three", b"1", b"2", b"3")
    life.run()
    assert client.bodies() == [b"1", b"2"]
    [credit] = {one.shared for one in life.core.queue("/", "three").consumers}
    assert credit is not None
    assert credit.used == 2
    life.core.queue("/", "three").check()
    life.kill()
    again = Life(life.disk, life.clock)
    assert [again.contents(name) for name in ("one", "two", "three")] == [[b"x"], [b"x"], [b"1", b"2", b"3"]]
