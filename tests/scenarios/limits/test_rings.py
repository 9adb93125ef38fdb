"""Artemis's document on ring queues, sentence by sentence, and what its own tests pin."""

from __future__ import annotations

from typing import Any

from penstock.testing import Broker
from penstock.testing.inbox import Message


def ring(size: int, **settings: Any) -> Broker:
    """A broker with one ring `foo`."""
    return Broker(config={"queue": [{"name": "letters"}, {"name": "foo", "ring_size": size, **settings}]})


def send(broker: Broker, *bodies: bytes) -> None:
    for body in bodies:
        broker.publish("foo", body)


def counts(broker: Broker) -> tuple[object, object, object, object]:
    """Ready, in delivery, scheduled, replaced."""
    stats = broker.stats("foo")
    return stats["ready"], stats["leased"], stats["delayed"], stats["replaced"]


def drained(broker: Broker, count: int = 10_000) -> list[bytes]:
    """Consume so many."""
    subscription = broker.subscribe("foo", max_backlog=count)
    messages: list[Message] = subscription.take()
    subscription.replace(max_backlog=0)  # or the next ones come as these are acknowledged
    for message in messages:
        message.ack()
    subscription.close()
    return [message.body for message in messages]


def test_the_head_goes_when_the_size_is_reached() -> None:
    with ring(3) as broker:
        send(broker, b"A", b"B", b"C")
        assert counts(broker) == (3, 0, 0, 0)
        send(broker, b"D")
        assert counts(broker) == (3, 0, 0, 1)
        assert drained(broker) == [b"B", b"C", b"D"]


def test_in_delivery_messages_cannot_be_removed_and_the_newest_return() -> None:
    with ring(3) as broker:
        subscription = broker.subscribe("foo", max_backlog=10)
        for number, body in enumerate((b"A", b"B", b"C", b"D"), 1):
            send(broker, body)
            assert counts(broker) == (0, number, 0, 0)
        subscription.close()
        broker.disconnect("client-1")
        assert counts(broker) == (3, 0, 0, 1)
        assert drained(broker) == [b"B", b"C", b"D"]


def test_a_lost_connection_is_treated_the_same_way() -> None:
    with ring(3) as broker:
        broker.subscribe("foo", max_backlog=10, name="lost")
        send(broker, b"A", b"B", b"C", b"D")
        broker.disconnect("lost")
        assert drained(broker) == [b"B", b"C", b"D"]


def test_a_rollback_keeps_the_newer_one() -> None:
    with ring(1) as broker:
        subscription = broker.subscribe("foo", max_backlog=1)
        send(broker, b"old")
        [old] = subscription.take()
        send(broker, b"new")
        old.cancel()
        assert counts(broker)[3] == 1
        assert [message.body for message in subscription.take()] == [b"new"]


def test_a_scheduled_message_finds_no_room_when_it_is_due() -> None:
    with ring(3) as broker:
        broker.publish("foo", b"A", delay=300)
        assert counts(broker) == (0, 0, 1, 0)
        for number, body in enumerate((b"B", b"C", b"D"), 1):
            broker.advance(60)
            send(broker, body)
            assert counts(broker) == (number, 0, 1, 0)
        broker.advance(120)
        assert counts(broker) == (3, 0, 0, 1)
        assert drained(broker) == [b"B", b"C", b"D"]


def test_a_scheduled_message_enters_at_the_head() -> None:
    """Of two that are due one after the other the second stands in front."""
    with ring(5) as broker:
        send(broker, b"X")
        broker.publish("foo", b"later", delay=20)
        broker.publish("foo", b"sooner", delay=10)
        send(broker, b"Y")
        broker.advance(30)
        assert drained(broker) == [b"later", b"sooner", b"X", b"Y"]


def test_of_two_scheduled_ones_in_a_ring_of_one_one_is_replaced() -> None:
    with ring(1) as broker:
        broker.publish("foo", b"one", delay=10)
        broker.publish("foo", b"two", delay=20)
        broker.advance(15)
        broker.advance(15)
        assert counts(broker) == (1, 0, 0, 1)
        assert drained(broker) == [b"one"]


def test_the_size_may_change_at_run_time_and_a_lower_one_deletes_nothing() -> None:
    """The sequence of the peer's own test."""
    with Broker(config={"queue": [{"name": "foo"}]}) as broker:
        send(broker, *[b"%d" % number for number in range(100)])
        broker.alter("foo", ring_size=10)
        assert counts(broker)[0] == 100
        assert len(drained(broker, 95)) == 95
        assert counts(broker)[0] == 5
        send(broker, *[b"a"] * 5)
        assert counts(broker) == (10, 0, 0, 0)
        send(broker, *[b"b"] * 5)
        assert counts(broker) == (10, 0, 0, 5)
        drained(broker, 1)
        broker.alter("foo", ring_size=5)
        assert counts(broker)[0] == 9
        drained(broker, 4)
        assert counts(broker)[0] == 5
        send(broker, b"c")
        assert counts(broker) == (5, 0, 0, 6)
        broker.alter("foo", ring_size=10)
        send(broker, *[b"d"] * 5)
        assert counts(broker) == (10, 0, 0, 6)
        send(broker, b"e")
        assert counts(broker) == (10, 0, 0, 7)


def test_a_lower_size_keeps_the_length_as_messages_come() -> None:
    with ring(5) as broker:
        send(broker, *[b"%d" % number for number in range(5)])
        broker.alter("foo", ring_size=2)
        send(broker, b"x", b"y")
        assert counts(broker) == (5, 0, 0, 2)


def test_what_is_replaced_is_nobodys_dead_letter() -> None:
    with ring(1, dead_letter_exchange="", dead_letter_routing_key="letters") as broker:
        send(broker, b"A", b"B")
        assert broker.stats("letters")["ready"] == 0
        assert counts(broker)[3] == 1


def test_an_action_that_asks_for_it_by_name_hears_what_gave_way() -> None:
    for settings, reason in (({"ring_size": 1}, "replaced"), ({"max_length": 1}, "maxlen")):
        publish = {"topic": "told", "data": "{{AMPS_REASON}} {{AMPS_DATA}}"}
        config = {
            "queue": [{"name": "told"}, {"name": "foo", **settings}],
            "action": [{"on": {"queue": "foo", "reason": [reason]}, "do": {"publish": publish}}],
        }
        with Broker(config) as broker:
            send(broker, b"A", b"B")
            told = broker.subscribe("told", max_backlog=10).take()
            assert [message.body for message in told] == [f"{reason} A".encode()]


def test_a_ring_of_one_over_many_rounds() -> None:
    with ring(1) as broker:
        for number in range(250):
            send(broker, b"%d" % number)
            assert counts(broker)[0] == 1
        assert drained(broker) == [b"249"]


def test_an_idle_consumer_is_given_it_without_replacing() -> None:
    with ring(1) as broker:
        broker.subscribe("foo", max_backlog=10)
        send(broker, b"A", b"B", b"C")
        assert counts(broker) == (0, 3, 0, 0)


def test_many_producers_end_with_exactly_the_size() -> None:
    with ring(25) as broker:
        for number in range(25 * 25):
            send(broker, b"%d" % number)
        assert counts(broker) == (25, 0, 0, 600)


def test_no_size_is_no_limit() -> None:
    with Broker(config={"queue": [{"name": "foo", "ring_size": -1}]}) as broker:
        send(broker, *[b"x"] * 50)
        assert counts(broker)[0] == 50


def test_a_ring_outlives_a_crash_as_it_was() -> None:
    with ring(3) as broker:
        send(broker, b"A", b"B", b"C", b"D")
        broker.publish("foo", b"later", delay=10)
        broker.crash()
        broker.restart()
        assert counts(broker)[:3] == (3, 0, 1)
        broker.advance(20)
        assert drained(broker) == [b"B", b"C", b"D"]
