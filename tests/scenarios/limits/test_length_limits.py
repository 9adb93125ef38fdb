"""RabbitMQ's document on queue length limits, sentence by sentence, and what its servers were seen to do beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import NackError

from penstock import QueueFull
from penstock.config.foreign import read_foreign
from penstock.config.foreign.converted import to_toml
from penstock.records.queue_settings import MODES
from penstock.testing import Broker


def limited(**settings: Any) -> Broker:
    """A broker with one queue `q`."""
    return Broker(config={"queue": [{"name": "letters"}, {"name": "q", **settings}]})


def publish(broker: Broker, *bodies: bytes) -> list[bytes]:
    """Publish to `q`; what was refused."""
    refused = list[bytes]()
    for body in bodies:
        try:
            broker.publish("q", body)
        except QueueFull:
            refused.append(body)
    return refused


def drained(broker: Broker, queue: str = "q") -> list[bytes]:
    """Take everything that is ready."""
    subscription = broker.subscribe(queue, max_backlog=10_000)
    messages = subscription.take()
    for message in messages:
        message.ack()
    subscription.close()
    return [message.body for message in messages]


LETTERS = {"dead_letter_exchange": "", "dead_letter_routing_key": "letters"}


def test_a_limit_of_messages_keeps_the_newest() -> None:
    with limited(max_length=3) as broker:
        assert not publish(broker, b"1", b"2", b"3", b"4", b"5")
        assert drained(broker) == [b"3", b"4", b"5"]


def test_a_limit_of_bytes_counts_bodies_alone() -> None:
    with limited(max_length_bytes="100B") as broker:
        for _ in range(3):
            broker.publish("q", b"x" * 30, headers={"long": "h" * 500})
        assert broker.stats("q")["ready"] == 3
        assert broker.stats("q")["ready_bytes"] == 90
        broker.publish("q", b"y" * 30)
        assert broker.stats("q")["ready_bytes"] == 90
        assert broker.stats("q")["ready"] == 3


def test_of_two_limits_the_one_that_is_hit_first_holds() -> None:
    with limited(max_length=3, max_length_bytes="100B") as broker:
        publish(broker, b"a", b"b", b"c", b"d")
        assert broker.stats("q")["ready"] == 3
        publish(broker, b"e" * 99)
        assert drained(broker) == [b"d", b"e" * 99]


def test_only_ready_messages_count() -> None:
    with limited(max_length=2) as broker:
        subscription = broker.subscribe("q", max_backlog=3)
        publish(broker, b"1", b"2", b"3", b"4", b"5")
        assert broker.stats("q")["leased"] == 3
        assert broker.stats("q")["ready"] == 2
        assert [message.body for message in subscription.take()] == [b"1", b"2", b"3"]
        publish(broker, b"6", b"7")  # as many give way as are too many of those that are ready
        assert (broker.stats("q")["leased"], broker.stats("q")["dropped"]) == (3, 2)
        assert [record.body for record in broker.sow("q")] == [b"6", b"7"]


def test_what_would_be_limited_is_told() -> None:
    with limited(max_length=5) as broker:
        publish(broker, b"one", b"three")
        stats = broker.stats("q")
        assert (stats["ready"], stats["ready_bytes"]) == (2, 8)


def test_the_oldest_are_dead_lettered_in_the_order_of_their_death() -> None:
    with limited(max_length=2, **LETTERS) as broker:
        publish(broker, *[b"%d" % number for number in range(10)])
        assert drained(broker, "letters") == [b"%d" % number for number in range(8)]
        assert drained(broker) == [b"8", b"9"]


def test_dropping_is_no_failure_to_the_publisher() -> None:
    with limited(max_length=0) as broker:
        assert not publish(broker, b"gone")
        assert broker.stats("q")["dropped"] == 1


def test_a_newcomer_larger_than_the_limit_empties_the_queue_and_goes_too() -> None:
    with limited(max_length_bytes="100B", **LETTERS) as broker:
        publish(broker, b"a" * 30, b"b" * 30, b"c" * 30, b"d" * 101)
        assert [len(body) for body in drained(broker, "letters")] == [30, 30, 30, 101]


def test_reject_publish_discards_the_newest_and_says_so() -> None:
    with limited(max_length=2, overflow="reject-publish") as broker:
        assert publish(broker, b"1", b"2", b"3") == [b"3"]
        with pytest.raises(QueueFull, match=r"'q' .*max_length is 2, 2 messages are ready"):
            broker.publish("q", b"4")
        assert broker.stats("q")["refused"] == 2
        assert drained(broker) == [b"1", b"2"]


def test_a_full_rejecting_queue_refuses_even_what_an_idle_consumer_would_take() -> None:
    with limited(max_length=0, overflow="reject-publish") as broker:
        subscription = broker.subscribe("q", max_backlog=10)
        assert publish(broker, b"1") == [b"1"]
        assert subscription.take() == []


def test_a_limit_of_zero_that_drops_is_a_pipe() -> None:
    with limited(max_length=0) as broker:
        subscription = broker.subscribe("q", max_backlog=1)
        publish(broker, b"1", b"2")
        assert [message.body for message in subscription.take()] == [b"1"]
        assert broker.stats("q")["ready"] == 0


def test_a_consumer_of_one_beside_a_limit_of_two_gets_the_first_and_the_last_two() -> None:
    with limited(max_length=2) as broker:
        subscription = broker.subscribe("q", max_backlog=1)
        publish(broker, *[b"%d" % number for number in range(10)])
        got = list[bytes]()
        while messages := subscription.take():
            got += [message.body for message in messages]
            messages[0].ack()
        assert got == [b"0", b"8", b"9"]


def test_several_queues_decide_alone_and_the_publisher_hears_one_no() -> None:
    config = {
        "queue": [
            {"name": "full", "underlying_topic": "t", "max_length": 0, "overflow": "reject-publish"},
            {"name": "free", "underlying_topic": "t"},
        ]
    }
    with Broker(config=config) as broker:
        with pytest.raises(QueueFull, match="'full'"):
            broker.publish("t", b"copy")
        assert drained(broker, "free") == [b"copy"]
        assert drained(broker, "full") == []


def test_drop_newest_loses_what_comes_and_tells_nobody() -> None:
    with limited(max_length=2, overflow="drop-newest") as broker:
        publish(broker, b"1", b"2", b"3", b"4")
        assert (broker.stats("q")["dropped"], broker.stats("q")["refused"]) == (2, 0)
        assert drained(broker) == [b"1", b"2"]
        publish(broker, b"5")
        assert drained(broker) == [b"5"]


def test_what_drop_newest_loses_others_keep_and_no_transaction_is_refused_for_it() -> None:
    config = {
        "queue": [
            {"name": "full", "underlying_topic": "t", "max_length": 1, "overflow": "drop-newest"},
            {"name": "free", "underlying_topic": "t"},
        ]
    }
    with Broker(config=config) as broker:
        broker.publish("t", b"1")
        broker.publish("t", b"2")
        with broker.transaction() as transaction:
            transaction.publish("t", b"3")
        assert drained(broker, "free") == [b"1", b"2", b"3"]
        assert drained(broker, "full") == [b"1"]


def test_what_is_returned_goes_to_its_place_and_the_oldest_go() -> None:
    with limited(max_length=2, **LETTERS) as broker:
        subscription = broker.subscribe("q", max_backlog=5)
        publish(broker, b"1", b"2", b"3", b"4", b"5")
        subscription.close()
        broker.disconnect("client-1")
        assert drained(broker) == [b"4", b"5"]
        assert drained(broker, "letters") == [b"1", b"2", b"3"]


def test_a_return_to_a_rejecting_queue_is_never_refused() -> None:
    with limited(max_length=2, overflow="reject-publish") as broker:
        subscription = broker.subscribe("q", max_backlog=2)
        assert not publish(broker, b"1", b"2", b"3", b"4")
        subscription.close()
        assert broker.stats("q")["ready"] == 4
        assert publish(broker, b"5") == [b"5"]


def test_a_lower_limit_trims_at_once_and_a_higher_one_does_nothing() -> None:
    with limited() as broker:
        publish(broker, *[b"%d" % number for number in range(10)])
        broker.alter("q", max_length=4)
        assert broker.stats("q")["ready"] == 4
        broker.alter("q", max_length=8)
        assert drained(broker) == [b"6", b"7", b"8", b"9"]


def test_a_lower_limit_of_a_rejecting_queue_trims_nothing_until_it_drops() -> None:
    with limited(overflow="reject-publish") as broker:
        publish(broker, *[b"%d" % number for number in range(10)])
        broker.alter("q", max_length=4)
        assert broker.stats("q")["ready"] == 10
        broker.alter("q", overflow="drop-head")
        assert drained(broker) == [b"6", b"7", b"8", b"9"]


def test_a_start_applies_the_limits_to_what_it_finds() -> None:
    with limited(max_length=2) as broker:
        broker.subscribe("q", max_backlog=10)
        publish(broker, b"1", b"2", b"3", b"4")
        broker.crash()
        broker.restart()
        assert drained(broker) == [b"3", b"4"]


def test_a_refused_newcomer_is_a_dead_letter_with_reject_publish_dlx() -> None:
    with limited(max_length=1, overflow="reject-publish-dlx", **LETTERS) as broker:
        assert publish(broker, b"1", b"2") == [b"2"]
        assert drained(broker, "letters") == [b"2"]
        broker.crash()
        broker.restart()
        assert drained(broker) == [b"1"]


def test_the_lowest_priority_gives_way_first() -> None:
    """RabbitMQ lets the head of the highest level go."""
    with limited(max_length=4, max_priority=3) as broker:
        for level in (1, 2, 3):
            for number in range(3):
                broker.publish("q", b"%d%d" % (level, number), priority=level)
        assert drained(broker) == [b"30", b"31", b"32", b"22"]


def test_a_rejecting_queue_refuses_high_priorities_too() -> None:
    with limited(max_length=1, max_priority=3, overflow="reject-publish") as broker:
        broker.publish("q", b"low", priority=1)
        with pytest.raises(QueueFull):
            broker.publish("q", b"high", priority=3)


def test_over_amqp_each_number_has_one_outcome() -> None:
    with Broker() as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        channel = connection.channel()
        channel.queue_declare("q", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
        channel.confirm_delivery()
        outcomes = list[bool]()
        for number in range(5):
            try:
                channel.basic_publish("", "q", b"%d" % number)
                outcomes.append(True)
            except NackError:
                outcomes.append(False)
        assert outcomes == [True, True, False, False, False]
        connection.close()


def test_over_amqp_without_confirms_what_is_refused_is_lost() -> None:
    with Broker() as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        channel = connection.channel()
        channel.queue_declare("q", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
        for number in range(5):
            channel.basic_publish("", "q", b"%d" % number)
        assert channel.queue_declare("q", passive=True).method.message_count == 2
        connection.close()


@pytest.mark.parametrize("arguments", [{"x-max-length": -1}, {"x-max-length": "3"}, {"x-overflow": "spill"}])
def test_over_amqp_a_limit_that_is_none_is_refused(arguments: dict[str, Any]) -> None:
    with Broker() as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
            connection.channel().queue_declare("q", arguments=arguments)
        assert caught.value.reply_code == 406
        connection.close()


LARGEST = {"x-max-length": 2**63 - 1, "x-max-length-bytes": 2**63 - 1}


@pytest.mark.parametrize("overflow", sorted(MODES))
def test_the_largest_number_of_amqp_is_a_limit_that_nothing_reaches(overflow: str) -> None:
    with Broker() as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        channel = connection.channel()
        channel.confirm_delivery()
        for _ in range(2):
            channel.queue_declare("q", arguments=LARGEST | {"x-overflow": overflow})
        channel.basic_publish("", "q", b"body")
        assert channel.basic_get("q", auto_ack=True)[2] == b"body"
        connection.close()


def test_a_file_may_name_the_largest_number_of_amqp_as_a_limit(tmp_path: Path) -> None:
    settings = tmp_path / "definitions.json"
    queue = {"name": "q", "vhost": "/", "durable": True, "auto_delete": False, "arguments": LARGEST}
    policy = {"name": "p", "vhost": "/", "pattern": ".*", "definition": {"max-length": 2**63 - 1}}
    settings.write_text(json.dumps({"rabbit_version": "3.13.0", "queues": [queue], "policies": [policy]}))
    converted = tmp_path / "penstock.toml"
    converted.write_text(to_toml(read_foreign(settings).settings))
    for file in (settings, converted):
        with Broker(config=file) as broker:
            broker.publish("q", b"body")
            assert drained(broker) == [b"body"]
