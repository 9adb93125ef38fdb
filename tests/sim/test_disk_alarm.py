"""A full disk: publishers that would not learn of a refusal are held back, and nothing of theirs is lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.log.simdisk import SimDisk
from penstock.server.amqp.holding import HELD_MOST
from penstock.wire.amqp import methods as m
from sim.serverkit import Client, Life, clock, message


def full(life: Life, state: bool) -> None:
    """The disk fills up, or has room again and the door looks."""
    life.log.room.full = state
    if not state:
        life.door.beat()
    life.run()


def told(client: Client) -> Client:
    """A client that announced `connection.blocked`."""
    client.session.machine.client_capabilities |= {"connection.blocked"}
    return client


def filled() -> Life:
    life = Life(SimDisk(), clock())
    life.declare("q")
    return life


def test_unconfirmed_publishes_wait_and_are_stored_in_order() -> None:
    life = filled()
    client = told(life.client())
    client.publish("q", b"1")
    life.run()
    full(life, True)
    client.publish("q", b"2", b"3")
    client.publish("q", b"4")  # after the pause: the server does not even read it
    life.run()
    assert not client.reading
    assert client.take(m.ConnectionBlocked).reason == "the disk of the log is full"
    assert life.contents("q") == [b"1"]
    full(life, False)
    assert client.reading
    client.take(m.ConnectionUnblocked)
    assert life.contents("q") == [b"1", b"2", b"3", b"4"]


def test_who_consumes_is_read_on_and_its_acks_pass() -> None:
    life = filled()
    client = life.client(prefetch=1)
    client.publish("q", b"1", b"2")
    client.consume("q")
    life.run()
    client.take(m.BasicConsumeOk)
    first = client.messages()
    full(life, True)
    client.publish("q", b"3")
    client.ack(first[-1].tag)
    life.run()
    assert client.reading
    assert client.bodies() == [b"2"]
    full(life, False)
    client.channel(2)
    client.method(m.BasicGet(queue="q"), 2)
    life.run()
    assert client.bodies() == [b"3"]


def test_who_consumes_and_publishes_too_much_loses_the_channel() -> None:
    life = filled()
    client = life.client()
    client.channel(2)
    client.consume("q")
    life.run()
    full(life, True)
    for _ in range(12):
        client.send(message(b"x" * 100_000, "q", channel=2))
        life.run()
    closes = [got for got in client.take_all() if isinstance(got, m.ChannelClose)]
    assert [close.reply_code for close in closes] == [506]
    assert str(HELD_MOST) in closes[0].reply_text
    client.channel(3)
    client.send(message(b"3", "q", channel=3))  # what the lost channel had waiting no longer counts
    life.run()
    assert client.session.channels.keys() == {1, 3}
    full(life, False)
    assert client.bodies()[-1:] == [b"3"]


def test_confirming_channels_are_nacked_at_once() -> None:
    life = filled()
    client = told(life.client(confirm=True))
    full(life, True)
    client.publish("q", b"1")
    life.run()
    client.take(m.ConnectionBlocked)
    assert client.confirms() == [(False, 1, False)]
    assert client.reading


def test_what_was_held_and_has_to_be_judged_is_stored_in_order() -> None:
    """Each large message waits for a filter off the loop; none may overtake another, or be forgotten."""
    life = Life(SimDisk(), clock(), budget=64 << 20)
    life.declare("q", **{"x-underlying-topic": "t", "x-filter": "/n > 0"})
    aside = deque[Callable[[], None]]()
    life.engine.judges.off = lambda work, done: aside.append(lambda: done(work()))
    client = life.client()
    life.declare("other")
    client.consume("other")  # read on while the disk is full
    life.run()
    full(life, True)
    bodies = [b'{"n":%d,"pad":"%s"}' % (n, b"x" * 270_000 * (n < 3)) for n in range(1, 5)]
    for body in bodies:
        client.send(message(body, "t"))
        life.run()
    assert life.contents("q") == []
    full(life, False)
    client.send(message(b'{"n":5}', "t"))
    while aside:
        aside.popleft()()
        life.run()
    assert life.contents("q") == [*bodies, b'{"n":5}']


def test_a_connection_that_goes_takes_its_held_messages_with_it() -> None:
    life = filled()
    client = life.client()
    full(life, True)
    client.publish("q", b"1")
    life.run()
    client.lose()
    life.run()
    full(life, False)
    assert life.contents("q") == []
    assert not life.door.publishers.alarm._told
