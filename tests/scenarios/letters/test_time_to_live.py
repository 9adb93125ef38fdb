"""Time to live, sentence by sentence: exact for each message, whoever holds it."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from penstock.testing import Broker

LETTERS = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}


def broker_of(**settings: object) -> Broker:
    return Broker(config={"queue": [{"name": "q", **LETTERS, **settings}, {"name": "dead"}]})


@pytest.fixture
def broker() -> Iterator[Broker]:
    with broker_of() as broker:
        yield broker


@pytest.fixture
def channel(broker: Broker) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        yield connection.channel()


def counts(broker: Broker) -> list[object]:
    return [broker.stats(name)["ready"] for name in ("q", "dead")]


def reason(broker: Broker) -> object:
    [message] = broker.subscribe("dead", max_backlog=1).take()
    return message.headers["x-last-death-reason"]


def test_the_smaller_of_queue_and_message_counts_from_its_arrival() -> None:
    with broker_of(message_ttl="2s") as broker:
        broker.publish("q", b"by queue", expiration=5)
        broker.publish("q", b"by itself", expiration=1)
        broker.advance(1.001)
        assert counts(broker) == [1, 1]
        broker.advance(0.998)
        assert counts(broker) == [1, 1]
        broker.advance(0.002)
        assert counts(broker) == [0, 2]


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("abc", "invalid expiration 'abc': no_integer"),
        ("", "invalid expiration '': no_integer"),
        (" 5", "invalid expiration ' 5': no_integer"),
        ("-1", "invalid expiration '-1': {value_negative,-1}"),
        ("1.5", "invalid expiration '1.5': {leftover_string,\".5\"}"),
        ("315360000001", "invalid expiration '315360000001': {value_too_large,315360000001}"),
    ],
)
def test_a_bad_expiration_is_406_with_the_words_clients_know(channel: BlockingChannel, text: str, detail: str) -> None:
    channel.basic_publish("", "q", b"1", pika.BasicProperties(expiration=text))
    with pytest.raises(ChannelClosedByBroker) as closed:
        channel.queue_declare("q", passive=True)
    assert (closed.value.reply_code, closed.value.reply_text) == (406, f"PRECONDITION_FAILED - {detail}")


@pytest.mark.parametrize("text", ["+5000", "5000", "315360000000", "0005000"])
def test_a_good_one_is_taken(broker: Broker, channel: BlockingChannel, text: str) -> None:
    channel.basic_publish("", "q", b"1", pika.BasicProperties(expiration=text))
    channel.queue_declare("q", passive=True)
    assert counts(broker) == [1, 0]
    broker.advance(6)
    assert counts(broker) == ([1, 0] if len(text) > 8 else [0, 1])


def test_each_message_expires_at_its_own_time_not_only_at_the_head(broker: Broker) -> None:
    broker.publish("q", b"long", expiration=100)
    broker.publish("q", b"short", expiration=1)
    broker.publish("q", b"never")
    broker.advance(1.001)
    assert counts(broker) == [2, 1]  # RabbitMQ counts it until it is reached


def test_ttl_0_is_delivered_at_once_or_dies() -> None:
    with broker_of(message_ttl="0s") as broker:
        broker.publish("q", b"1")
        broker.advance(0)
        assert counts(broker) == [0, 1]
        subscription = broker.subscribe("q")
        broker.publish("q", b"2")
        [message] = subscription.take()
        assert message.body == b"2"
        message.cancel()  # an unacked one that returns dies at once
        broker.advance(0)
        assert subscription.take() == []
        assert counts(broker) == [0, 2]


def test_a_message_with_expiration_0_over_amqp(broker: Broker, channel: BlockingChannel) -> None:
    channel.basic_publish("", "q", b"1", pika.BasicProperties(expiration="0"))
    channel.queue_declare("q", passive=True)
    broker.advance(0.001)
    assert counts(broker) == [0, 1]


def test_while_leased_nothing_expires_and_an_ack_is_in_time(broker: Broker) -> None:
    broker.publish("q", b"1", expiration=1)
    [message] = broker.subscribe("q").take()
    broker.advance(10)
    assert broker.stats("q")["leased"] == 1
    assert message.ack() is True
    assert counts(broker) == [0, 0]


@pytest.mark.parametrize("how", ["cancel", "close", "lost"])
def test_what_returns_past_its_deadline_is_expired_and_not_delivered_again(broker: Broker, how: str) -> None:
    broker.publish("q", b"1", expiration=1)
    subscription = broker.subscribe("q", name="client")
    [message] = subscription.take()
    broker.advance(10)
    if how == "cancel":
        message.cancel()
    elif how == "close":
        subscription.close()
    else:
        broker.disconnect("client")
    assert broker.subscribe("q").take() == []
    assert counts(broker) == [0, 1]
    assert reason(broker) == "expired"


def test_a_return_before_the_deadline_keeps_it(broker: Broker) -> None:
    broker.publish("q", b"1", expiration=10)
    subscription = broker.subscribe("q")
    for _ in range(3):
        broker.advance(3)
        [message] = subscription.take()
        message.cancel()
    broker.advance(1.001)
    [last] = subscription.take()  # leased again before
    last.cancel()
    assert counts(broker) == [0, 1]


def test_a_reject_with_requeue_of_an_expired_message_is_expired_not_rejected(
    broker: Broker, channel: BlockingChannel
) -> None:
    broker.publish("q", b"1", expiration=1)
    method, _, _ = channel.basic_get("q")
    assert method is not None
    broker.advance(5)
    channel.basic_reject(method.delivery_tag, requeue=True)
    channel.queue_declare("q", passive=True)
    assert counts(broker) == [0, 1]
    assert reason(broker) == "expired"


def test_a_time_to_live_that_comes_later_does_not_touch_what_is_there(broker: Broker) -> None:
    broker.publish("q", b"before")
    broker.alter("q", message_ttl="1s")
    broker.publish("q", b"after")
    broker.advance(60)
    assert counts(broker) == [1, 1]


def test_an_expired_message_is_never_delivered_even_if_nothing_ran_meanwhile(broker: Broker) -> None:
    broker.publish("q", b"1", expiration=1)
    broker.clock.advance(2_000_000)  # no timer runs
    assert broker.subscribe("q").take() == []
    assert counts(broker) == [0, 1]


@pytest.mark.parametrize("crash", [True, False])
def test_deadlines_outlive_a_restart(broker: Broker, crash: bool) -> None:
    broker.publish("q", b"1", expiration=2)
    broker.publish("q", b"2", expiration=20)
    broker.advance(1)
    if crash:
        broker.crash()
    broker.restart()
    broker.advance(1.5)
    assert counts(broker) == [1, 1]


def test_a_stale_reject_of_what_has_expired_changes_nothing(broker: Broker) -> None:
    broker.alter("q", lease_period="1s")
    broker.publish("q", b"1", expiration=2)
    [message] = broker.subscribe("q").take()
    broker.advance(5)
    assert message.expire() is False
    assert counts(broker) == [0, 1]
