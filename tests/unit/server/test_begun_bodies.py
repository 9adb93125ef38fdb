"""Bodies that were announced and do not come: they keep memory from nobody, and from none of another user at all."""

from __future__ import annotations

import struct

import pytest

from penstock.errors import LogBroken
from penstock.log.simdisk import SimDisk
from penstock.server.amqp.incoming import STILL_US
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.frames import BODY, HEADER, METHOD, frame
from sim.serverkit import Client, Life, clock

BUDGET = 16 << 20
MOST = BUDGET // 4
SECOND = 1_000_000
MIB = 1 << 20


@pytest.fixture(params=[False, True], ids=["in the core", "at a door of its own"])
def life(request: pytest.FixtureRequest) -> Life:
    life = Life(SimDisk(), clock(), budget=BUDGET, apart=request.param)
    life.declare("q")
    return life


def begin(client: Client, size: int, channel: int = 1) -> None:
    """Announce a body, and send a little of it."""
    publish = frame(METHOD, channel, m.BasicPublish(exchange="", routing_key="q").encode())
    client.send(publish + frame(HEADER, channel, struct.pack(">HHQH", 60, 0, size, 0)) + frame(BODY, channel, b"a"))
    client.life.run()


def end(client: Client, size: int, channel: int = 1) -> None:
    """Send all the rest."""
    for at in range(1, size, 100_000):
        client.send(frame(BODY, channel, bytes(min(100_000, size - at))))
    client.life.run()


def acked(client: Client) -> bool:
    """Whether its first message, and nothing else, was confirmed since it was last asked."""
    return [one[:2] for one in client.confirms()] == [(True, 1)]


def waits(life: Life, seconds: int) -> None:
    for _ in range(seconds):
        life.advance(SECOND)
        life.door.beat()
        life.engine.bodies.keep_to_budget()
        life.engine.relief.beat()
        life.run()


def charged(life: Life) -> int:
    return life.engine.bodies.partial.bytes


def test_whoever_publishes_what_comes_at_once_waits_for_no_body_that_was_begun(life: Life) -> None:
    for _ in range(40):  # together far more than all the memory there is
        begin(life.client(), 1 << 20)
    assert life.engine.has_room()
    client = life.client(confirm=True)
    client.publish("q", b"small")
    life.run()
    assert acked(client)
    assert charged(life) <= MOST


def test_one_alone_may_begin_more_than_its_share(life: Life) -> None:
    client = life.client(confirm=True)
    begin(client, MOST + 1000)
    end(client, MOST + 1000)
    assert acked(client)
    assert charged(life) == 0


def test_who_finds_no_room_waits_in_line_and_all_come_to_their_end(life: Life) -> None:
    size = MOST // 2
    clients = [life.client(confirm=True) for _ in range(4)]
    for client in clients:
        begin(client, size)
    assert [client.reading for client in clients] == [True, False, False, False]
    for client in clients:
        end(client, size)  # of those that are not read it lies in the socket
    assert all(map(acked, clients))
    assert charged(life) == 0
    assert all(client.reading for client in clients)


def test_what_does_not_come_to_its_end_makes_way_for_those_who_wait(life: Life) -> None:
    idle, waiting = life.client(), life.client(confirm=True)
    for channel in range(2, 6):
        idle.channel(channel)
        begin(idle, MOST // 8, channel)
    begin(waiting, MOST // 4)
    assert not waiting.reading
    waits(life, STILL_US // SECOND - 2)
    assert idle.take_all() == []
    waits(life, 6)
    told = [idle.take(m.ChannelClose) for _ in range(4)]
    assert {one.reply_code for one in told} == {506}
    assert "does not come, and others wait for the memory" in told[0].reply_text
    end(waiting, MOST // 4)
    assert acked(waiting)
    assert charged(life) == 0
    idle.publish("q", b"its other channels are as they were")
    life.run()
    assert life.ready("q") == 2


def test_what_nobody_waits_for_may_take_its_time(life: Life) -> None:
    slow = life.client(confirm=True)
    begin(slow, MOST // 2)
    waits(life, 600)
    end(slow, MOST // 2)
    assert acked(slow)


def test_who_goes_while_it_waits_or_while_others_do_leaves_nothing_behind(life: Life) -> None:
    first, second, third = (life.client(confirm=True) for _ in range(3))
    for client in (first, second, third):
        begin(client, MOST // 2)
    second.lose()
    first.lose()
    life.run()
    assert third.reading
    end(third, MOST // 2)
    assert acked(third)
    assert charged(life) == 0


def test_no_user_waits_for_the_bodies_of_another(life: Life) -> None:
    for _ in range(6):
        begin(life.client(), MOST // 2)
    other = life.client(confirm=True)
    other.session.user = "somebody else"
    begin(other, MOST // 2)
    assert other.reading
    end(other, MOST // 2)
    assert acked(other)


def test_who_consumes_is_always_read_and_refused_only_what_there_is_no_memory_for(life: Life) -> None:
    begin(life.client(), MOST // 2)
    client = life.client()
    client.channel(2)
    client.consume("q")
    life.run()
    client.got.clear()
    begin(client, MIB, 2)
    assert client.reading
    assert client.take_all() == []
    end(client, MIB, 2)
    assert len(client.messages()) == 1
    life.engine.bodies.tight = True
    begin(client, MIB + 1, 2)
    told = client.take(m.ChannelClose)
    assert (told.reply_code, told.class_id, told.method_id) == (506, 60, 40)
    assert "there is no memory for it" in told.reply_text
    assert client.reading


def test_who_publishes_one_large_body_after_another_lets_others_of_his_have_their_turn(life: Life) -> None:
    size = MOST // 2
    busy, other = life.client(confirm=True), life.client(confirm=True)
    begin(busy, size)
    begin(other, size)
    assert not other.reading
    for _ in range(4):
        rest = b"".join(frame(BODY, 1, bytes(min(100_000, size - at))) for at in range(1, size, 100_000))
        head = frame(METHOD, 1, m.BasicPublish(exchange="", routing_key="q").encode())
        begun = frame(HEADER, 1, struct.pack(">HHQH", 60, 0, size, 0)) + frame(BODY, 1, b"a")
        busy.send(rest + head + begun)  # the end of one, and the beginning of the next
        life.run()
        if other.reading and not other.got:
            end(other, size)
        waits(life, 3)
    assert acked(other)
    told = busy.take_all()
    assert told
    assert all(isinstance(one, m.BasicAck) for one in told), "nobody is punished for what we do not read"


def test_two_bodies_at_once_on_one_connection_come_to_their_end(life: Life) -> None:
    size = MOST // 4
    clients = [life.client(confirm=True) for _ in range(4)]
    for client in clients:
        client.channel(2, confirm=True)
        begin(client, size)
        begin(client, size, 2)
    for client in clients:
        end(client, size)
        end(client, size, 2)
    waits(life, STILL_US // SECOND + 5)
    for client in clients:
        assert [(type(one), one.delivery_tag) for one in client.take_all() if isinstance(one, m.BasicAck)] == [
            (m.BasicAck, 1), (m.BasicAck, 1),
        ]  # fmt: skip
    assert charged(life) == 0


def test_time_does_not_run_for_whom_we_do_not_read(life: Life) -> None:
    client, other = life.client(confirm=True), life.client()
    begin(client, MOST // 2)
    begin(other, MOST // 2)
    client.session.incoming.hold_reading(life.engine.on_room)
    waits(life, 5 * STILL_US // SECOND)
    assert client.take_all() == []


def test_publishers_go_on_whoever_keeps_the_memory_for_himself(life: Life) -> None:
    hoard = life.engine.bodies.budget.account("somebody's")
    hoard.add(4 * BUDGET)  # and it stays there
    client = life.client(confirm=True)
    for number in range(1, 20):
        client.publish("q", bytes(200_000))
        waits(life, 1)
        assert [one[:2] for one in client.confirms()] == [(True, number)]
        assert life.engine.bodies.tight
        assert life.engine.bodies.used < 2 * MIB


def test_nobody_waits_once_the_log_is_broken(life: Life) -> None:
    clients = [life.client(confirm=True) for _ in range(3)]
    for client in clients:
        begin(client, MOST // 2)
    assert not clients[2].reading
    life.engine.break_down(LogBroken("the disk is gone"))
    life.run()
    assert all(client.reading for client in clients)
