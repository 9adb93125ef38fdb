"""The engine: cold reads behind a gate, dead letters with bodies from two places, and what a broken log leaves."""

from __future__ import annotations

import pytest

from penstock.wire.amqp import methods as m
from sim.serverkit import Client, Content, Life

NO_MEMORY = 0
"""A budget with which a body leaves memory as soon as it is durable."""

LIFE = {"budget": NO_MEMORY}


def consumer(life: Life, queue: str = "q", **how: object) -> Client:
    client = life.client(prefetch=int(str(how.pop("prefetch", 0))))
    client.consume(queue, **how)  # type: ignore[arg-type]
    life.run()
    return client


def fill(life: Life, *bodies: bytes, queue: str = "q") -> None:
    """Messages that are durable and no longer in memory."""
    client = life.client(confirm=True)
    client.publish(queue, *bodies)
    life.run()
    client.lose()
    life.run()


def forget(life: Life) -> None:
    """The log keeps no decoded batch."""
    for segment in life.log._catalog.segments:
        life.log._reader.forget(segment)


def test_a_cold_read_holds_back_what_comes_after_it_on_the_connection(life: Life) -> None:
    fill(life, b"1", b"2")
    forget(life)
    client = life.client()
    client.consume("q")
    life.turn()
    client.take(m.BasicConsumeOk)
    assert life.cold
    client.publish("q", b"3")  # warm, behind the cold ones
    life.turn()
    assert client.got == []
    life.read_cold()
    life.run()
    assert client.bodies() == [b"1", b"2", b"3"]


def test_what_another_settled_during_a_cold_read_is_not_delivered(life: Life) -> None:
    fill(life, b"1", b"2", b"3")
    forget(life)
    client = life.client()
    client.consume("q")
    life.turn()
    client.take(m.BasicConsumeOk)
    lsns = list(life.cold[0][0])
    from penstock.core.effects import Verb

    life.core.settle(life.engine.now(), life.core.queue("/", "q"), [range(lsns[1], lsns[1] + 1)], Verb.ACK)
    life.read_cold()
    life.run()
    assert client.bodies() == [b"1", b"3"]


def test_what_waits_behind_a_cold_read_is_judged_again_too(life: Life) -> None:
    """One holder a message: a lease that ended while its delivery waited is not delivered on that lease."""
    from penstock.core.effects import Verb

    fill(life, b"cold")
    forget(life)
    client = life.client()
    client.consume("q")
    life.turn()
    client.take(m.BasicConsumeOk)
    client.publish("q", b"warm", b"warm too")
    life.turn()
    queue = life.core.queue("/", "q")
    warm = life.core.next_lsn
    held = sorted(lsn for c in queue.holders() for run in c.leases.held() for lsn in run.chunk)
    assert held[-1] < warm
    life.core.settle(life.engine.now(), queue, [range(held[1], held[1] + 1)], Verb.ACK)
    life.read_cold()
    life.run()
    assert client.bodies() == [b"cold", b"warm too"]


def test_a_lease_that_ended_during_a_cold_read_goes_to_another(life: Life) -> None:
    life.declare("leased", **{"x-lease-period": 1000})
    fill(life, b"1", queue="leased")
    forget(life)
    first = life.client()
    first.consume("leased")
    life.turn()
    first.take(m.BasicConsumeOk)
    second = life.client()
    second.consume("leased", "d")
    life.turn()
    second.take(m.BasicConsumeOk)
    first.session.pause_writing()
    life.clock.advance(2_000_000)
    life.engine.tick()
    life.run()
    assert first.got == []
    assert [(one.body, one.redelivered) for one in second.messages()] == [(b"1", True)]


@pytest.mark.parametrize("no_ack", [False, True])
def test_at_most_once_messages_that_are_cold_are_delivered(life: Life, no_ack: bool) -> None:
    life.declare("once", **{"x-semantics": "at-most-once"})
    fill(life, b"1", b"2", queue="once")
    forget(life)
    client = consumer(life, "once", no_ack=no_ack)
    client.take(m.BasicConsumeOk)
    assert client.bodies() == [b"1", b"2"]


def test_a_connection_that_is_lost_during_a_cold_read(life: Life) -> None:
    fill(life, b"1")
    forget(life)
    client = life.client()
    client.consume("q")
    life.turn()
    client.lose()
    life.run()
    assert life.ready("q") == 1
    other = consumer(life)
    other.take(m.BasicConsumeOk)
    assert other.bodies() == [b"1"]


def test_dead_letters_whose_bodies_are_half_in_memory(life: Life) -> None:
    """A cold message and one that is not durable yet, rejected together: both reach the dead letter queue."""
    life.declare("dead")
    life.declare("work", **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    fill(life, b"cold", queue="work")
    client = consumer(life, "work")
    client.take(m.BasicConsumeOk)
    client.publish("work", b"fresh")
    life.turn()
    assert client.bodies() == [b"cold", b"fresh"]
    forget(life)
    client.method(m.BasicNack(2, multiple=True, requeue=False))
    life.turn()
    life.read_cold()
    life.run()
    assert life.contents("dead") == [b"cold", b"fresh"]
    assert life.contents("work") == []


def test_order_within_a_connection_over_many_cold_pieces(life: Life) -> None:
    for n in range(12):
        fill(life, b"%d" % n)
        fill(life, b"other", queue="elsewhere")
    forget(life)
    client = life.client()
    client.consume("q")
    life.turn()
    client.take(m.BasicConsumeOk)
    client.publish("q", *(b"%d" % n for n in range(12, 15)))
    life.turn()
    while life.cold:
        life.read_cold()
        forget(life)
        life.turn()
    assert client.bodies() == [b"%d" % n for n in range(15)]


# -- a broken log


def broken(life: Life) -> None:
    life.disk.fail_next("sync")
    life.commit()
    assert life.engine.broken
    assert life.health


def test_a_failed_sync_nacks_what_waits_and_what_comes(life: Life) -> None:
    client = life.client(confirm=True)
    client.publish("q", b"1", b"2")
    life.turn()
    broken(life)
    assert client.confirms() == [(False, 2, True)]
    client.publish("q", b"3")
    life.run()
    assert client.confirms() == [(False, 3, False)]


def test_a_confirm_on_its_way_is_not_contradicted(life: Life) -> None:
    client = life.client(confirm=True)
    client.publish("nowhere", b"1")
    life.door.publishers.gathering.decide()
    client.publish("q", b"2")
    life.door.publishers.gathering.decide()
    broken_on = life.engine.break_down
    from penstock.errors import LogBroken

    broken_on(LogBroken("the disk is gone"))
    life.turn()
    assert client.confirms() == [(True, 1, True), (False, 2, True)]


def test_nothing_above_the_durable_end_is_shown_again(life: Life) -> None:
    client = life.client(prefetch=10)
    client.publish("q", b"durable")
    life.run()
    client.publish("q", b"lost")
    life.turn()
    client.consume("q")
    life.turn()
    client.take(m.BasicConsumeOk)
    life.run()
    client.take_all()
    client.publish("q", b"lost too")
    life.turn()
    broken(life)
    tags = [one.tag for one in client.messages()]
    client.method(m.BasicNack(max(tags), multiple=True, requeue=True))
    life.run()
    assert b"lost too" not in client.bodies()
    other = life.client()
    client.lose()
    other.consume("q")
    life.run()
    other.take(m.BasicConsumeOk)
    assert other.bodies() == [b"durable", b"lost"]


def test_what_is_durable_is_served_although_the_lost_lies_beside_it(life: Life) -> None:
    """The lost ones take nobody's credit, and a run that reaches over the end is cut there."""
    publisher = life.client()
    publisher.publish("q", b"1", b"2")
    life.run()
    publisher.publish("q", b"3", b"4")
    life.turn()
    broken(life)
    client = consumer(life, prefetch=3)
    client.take(m.BasicConsumeOk)
    first = client.messages()
    assert [one.body for one in first] == [b"1", b"2"]
    client.method(m.BasicNack(2, requeue=True))
    life.run()
    assert client.bodies() == [b"2"]
    client.method(m.BasicGet(queue="q"))
    life.run()
    client.take(m.BasicGetEmpty)


def test_cold_deliveries_behind_a_gate_stop_at_the_durable_end(life: Life) -> None:
    fill(life, b"cold")
    forget(life)
    client = life.client()
    client.consume("q")
    life.turn()
    client.take(m.BasicConsumeOk)
    client.publish("q", b"warm")
    life.turn()
    broken(life)
    life.read_cold()
    life.run()
    assert client.bodies() == [b"cold"]


def test_acks_are_taken_when_the_log_is_broken(life: Life) -> None:
    fill(life, b"1")
    client = consumer(life)
    client.take(m.BasicConsumeOk)
    client.publish("q", b"2")
    life.turn()
    broken(life)
    tags = [one.tag for one in client.messages()]
    client.ack(tags[-1], multiple=True)
    life.run()
    assert client.got == []
    queue = life.core.queue("/", "q")
    assert (queue.ready, queue.leased) == (0, 0)
    client.ack(99)
    life.run()
    client.take(m.ChannelClose)


def test_who_waits_for_a_declare_is_told_when_the_log_breaks(life: Life) -> None:
    client = life.client()
    client.method(m.QueueDeclare(queue="new", durable=True))
    life.turn()
    broken(life)
    close = client.take(m.ChannelClose)
    assert close.reply_code == 541
    other = life.client()
    other.method(m.QueueDeclare(queue="new", durable=True))
    life.run()
    assert other.take(m.ChannelClose).reply_code == 541
    third = life.client()
    third.method(m.QueueDeclare(queue="q", durable=True))
    third.method(m.QueueDeclare(queue="mine", exclusive=True))
    life.run()
    third.take(m.QueueDeclareOk)
    third.take(m.QueueDeclareOk)


def test_paused_publishers_are_read_again_when_the_log_breaks(life: Life) -> None:
    client = life.client(confirm=True)
    client.publish("q", b"1")
    life.turn()
    client.session.incoming.hold_reading(life.engine.on_commit)
    client.publish("q", b"2")
    broken(life)
    life.run()
    assert client.reading
    assert [acked for acked, _, _ in client.confirms()] == [False, False]


def test_when_durable_runs_in_order(life: Life) -> None:
    ran = list[int]()
    engine = life.engine
    engine.when_durable(0, lambda: ran.append(0))
    client = life.client()
    client.publish("q", b"1")
    life.door.publishers.gathering.decide()
    engine.when_durable(life.core.last_lsn, lambda: ran.append(1))
    engine.when_durable(0, lambda: ran.append(2))
    assert ran == [0]
    life.run()
    assert ran == [0, 1, 2]


def test_content_is_what_clients_see(life: Life) -> None:
    fill(life, b"")
    client = life.client()
    client.method(m.BasicGet(queue="q"))
    life.run()
    (got,) = client.messages()
    assert isinstance(got, Content)
    assert got.body == b""
    assert got.properties.delivery_mode == 2
