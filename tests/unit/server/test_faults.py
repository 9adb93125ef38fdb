"""Faults: who is ended for them, what is told of them, and that the others go on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from penstock.core.broker import Core
from penstock.errors import PenstockError
from penstock.log.simdisk import SimDisk
from penstock.records.properties import HeaderClasses, Properties, encode
from penstock.server.amqp import intake
from penstock.server.amqp.channel import Channel
from penstock.server.base import faults as faults_module
from penstock.server.base.faults import Chore, Reports, Told
from penstock.server.flight.handover import Answer, Handover
from penstock.testing.instance import FakeClock
from penstock.wire.amqp import methods as m
from planting import Fault
from sim.serverkit import Client, Life, clock, message

SECOND = 1_000_000
BAD = encode(Properties(delivery_mode=2, correlation_id="bad"))


def closed(client: Client) -> int:
    """The code with which the server has ended a connection."""
    closes = [one for one in client.take_all() if isinstance(one, m.ConnectionClose)]
    return closes[0].reply_code if closes else 0


def raised() -> Fault:
    try:
        raise Fault("as planted")
    except Fault as error:
        return error


# -- who is ended


@pytest.mark.parametrize("apart", [False, True], ids=["here", "at a door"])
def test_a_header_that_nobody_can_read_ends_its_publisher_alone(apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(SimDisk(), clock(), apart=apart)
    life.declare("q")
    good, bad = life.client(confirm=True), life.client(confirm=True)
    publish: Callable[..., Any] = Core.publish

    def planted(core: Core, now: object, batch: Any, *more: Any, **named: Any) -> object:
        if any(batch.properties_of(row) == BAD for row in range(len(batch.bodies))):
            raise Fault
        return publish(core, now, batch, *more, **named)

    monkeypatch.setattr(Core, "publish", planted)
    good.send(message(b"1"))
    bad.send(message(b"2", properties=BAD))
    good.send(message(b"3"))
    life.run()
    assert closed(bad) == 541
    assert [one[:2] for one in good.confirms()][-1] == (True, 2)
    assert life.contents("q") == [b"1", b"3"]
    assert life.engine.faults.fatal is None


def test_what_a_door_says_of_one_client_ends_that_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(SimDisk(), clock(), apart=True)
    life.declare("q")
    good, bad = life.client(confirm=True), life.client(confirm=True)
    assert life.beside is not None

    class Planted(HeaderClasses):
        def mode(self, data: bytes) -> int:
            if bytes(data) == BAD:
                raise OverflowError
            return super().mode(data)

    monkeypatch.setattr(life.beside.doorway, "_classes", Planted())
    bad.send(message(b"1", properties=BAD) + message(b"2"))
    good.send(message(b"3"))
    life.run()
    assert closed(bad) == 541
    assert good.confirms() == [(True, 1, True)]
    assert life.contents("q") == [b"3"]


@pytest.mark.parametrize("apart", [False, True], ids=["here", "at a door"])
def test_a_delivery_that_cannot_be_encoded_goes_to_another(apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(SimDisk(), clock(), apart=apart)
    life.declare("q")
    first = life.client(prefetch=10)
    first.consume("q", "first")
    life.run()
    first.take_all()
    session = first.session
    deliver = Channel.deliver_one

    def planted(channel: Channel, *what: Any) -> None:
        if channel.session is session:
            raise UnicodeError
        deliver(channel, *what)

    monkeypatch.setattr(Channel, "deliver_one", planted)
    publisher = life.client(confirm=True)
    publisher.publish("q", b"1")
    life.run()
    assert closed(first) == 541
    assert publisher.confirms() == [(True, 1, True)]
    second = life.client()
    second.consume("q", "second")
    life.run()
    second.take(m.BasicConsumeOk)
    [got] = second.messages()
    assert (got.body, got.redelivered) == (b"1", True)
    life.core.queue("/", "q").check()


def test_a_message_that_cannot_be_returned_ends_its_publisher(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    other, publisher = life.client(confirm=True), life.client(confirm=True)

    def planted(*_: object) -> list[bytes]:
        raise KeyError("as planted")

    monkeypatch.setattr(intake, "returned", planted)
    publisher.publish("nobody", b"1", mandatory=True)
    other.publish("q", b"2")
    life.run()
    assert closed(publisher) == 541
    assert other.confirms() == [(True, 1, True)]


def test_confirms_of_the_others_leave_when_one_cannot(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = [life.client(confirm=True) for _ in range(3)]
    theirs = clients[1].session.outgoing
    confirm = type(theirs).confirm_up_to

    def planted(outgoing: Any, *what: Any) -> None:
        if outgoing is theirs:
            raise Fault
        confirm(outgoing, *what)

    monkeypatch.setattr(type(theirs), "confirm_up_to", planted)
    for client in clients:
        client.publish("q", b"x")
    life.run()
    assert clients[0].confirms() == clients[2].confirms() == [(True, 1, True)]
    assert closed(clients[1]) == 541
    assert life.ready("q") == 3


# -- Flight's calls


def job_of(life: Life, job: Callable[[], object]) -> Answer[object]:
    jobs = Handover(life.engine, life.jobs.append)

    def answered(answer: Answer[object]) -> None:
        answer.give(job())

    answer = jobs.submit(answered)
    life.turn()
    return answer


def test_a_call_that_fails_is_answered_and_the_server_goes_on(life: Life) -> None:
    def planted() -> None:
        life.core.queue("/", "q").ready.nonsense  # type: ignore[attr-defined]  # noqa: B018

    with pytest.raises(AttributeError):
        job_of(life, planted).wait()
    assert life.engine.faults.fatal is None
    assert life.engine.faults.ended == 1


def test_a_call_that_fails_half_way_ends_the_server(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = life.client(confirm=True)
    publisher.publish("q", b"1", b"2")
    life.run()
    queue = life.core.queue("/", "q")
    before = life.log.appended

    def planted(*_: object) -> None:
        raise Fault

    monkeypatch.setattr(life.core, "_touch", planted)
    with pytest.raises(Fault):
        job_of(life, partial(life.core.purge_queue, life.engine.now(), queue))
    assert isinstance(life.engine.faults.fatal, Fault)
    life.engine.finish_turn()
    assert life.log.appended == before, "nothing that is half done is logged"
    life.kill()
    assert Life(life.disk, life.clock).ready("q") == 2


def test_a_call_that_fails_half_way_ends_the_server_whatever_ran_on_the_way_out(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cleanup that is a command of its own, as the end of a consumer is, was taken for the one that had failed."""
    publisher = life.client(confirm=True)
    publisher.publish("q", b"1", b"2")
    life.run()
    queue = life.core.queue("/", "q")

    def planted(*_: object) -> None:
        raise Fault

    def purges() -> None:
        try:
            life.core.purge_queue(life.engine.now(), queue)
        finally:
            monkeypatch.undo()
            life.core.tick(life.engine.now())

    monkeypatch.setattr(life.core, "_touch", planted)
    with pytest.raises(Fault):
        job_of(life, purges)
    assert isinstance(life.engine.faults.fatal, Fault)


# -- work that comes again


def test_work_that_fails_is_put_off_longer_each_time_and_runs_again(life: Life) -> None:
    runs = list[int]()
    broken = True

    def work() -> None:
        runs.append(life.clock.mono())
        if broken:
            raise Fault

    chore = Chore(life.engine.faults, life.clock, work)
    for _ in range(10):
        chore.run()
        life.clock.advance(SECOND)
    assert [two - one for one, two in pairwise(runs)] == [1 * SECOND, 2 * SECOND, 4 * SECOND]
    broken = False
    life.clock.advance(60 * SECOND)
    chore.run()
    chore.run()
    assert chore.failures == 0
    assert len(runs) == 6
    assert life.engine.faults.ended == 4
    assert life.engine.faults.fatal is None


def test_work_that_fails_for_one_client_ends_that_client(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = life.client(), life.client()
    theirs = bad.session.outgoing

    def planted(self: object) -> None:
        if self is theirs:
            raise Fault

    monkeypatch.setattr(type(theirs), "count_unsent", planted)
    chore = Chore(life.engine.faults, life.clock, life.door.beat)
    chore.run()
    assert chore.failures == 0
    life.run()
    assert closed(bad) == 541
    assert closed(good) == 0


# -- what is told


def test_a_flood_of_one_fault_is_told_once_and_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Reports()
    now = [100.0]
    monkeypatch.setattr(faults_module.time, "monotonic", lambda: now[0])
    with caplog.at_level(logging.ERROR):
        for _ in range(1000):
            told.tell(raised(), "amqp")
        assert len(caplog.records) == 1
        assert caplog.records[0].exc_info is not None
        now[0] += faults_module.AGAIN_S
        told.tell(raised(), "amqp")
    assert told.counts["amqp"] == 1001
    assert len(caplog.records) == 2
    assert caplog.records[1].getMessage().startswith("1000 more faults (amqp) at ")


def test_a_fault_that_passes_two_borders_is_one(caplog: pytest.LogCaptureFixture) -> None:
    told, error = Reports(), raised()
    with caplog.at_level(logging.ERROR):
        told.tell(error, "flight")
        told.tell(error, "flight")
    assert told.counts["flight"] == len(caplog.records) == 1


def test_a_fault_of_many_frames_is_told_by_its_two_ends(caplog: pytest.LogCaptureFixture) -> None:
    """To write each of a thousand frames, as where a body nests too deep, took 1.4 s of everybody's time."""

    def down(left: int) -> None:
        across(left)

    def across(left: int) -> None:
        if not left:
            raise Fault("at the bottom")
        down(left - 1)

    with pytest.raises(Fault) as caught:
        down(400)
    with caplog.at_level(logging.ERROR):
        Reports().tell(caught.value, "amqp")
    assert caplog.text.count("in down") < faults_module.FIRST_FRAMES + faults_module.LAST_FRAMES
    assert "in test_a_fault_of_many_frames" in caplog.text
    assert 'raise Fault("at the bottom")' in caplog.text
    assert len(caught.traceback) > 800, "whoever else catches it sees all"


def test_what_tests_catch_stays_text(caplog: pytest.LogCaptureFixture) -> None:
    """Loggers of others change the handlers that pytest gives them, and tests that come later read what those wrote."""
    before = caplog.handler.formatter
    caplog.handler.setFormatter(logging.Formatter())
    assert caplog.handler.formatter is before


def test_a_fault_of_nobody_ends_the_server(life: Life) -> None:
    ends = list[BaseException]()
    life.engine.faults.on_fatal.append(ends.append)
    error = raised()
    with pytest.raises(Fault):
        life.engine.faults.contain(error)
    assert ends == [error]
    with pytest.raises(PenstockError):  # and so does all that follows: nothing in memory is believed
        life.engine.faults.contain(PenstockError("another"), Told("http"))
    assert ends == [error]


def test_who_cannot_be_ended_ends_the_server(life: Life) -> None:
    def planted() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        life.engine.faults.contain(raised(), Told("amqp", planted))
    assert isinstance(life.engine.faults.fatal, KeyError)


def test_want_of_memory_is_not_of_who_asked(life: Life) -> None:
    with pytest.raises(MemoryError):
        life.engine.faults.run(partial(bytearray, 1 << 62), Told("amqp"))


def test_times_of_a_chore_are_bounded() -> None:
    life = Life(SimDisk(), FakeClock(1_700_000_000_000_000))

    def planted() -> None:
        raise Fault

    chore = Chore(life.engine.faults, life.clock, planted)
    for _ in range(100):
        chore.run()
        life.clock.advance(faults_module.REST_MOST_US)
    assert chore.failures == 100


def test_health_tells_how_many_there_were_and_since_when(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults_module, "reports", Reports())
    now = [1_000_000_000]
    monkeypatch.setattr(faults_module.time, "time_ns", lambda: now[0])
    assert life.engine.faults.remarks() == {}
    for _ in range(3):
        life.engine.faults.contain(raised(), Told("http"))
        now[0] += 7_000_000_000
    assert life.engine.faults.remarks() == {"internal_errors": {"count": 3, "since": 1_000_000, "last": 15_000_000}}
