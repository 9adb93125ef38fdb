"""Dead letters whose target is full: never lost silently, in order, tried again until there is room."""

from __future__ import annotations

import urllib.request

import pika
import pytest

from penstock.testing import Broker
from penstock.testing.inbox import Subscription


def broker_of(**target: object) -> Broker:
    return Broker(
        config={
            "queue": [
                {"name": "source", "dead_letter_exchange": "", "dead_letter_routing_key": "target"},
                {"name": "target", **target},
            ]
        }
    )


def fill(broker: Broker, queue: str, *bodies: bytes) -> None:
    for body in bodies:
        broker.publish(queue, body)


def bodies(subscription: Subscription) -> list[bytes]:
    taken = subscription.take()
    for message in taken:
        message.ack()
    return [message.body for message in taken]


def test_the_limit_of_a_target_counts_as_for_any_publish_drop_head_trims() -> None:
    with broker_of(max_length=2) as broker:
        fill(broker, "source", b"1", b"2", b"3")
        for message in broker.subscribe("source", max_backlog=9).take():
            message.expire()
        assert broker.stats("source")["dead_letter_refused"] == 0
        assert bodies(broker.subscribe("target", max_backlog=9)) == [b"2", b"3"]


def test_what_a_target_refuses_stays_dying_at_its_source_and_is_counted() -> None:
    with broker_of(max_length=1, overflow="reject-publish") as broker:
        fill(broker, "source", b"1", b"2", b"3")
        subscription = broker.subscribe("source", max_backlog=9)
        for message in subscription.take():
            message.expire()
        stats = broker.stats("source")
        assert (stats["ready"], stats["leased"], stats["queue_depth"]) == (0, 0, 2)
        assert stats["dead_letter_refused"] == 1  # the third waits behind the second
        assert broker.stats("target")["ready"] == 1
        told = [reason.text for reason in broker.explain("source") if reason.code == "dying"]
        assert told == ["a full queue refuses the dead letters of 2 messages; they are tried again in 1 s"]
        assert subscription.take() == []  # nobody gets it any more
        assert bodies(broker.subscribe("target", max_backlog=1, name="t")) == [b"1"]
        broker.advance(0.9)
        assert broker.stats("target")["ready"] == 0


def test_a_target_that_is_full_in_bytes() -> None:
    with broker_of(max_length_bytes="5B", overflow="reject-publish") as broker:
        fill(broker, "source", b"123", b"4567", b"89")
        for message in broker.subscribe("source", max_backlog=9).take():
            message.expire()
        assert broker.stats("target")["ready"] == 1
        assert bodies(broker.subscribe("target", max_backlog=1, name="t")) == [b"123"]
        broker.advance(1.001)
        assert broker.stats("source")["queue_depth"] == 1  # it has given the second one, and the third does not fit yet


def test_it_is_tried_again_in_order_until_there_is_room_for_all() -> None:
    with broker_of(max_length=1, overflow="reject-publish") as broker:
        fill(broker, "source", *(b"%d" % n for n in range(4)))
        subscription = broker.subscribe("source", max_backlog=9)
        taken = subscription.take()
        for message in taken[:2]:
            message.expire()
        for message in taken[2:]:  # they died after it, so they wait behind it
            message.expire()
        seen = list[bytes]()
        for _ in range(10):
            target = broker.subscribe("target", max_backlog=9)
            seen += bodies(target)
            target.close()
            broker.advance(31)
        assert seen == [b"0", b"1", b"2", b"3"]
        assert broker.stats("source")["queue_depth"] == 0


def test_the_pause_grows_to_half_a_minute() -> None:
    with broker_of(max_length=0, overflow="reject-publish") as broker:
        fill(broker, "source", b"1")
        [message] = broker.subscribe("source").take()
        message.expire()
        tries = [broker.stats("source")["dead_letter_refused"]]
        for seconds in (1, 2, 4, 8, 16, 30, 30):
            broker.advance(seconds + 0.001)
            tries.append(broker.stats("source")["dead_letter_refused"])
        assert tries == [1, 2, 3, 4, 5, 6, 7, 8]
        broker.alter("target", max_length=5)
        broker.advance(31)
        assert broker.stats("target")["ready"] == 1


def test_one_of_several_targets_that_refuses_keeps_it_from_all() -> None:
    config = {
        "queue": [
            {"name": "source", "dead_letter_exchange": "amq.fanout"},
            {"name": "roomy"},
            {"name": "full", "max_length": 0, "overflow": "reject-publish"},
        ],
    }
    with Broker(config=config) as broker:
        with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
            channel = connection.channel()
            channel.queue_bind("roomy", "amq.fanout", "")
            channel.queue_bind("full", "amq.fanout", "")
        fill(broker, "source", b"1")
        [message] = broker.subscribe("source").take()
        message.expire()
        assert [broker.stats(name)["ready"] for name in ("roomy", "full")] == [0, 0]
        broker.alter("full", max_length=5)
        broker.advance(2)
        assert [broker.stats(name)["ready"] for name in ("roomy", "full")] == [1, 1]  # once


@pytest.mark.parametrize("crash", [True, False])
def test_after_a_restart_it_is_where_it_was_before_it_died(crash: bool) -> None:
    with broker_of(max_length=0, overflow="reject-publish") as broker:
        fill(broker, "source", b"1")
        [message] = broker.subscribe("source").take()
        message.expire()
        broker.advance(1)
        if crash:
            broker.crash()
        broker.restart()
        [again] = broker.subscribe("source").take()
        assert (again.body, again.redelivered) == (b"1", True)


def test_what_expired_dies_again_after_a_restart() -> None:
    with broker_of(max_length=0, overflow="reject-publish") as broker:
        broker.publish("source", b"1", expiration=1)
        broker.advance(2)
        broker.crash()
        broker.restart()
        assert broker.subscribe("source").take() == []
        assert broker.stats("source")["queue_depth"] == 1
        broker.alter("target", max_length=1)
        broker.advance(2)
        assert (broker.stats("source")["queue_depth"], broker.stats("target")["ready"]) == (0, 1)


def test_a_queue_that_refuses_its_own_dead_letters_keeps_them() -> None:
    config = {
        "queue": [
            {
                "name": "q", "max_length": 1, "overflow": "reject-publish", "dead_letter_exchange": "",
                "dead_letter_routing_key": "q",
            }
        ]
    }  # fmt: skip
    with Broker(config=config) as broker:
        fill(broker, "q", b"1")
        first = broker.subscribe("q")
        [message] = first.take()
        first.replace(max_backlog=0)
        fill(broker, "q", b"2")
        message.expire()
        stats = broker.stats("q")
        assert (stats["ready"], stats["queue_depth"], stats["dead_letter_refused"]) == (1, 2, 1)
        second = broker.subscribe("q", max_backlog=1)
        assert bodies(second) == [b"2"]
        broker.advance(1.1)
        assert bodies(second) == [b"1"]


def test_metrics_count_refused_letters_and_transactions() -> None:
    with broker_of(max_length=0, overflow="reject-publish") as broker:
        fill(broker, "source", b"1")
        [message] = broker.subscribe("source").take()
        message.expire()
        with broker.transaction() as transaction:
            transaction.publish("source", b"2")
        with urllib.request.urlopen(f"{broker.http_url}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        assert "penstock_dead_letters_refused_total 1.0" in lines
        assert "penstock_transactions_committed_total 1.0" in lines
