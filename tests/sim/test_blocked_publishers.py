"""`overflow = "block"`: publishers of a full queue wait for room, and nobody else does."""

from __future__ import annotations

import json
from random import Random

import pytest

from choices import EFFORT
from penstock.config.queue_arguments import read_policy
from penstock.core.queue.explaining import explain_queue
from penstock.errors import LogBroken
from penstock.log.simdisk import SimDisk
from penstock.records.properties import Properties, encode
from penstock.server.amqp import holding
from penstock.server.amqp.holding import CLOSING_US, HELD_MOST, READ_ON
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.frames import METHOD, frame
from sim.serverkit import Client, Life, clock, message


def life_of(**arguments: object) -> Life:
    life = Life(SimDisk(), clock())
    life.declare("full", **{"x-overflow": "block", "x-max-length": 2, **arguments})
    life.declare("free")
    return life


def told(client: Client) -> Client:
    """A client that announced `connection.blocked`."""
    client.session.machine.client_capabilities |= {"connection.blocked"}
    return client


def take(life: Life, queue: str = "full", count: int = 1) -> list[bytes]:
    """Somebody else takes some and settles them."""
    client = life.client()
    out = list[bytes]()
    for _ in range(count):
        client.method(m.BasicGet(queue=queue, no_ack=True))
        life.run()
        out += client.bodies()
    client.lose()
    life.run()
    return out


def test_a_publisher_waits_for_room_and_is_confirmed_when_its_message_is_stored() -> None:
    life = life_of()
    client = told(life.client(confirm=True))
    client.publish("full", b"1", b"2", b"3", b"4")
    life.run()
    assert life.contents("full") == [b"1", b"2"]
    assert client.take(m.ConnectionBlocked).reason == "queue 'full' in vhost '/' is full"
    assert client.confirms() == [(True, 2, True)]
    assert take(life) == [b"1"]
    assert life.contents("full") == [b"2", b"3"]
    assert client.confirms() == [(True, 3, True)]
    assert take(life, count=2) == [b"2", b"3"]
    client.take(m.ConnectionUnblocked)
    assert client.confirms() == [(True, 4, True)]
    assert life.contents("full") == [b"4"]
    assert not life.engine.rooms.waiting
    assert not life.door.holding
    assert life.door.holding.bytes == 0


def test_a_queue_with_a_name_as_long_as_any_holds_its_publishers_up() -> None:
    """The reason has room for 255 bytes, and the name of the queue alone may have as many."""
    life, name = life_of(), "q" * 255
    life.declare(name, **{"x-overflow": "block", "x-max-length": 1})
    client = told(life.client(confirm=True))
    client.publish(name, b"1", b"2")
    life.run()
    reason = client.take(m.ConnectionBlocked).reason
    assert reason.startswith("queue 'qqq")
    assert reason.endswith("q' in vhost '/' is full")
    assert take(life, name) == [b"1"]
    assert life.contents(name) == [b"2"]


def test_without_confirms_they_wait_too_and_nothing_is_lost() -> None:
    life = life_of()
    client = life.client()
    client.publish("full", *(b"%d" % n for n in range(20)))
    life.run()
    assert [take(life)[0] for _ in range(20)] == [b"%d" % n for n in range(20)]


def test_other_publishers_and_other_channels_go_on() -> None:
    life = life_of()
    client, other = life.client(confirm=True), life.client(confirm=True)
    client.channel(2, confirm=True)
    client.publish("full", b"1", b"2", b"3")
    client.publish("free", b"a", channel=2)
    other.publish("free", b"b")
    client.publish("free", b"behind")  # what a channel publishes keeps its order
    life.run()
    assert life.contents("free") == [b"a", b"b"]
    take(life)
    assert life.contents("free") == [b"a", b"b", b"behind"]
    assert life.contents("full") == [b"2", b"3"]


def test_a_message_for_several_queues_waits_as_a_whole() -> None:
    life = life_of()
    life.declare("copy", **{"x-underlying-topic": "full"})
    client = life.client(confirm=True)
    client.publish("full", b"1", b"2", b"3")
    life.run()
    assert life.contents("copy") == [b"1", b"2"]  # no copy of what may yet be tried again
    take(life)
    assert life.contents("copy") == [b"1", b"2", b"3"]
    assert life.contents("full") == [b"2", b"3"]


def test_who_waits_is_served_in_the_order_they_came() -> None:
    life = life_of()
    clients = [life.client() for _ in range(3)]
    clients[0].publish("full", b"1", b"2")
    for n, client in enumerate(clients):
        client.publish("full", b"a%d" % n, b"b%d" % n)
    life.run()
    assert life.engine.rooms.waiting == 3
    assert take(life, count=8) == [b"1", b"2", b"a0", b"b0", b"a1", b"b1", b"a2", b"b2"]
    assert not life.engine.rooms.waiting


def test_a_connection_that_consumes_what_it_published_goes_on_by_itself() -> None:
    """Its acks are read while its publishes wait: nothing but itself makes room."""
    life = life_of()
    client = life.client(confirm=True, prefetch=1)
    client.consume("full")
    life.run()
    client.take(m.BasicConsumeOk)
    client.publish("full", *(b"%d" % n for n in range(50)))
    seen = list[bytes]()
    for _ in range(50):
        life.run()
        got = [one for one in client.take_all() if not isinstance(one, m.BasicAck)]
        for one in got:
            seen.append(one.body)  # type: ignore[union-attr]
            client.ack(one.tag)  # type: ignore[union-attr]
    life.run()
    assert seen == [b"%d" % n for n in range(50)]


def test_a_consumer_that_comes_behind_its_own_publishes_is_heard() -> None:
    life = life_of()
    client = life.client()
    client.publish("full", *(b"%d" % n for n in range(20)))
    life.run()
    assert client.reading
    client.consume("full", no_ack=True)
    life.run()
    client.take(m.BasicConsumeOk)
    assert client.bodies() == [b"%d" % n for n in range(20)]


def test_who_only_publishes_is_not_read_beyond_a_bound() -> None:
    life = life_of()
    client = life.client()
    for n in range(40):
        client.send(message(b"%d" % n + b"x" * 10_000, "full"))
        life.run()
    assert not client.reading
    assert READ_ON <= life.door.holding.bytes < READ_ON + 20_000
    assert life.engine.bodies.budget.by_name()["held"] == life.door.holding.bytes
    assert [int(take(life)[0].rstrip(b"x")) for _ in range(40)] == list(range(40))
    assert client.reading
    assert life.door.holding.bytes == 0


def test_a_consumer_in_the_same_read_as_much_that_waits_is_read_on() -> None:
    """The link is not read when it comes; its acks are what makes room."""
    life = life_of()
    client = life.client()
    client.send(b"".join(message(b"%d" % n + b"x" * 10_000, "full") for n in range(20)) + m_consume("full"))
    life.run()
    assert client.reading
    client.take(m.BasicConsumeOk)
    got = client.messages()
    for _ in range(20):
        client.ack(0, multiple=True)
        life.run()
        got += client.messages()
    assert [int(one.body.rstrip(b"x")) for one in got] == list(range(20))


def m_consume(queue: str) -> bytes:
    return frame(METHOD, 1, m.BasicConsume(queue=queue, consumer_tag="c").encode())


def test_who_consumes_elsewhere_and_publishes_too_much_loses_the_channel() -> None:
    life = life_of()
    client = life.client()
    client.channel(2)
    client.consume("free")
    life.run()
    for _ in range(14):
        client.send(message(b"x" * 100_000, "full", channel=2))
        life.run()
    closes = [got for got in client.take_all() if isinstance(got, m.ChannelClose)]
    assert [close.reply_code for close in closes] == [506]
    assert str(HELD_MOST) in closes[0].reply_text
    assert not life.engine.rooms.waiting
    assert not life.door.holding


def test_a_close_waits_for_what_was_published_before_it() -> None:
    life = life_of()
    client = life.client()
    client.publish("full", b"1", b"2", b"3")
    client.method(m.ChannelClose(200, "", 0, 0))
    client.send(close_connection())
    life.run()
    assert not client.got
    assert take(life, count=3) == [b"1", b"2", b"3"]
    assert isinstance(client.take_all()[-1], m.ConnectionCloseOk)


def close_connection() -> bytes:
    return frame(METHOD, 0, m.ConnectionClose(200, "", 0, 0).encode())


def test_a_close_does_not_wait_for_ever_for_its_own_consumer() -> None:
    life = life_of()
    client = life.client(prefetch=1)
    client.consume("full")
    life.run()
    client.publish("full", *(b"%d" % n for n in range(9)))
    life.run()
    client.method(m.ChannelClose(200, "", 0, 0))
    life.run()
    client.take_all()
    for _ in range(CLOSING_US // 1_000_000 + 2):
        life.advance(1_000_000)
        life.door.beat()
    life.run()
    client.take(m.ChannelCloseOk)
    assert life.ready("full") == 3  # what it held is back; a return is never refused
    assert not life.engine.rooms.waiting


def test_a_connection_that_is_lost_takes_its_held_messages_with_it() -> None:
    life = life_of()
    client = life.client(confirm=True)
    client.publish("full", b"1", b"2", b"3")
    life.run()
    client.lose()
    life.run()
    assert not life.engine.rooms.waiting
    assert take(life, count=2) == [b"1", b"2"]
    assert life.ready("full") == 0


def test_confirms_count_from_the_moment_they_were_asked_for() -> None:
    life = life_of()
    client = life.client()
    client.publish("full", b"1", b"2", b"3")
    client.method(m.ConfirmSelect())
    life.run()
    client.take(m.ConfirmSelectOk)
    client.publish("full", b"4")
    life.run()
    assert take(life, count=4) == [b"1", b"2", b"3", b"4"]
    assert client.confirms() == [(True, 1, True)]


def test_what_waited_before_a_transaction_is_no_part_of_it() -> None:
    life = life_of()
    client = life.client()
    client.publish("full", b"1", b"2", b"3")
    client.method(m.TxSelect())
    client.publish("free", b"t")
    client.method(m.TxRollback())
    life.run()
    assert take(life, count=3) == [b"1", b"2", b"3"]
    assert life.contents("free") == []


def test_a_transaction_does_not_wait() -> None:
    life = life_of()
    client = life.client()
    client.method(m.TxSelect())
    client.publish("full", b"1", b"2", b"3")
    client.method(m.TxCommit())
    life.run()
    assert [one.reply_code for one in client.take_all() if isinstance(one, m.ChannelClose)] == [406]
    assert life.contents("full") == []


def test_what_may_never_fit_is_refused_at_once() -> None:
    life = life_of(**{"x-max-length-bytes": 10})
    client = life.client(confirm=True)
    client.publish("full", b"x" * 11, b"1")
    life.run()
    assert client.confirms() == [(False, 1, False), (True, 2, False)]
    assert life.contents("full") == [b"1"]
    nothing = life_of(**{"x-max-length": 0})
    client = nothing.client(confirm=True)
    client.publish("full", b"1")
    nothing.run()
    assert client.confirms() == [(False, 1, False)]


def test_by_bytes_the_first_that_does_not_fit_waits_and_the_others_behind_it() -> None:
    life = life_of(**{"x-max-length": 100, "x-max-length-bytes": 10})
    client = life.client(confirm=True)
    client.publish("full", b"x" * 6, b"y" * 6, b"z")
    life.run()
    assert life.contents("full") == [b"x" * 6]
    take(life)
    assert life.contents("full") == [b"y" * 6, b"z"]


def rule(life: Life, definition: dict[str, object]) -> None:
    life.core.set_policy(life.engine.now(), read_policy("/", "p", "^full", definition))


@pytest.mark.parametrize("how", ["raised", "other mode", "deleted", "purged", "expired"])
def test_room_comes_by_any_way(how: str) -> None:
    life = Life(SimDisk(), clock())
    life.declare("full", **({"x-message-ttl": 1000} if how == "expired" else {}))
    rule(life, {"max-length": 2, "overflow": "block"})
    client = life.client(confirm=True)
    client.publish("full", b"1", b"2", b"3")
    life.run()
    client.take_all()
    queue = life.core.queue("/", "full")
    now = life.engine.now()
    if how == "raised":
        rule(life, {"max-length": 3, "overflow": "block"})
    elif how == "other mode":
        rule(life, {"max-length": 2, "overflow": "drop-head"})
    elif how == "deleted":
        life.core.delete_queue(now, queue)
    elif how == "purged":
        life.core.purge_queue(now, queue)
    else:
        life.advance(1_000_000)
    life.run()
    assert client.confirms() == [(True, 3, True)]
    assert not life.engine.rooms.waiting
    if how != "deleted":
        expected = {"raised": [b"1", b"2", b"3"], "other mode": [b"2", b"3"]}
        assert life.contents("full") == expected.get(how, [b"3"])


def test_a_full_disk_and_a_full_queue_at_once() -> None:
    life = life_of()
    client = told(life.client())
    client.publish("full", b"1", b"2", b"3", b"4")
    life.run()
    life.log.room.full = True
    take(life, count=2)
    assert life.contents("full") == []
    life.log.room.full = False
    life.door.beat()
    life.run()
    assert life.contents("full") == [b"3", b"4"]
    assert [type(one) for one in client.take_all()] == [m.ConnectionBlocked, m.ConnectionUnblocked]


def test_a_broken_log_lets_nobody_wait() -> None:
    life = life_of()
    client = life.client(confirm=True)
    client.publish("full", b"1", b"2", b"3")
    life.run()
    client.take_all()
    life.engine.break_down(LogBroken("a disk fails"))
    life.run()
    assert client.confirms() == [(False, 3, False)]
    assert not life.engine.rooms.waiting


def test_what_is_due_comes_before_who_waits() -> None:
    life = life_of()
    client = life.client(confirm=True)
    client.method(m.QueueDeclare(queue="q2"))
    life.run()
    client.take_all()
    client.publish("full", b"1")
    client.publish("full", b"later", properties=encode(Properties(delivery_mode=2, headers={"x-delay": 1000})))
    client.publish("full", b"2", b"3")
    life.run()
    assert life.contents("full") == [b"1", b"later", b"2"]
    life.advance(1_000_000)
    assert life.ready("full") == 3  # what becomes due is never refused
    take(life)
    assert life.engine.rooms.waiting == 1
    take(life)
    assert life.contents("full")[-1] == b"3"


def test_a_long_line_is_tried_in_parts() -> None:
    life = life_of()
    client = life.client(confirm=True)
    client.publish("full", *(b"%d" % n for n in range(300)))
    life.run()
    (line,) = life.door.holding.held[client.session].lines.values()
    assert max(len(run.bodies) for run in line.events) == holding.PART  # type: ignore[union-attr]
    assert take(life, count=300) == [b"%d" % n for n in range(300)]
    acked = [(number, multiple) for ok, number, multiple in client.confirms() if ok]
    assert acked[-1][0] == 300
    assert len({number for number, _ in acked}) == len(acked)


def test_explain_says_that_publishers_are_held_up() -> None:
    life = life_of()
    client = life.client()
    client.publish("full", b"1", b"2", b"3")
    life.run()
    queue = life.core.queue("/", "full")
    told_ = [reason.text for reason in explain_queue(queue, life.engine.now()) if reason.code == "full"]
    assert told_ == ["it holds its publishers up until there is room: max_length is 2, 2 messages are ready"]
    take(life, count=3)
    assert not [reason for reason in explain_queue(queue, life.engine.now()) if reason.code == "full"]


def test_a_crash_keeps_what_was_confirmed_and_knows_nothing_of_what_waited() -> None:
    disk, time = SimDisk(), clock()
    life = Life(disk, time)
    life.declare("full", **{"x-overflow": "block", "x-max-length": 2})
    client = life.client(confirm=True)
    client.publish("full", b"1", b"2", b"3")
    life.run()
    assert client.confirms() == [(True, 2, True)]
    life.crash()
    again = Life(disk, time)
    assert again.contents("full") == [b"1", b"2"]
    client = again.client(confirm=True)
    client.publish("full", b"3")
    again.run()
    assert client.confirms() == []
    assert take(again, count=3) == [b"1", b"2", b"3"]


OPTIONS: list[dict[str, object]] = [
    {"x-max-priority": 3},
    {"x-group-key": "/key"},
    {"x-fairness-key": "/key"},
    {"x-max-length-bytes": 60},
    {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "free"},
    {"x-retry": {"initial": "1s", "max": "2s"}},
    {"x-single-active-consumer": True},
    {"x-filter": "/key < 2"},
    {"x-dedup-window": "1h"},
    {"x-last-value-key": "/key"},
]


@pytest.mark.parametrize("seed", range(len(OPTIONS) * (1 if EFFORT == 1 else 2)))
def test_whatever_else_is_set_each_message_is_stored_once_in_its_publishers_order(seed: int) -> None:
    """Random publishers, consumers and time: nothing lost, nothing twice, no limit passed, no confirm too early."""
    random, option = Random(seed), OPTIONS[seed % len(OPTIONS)]
    life = Life(SimDisk(), clock())
    most = random.randint(1, 4)
    life.declare("full", **{"x-overflow": "block", "x-max-length": most, **option})
    life.declare("free")
    life.declare("log", **{"x-underlying-topic": "full"})
    publishers = [life.client(confirm=random.random() < 0.7) for _ in range(3)]
    sent, acked = [0] * 3, [0] * 3
    consumer = life.client(prefetch=random.randint(1, 3))
    consumer.consume("full")
    life.run()
    consumer.take_all()
    for _ in range(60):
        who = random.randrange(3)
        if random.random() < 0.6:
            bodies = list[bytes]()
            for _ in range(random.randint(1, 5)):
                sent[who] += 1
                bodies.append(b'{"who":%d,"n":%d,"key":%d}' % (who, sent[who], random.randrange(4)))
            header = encode(Properties(delivery_mode=2, priority=random.randrange(5)))
            publishers[who].publish("full", *bodies, properties=header)
        elif random.random() < 0.3:
            life.advance(random.randint(1, 3) * 1_000_000)
        life.run()
        settle(consumer, random)
        check(life, publishers, acked, most)
    idle = 0
    for _ in range(400):
        life.advance(2_000_000)
        settle(consumer, None)
        idle = 0 if life.engine.rooms.waiting or life.door.holding else idle + 1
        if EFFORT == 1 and idle > 20:  # nobody is held, and whoever was late would have come
            break
    check(life, publishers, acked, most)
    assert not life.engine.rooms.waiting
    assert not life.door.holding
    stored = [json.loads(body) for body in life.contents("log")]
    for who in range(3):
        assert [one["n"] for one in stored if one["who"] == who] == list(range(1, sent[who] + 1))
    assert all(acked[who] == sent[who] for who in range(3) if publishers[who].session.channels[1].confirming)


def settle(consumer: Client, random: Random | None) -> None:
    """Settle some of what came in one way or another; all of it by an ack where chance has no say."""
    for one in consumer.messages():
        how = 0.0 if random is None else random.random()
        if how < 0.7:
            consumer.ack(one.tag)
        else:
            consumer.method(m.BasicReject(one.tag, how < 0.9))
    consumer.life.run()


def check(life: Life, publishers: list[Client], acked: list[int], most: int) -> None:
    stored = [json.loads(body) for body in life.contents("log")]
    for who, client in enumerate(publishers):
        for ok, number, _ in client.confirms():
            assert ok
            acked[who] = max(acked[who], number)
        assert acked[who] <= max([one["n"] for one in stored if one["who"] == who], default=0)
    queue = life.core.queue("/", "full")
    assert queue.ready - queue.returned.count <= most
    queue.check()
