"""A fault in what one queue does in its time stops that queue until the next start; the others and the server go on.

One row a place.  The queue that is stopped may be half changed: it takes messages and gives none, and a start finds all
that was confirmed, as the log says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from penstock.core.queue.queue import Queue
from penstock.errors import Unavailable
from penstock.records.properties import Properties, encode
from penstock.server.alarms import alarms
from penstock.server.base.faults import reports
from penstock.wire.amqp import methods as m
from planting import Fault
from sim.serverkit import Client, Content, Life

SECOND = 1_000_000
QUEUES = ("other",)
LIFE = {
    "config": {
        "queue": [
            {"name": name, "lease_period": "30s", "message_ttl": "50s", "retry": {"initial": "5s", "attempts": 9}}
            for name in ("bad", "beside")
        ]
    }
}


class Place(NamedTuple):
    """A call of a queue, and by which second it has come to that."""

    name: str
    after: int
    late: bool = False  # it has done half of it then


PLACES = {
    "what is looked at": Place("tick", 10),
    "a message that comes late": Place("put_back", 10),
    "a message that came late": Place("put_back", 10, late=True),
    "a retry": Place("come_back", 10),
    "a retry that came back": Place("come_back", 10, late=True),
    "a lease that ends": Place("keep_away", 32),
    "a message that is over": Place("expire", 52),
    "a message that was over": Place("expire", 52, late=True),
    "what is given out": Place("serve", 10),
    "what was given out": Place("offer_all", 10, late=True),
}


class Plant:
    """Raises at a call of the queue `bad`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: Place) -> None:
        self.there, self.raised = False, 0
        before: Callable[..., Any] = getattr(Queue, place.name)

        def planted(queue: Queue, *what: Any, **named: Any) -> Any:
            if not self.there or queue.name != "bad":
                return before(queue, *what, **named)
            if place.late:
                before(queue, *what, **named)
            self.raised += 1
            raise Fault

        monkeypatch.setattr(Queue, place.name, planted)


def pass_time(life: Life, seconds: int) -> None:
    for _ in range(seconds):
        life.clock.advance(SECOND)
        life.log.tick()
        life.engine.tick()
        life.run()


def publish(life: Life, queue: str, *bodies: bytes, delay: int = 0) -> None:
    client = life.client(confirm=True)
    how = {"properties": encode(Properties(delivery_mode=2, headers={"x-delay": delay}))} if delay else {}
    client.publish(queue, *bodies, **how)
    life.run()
    assert client.confirms()[-1][:2] == (True, len(bodies))
    client.lose()
    life.run()


def fill(life: Life) -> None:
    """Messages that wait, one that is delayed, one that failed, and one that is leased."""
    for name in ("bad", "beside"):
        publish(life, name, b"failed", b"leased", b"1", b"2")
        publish(life, name, b"late", delay=4000)
        client = life.client(prefetch=2)
        client.consume(name)
        life.run()
        client.take(m.BasicConsumeOk)
        client.method(m.BasicCancel("c"))
        client.method(m.BasicNack(client.messages()[0].tag, requeue=True))
        life.run()


def ask(life: Life, queue: str) -> Client:
    client = life.client(prefetch=10)
    client.consume(queue)
    life.run()
    return client


@pytest.mark.parametrize("name", PLACES)
def test_a_queue_that_fails_at_its_time_is_stopped_alone_and_a_start_has_all_of_it(
    name: str, life: Life, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place, before = PLACES[name], reports.counts["queue"]
    plant = Plant(monkeypatch, place)
    fill(life)
    plant.there = True
    with caplog.at_level(logging.CRITICAL, "penstock.server"):
        pass_time(life, place.after)
    assert plant.raised == 1
    assert life.engine.faults.fatal is None
    assert reports.counts["queue"] == before + 1
    assert "stopped queue 'bad'" in caplog.text
    assert "queue_stopped" in alarms(life.engine, {})
    assert life.core.floor() == 0, "the log keeps all"
    publish(life, "bad", b"new")
    publish(life, "beside", b"new")
    consumer = ask(life, "beside")
    consumer.take(m.BasicConsumeOk)
    assert consumer.bodies()[-1] == b"new"
    closed = ask(life, "bad").take_all()
    assert "queue 'bad'" in str(closed), closed
    pass_time(life, 3)
    assert plant.raised == 1
    consumer.lose()
    life.run()
    life.kill()
    again = Life(life.disk, life.clock, **LIFE)  # type: ignore[arg-type]
    starts_stopped(again, name)
    again.kill()
    plant.there = False
    last = Life(life.disk, life.clock, **LIFE)  # type: ignore[arg-type]
    pass_time(last, 8)
    here = {queue: sorted(last.contents(queue)) for queue in ("bad", "beside")}
    assert here["bad"] == here["beside"], "as if it had not failed"
    assert b"new" in here["bad"]
    last.core.queue("/", "bad").check()
    assert not last.core.stopped


@pytest.mark.parametrize("name", ["what is looked at", "a message that came late", "what was given out"])
def test_who_consumes_from_one_that_is_stopped_is_told_and_settles_what_it_holds(
    name: str, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant = Plant(monkeypatch, PLACES[name])
    fill(life)
    client, beside = ask(life, "bad"), ask(life, "beside")
    life.core.attendance = []
    assert client.take(m.BasicConsumeOk)
    assert beside.take(m.BasicConsumeOk)
    plant.there = True
    pass_time(life, PLACES[name].after)
    came = client.take_all()
    held = [one for one in came if isinstance(one, Content)]
    assert came == [*held, m.BasicCancel("c", True)]
    assert m.BasicCancel("c", True) not in beside.take_all()
    queue = life.core.queue("/", "bad")
    assert len(queue.consumers) == 0
    assert [(came, one.tag) for came, one in life.core.attendance] == [(False, "c")]
    before = queue.leased
    client.method(m.BasicAck(held[0].tag))
    life.run()
    assert queue.leased == before - 1
    client.method(m.BasicCancel("c"))
    life.run()
    assert client.take(m.BasicCancelOk)
    client.lose()
    life.run()
    assert life.engine.faults.fatal is None


def starts_stopped(life: Life, name: str) -> None:
    """A start that fails at the same goes on, too."""
    life.run()
    pass_time(life, 2)
    assert life.engine.faults.fatal is None
    assert [one.name for one in life.core.stopped] in ([], ["bad"]), name
    publish(life, "other", b"1")
    assert life.ready("other") == 1
    publish(life, "bad", b"newer")
    publish(life, "beside", b"newer")


@pytest.mark.parametrize("holds", ["bad", "beside"])
@pytest.mark.parametrize("name", PLACES)
def test_who_shares_its_credit_goes_on_without_it(
    name: str, holds: str, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is held of it counts no more, so that another of its prefetch is free for the others."""
    plant = Plant(monkeypatch, PLACES[name])
    fill(life)
    client = life.client()
    client.method(m.BasicQos(prefetch_count=1, global_qos=True))
    for queue in sorted(("bad", "beside"), reverse=holds == "beside"):
        client.consume(queue, queue)
        life.run()
    [credit] = {one.shared for one in life.core.queue("/", "beside").consumers}
    assert credit is not None
    assert credit.used == 1
    plant.there = True
    pass_time(life, PLACES[name].after)
    assert [one.name for one in life.core.stopped] == ["bad"]
    assert {one.queue.name for one in credit.consumers} == {"beside"}
    client.take_all()
    for _ in range(4):
        publish(life, "beside", b"more")
    assert credit.used == sum(one.outstanding for one in credit.consumers) == 1
    life.core.queue("/", "beside").check()
    client.lose()
    life.run()
    assert life.engine.faults.fatal is None
    assert credit.used == 0


def test_no_state_is_taken_while_a_queue_is_stopped_and_a_deleted_one_is_none(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant = Plant(monkeypatch, PLACES["a message that was over"])
    fill(life)
    plant.there = True
    pass_time(life, 52)
    assert [one.name for one in life.core.stopped] == ["bad"]
    with pytest.raises(Unavailable, match="'bad'"):
        life.core.subscribe(life.engine.now(), life.core.queue("/", "bad"), tag="c", holder=None, client="")
    client = life.client()
    client.method(m.QueueDelete(queue="bad"))
    life.run()
    assert client.take(m.QueueDeleteOk)
    assert life.core.stopped == []
    assert "queue_stopped" not in alarms(life.engine, {})


@pytest.mark.parametrize("late", [False, True])
def test_a_fault_in_a_pass_over_the_log_stops_its_queue_alone(
    late: bool, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    life.core.declare_topic(life.engine.now(), "/", "", "kept")
    publish(life, "kept", b"1", b"2")
    before: Callable[..., Any] = Queue.take_older
    raised = 0

    def planted(*what: Any) -> None:
        nonlocal raised
        raised += 1
        if late:
            before(*what)
        raise Fault

    monkeypatch.setattr(Queue, "take_older", planted)
    life.declare("kept", **{"x-recovery-point": "epoch"})
    assert raised == 1
    assert [one.name for one in life.core.stopped] == ["kept"]
    publish(life, "other", b"1")
    publish(life, "kept", b"3")
    pass_time(life, 2)
    assert raised == 1
    assert life.engine.faults.fatal is None
    monkeypatch.undo()
    life.kill()
    again = Life(life.disk, life.clock, **LIFE)  # type: ignore[arg-type]
    again.run()
    assert again.contents("kept") == [b"1", b"2", b"3"]


@pytest.mark.parametrize("clean", [False, True])
def test_what_was_held_and_not_settled_comes_again_after_a_start_and_says_so(
    clean: bool, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant = Plant(monkeypatch, PLACES["what is looked at"])
    publish(life, "bad", b"settled", b"held")
    client = ask(life, "bad")
    client.take(m.BasicConsumeOk)
    settled, _ = client.messages()
    plant.there = True
    pass_time(life, 32)
    client.ack(settled.tag)
    life.run()
    life.commit()
    plant.there = False
    (life.stop if clean else life.kill)()
    again = Life(life.disk, life.clock, **LIFE)  # type: ignore[arg-type]
    after = ask(again, "bad")
    after.take(m.BasicConsumeOk)
    assert [(one.body, one.redelivered) for one in after.messages()] == [(b"held", True)]
