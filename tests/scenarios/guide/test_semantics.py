"""User guide, "Delivery semantics" and "Message flow": both kinds of queues, step by step, in memory and over AMQP."""

from __future__ import annotations

from typing import Any

import pytest

from scenario import Worker, amqp, bodies, broker_of, get, publish, waiting

ONCE: dict[str, Any] = {"name": "q", "semantics": "at-most-once"}
LEAST: dict[str, Any] = {"name": "q", "lease_period": "30s"}


def test_at_most_once_a_message_has_left_when_it_is_sent() -> None:
    with broker_of(ONCE) as broker:
        broker.publish("q", b"reading")
        assert bodies(broker.subscribe("q", name="sensor").take()) == [b"reading"]
        assert waiting(broker, "q") == []
        broker.disconnect("sensor")  # it never acknowledged
        assert broker.subscribe("q").take() == []
        broker.crash()
        broker.restart()
        assert broker.subscribe("q").take() == []


def test_at_most_once_acks_only_make_room() -> None:
    with broker_of(ONCE) as broker:
        for n in range(3):
            broker.publish("q", f"{n}")
        worker = broker.subscribe("q")
        for n in range(3):
            [message] = worker.take()
            assert message.body == b"%d" % n
            assert worker.take() == []
            message.ack()


def test_at_most_once_over_amqp() -> None:
    with broker_of(ONCE) as broker:
        with amqp(broker) as channel:
            publish(channel, "q", "1", "2")
            assert get(channel, "q", ack=False) == b"1"
        with amqp(broker) as channel:
            assert [get(channel, "q"), get(channel, "q")] == [b"2", None]


def test_at_least_once_waits_for_the_ack() -> None:
    with broker_of(LEAST) as broker:
        broker.publish("q", b"insert")
        worker = broker.subscribe("q")
        [message] = worker.take()
        assert message.lease_until == broker.now() + 30  # told with the message
        broker.advance(30)
        [again] = worker.take()
        assert (again.body, again.redelivered) == (b"insert", True)
        assert again.ack()
        broker.advance(60)
        assert worker.take() == []
        assert broker.stats("q")["ready"] == 0


def test_the_end_of_the_lease_is_told_over_amqp() -> None:
    with broker_of(LEAST) as broker, amqp(broker) as channel:
        publish(channel, "q", "insert")
        worker = Worker(channel, "q", x_info=True)
        worker.take(1)
        assert worker.headers[0]["x-lease-until"] == int((broker.now() + 30) * 1000)


def test_at_least_once_over_amqp() -> None:
    with broker_of(LEAST) as broker, amqp(broker) as channel:
        publish(channel, "q", "insert")
        first = Worker(channel, "q")
        first.take(1)
        broker.advance(30)  # nobody acknowledged
        [(method, body)] = first.take(1)
        assert (method.redelivered, body) == (True, b"insert")
        channel.basic_ack(method.delivery_tag)
        assert get(channel, "q") is None


@pytest.mark.parametrize("settings", [ONCE, LEAST])
def test_without_failures_each_message_comes_once_to_one(settings: dict[str, Any]) -> None:
    with broker_of(settings) as broker:
        workers = [broker.subscribe("q", max_backlog=5, name=f"w{n}") for n in range(4)]
        for n in range(100):
            broker.publish("q", f"{n}")
        seen: list[bytes] = []
        while any(inboxes := [worker.take() for worker in workers]):
            for inbox in inboxes:
                seen += bodies(inbox)
                for message in inbox:
                    message.ack()
        assert sorted(seen, key=int) == [b"%d" % n for n in range(100)]


def test_a_message_that_nobody_wants_leaves_when_it_expires() -> None:
    with broker_of({**ONCE, "expiration": "1m"}) as broker:
        broker.subscribe("q", filter="/wanted = 1")
        broker.publish("q", b'{"wanted": 0}')
        broker.advance(59)
        assert len(waiting(broker, "q")) == 1
        broker.advance(1)
        assert waiting(broker, "q") == []


def test_a_lease_ends_within_the_expiration_and_beyond_it() -> None:
    with broker_of({**LEAST, "expiration": "45s"}) as broker:
        broker.publish("q", b"job")
        worker = broker.subscribe("q")
        assert len(worker.take()) == 1
        broker.advance(30)
        assert len(worker.take()) == 1  # in the queue for less than its expiration: it comes back
        broker.advance(30)
        assert worker.take() == []  # and now for longer: the end of the lease is its end
        assert broker.stats("q")["ready"] == 0


def test_delivered_as_often_as_allowed_it_ends_with_the_lease() -> None:
    with broker_of({**LEAST, "max_deliveries": 2}) as broker:
        broker.publish("q", b"poison")
        worker = broker.subscribe("q")
        for _ in range(2):
            assert bodies(worker.take()) == [b"poison"]
            broker.advance(30)
        assert worker.take() == []
        assert waiting(broker, "q") == []


@pytest.mark.parametrize("ways", [("unsubscribes", "disconnects"), ("disconnects", "unsubscribes")])
def test_two_deliveries_are_the_limit_when_the_holder_leaves_too(ways: tuple[str, str]) -> None:
    """The reference's example for MaxDeliveries: twice delivered, expired when the subscriber goes without an ack."""
    with broker_of({"name": "q", "max_deliveries": 2}) as broker:
        mark = broker.publish("q", b"poison")
        for leaves in ways:
            holder = broker.subscribe("q", name=leaves)
            assert bodies(holder.take()) == [b"poison"]
            if leaves == "disconnects":
                broker.disconnect(leaves)
            else:
                holder.close()
        assert broker.subscribe("q").take() == []
        last = broker.story(mark)[-1]
        assert (last.event, last.details["reason"]) == ("delivery_limit", "max_deliveries")


def test_the_second_cancel_is_the_last() -> None:
    """The reference's example for MaxCancels."""
    with broker_of({"name": "q", "max_cancels": 2}) as broker, amqp(broker) as channel:
        publish(channel, "q", "job")
        worker = Worker(channel, "q")
        for _ in range(2):
            [(method, _)] = worker.take(1)
            channel.basic_nack(method.delivery_tag, requeue=True)
        assert waiting(broker, "q") == []
        assert worker.nothing()


def test_a_store_that_knows_what_it_has_done_makes_it_exactly_once() -> None:
    with broker_of(LEAST) as broker:
        broker.publish("q", b"transfer")
        done: set[str] = set()
        effects: list[bytes] = []

        def process(crash_before_ack: bool) -> None:
            [message] = worker.take()
            if message.bookmark not in done:  # in one transaction with its effect
                done.add(message.bookmark)
                effects.append(message.body)
            if not crash_before_ack:
                message.ack()

        worker = broker.subscribe("q", name="first")
        process(crash_before_ack=True)
        broker.disconnect("first")
        worker = broker.subscribe("q", name="second")
        process(crash_before_ack=False)
        assert effects == [b"transfer"]
        assert waiting(broker, "q") == []
