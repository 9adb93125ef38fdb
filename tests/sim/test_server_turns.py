"""The order of a turn, seen from the wire: what leaves before the commit, what after it, what confirms look like."""

from __future__ import annotations

import pytest

from penstock.log.simdisk import SimDisk
from penstock.log.writer import MEMORY
from penstock.wire.amqp import methods as m
from sim.serverkit import PERSISTENT, Content, Life, clock


@pytest.fixture
def life() -> Life:
    return Life(SimDisk(), clock())


def test_an_early_lease_leaves_before_the_commit_and_the_confirm_after(life: Life) -> None:
    life.declare("q")
    client = life.client(confirm=True)
    client.consume("q")
    life.run()
    client.take(m.BasicConsumeOk)
    durable = life.log.durable
    client.publish("q", b"one", b"two")
    life.turn()
    assert client.bodies() == [b"one", b"two"]
    assert life.log.durable == durable
    life.commit()
    assert client.confirms() == [(True, 2, True)]
    assert life.log.durable > durable


def test_a_queue_may_ask_that_deliveries_wait_for_the_disk(life: Life) -> None:
    life.declare("q", **{"x-deliver": "durable"})
    client = life.client()
    client.consume("q")
    life.run()
    client.take(m.BasicConsumeOk)
    client.publish("q", b"one")
    life.turn()
    assert client.got == []
    life.commit()
    assert client.bodies() == [b"one"]


@pytest.mark.parametrize("sync", ["commit", "interval", "off"])
def test_at_most_once_sends_when_the_removal_is_on_the_disk(sync: str) -> None:
    from dataclasses import replace

    life = Life(SimDisk(), clock(), log=replace(MEMORY, sync=sync, sync_interval=10_000_000))
    life.declare("q", **{"x-semantics": "at-most-once"})
    client = life.client()
    client.consume("q", no_ack=True)
    life.run()
    client.take(m.BasicConsumeOk)
    syncs = life.disk.syncs
    client.publish("q", b"one")
    life.turn()
    assert client.got == []
    life.commit()
    assert client.bodies() == [b"one"]
    assert life.disk.syncs > syncs
    assert life.log.synced == life.log.durable
    life.crash()
    again = Life(life.disk, life.clock)
    assert again.contents("q") == []


def test_declare_ok_of_a_durable_queue_waits_for_the_sync(life: Life) -> None:
    client = life.client()
    client.method(m.QueueDeclare(queue="q", durable=True))
    life.turn()
    assert client.got == []
    life.commit()
    assert client.take(m.QueueDeclareOk).queue == "q"


def test_passive_and_equal_declares_answer_at_once(life: Life) -> None:
    life.declare("q")
    client = life.client(confirm=True)
    client.publish("q", b"in the way")  # something that is not durable yet
    for again in (m.QueueDeclare(queue="q", passive=True), m.QueueDeclare(queue="q", durable=True)):
        client.method(again)
        life.turn()
        client.take(m.QueueDeclareOk)
    for again in (m.ExchangeDeclare(exchange="amq.direct", passive=True), m.QueueDeclare(queue="own", exclusive=True)):
        client.method(again)
        life.turn()
        assert len(client.take_all()) == 1
    life.commit()
    assert client.confirms() == [(True, 1, True)]


def test_a_passive_declare_of_a_queue_that_is_not_durable_yet_waits_too(life: Life) -> None:
    first, second = life.client(), life.client()
    first.method(m.QueueDeclare(queue="q", durable=True))
    life.turn()
    second.method(m.QueueDeclare(queue="q", passive=True))
    life.turn()
    assert second.got == []
    life.commit()
    second.take(m.QueueDeclareOk)


def test_replies_of_a_channel_keep_their_order(life: Life) -> None:
    client = life.client()
    client.method(m.QueueDeclare(queue="q", durable=True))
    client.method(m.BasicQos(prefetch_count=1))
    client.consume("q")
    client.publish("q", b"one")
    life.turn()
    assert client.got == []  # not even the message: its consumer does not know its tag yet
    life.commit()
    assert client.names() == ["QueueDeclareOk", "BasicQosOk", "BasicConsumeOk", "BasicDeliver"]


def test_one_ack_a_channel_and_commit(life: Life) -> None:
    life.declare("q")
    client = life.client(confirm=True)
    client.channel(2, confirm=True)
    for n in range(5):
        client.publish("q", b"%d" % n)
        life.turn()
        client.publish("q", b"%d" % n, channel=2)
        life.turn()
    writes = client.writes
    life.commit()
    assert client.confirms() == [(True, 5, True), (True, 5, True)]
    assert client.writes == writes + 1


def test_a_mandatory_message_comes_back_before_its_ack(life: Life) -> None:
    life.declare("q")
    client = life.client(confirm=True)
    client.send(b"")
    client.publish("q", b"kept")
    client.publish("nowhere", b"back", mandatory=True)
    client.publish("q", b"kept")
    life.turn()
    life.commit()
    returned, ack = client.take_all()
    assert isinstance(returned, Content)
    assert isinstance(returned.method, m.BasicReturn)
    assert (returned.method.reply_code, returned.body) == (312, b"back")
    assert ack == m.BasicAck(3, True)


def test_unroutable_messages_alone_are_confirmed(life: Life) -> None:
    client = life.client(confirm=True)
    client.publish("nowhere", b"x", b"y")
    life.run()
    assert client.confirms() == [(True, 2, True)]


def judged(confirms: list[tuple[bool, int, bool]]) -> dict[int, bool]:
    """What each number was told, `multiple` reaching back to what was not told before; nobody is told twice."""
    told = dict[int, bool]()
    for acked, number, multiple in confirms:
        numbers = [n for n in range(1, number + 1) if n not in told] if multiple else [number]
        assert numbers, f"{number} was told twice"
        for n in numbers:
            assert n not in told
            told[n] = acked
    return told


def test_while_the_disk_is_full_publishes_are_refused_and_no_ack_covers_them() -> None:
    life = Life(SimDisk(), clock())
    life.declare("q")
    client = life.client(confirm=True)
    client.publish("q", b"1", b"2")
    life.turn()
    life.log.room.full = True
    client.publish("q", b"3", b"4")
    life.turn()
    life.log.room.full = False
    client.publish("q", b"5")
    life.turn()
    life.commit()
    assert judged(client.confirms()) == {1: True, 2: True, 3: False, 4: False, 5: True}
    assert life.contents("q") == [b"1", b"2", b"5"]


def test_refused_rows_within_a_run(life: Life) -> None:
    """Numbers before, between and after what a run refuses are told one way each."""
    life.declare("q")
    client = life.client(confirm=True)
    client.publish("q", b"1", b"2")
    life.turn()
    channel = client.session.channels[1]
    client.session.intake.confirm(channel, 1, 2, [2])
    life.run()
    got = client.confirms()
    assert got[:2] == [(True, 1, False), (False, 2, False)]


def test_no_ack_messages_are_settled_when_sent(life: Life) -> None:
    life.declare("q")
    client = life.client()
    client.consume("q", no_ack=True)
    client.publish("q", b"one", properties=PERSISTENT)
    life.run()
    assert client.names() == ["BasicConsumeOk", "BasicDeliver"]
    assert life.contents("q") == []
