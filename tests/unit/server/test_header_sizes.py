"""Headers that no frame of a connection carries: who is told, who gets them, and that nobody gets a frame too large.

The kit's client refuses every frame that is larger than was agreed, whatever it holds.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

from penstock.core.topology.routing import REPLY_TO
from penstock.records.properties import Properties, decode, encode
from penstock.server.amqp.session import TRIES
from penstock.server.own_messages import HEADER_MOST
from penstock.server.sockets.strangers import TOLD_S
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.frames import FRAME_MAX_LEAST
from sim.serverkit import Client, Content, Life

FITS = FRAME_MAX_LEAST - 20


def header(size: int, **others: Any) -> bytes:
    """A header of so many bytes."""
    empty = encode(Properties(delivery_mode=2, headers={"h": ""}, **others))
    made = encode(Properties(delivery_mode=2, headers={"h": "x" * (size - len(empty))}, **others))
    assert len(made) == size
    return made


@pytest.fixture(params=[False, True], ids=["here", "door"])
def small(request: pytest.FixtureRequest, life: Life, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A client with the smallest frames that AMQP knows, in this process or at a door."""
    monkeypatch.setattr("sim.serverkit.APART", request.param)
    return life.client(frame_max=FRAME_MAX_LEAST)


def publish(life: Life, *sizes: int) -> None:
    """Messages whose bodies say the size of their header, from a client with larger frames."""
    client = life.client()
    for size in sizes:
        client.publish("q", b"%d" % size, properties=header(size))
    life.run()
    client.lose()
    life.run()


def close_of(client: Client) -> m.ChannelClose:
    close = client.take(m.ChannelClose)
    assert close.reply_code == 311, close
    return close


def content_of(client: Client) -> Content:
    """The next thing that came, which is a message."""
    first = client.got.pop(0)
    assert isinstance(first, Content), first
    return first


def consume(life: Life, client: Client, **how: Any) -> None:
    client.consume("q", **how)
    life.run()
    client.take(m.BasicConsumeOk)


def test_the_largest_header_that_fits_arrives(life: Life, small: Client) -> None:
    publish(life, FITS)
    consume(life, small)
    assert small.bodies() == [b"%d" % FITS]


def test_who_cannot_take_a_header_is_told_and_others_get_it(life: Life, small: Client) -> None:
    publish(life, 100, FITS + 1, 200)
    consume(life, small)
    got = [content_of(small), content_of(small)]
    assert [one.body for one in got] == [b"100", b"200"]
    close = close_of(small)
    assert f"has {FITS + 1} bytes" in close.reply_text
    assert "'q'" in close.reply_text
    queue = life.core.queue("/", "q")
    assert (queue.ready, queue.leased) == (3, 0)
    large = life.client()
    consume(life, large)
    again = large.messages()
    assert sorted(one.body for one in again) == sorted([b"100", b"200", b"%d" % (FITS + 1)])
    assert all(one.redelivered for one in again)


def test_a_message_that_nobody_can_take_dies_of_its_attempts(life: Life, small: Client) -> None:
    arguments: dict[str, Any] = {"x-queue-type": "quorum", "x-delivery-limit": 2}
    life.declare("limited", **arguments)
    other = life.client()
    other.publish("limited", b"large", properties=header(FITS + 1))
    life.run()
    for attempt in range(4):
        small.consume("limited", "c", channel=attempt + 1)
        life.run()
        small.take(m.BasicConsumeOk)
        if small.got == []:
            break  # it is dead
        close_of(small)
        small.method(m.ChannelCloseOk(), attempt + 1)
        small.channel(attempt + 2)
    assert small.got == []
    queue = life.core.queue("/", "limited")
    assert (queue.ready, queue.leased) == (0, 0)


def try_again(life: Life, small: Client, queue: str, times: int) -> int:
    """Consume so often, each time on a channel anew; how often that was ended."""
    ended = 0
    for number in range(2, 2 + times):
        small.channel(number)
        small.consume(queue, "c", channel=number)
        life.run()
        small.take(m.BasicConsumeOk)
        for _ in small.got:
            close_of(small)
            small.method(m.ChannelCloseOk(), number)
            ended += 1
    return ended


def test_without_a_limit_what_nobody_can_take_becomes_a_dead_letter_at_last(life: Life, small: Client) -> None:
    life.declare("dead")
    arguments: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    life.declare("lettered", **arguments)
    other = life.client()
    other.publish("lettered", b"large", properties=header(FITS + 1))
    life.run()
    assert try_again(life, small, "lettered", TRIES + 5) == TRIES
    assert life.contents("dead") == [b"large"]
    assert life.core.queue("/", "lettered").ready == 0


def test_without_a_limit_and_a_place_for_the_dead_it_stays_and_the_log_tells(
    life: Life, small: Client, caplog: pytest.LogCaptureFixture
) -> None:
    publish(life, FITS + 1)
    life.advance(int(TOLD_S * 1e6))
    life.door.beat()
    caplog.clear()
    with caplog.at_level(logging.WARNING, "penstock.server.doors"):
        assert try_again(life, small, "q", TRIES + 5) == TRIES + 5
        [line] = [one.getMessage() for one in caplog.records]
        assert f"of queue 'q' in vhost '/' has {FITS + 1} bytes" in line
        assert small.session.peer in line
        caplog.clear()
        life.advance(int(TOLD_S * 1e6))
        life.door.beat()
        [line] = [one.getMessage() for one in caplog.records]
        assert f"{TRIES + 4} more" in line
    assert life.ready("q") == 1


@pytest.mark.parametrize("count", [1, 5])
def test_without_acks_the_others_arrive(life: Life, small: Client, count: int) -> None:
    publish(life, *[FITS + 1] * count, 100)
    consume(life, small, no_ack=True)
    assert content_of(small).body == b"100"
    close_of(small)


def test_one_that_is_fresh(life: Life, small: Client) -> None:
    consume(life, small)
    publish(life, FITS + 1)
    close_of(small)
    assert life.core.queue("/", "q").ready == 1


def test_several_consumers_of_a_channel(life: Life, small: Client) -> None:
    consume(life, small, tag="a")
    consume(life, small, tag="b")
    publish(life, 100, FITS + 1, 101, 102)
    assert len([one for one in small.got if isinstance(one, Content)]) == 3
    small.got = [one for one in small.got if not isinstance(one, Content)]
    close_of(small)
    assert life.core.queue("/", "q").ready == 4


@pytest.mark.parametrize("no_ack", [False, True])
def test_basic_get(life: Life, small: Client, no_ack: bool) -> None:
    publish(life, FITS + 1)
    small.method(m.BasicGet(queue="q", no_ack=no_ack))
    life.run()
    close_of(small)
    assert life.core.queue("/", "q").ready == (not no_ack)


def test_what_is_told_of_a_delivery_counts(life: Life, small: Client) -> None:
    publish(life, FITS)
    arguments: dict[str, Any] = {"x-info": True}
    small.consume("q", **arguments)
    life.run()
    small.take(m.BasicConsumeOk)
    close_of(small)
    assert life.core.queue("/", "q").ready == 1


def test_a_reader_of_a_topic(life: Life, small: Client) -> None:
    publish(life, 100, FITS + 1, 200)
    arguments: dict[str, Any] = {"x-bookmark": "0"}
    small.consume("q", **arguments)
    life.run()
    small.take(m.BasicConsumeOk)
    assert content_of(small).body == b"100"
    close_of(small)


def test_a_reply(life: Life, small: Client) -> None:
    small.consume(REPLY_TO, no_ack=True)
    small.publish("q", b"?", properties=encode(Properties(reply_to=REPLY_TO)))
    life.run()
    small.take(m.BasicConsumeOk)
    replier = life.client()
    replier.method(m.BasicGet(queue="q", no_ack=True))
    life.run()
    address = content_of(replier).properties.reply_to
    assert address is not None
    replier.publish(address, b"!", properties=header(FITS))
    replier.publish(address, b"!!", properties=header(FITS + 1))
    life.run()
    assert content_of(small).body == b"!"
    close_of(small)
    assert replier.got == []


def test_a_request_that_its_address_makes_too_large_is_refused(life: Life, small: Client) -> None:
    small.consume(REPLY_TO, no_ack=True)
    life.run()
    small.take(m.BasicConsumeOk)
    small.publish("nowhere", b"?", properties=header(FITS, reply_to=REPLY_TO), mandatory=True)
    life.run()
    close = small.take(m.ChannelClose)
    assert close.reply_code == 406
    assert "the address of its replies" in close.reply_text


def test_what_comes_back_fits_as_it_came(life: Life, small: Client) -> None:
    small.publish("nowhere", b"?", properties=header(FITS), mandatory=True)
    life.run()
    (back,) = small.messages()
    assert isinstance(back.method, m.BasicReturn)


@pytest.mark.parametrize("carbon", [False, True])
def test_a_trace_of_a_large_header_leaves_out_what_no_frame_carries(life: Life, carbon: bool) -> None:
    life.declare("traces")
    client = life.client()
    client.method(m.QueueBind(queue="traces", exchange="amq.rabbitmq.trace", routing_key="#"))
    client.consume("traces", no_ack=True)
    life.run()
    client.got.clear()
    life.core.traced = frozenset({"/"})
    if carbon:
        keys = ["k" * 200] * (HEADER_MOST // 210)
        large = encode(Properties(delivery_mode=2, headers={"CC": keys}, message_id="m"))  # type: ignore[dict-item]
    else:
        large = header(HEADER_MOST, message_id="m")
    assert len(large) <= HEADER_MOST
    client.publish("q", b"large", properties=large)
    life.run()
    (trace,) = client.messages()
    told = decode(encode(trace.properties)).headers
    assert told is not None
    assert told["properties"] == {"delivery_mode": 2, "message_id": "m"}
    assert told["routing_keys"] == ["q"]
