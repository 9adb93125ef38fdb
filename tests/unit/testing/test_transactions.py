"""Transactions of the broker in a test's process: one step, fenced by attempt, whole after a crash."""

from __future__ import annotations

import pytest

from penstock.errors import Fenced, PreconditionFailed, QueueFull
from penstock.testing import Broker

LETTERS = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
CONFIG = {
    "queue": [
        {"name": "in", "lease_period": "30s", **LETTERS},
        {"name": "out"},
        {"name": "dead"},
    ]
}


def depths(broker: Broker) -> list[object]:
    return [broker.stats(name)["ready"] for name in ("in", "out", "dead")]


def test_settle_and_publish_are_one_step() -> None:
    with Broker(config=CONFIG) as broker:
        broker.publish("in", b"1")
        [message] = broker.subscribe("in").take()
        with broker.transaction() as transaction:
            transaction.publish("out", b"made of 1")
            transaction.publish("nobody", b"lost")
            transaction.ack(message)
            assert depths(broker) == [0, 0, 0]
        assert depths(broker) == [0, 1, 0]
        first, second = transaction.bookmarks
        assert second == ""
        [out] = broker.subscribe("out").take()
        assert (out.body, out.bookmark) == (b"made of 1", first)
        assert message.ack() is False


def test_an_exception_forgets_it_and_the_message_is_still_held() -> None:
    with Broker(config=CONFIG) as broker:
        broker.publish("in", b"1")
        subscription = broker.subscribe("in")
        [message] = subscription.take()

        def work() -> None:
            with broker.transaction() as transaction:
                transaction.publish("out", b"made of 1")
                transaction.ack(message)
                raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            work()
        assert depths(broker) == [0, 0, 0]
        assert subscription.outstanding == 1
        assert message.ack() is True


def test_one_stale_message_refuses_the_whole_and_is_named() -> None:
    with Broker(config=CONFIG) as broker:
        broker.publish("in", b"1")
        broker.publish("in", b"2")
        subscription = broker.subscribe("in", max_backlog=2)
        one, two = subscription.take()
        other = broker.subscribe("in", max_backlog=2)
        one.cancel()
        transaction = broker.transaction()
        transaction.publish("out", b"made of both")
        transaction.ack(one)
        transaction.ack(two)
        with pytest.raises(Fenced, match="no longer held") as refused:
            transaction.commit()
        assert one.bookmark in str(refused.value)
        assert two.bookmark not in str(refused.value)
        assert depths(broker)[1:] == [0, 0]
        again = [*subscription.take(), *other.take()]
        assert [message.body for message in again] == [b"1"]
        assert two.ack() is True


def test_a_lease_that_ended_is_stale_even_if_the_same_consumer_holds_it_again() -> None:
    with Broker(config=CONFIG) as broker:
        broker.publish("in", b"1")
        subscription = broker.subscribe("in")
        [first] = subscription.take()
        broker.advance(31)
        [second] = subscription.take()
        assert second.attempt == 2
        with pytest.raises(Fenced), broker.transaction() as transaction:
            transaction.ack(first)
        with broker.transaction() as transaction:
            transaction.ack(second)
        assert broker.stats("in")["ready"] == 0


def test_a_reject_takes_its_dead_letter_along() -> None:
    with Broker(config=CONFIG) as broker:
        broker.publish("in", b"1")
        [message] = broker.subscribe("in").take()
        with broker.transaction() as transaction:
            transaction.reject(message)
            transaction.publish("out", b"told")
        assert depths(broker) == [0, 1, 1]
        broker.crash()
        broker.restart()
        assert depths(broker) == [0, 1, 1]


def test_release_and_retry_within() -> None:
    with Broker(config=CONFIG) as broker:
        broker.publish("in", b"1")
        broker.publish("in", b"2")
        subscription = broker.subscribe("in", max_backlog=2)
        one, two = subscription.take()
        with broker.transaction() as transaction:
            transaction.release(one)
            transaction.retry(two, delay=5)
        [again] = subscription.take()
        assert (again.body, again.redelivered) == (b"1", True)
        broker.advance(6)
        [later] = subscription.take()
        assert (later.body, later.attempt) == (b"2", 2)


def test_what_would_be_refused_leaves_nothing() -> None:
    with Broker(config=CONFIG) as broker:
        broker.publish("in", b"1")
        subscription = broker.subscribe("in")
        [message] = subscription.take()
        transaction = broker.transaction()
        transaction.ack(message)
        transaction.publish("out", b"1")
        transaction.publish("out", b"2", headers={"x-delay": "soon"})
        with pytest.raises(PreconditionFailed, match="message 2 of 2 is refused: invalid header 'x-delay'"):
            transaction.commit()
        assert depths(broker) == [0, 0, 0]
        assert subscription.outstanding == 1
        with pytest.raises(PreconditionFailed, match="over"):
            transaction.publish("out", b"3")


def test_settling_one_message_twice_in_a_transaction_is_refused() -> None:
    with Broker(config=CONFIG) as broker:
        broker.publish("in", b"1")
        [message] = broker.subscribe("in").take()
        transaction = broker.transaction()
        transaction.ack(message)
        with pytest.raises(PreconditionFailed, match="twice"):
            transaction.reject(message)


def test_delays_and_expirations_of_what_is_published() -> None:
    with Broker(config=CONFIG) as broker:
        with broker.transaction() as transaction:
            transaction.publish("out", b"now")
            transaction.publish("out", b"later", delay=10)
            transaction.publish("out", b"short", expiration=5)
        assert broker.stats("out")["delayed"] == 1
        broker.advance(11)
        subscription = broker.subscribe("out", max_backlog=9)
        assert [message.body for message in subscription.take()] == [b"now", b"later"]


LIMITED = {
    "queue": [
        {"name": "in", "lease_period": "30s", **LETTERS},
        {"name": "out", "max_length": 2, "overflow": "reject-publish"},
        {"name": "dead", "max_length": 1, "overflow": "reject-publish"},
    ]
}


def test_a_queue_that_refuses_one_message_leaves_nothing() -> None:
    with Broker(config=LIMITED) as broker:
        broker.publish("in", b"1")
        subscription = broker.subscribe("in")
        [message] = subscription.take()
        broker.publish("out", b"there")
        transaction = broker.transaction()
        transaction.ack(message)
        transaction.publish("out", b"2")
        transaction.publish("out", b"3")
        with pytest.raises(QueueFull, match="message 2 of 2 is refused: queue 'out'") as refused:
            transaction.commit()
        assert refused.value.reason == "maxlen"
        assert depths(broker) == [0, 1, 0]
        assert subscription.outstanding == 1
        assert broker.stats("out")["refused"] == 1
        with broker.transaction() as transaction:
            transaction.ack(message)
            transaction.publish("out", b"2")
        assert depths(broker) == [0, 2, 0]


def test_messages_of_one_transaction_need_room_at_once_whoever_consumes() -> None:
    with Broker(config=LIMITED) as broker:
        subscription = broker.subscribe("out", max_backlog=9)
        transaction = broker.transaction()
        for n in range(3):
            transaction.publish("out", b"%d" % n)
        with pytest.raises(QueueFull, match="message 3 of 3"):
            transaction.commit()
        with broker.transaction() as transaction:
            for n in range(2):
                transaction.publish("out", b"%d" % n)
        assert [message.body for message in subscription.take()] == [b"0", b"1"]


def test_a_dead_letter_that_is_refused_refuses_the_transaction() -> None:
    with Broker(config=LIMITED) as broker:
        for n in range(3):
            broker.publish("in", b"%d" % n)
        subscription = broker.subscribe("in", max_backlog=3)
        one, two, three = subscription.take()
        transaction = broker.transaction()
        transaction.publish("out", b"new")
        transaction.reject(one)
        transaction.reject(two)
        with pytest.raises(QueueFull, match="the dead letter of") as refused:
            transaction.commit()
        assert two.bookmark in str(refused.value)
        assert depths(broker) == [0, 0, 0]
        with broker.transaction() as transaction:
            transaction.reject(one)
            transaction.ack(two)
        assert depths(broker) == [0, 0, 1]
        assert three.ack() is True
